"""What is said of a method that other libraries have, and ours do not."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support import key_value_table, open_database

from nyala.presentation import unknown_methods as hints


@pytest.fixture
def objects(tmp_path: Path) -> Any:
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        yield {
            "Database": db,
            "Table": table,
            "Scan": table.scan(),
            "ChangeFeed": table.changes(since=0),
            "Result": db.sql("SELECT 1"),
        }


def test_each_hint_names_what_is_there(objects: dict[str, Any]) -> None:
    """A hint that leads to the next error is worse than none; and none stands for what there is."""
    variables = {"db": "Database", "table": "Table", "scan": "Scan", "feed": "ChangeFeed", "result": "Result"}
    seen = 0
    for kind, known in hints._HINTS.items():
        for name in known:
            with pytest.raises(AttributeError) as error:
                getattr(objects[kind], name)
            said = str(error.value)
            assert said.startswith(f"{kind!r} object has no attribute {name!r}: ") and "{" not in said
            for variable, method in re.findall(r"\b(db|table|scan|feed|result)\.(\w+)", said):
                assert hasattr(objects[variables[variable]], method), said
                seen += 1
            for method in re.findall(r"db\[.*?\]\.(\w+)", said):
                assert hasattr(objects["Table"], method), said
    assert seen > 50


def test_what_nobody_hints_at_is_pythons_own_error(objects: dict[str, Any]) -> None:
    """Copies, pickles and other libraries ask for names that are not there, and go by the answer."""
    for kind, one in objects.items():
        with pytest.raises(
            AttributeError, match=f"^{kind!r} object has no attribute 'no_such_thing'$"
        ) as error:
            one.no_such_thing  # noqa: B018
        assert error.value.name == "no_such_thing" and error.value.obj is one
        assert not hasattr(one, "__array__")
    assert copy.copy(objects["Table"]).name == "t"
