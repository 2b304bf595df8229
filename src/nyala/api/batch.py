"""A batch of operations on several tables: one timestamp, all or nothing.

    with db.batch() as b:
        b.upsert("orders", orders)
        b.delete("baskets", keys)
    b.results[0].timestamp == b.results[1].timestamp

Rows are checked and written when the block ends. An exception in the block writes nothing. One failing
row rejects the whole batch. Operations apply in their order: a later one sees what an earlier one did.

Inside the block the same thread cannot write in another way, for instance by `table.insert(…)` or a
second batch. Such a write would be committed at once, whatever becomes of the batch, so it raises
`InvalidArgumentError`.

Source: docs/design/writes-and-batches.md, "Resolving a batch in closed form".
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from nyala.api.writable import choice
from nyala.errors import InvalidArgumentError
from nyala.tablet.state.result import WriteResult
from nyala.tablet.write.write_path import Request, write

if TYPE_CHECKING:
    from nyala.api.database import Database


class Batch:
    """Operations that are written together when the `with` block ends. Made by `Database.batch`.

    Attributes
    ----------
    results
        One `WriteResult` per operation, in order, after the block.

    Examples
    --------
    >>> with db.batch() as b:
    ...     b.insert("metrics", [("e", 1, 1.0)])
    ...     b.delete("metrics", ("a", 1))
    >>> [result.timestamp == b.results[0].timestamp for result in b.results]
    [True, True]
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._requests: list[Request] = []
        self._open = False
        self._used = False
        self.results: list[WriteResult] = []

    def insert(self, table: str, data: Any, on_conflict: Literal["error", "ignore"] = "error") -> None:
        """Add an insert; arguments as `Table.insert`. Raises: TableNotFoundError."""
        self._add(table, "insert", data, choice("on_conflict", on_conflict, "ignore"))

    def upsert(self, table: str, data: Any) -> None:
        """Add an upsert; arguments as `Table.upsert`. Raises: TableNotFoundError."""
        self._add(table, "upsert", data, False)

    def update(self, table: str, data: Any, on_missing: Literal["error", "ignore"] = "error") -> None:
        """Add an update by key; arguments as `Table.update`. Raises: TableNotFoundError."""
        self._add(table, "update", data, choice("on_missing", on_missing, "ignore"))

    def delete(self, table: str, keys: Any, on_missing: Literal["error", "ignore"] = "error") -> None:
        """Add a delete by key; arguments as `Table.delete`. Raises: TableNotFoundError."""
        self._add(table, "delete", keys, choice("on_missing", on_missing, "ignore"))

    def _add(self, table: str, operation: str, data: Any, ignore: bool) -> None:
        if not self._open:
            raise InvalidArgumentError("a batch takes operations inside its `with` block only")
        self._database._writer().root.table(table)  # an unknown name fails on its own line
        self._requests.append(Request(table, operation, data, ignore))

    def __enter__(self) -> Batch:
        if self._used:
            raise InvalidArgumentError("a batch can be used once: make another with db.batch()")
        self._database._writer().check_writable()
        self._database._open.enter_block("batch")
        self._open = self._used = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._database._open.leave_block()
        if kind is None and self._requests:
            self.results = write(self._database._writer(), self._requests)
