"""A plugin of pytest that registers the dialect, and skips the tests of `exclusions.TESTS`."""

from __future__ import annotations

import re

import pytest
from sqlalchemy.dialects import registry

from tests.sqlalchemy_suite.exclusions import TESTS

registry.register("nyala", "nyala.sqlalchemy.dialect", "NyalaDialect")
registry.register("nyala.dbapi", "nyala.sqlalchemy.dialect", "NyalaDialect")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    kind = item.getparent(pytest.Class)
    assert kind is not None
    # SQLAlchemy calls the class `Name_nyala+dbapi_0_1_0`.
    name = f"{re.sub(r'_nyala.*', '', kind.name)}.{item.name}"
    for excluded, reason in TESTS.items():
        if name.startswith(excluded):
            pytest.skip(reason)
