"""What query engines, Spark and the command line need of a scan beyond its public methods.

Made by `Scan._engine()`. An engine first plans: it needs types, row counts and estimates, which read
footers at most. Then it reads the scan with fewer columns and a further predicate. Every method that
narrows an `EngineScan` returns another one of the same snapshot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from nyala.cfile.physical import narrow_decimal
from nyala.errors import ColumnNotFoundError, InvalidArgumentError
from nyala.presentation.explanation import Explanation
from nyala.schema.expressions.nodes import Node, all_of
from nyala.schema.predicates.predicate import bind
from nyala.tablet.scan import read_path, token
from nyala.tablet.scan.estimate import Estimate, estimate, row_count
from nyala.tablet.scan.token import Token

if TYPE_CHECKING:
    from nyala.api.scan import Scan
    from nyala.tablet.state.root import TableState

__all__ = ["EngineScan"]

_Made = TypeVar("_Made")


class EngineScan:
    """A scan as engines see it. Thread-safe; holds the scan's snapshot and files."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self._spec = scan._spec

    @property
    def name(self) -> str:
        """The table's name."""
        return self.scan.name

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self.scan.schema

    @property
    def table(self) -> TableState:
        """The table, with the schema that the scan reads by."""
        return self.scan._take()[1]

    @property
    def has_limit(self) -> bool:
        """Whether the scan has a limit on its rows: then it takes no further predicate."""
        return self._spec.limit is not None

    @property
    def table_version(self) -> tuple[int, int]:
        """The ids of the table and of the schema that the scan reads by: equal ids mean one schema."""
        _, table = self.scan._take()
        return table.id, table.schema.version

    def is_key(self, name: str) -> bool:
        """Whether the column alone is the table's primary key."""
        return [column.name for column in self._spec.schema.key_columns] == [name]

    @property
    def lacks_ranges(self) -> bool:
        """Whether range partitions of the scan's moment were dropped since.

        Then only predicates that exclude the dropped rows can be answered.
        """
        _, table = self.scan._take()
        return any(gone.missing_at(self._spec.snapshot) for gone in table.entry.purged)

    def why_empty(self) -> str:
        """Say why the scan cannot have rows if a column is compared with NULL; otherwise return ""."""
        predicate = self._spec.predicate
        return "" if predicate is None else predicate.null_note

    # ---------------------------------------------------------------------------------------- planning

    def rows_held(self) -> int:
        """The number of rows of the table, deleted ones included, at most the scan's limit. Reads nothing."""
        _, table = self.scan._take()
        rows, limit = row_count(table), self._spec.limit
        return rows if limit is None else min(rows, limit)

    def rows_planned(self) -> int:
        """An upper bound of the rows that are read, by key bounds and by zone maps of rowsets. Reads no row."""
        _, table = self.scan._take()
        return token.planned_rows(table, self._spec)

    def text_bytes(self) -> dict[str, float]:
        """See `token.text_bytes`."""
        _, table = self.scan._take()
        return token.text_bytes(table, self._spec)

    def estimate(self, where: Node) -> Estimate:
        """Estimate the number of rows and the share of them that satisfies `where`. Raises: as `narrowed`."""
        narrowed = self.narrowed((), where)
        root, table = narrowed.scan._take()
        found = estimate(table, narrowed._spec)
        del root
        return found

    def dictionary_size(self, name: str) -> int:
        """The number of entries of the column's largest dictionary in a file; 0 if it has none."""
        _, table = self.scan._take()
        return read_path.dictionary_size(table, self._spec.schema.by_name(name))

    # ---------------------------------------------------------------------------------------- narrowing

    def narrowed(self, columns: Sequence[str], where: Node | None = None) -> EngineScan:
        """Return a scan of these columns and of the rows that also satisfy `where`.

        Raises: ColumnNotFoundError; InvalidArgumentError or SchemaError for a predicate that does not
        bind, and for any predicate on a scan with a limit, since it would choose other rows.
        """
        root, table = self.scan._take()
        unknown = [name for name in columns if name not in self.schema.names]
        if unknown:
            raise ColumnNotFoundError(f"the scan has no column {unknown[0]!r}; it has {self.schema.names}")
        own = {column.name: column for column in self._spec.columns}
        kept = tuple(own[column.name] for column in self._spec.schema.project(list(columns)))
        spec = dataclasses.replace(self._spec, columns=kept)
        if where is not None:
            if self.has_limit:
                raise InvalidArgumentError("a scan with a limit takes no further predicate")
            trees = (where,) if spec.predicate is None else (spec.predicate.tree, where)
            spec = dataclasses.replace(spec, predicate=bind(all_of(trees), spec.schema))
        return EngineScan(self.scan._derived(root, table, spec))

    def with_cheap_types(self, names: Collection[str] | None = None) -> EngineScan:
        """Return the scan with columns in the types that cost least: see `read_path.narrower_types`.

        names: only these columns; None: all.
        """
        root, table = self.scan._take()
        columns = [column for column in self._spec.columns if names is None or column.name in names]
        types = {**read_path.narrower_types(table, columns), **self._spec.types}
        return EngineScan(self.scan._derived(root, table, dataclasses.replace(self._spec, types=types)))

    def with_narrow_decimals(self) -> EngineScan:
        """Return the scan with decimals of up to 18 digits in 4 or 8 bytes, as they are stored.

        Columns for which another type was requested keep that type.
        """
        root, table = self.scan._take()
        narrow = {
            column.name: type
            for column in self._spec.columns
            if column.name not in self._spec.types and (type := narrow_decimal(column.type)) is not None
        }
        spec = dataclasses.replace(self._spec, types={**self._spec.types, **narrow})
        return EngineScan(self.scan._derived(root, table, spec))

    def with_stored_dictionaries(self) -> EngineScan:
        """See `Scan.with_dictionaries` without columns."""
        return EngineScan(self.scan.with_dictionaries())

    # ---------------------------------------------------------------------------------------- reading

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches, without a reader around them."""
        return self.scan._batches()

    def batches_ahead(self, make: Callable[[pa.RecordBatch], _Made]) -> Iterator[_Made]:
        """Yield `make(batch)` for each batch in order.

        Reader threads call `make`, several at the same time, so it must be thread-safe.
        """
        root, table = self.scan._take()
        counters = self.scan._begin()
        units = read_path.plan(table, self._spec, counters)
        for made in read_path.run(units, self._spec, counters, make):
            self.scan._note_read()
            yield made
        del root

    def tokens(self, count: int) -> list[Token]:
        """Return tokens with their row counts. Large tablets are divided until there are about `count` tokens."""
        root, table = self.scan._take()
        made = token.make_tokens(self.scan._store.root_path, table, self._spec, count)
        del root
        return made

    def explanation_of_last_run(self) -> Explanation:
        """See `Scan.explanation_of_last_run`."""
        return self.scan.explanation_of_last_run()
