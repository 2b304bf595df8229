"""Changing a table while it lives: columns, range partitions, history, name and comment, all or nothing.

    with table.alter() as a:
        a.add_column("unit", "string", default="ms")
        a.rename_column("val", "value")
        a.alter_column("value", type="int64", nullable=True)
        a.add_range("2027-01-01", "2028-01-01")
        a.drop_range("2020-01-01", "2021-01-01")
        a.set_history("30d")

Each call is checked on its own line, after those before it; nothing is changed before the block ends. Leaving it by an
exception changes nothing. It takes milliseconds, whatever the table holds: no row is touched.

Source: docs/how-to/changing-a-table.md; Kudu schema design, "Schema Alterations".
"""

from __future__ import annotations

import datetime as dt
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from nyala.errors import InvalidArgumentError, SchemaError
from nyala.partition.ranges import RangeBound
from nyala.schema.alteration import UNCHANGED, Unchanged
from nyala.schema.schema import ColumnSpec, Schema, column
from nyala.schema.types import ColumnType
from nyala.tablet import alter as steps
from nyala.tablet.alter import Draft, Step, alter
from nyala.tablet.state.history import parse_history

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.api.database import Database
    from nyala.api.table import Table

__all__ = ["Alteration"]

# What people look for and an alteration cannot do, by a word in its name.
_IMPOSSIBLE: Final = {
    "key": "the primary key of a table never changes, but for its columns' names; make another table with "
    "create_table(), and insert this one's rows into it",
    "hash": "hash levels are fixed; table.repartition(…) writes all rows anew into other partitions",
    "partition": "add_range() and drop_range() change range partitions; for all else table.repartition(…) writes all "
    "rows anew into others",
    "split": "range partitions are not split; table.repartition(…) writes all rows anew into others",
    "merge": "range partitions are not joined; table.repartition(…) writes all rows anew into others",
}


class Alteration:
    """The steps of one alteration of a table, which it carries out when its `with` block ends. Made by
    `Table.alter()`."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._table = table
        self._steps: list[Step] = []
        self._draft: Draft | None = None
        self._table_id = 0
        self._used = False

    @property
    def schema(self) -> Schema:
        """The columns as the steps up to now leave them."""
        if self._draft is None:
            raise InvalidArgumentError("an alteration has columns inside its `with` block only")
        return self._draft.schema

    def add_column(
        self,
        name: str,
        type: str | pa.DataType | ColumnType | ColumnSpec,
        nullable: bool = True,
        default: Any = None,
        encoding: str = "auto",
        compression: str = "default",
        block_size: int | str | None = None,
        comment: str = "",
    ) -> None:
        """One column more, behind the others; the arguments are those of `nyala.column`, or what it gives, as `type`.

        Rows that are there read the default for ever, whatever it is changed to later; without one, NULL. A NOT NULL
        column needs one. A name that was dropped may be taken again: its old values never come back.
        Raises: SchemaError; InvalidArgumentError for what is said twice.
        """
        self._take(
            steps.add_column(
                name, _spec(name, type, (nullable, default, encoding, compression, block_size, comment))
            )
        )

    def drop_column(self, name: str) -> None:
        """One column less. Snapshots of before have it as long as the table's history reaches back to them.

        Raises: ColumnNotFoundError; SchemaError for a column of the key.
        """
        self._take(steps.drop_column(name))

    def rename_column(self, old: str, new: str) -> None:
        """Another name for a column, also of the key. Raises: ColumnNotFoundError, SchemaError for a name that is
        taken."""
        self._take(steps.rename_column(old, new))

    def alter_column(
        self,
        name: str,
        *,
        type: str | pa.DataType | ColumnType | Unchanged = UNCHANGED,
        nullable: bool | Unchanged = UNCHANGED,
        default: Any = UNCHANGED,
        encoding: str | Unchanged = UNCHANGED,
        compression: str | Unchanged = UNCHANGED,
        block_size: int | str | Unchanged | None = UNCHANGED,
        comment: str | Unchanged = UNCHANGED,
    ) -> None:
        """Change what is said of a column; all else stays.

        type:     a wider one: int8 to int16, int32, int64; float to double; a decimal of higher precision at the same
                  scale; a longer varchar, or string. Not of the key.
        nullable: True, of a NOT NULL column.
        default:  of rows that are inserted from now on; None: none any more.
        encoding, compression, block_size: of what is written from now on; `Table.compact()` rewrites the rest. None is
                  the default size of a block.
        Raises:   ColumnNotFoundError; SchemaError with the reason; InvalidArgumentError when nothing is given.
        """
        self._take(
            steps.change_column(
                name,
                type=type,
                nullable=nullable,
                default=default,
                encoding=encoding,
                compression=compression,
                block_size=block_size,
                comment=comment,
            )
        )

    def add_range(
        self, lower: Any, upper: Any, *, lower_inclusive: bool = True, upper_inclusive: bool = False
    ) -> None:
        """A range partition more, [lower, upper), which must not overlap another; None is unbounded.

        A bound is written as in `nyala.range_partition`. Raises: InvalidArgumentError.
        """
        self._take(steps.add_range(RangeBound(lower, upper, lower_inclusive, upper_inclusive)))

    def drop_range(
        self, lower: Any, upper: Any, *, lower_inclusive: bool = True, upper_inclusive: bool = False
    ) -> None:
        """A range partition less, by its exact bounds: its rows go at once, with all their history.

        Writes there fail with NoPartitionError. Who reads an earlier moment and needs its rows gets
        HistoryExpiredError; scans that are open keep them. Raises: InvalidArgumentError when there is no such range.
        """
        self._take(steps.drop_range(RangeBound(lower, upper, lower_inclusive, upper_inclusive)))

    def rename(self, name: str) -> None:
        """Another name for the table. Raises: TableExistsError."""
        self._take(steps.rename_table(name))

    def set_comment(self, comment: str) -> None:
        """Another comment for the table."""
        self._take(steps.set_comment(comment))

    def set_history(self, history: dt.timedelta | str | float | None) -> None:
        """How far back the table can be read from now on: as `create_table(history=…)`; None is its default, 7 days.

        A shorter one holds at once: a moment before it raises HistoryExpiredError; the bytes go with compactions and
        `Table.vacuum()`. A longer one brings back what has not been thrown away yet. Raises: InvalidArgumentError.
        """
        self._take(steps.set_history(parse_history(history)))

    def __getattr__(self, name: str) -> NoReturn:
        for word, reason in _IMPOSSIBLE.items():
            if word in name.lower():
                raise AttributeError(f"an alteration has no {name}(): {reason}")
        # With these Python looks for a name that is nearly the same.
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=self)

    def _take(self, step: Step) -> None:
        if self._draft is None:
            raise InvalidArgumentError("an alteration takes steps inside its `with` block only")
        self._draft = step(self._draft)
        self._steps.append(step)

    def __enter__(self) -> Alteration:
        if self._used:
            raise InvalidArgumentError("an alteration can be used once: make another with table.alter()")
        store = self._database._writer()
        store.check_writable()
        root = store.root
        table = root.table(self._table.name)
        self._table_id, self._draft, self._used = table.id, Draft.of(root, table), True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draft = None
        if kind is None and self._steps:
            entry = alter(self._database._writer(), self._table_id, self._steps)
            self._table._name = entry.name


def _spec(name: str, type: Any, described: tuple[Any, ...]) -> ColumnSpec:
    """Raises: SchemaError, InvalidArgumentError naming the column."""
    if not isinstance(type, ColumnSpec):
        try:
            return column(type, *described)
        except SchemaError as error:
            raise SchemaError(f"column {name!r}: {error}") from None
    if described != (True, None, "auto", "default", None, ""):
        raise InvalidArgumentError(
            f"column {name!r} is described by nyala.column(…) and by other arguments besides: say all of it in one"
        )
    return type
