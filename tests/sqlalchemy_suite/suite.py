"""The tests of SQLAlchemy's suite.

Three fixtures would create views, UNIQUE and CHECK constraints although these features are off. They are replaced.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.testing import config, fixtures, suite
from sqlalchemy.testing.requirements import SuiteRequirements
from sqlalchemy.testing.suite import *  # noqa: F403

from tests.sqlalchemy_suite.exclusions import ENVIRONMENT, TESTS, reason_by_feature


def _without_constraints(metadata: Any) -> None:
    for table in metadata.tables.values():
        refused = [
            each for each in table.constraints if isinstance(each, sa.CheckConstraint | sa.UniqueConstraint)
        ]
        table.constraints.difference_update(refused)


class ComponentReflectionTest(suite.ComponentReflectionTest):
    @classmethod
    def define_reflected_tables(cls, metadata: Any, schema: Any) -> None:
        super().define_reflected_tables(metadata, schema)
        _without_constraints(metadata)


class QuotedNameArgumentTest(suite.QuotedNameArgumentTest):
    @classmethod
    def define_tables(cls, metadata: Any) -> None:
        super().define_tables(metadata)
        _without_constraints(metadata)


class HasTableTest(suite.HasTableTest):
    @classmethod
    def define_views(cls, metadata: Any) -> None:
        pass


class ExclusionsTest(fixtures.TestBase):
    """Nyala's own test: each exclusion has a reason."""

    def test_each_feature_that_is_off_has_a_reason(self) -> None:
        requirements = {
            name: getattr(config.requirements, name)
            for name, value in vars(SuiteRequirements).items()
            if isinstance(value, property)
        }
        off = {name for name, each in requirements.items() if not getattr(each, "enabled", True)}
        assert off - ENVIRONMENT == reason_by_feature().keys() & requirements.keys()

    def test_each_excluded_test_exists(self) -> None:
        if sa.__version__.startswith("2.0."):
            return  # fewer tests
        for name in TESTS:
            kind, _, test = name.partition("[")[0].partition(".")
            assert hasattr(globals()[kind], test), name
