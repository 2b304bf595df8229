"""Several operations on several tables as one: one timestamp, all or nothing.

    with db.batch() as b:
        b.upsert("orders", orders)
        b.delete("baskets", keys)
    b.results[0].timestamp == b.results[1].timestamp

Nothing is checked or written before the block ends; leaving it by an exception writes nothing. A failing row
stops the whole batch (`errors="collect"` is for single calls only). Operations apply in their order: a later
one sees what an earlier one of the same batch did.

Inside the block the same thread cannot write in another way, by `table.insert(…)` or a second batch: such a write
would be committed at once, whatever becomes of the batch. It raises `InvalidArgumentError`.

Source: docs/design/writes-and-batches.md, "Resolving a batch in closed form".
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from nyala.api.table import choice
from nyala.errors import InvalidArgumentError
from nyala.tablet.state.result import WriteResult
from nyala.tablet.write.write_path import Request, write

if TYPE_CHECKING:
    from nyala.api.database import Database


class Batch:
    """Collects operations; writes them when the `with` block ends. `results`: one WriteResult per operation."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._requests: list[Request] = []
        self._open = False
        self._used = False
        self.results: list[WriteResult] = []

    def insert(self, table: str, data: Any, on_conflict: Literal["error", "ignore"] = "error") -> None:
        """See `Table.insert`."""
        self._add(table, "insert", data, choice("on_conflict", on_conflict, "ignore"))

    def upsert(self, table: str, data: Any) -> None:
        """See `Table.upsert`."""
        self._add(table, "upsert", data, False)

    def update(self, table: str, data: Any, on_missing: Literal["error", "ignore"] = "error") -> None:
        """See `Table.update`; the form with `where` is not for batches."""
        self._add(table, "update", data, choice("on_missing", on_missing, "ignore"))

    def delete(self, table: str, keys: Any, on_missing: Literal["error", "ignore"] = "error") -> None:
        """See `Table.delete`; the form with `where` is not for batches."""
        self._add(table, "delete", keys, choice("on_missing", on_missing, "ignore"))

    def _add(self, table: str, operation: str, data: Any, ignore: bool) -> None:
        if not self._open:
            raise InvalidArgumentError("a batch takes operations inside its `with` block only")
        self._database._writer().root.table(table)  # an unknown name shall fail on its own line
        self._requests.append(Request(table, operation, data, ignore))

    def __enter__(self) -> Batch:
        if self._used:
            raise InvalidArgumentError("a batch can be used once: make another with db.batch()")
        self._database._writer().check_writable()
        self._database._open.enter_batch()
        self._open = self._used = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._database._open.leave_batch()
        if kind is None and self._requests:
            self.results = write(self._database._writer(), self._requests)
