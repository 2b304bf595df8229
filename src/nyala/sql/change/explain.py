"""EXPLAIN of a statement that writes: the plans of its SELECTs, and the operations that it would execute.

The statement is planned as usual, but its SELECTs are only bound: they give no rows, so nothing is
read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa

from nyala.sql.change.statement import plan_of
from nyala.sql.change.target import Statement
from nyala.sql.context import Context, Source

__all__ = ["explain_change"]

_SKIPPED: Final = {
    "insert": " (existing keys are skipped)",
    "update": " by key (missing keys are skipped)",
    "delete": " by key (missing keys are skipped)",
}


@dataclass(frozen=True)
class _Explained(Statement):
    """Keeps the plan of each SELECT instead of running it."""

    plans: list[str] = field(default_factory=list)

    def rows(self, source: Source, select: str, objects: Mapping[str, Any] | None = None) -> pa.Table:
        bound = self.context.select(source, self.prefix + select, objects or {})
        self.plans.append(bound.plan())
        return bound.schema.empty_table()

    rows_of = rows


def explain_change(context: Context, source: Source, text: str) -> list[tuple[str, str]]:
    """Return what the statement would do, and the plans. Raises: errors of the statement."""
    plans: list[str] = []
    word, plan, _ = plan_of(context, text, partial(_Explained, plans=plans))
    change = plan(source)
    operations = ", then ".join(
        f"{request.operation}{_SKIPPED[request.operation] if request.ignore else ''}"
        for request in change.requests
    )
    table = change.requests[0].table if change.requests else ""
    written = f"{word} would execute on table {table}, as one batch: {operations}"
    return [("statement", written), *(("physical_plan", each) for each in plans)]
