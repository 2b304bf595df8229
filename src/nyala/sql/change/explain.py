"""EXPLAIN of a statement that writes: the plans of its SELECTs, and the operations that it would execute.

The statement is prepared as usual. But each SELECT is only planned and returns no rows, so nothing
is read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from nyala.sql.change.statement import plan_of
from nyala.sql.change.target import Statement
from nyala.sql.context import Context, Source

_SKIPPED: Final = {
    "insert": " (existing keys are skipped)",
    "update": " by key (missing keys are skipped)",
    "delete": " by key (missing keys are skipped)",
}


@dataclass(frozen=True)
class _Explained(Statement):
    """A statement that changes rows, run for EXPLAIN: its SELECTs are planned, but not executed.

    plans: receives DuckDB's plan of each SELECT.
    """

    plans: list[str] = field(default_factory=list)

    def rows(self, select: str, objects: Mapping[str, Any] = MappingProxyType({})) -> pa.Table:
        bound = self.context.select(self.source, self.with_clause + select, objects)
        self.plans.append(bound.plan())
        return bound.schema.empty_table()

    rows_of_objects = rows


def explain_change(context: Context, source: Source, text: str) -> list[tuple[str, str]]:
    """Return the rows of EXPLAIN for a statement that changes rows, as a list of (name, text).

    The first row, "statement", says which operations the statement would execute. Each further row,
    "physical_plan", has DuckDB's plan of one SELECT.
    Raises: errors of the statement.
    """
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
