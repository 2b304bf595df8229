"""Alter a table: columns, range partitions, history, name and comment, all or nothing.

    with table.alter() as a:
        a.add_column("unit", "string", default="ms")
        a.rename_column("val", "value")
        a.alter_column("value", type="int64", nullable=True)
        a.add_range("2027-01-01", "2028-01-01")
        a.drop_range("2020-01-01", "2021-01-01")
        a.undrop_range("2019-01-01", "2020-01-01")
        a.set_history("30d")

Each call checks its step against the steps before it. When the block ends, all steps are executed
as one change. If the block raises, nothing changes. An alteration takes milliseconds, whatever the
size of the table, because it rewrites no row.

Source: Kudu schema design, "Schema Alterations".
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, NoReturn

from nyala.errors import InvalidArgumentError, SchemaError
from nyala.partition.ranges import RangeBound
from nyala.schema.alteration import UNCHANGED, Unchanged
from nyala.schema.schema import ColumnSpec, Schema, column
from nyala.schema.types import ColumnType
from nyala.tablet import alter as steps
from nyala.tablet.alter import Draft, Step
from nyala.tablet.state.history import parse_history

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.api.database import Database
    from nyala.api.table import Table

# Why an alteration does not have a method, by a word in the method's name.
_IMPOSSIBLE: Final = {
    "key": "the primary key cannot change, except the names of its columns; create another table and insert this "
    "table's rows",
    "hash": "hash levels cannot change; table.repartition(…) rewrites all rows into other partitions",
    "partition": "add_range() and drop_range() change range partitions; table.repartition(…) rewrites all rows into "
    "other partitions",
    "split": "range partitions cannot be split; table.repartition(…) rewrites all rows into other partitions",
    "merge": "range partitions cannot be merged; table.repartition(…) rewrites all rows into other partitions",
}


class Alteration:
    """The steps of one alteration of a table, from `Table.alter`. They are executed when the `with` block ends."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._table = table
        self._steps: list[Step] = []
        self._draft: Draft | None = None
        self._table_id = 0
        self._used = False

    @property
    def schema(self) -> Schema:
        """The columns after the steps so far."""
        if self._draft is None:
            raise InvalidArgumentError("the schema of an alteration can be read inside its `with` block only")
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
        immutable: bool = False,
    ) -> None:
        """Add a column after the others.

        Existing rows get the default, or NULL without a default. They keep it even if the column's
        default is changed later. The name of a dropped column can be used again; its old values do
        not come back.

        Parameters
        ----------
        name
            The name of the new column.
        type
            A type, or a whole column as `nyala.column(…)`.
        nullable, default, encoding, compression, block_size, comment, immutable
            As in `nyala.column`. A NOT NULL column needs a default.

        Raises
        ------
        SchemaError
            The name is in use, or the column is invalid.
        InvalidArgumentError
            `nyala.column(…)` and further arguments are both given.
        """
        self._take(
            steps.add_column(
                name,
                _spec(name, type, (nullable, default, encoding, compression, block_size, comment, immutable)),
            )
        )

    def drop_column(self, name: str) -> None:
        """Drop a column. Past moments still have it, as long as the table's history reaches back.

        Raises
        ------
        ColumnNotFoundError
            There is no such column.
        SchemaError
            The column is part of the key.
        """
        self._take(steps.drop_column(name))

    def rename_column(self, old: str, new: str) -> None:
        """Rename a column, also a column of the key.

        Raises: ColumnNotFoundError; SchemaError if the new name is in use.
        """
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
        immutable: bool | Unchanged = UNCHANGED,
    ) -> None:
        """Change properties of a column; properties that are not given stay as they are.

        Parameters
        ----------
        name
            The column.
        type
            A wider type: int8 to int16, int32 or int64; float to double; a decimal of higher
            precision at the same scale; a longer varchar, or string. Not for columns of the key.
        nullable
            `True` allows NULL from now on. `False` is not possible.
        default
            The default of rows that are inserted from now on. None: no default.
        encoding, compression, block_size
            As in `nyala.column`, for files that are written from now on; `Table.compact()` rewrites
            the other files.
        comment
            A text about the column.
        immutable
            As in `nyala.column`, for writes from now on. Not for columns of the key.

        Raises
        ------
        ColumnNotFoundError
            There is no such column.
        SchemaError
            The change is not possible.
        InvalidArgumentError
            No property is given.
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
                immutable=immutable,
            )
        )

    def add_range(
        self, lower: Any, upper: Any, *, lower_inclusive: bool = True, upper_inclusive: bool = False
    ) -> None:
        """Add a range partition [lower, upper).

        Parameters
        ----------
        lower, upper
            Bounds as in `nyala.range_partition`; None is unbounded.
        lower_inclusive, upper_inclusive
            Whether a bound itself is inside.

        Raises
        ------
        InvalidArgumentError
            The range overlaps another, or a bound is invalid.
        """
        self._take(steps.add_range(RangeBound(lower, upper, lower_inclusive, upper_inclusive)))

    def drop_range(
        self,
        lower: Any,
        upper: Any,
        *,
        lower_inclusive: bool = True,
        upper_inclusive: bool = False,
        purge: bool = False,
    ) -> None:
        """Drop a range partition. `undrop_range` brings it back as long as the table's history lasts.

        Later writes to the range raise `NoPartitionError`. Reads at earlier moments still find its
        rows.

        Parameters
        ----------
        lower, upper, lower_inclusive, upper_inclusive
            The exact bounds of the range, as in `add_range`.
        purge
            Remove the rows and their history at once, which frees their disk space. Reads at
            earlier moments that need the range raise `HistoryExpiredError`. Open scans still return
            its rows.

        Raises
        ------
        InvalidArgumentError
            There is no such range.
        """
        if not isinstance(purge, bool):
            raise InvalidArgumentError(f"purge takes True or False, not {purge!r}")
        bound = RangeBound(lower, upper, lower_inclusive, upper_inclusive)
        self._take(steps.drop_range(bound, purge))

    def undrop_range(
        self, lower: Any, upper: Any, *, lower_inclusive: bool = True, upper_inclusive: bool = False
    ) -> None:
        """Bring back a dropped range partition with its rows and their history.

        If several dropped ranges had these bounds, the one that was dropped last is brought back.

        Parameters
        ----------
        lower, upper, lower_inclusive, upper_inclusive
            The exact bounds of the range, as in `add_range`.

        Raises
        ------
        InvalidArgumentError
            There is no such dropped range, or a present range overlaps it.
        """
        self._take(steps.undrop_range(RangeBound(lower, upper, lower_inclusive, upper_inclusive)))

    def rename(self, name: str) -> None:
        """Rename the table. Raises: TableExistsError."""
        self._take(steps.rename_table(name))

    def set_comment(self, comment: str) -> None:
        """Set the table's comment."""
        self._take(steps.set_comment(comment))

    def set_history(self, history: dt.timedelta | str | float | None) -> None:
        """Set how far back the table can be read.

        A shorter history applies at once: reads of earlier moments raise `HistoryExpiredError`, and
        compactions and `Table.vacuum()` free the disk space. A longer history makes earlier moments
        readable again, if their data were not removed yet.

        Parameters
        ----------
        history
            As in `Database.create_table`. None: 7 days.

        Raises
        ------
        InvalidArgumentError
            The history is invalid.
        """
        self._take(steps.set_history(parse_history(history)))

    def __getattr__(self, name: str) -> NoReturn:
        for word, reason in _IMPOSSIBLE.items():
            if word in name.lower():
                raise AttributeError(f"an alteration has no {name}(): {reason}")
        # Python uses `name` and `obj` to suggest a similar name.
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
        self._database._writing().check_writable()
        root = self._database._root()
        table = root.table(self._table.name)
        self._table_id, self._draft, self._used = table.id, Draft.of(root, table), True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._draft = None
        if kind is None and self._steps:
            self._table._name = self._database._writing().alter(self._table_id, self._steps)


def _spec(name: str, type: Any, described: tuple[Any, ...]) -> ColumnSpec:
    """Check the arguments of `Alteration.add_column`, and return them as a `ColumnSpec`.

    described: the arguments after `type`, in the order of `nyala.column`.
    Raises: SchemaError, InvalidArgumentError. Both messages name the column.
    """
    if not isinstance(type, ColumnSpec):
        try:
            return column(type, *described)
        except SchemaError as error:
            raise SchemaError(f"column {name!r}: {error}") from None
    if described != (True, None, "auto", "default", None, "", False):
        raise InvalidArgumentError(
            f"column {name!r} is described by nyala.column(…) and by further arguments: use one of the two"
        )
    return type
