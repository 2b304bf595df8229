"""The features that SQLAlchemy's suite tests."""

from __future__ import annotations

import inspect
from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

from tests.sqlalchemy_suite.exclusions import reason_by_feature


class Requirements(SuiteRequirements):
    """All features except those in `exclusions.FEATURES`."""

    def get_isolation_levels(self, config: Any) -> dict[str, Any]:
        return {"default": "SNAPSHOT", "supported": ["SNAPSHOT", "AUTOCOMMIT"]}

    def get_order_by_collation(self, config: Any) -> str:
        return "NOCASE"


def _off(reason: str) -> property:
    return property(lambda self: exclusions.skip_if(lambda: True, reason))


def _on() -> property:
    return property(lambda self: exclusions.open())


for _name, _reason in reason_by_feature().items():
    setattr(Requirements, _name, _off(_reason))
for _name, _value in vars(SuiteRequirements).items():
    if _name not in vars(Requirements) and isinstance(_value, property) and _value.fget is not None:
        if "exclusions.closed()" in inspect.getsource(_value.fget):
            setattr(Requirements, _name, _on())
