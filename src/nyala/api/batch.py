"""A batch of operations on several tables: one timestamp, all or nothing.

    with db.batch() as b:
        b.upsert("orders", orders)
        b.delete("baskets", keys)
    b.results[0].timestamp == b.results[1].timestamp

Rows are checked and written when the block ends. If the block raises, nothing is written. One
failing row rejects the whole batch; `db.batch(errors="collect")` leaves out only the failing rows.
Each operation sees the effect of earlier ones.

Inside the block, other writes of the same thread, such as `table.insert(…)` or a second batch,
raise `InvalidArgumentError`. They would be committed at once, even if the batch fails.

Calls with at most 64 rows as Python values are combined: for each table they become one list of row
operations. One large request costs much less than many small ones.

Source: docs/design/writes-and-batches.md, "Resolving a batch without a loop".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from nyala.api.writable import Errors, collect, ignores
from nyala.errors import InvalidArgumentError
from nyala.tablet.state.messages import check_message
from nyala.tablet.state.result import WriteResult
from nyala.tablet.write.effects import DELETED, FAILED, IGNORED, INSERTED, UPDATED
from nyala.tablet.write.write_path import Request

if TYPE_CHECKING:
    from nyala.api.database import Database

# A call with more rows becomes a request of its own.
_COMBINED_ROWS_MAX: Final = 64


@dataclasses.dataclass
class _Combined:
    """The row operations of several small calls on one table, which are executed as one request.

    calls: for each call, its position in the batch and its number of rows.
    """

    table: str
    operations: list[tuple[str, Any]]
    calls: list[tuple[int, int]]


class Batch:
    """Operations that are written together when the `with` block ends, from `Database.batch`.

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

    def __init__(self, database: Database, errors: Errors = "raise", message: str | None = None) -> None:
        self._database = database
        self._collect = collect(errors)
        self._message = check_message(message)
        self._parts: list[
            _Combined | tuple[int, Request]
        ] = []  # in order; a request has the index of its call
        self._open_parts: dict[str, _Combined] = {}  # by table: the part that later calls are added to
        self._known: set[str] = set()
        self._calls = 0
        self._open = False
        self._used = False
        self.results: list[WriteResult] = []

    def insert(self, table: str, data: Any, on_conflict: Literal["error", "ignore"] = "error") -> None:
        """Add an insert; arguments as `Table.insert`. Raises: TableNotFoundError."""
        self._add(table, "insert", data, ignores("on_conflict", on_conflict))

    def upsert(self, table: str, data: Any) -> None:
        """Add an upsert; arguments as `Table.upsert`. Raises: TableNotFoundError."""
        self._add(table, "upsert", data, False)

    def update(self, table: str, data: Any, on_missing: Literal["error", "ignore"] = "error") -> None:
        """Add an update by key; arguments as `Table.update`. Raises: TableNotFoundError."""
        self._add(table, "update", data, ignores("on_missing", on_missing))

    def delete(self, table: str, keys: Any, on_missing: Literal["error", "ignore"] = "error") -> None:
        """Add a delete by key; arguments as `Table.delete`. Raises: TableNotFoundError."""
        self._add(table, "delete", keys, ignores("on_missing", on_missing))

    def apply(self, table: str, operations: Sequence[tuple[str, Any]]) -> None:
        """Add a list of different operations; arguments as `Table.apply`. Raises: TableNotFoundError."""
        self._check(table)
        self._append(Request(table, "apply", operations))

    def _add(self, table: str, operation: str, data: Any, ignore: bool) -> None:
        self._check(table)
        rows = _few_rows(data, operation)
        if rows is None:
            self._append(Request(table, operation, data, ignore))
            return
        combined = self._open_parts.get(table)
        if combined is None:
            combined = self._open_parts[table] = _Combined(table, [], [])
            self._parts.append(combined)
        name = f"{operation}-ignore" if ignore else operation
        combined.operations += [(name, row) for row in rows]
        combined.calls.append((self._calls, len(rows)))
        self._calls += 1

    def _append(self, request: Request) -> None:
        self._open_parts.pop(request.table, None)  # operations of later calls must follow this request
        self._parts.append((self._calls, request))
        self._calls += 1

    def _check(self, table: str) -> None:
        if not self._open:
            raise InvalidArgumentError("a batch takes operations inside its `with` block only")
        if table not in self._known:
            self._database._root().table(table)  # an unknown name fails on its own line
            self._known.add(table)

    def __enter__(self) -> Batch:
        if self._used:
            raise InvalidArgumentError("a batch can be used once: make another with db.batch()")
        self._database._writing().check_writable()
        self._database._open.enter_block("batch")
        self._open = self._used = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._open = False
        self._database._open.leave_block()
        if kind is None and self._parts:
            self._commit()

    def _commit(self) -> None:
        requests = [
            Request(part.table, "apply", part.operations) if isinstance(part, _Combined) else part[1]
            for part in self._parts
        ]
        written = self._database._writing().write(requests, collect=self._collect, message=self._message)
        results: dict[int, WriteResult] = {}
        for part, result in zip(self._parts, written, strict=True):
            if isinstance(part, _Combined):
                results |= _result_of_each(part, result)
            else:
                results[part[0]] = result
        self.results = [results[index] for index in range(self._calls)]


def _few_rows(data: Any, operation: str) -> Sequence[Any] | None:
    """Return the rows of a call with at most 64 rows as Python values; None for other data."""
    if type(data) is list and len(data) == 1 and type(data[0]) is dict:
        return data
    is_one = _is_key if operation == "delete" else _is_row
    if isinstance(data, list):
        return data if 0 < len(data) <= _COMBINED_ROWS_MAX and all(map(is_one, data)) else None
    if operation == "delete" and isinstance(data, str | int | tuple):
        return [data]
    return None


def _is_row(item: Any) -> bool:
    return isinstance(item, dict | tuple) or (dataclasses.is_dataclass(item) and not isinstance(item, type))


def _is_key(item: Any) -> bool:
    return isinstance(item, dict | tuple | str | int)


def _result_of_each(combined: _Combined, whole: WriteResult) -> dict[int, WriteResult]:
    """Return the result of each call whose rows were written in one request with the rows of other calls.

    The keys of the result are the positions of the calls in the batch.

    combined: the calls, with their number of rows.
    whole: the result of the request.
    """
    if whole._outcomes is None:  # the batch of an idempotency key that was committed before
        return {index: whole for index, _ in combined.calls}
    sizes = np.array([size for _, size in combined.calls])
    starts = np.cumsum(sizes) - sizes
    counts = np.add.reduceat(whole._outcomes[:, None] == np.arange(FAILED + 1), starts, dtype=np.int64)
    rows = whole.errors.column("row").to_numpy()
    bounds = np.searchsorted(rows, [*starts.tolist(), int(sizes.sum())]).tolist()
    results, none = {}, whole.errors.slice(0, 0)
    for place, ((index, _), found) in enumerate(zip(combined.calls, counts.tolist(), strict=True)):
        errors = none
        if bounds[place] < bounds[place + 1]:
            errors = whole.errors.slice(bounds[place], bounds[place + 1] - bounds[place])
            own = pa.array(errors.column("row").to_numpy() - starts[place])
            errors = errors.set_column(0, errors.schema.field(0), own)
        results[index] = WriteResult(
            whole.timestamp, found[INSERTED], found[UPDATED], found[DELETED], found[IGNORED], errors
        )
    return results
