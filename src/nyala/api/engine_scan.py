"""Methods of a scan for query engines, Spark and the command line, beyond the public ones.

`Scan._engine()` returns an `EngineScan`. An engine first plans its query: for this it needs types, row
counts and estimates, which cost at most the reading of file footers. Then it reads the scan with fewer
columns and a further predicate. Every method that narrows an `EngineScan` returns a new one of the
same snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from nyala.cfile.physical import narrow_decimal
from nyala.errors import InvalidArgumentError
from nyala.presentation.explanation import Explanation
from nyala.schema.expressions.nodes import Node
from nyala.tablet.scan import read_path, token
from nyala.tablet.scan.estimate import Estimate, estimate, row_count
from nyala.tablet.scan.token import Token

if TYPE_CHECKING:
    from nyala.api.scan import Scan
    from nyala.tablet.state.root import TableState

_Made = TypeVar("_Made")


class EngineScan:
    """A scan for query engines. Thread-safe. Keeps the scan's snapshot and files."""

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
        """The state of the table at the scan's moment, with the schema version that the scan uses."""
        return self.scan._root_and_table()[1]

    @property
    def has_limit(self) -> bool:
        """Whether the scan has a row limit.

        Such a scan accepts no further predicate: the limit would then choose other rows.
        """
        return self._spec.limit is not None

    @property
    def table_version(self) -> tuple[int, int]:
        """(id of the table, version of its schema). Scans with equal pairs have the same schema."""
        _, table = self.scan._root_and_table()
        return table.id, table.schema.version

    def is_key(self, name: str) -> bool:
        """Whether the column alone is the table's primary key."""
        return [column.name for column in self._spec.schema.key_columns] == [name]

    @property
    def has_removed_ranges(self) -> bool:
        """Whether range partitions that existed at the scan's moment were removed since.

        If so, a read raises an error, unless the predicate excludes the removed rows.
        """
        _, table = self.scan._root_and_table()
        return any(gone.missing_at(self._spec.snapshot) for gone in table.entry.purged)

    def why_empty(self) -> str:
        """Return why no row can match, if the predicate compares a column with NULL; otherwise ""."""
        predicate = self._spec.predicate
        return "" if predicate is None else predicate.null_note

    # ---------------------------------------------------------------------------------------- planning

    def rows_held(self) -> int:
        """Return the table's number of rows, including deleted ones, or the scan's limit if it is smaller.

        Reads nothing.
        """
        _, table = self.scan._root_and_table()
        rows, limit = row_count(table), self._spec.limit
        return rows if limit is None else min(rows, limit)

    def rows_planned(self) -> int:
        """Return the greatest possible number of rows to read, from key bounds and zone maps. Reads no row."""
        _, table = self.scan._root_and_table()
        return token.planned_rows(table, self._spec)

    def text_bytes(self) -> dict[str, float]:
        """Return the estimated size of a value in bytes, for each text or binary column of the scan."""
        _, table = self.scan._root_and_table()
        return token.text_bytes(table, self._spec)

    def estimate(self, where: Node) -> Estimate:
        """Estimate how many rows the scan must read, and how many of them satisfy `where`.

        Raises: as `narrowed`.
        """
        narrowed = self.narrowed((), where)
        root, table = narrowed.scan._root_and_table()
        found = estimate(table, narrowed._spec)
        del root
        return found

    def dictionary_size(self, name: str) -> int:
        """Return the number of entries in the column's largest dictionary on disk; 0 if it has none."""
        _, table = self.scan._root_and_table()
        return read_path.dictionary_size(table, self._spec.schema.by_name(name))

    # ---------------------------------------------------------------------------------------- narrowing

    def narrowed(self, columns: Sequence[str], where: Node | None = None) -> EngineScan:
        """Return a scan of these columns and of the rows that also satisfy `where`.

        Raises: ColumnNotFoundError; InvalidArgumentError or SchemaError for a predicate that does not
        fit the table, and for any predicate on a scan with a limit.
        """
        if where is None:
            return self._derived(columns=self.scan._own_columns(columns))
        if self.has_limit:
            raise InvalidArgumentError("a scan with a limit takes no further predicate")
        return EngineScan(self.scan._narrowed(where))._derived(columns=self.scan._own_columns(columns))

    def _derived(self, **changes: Any) -> EngineScan:
        return EngineScan(self.scan._derived(**changes))

    def with_cheap_types(self, names: Collection[str] | None = None) -> EngineScan:
        """Return the scan with these columns (None: all) in the types that cost least to read.

        These are decimals in 4 or 8 bytes, and dictionaries for text: see `read_path.narrower_types`.
        """
        columns = [column for column in self._spec.columns if names is None or column.name in names]
        return self._derived(types={**read_path.narrower_types(self.table, columns), **self._spec.types})

    def with_narrow_decimals(self) -> EngineScan:
        """Return the scan with decimals of up to 18 digits in 4 or 8 bytes, as they are stored.

        A column that the scan already reads in another type keeps that type.
        """
        narrow = {
            column.name: type
            for column in self._spec.columns
            if column.name not in self._spec.types and (type := narrow_decimal(column.type)) is not None
        }
        return self._derived(types={**self._spec.types, **narrow})

    def with_stored_dictionaries(self) -> EngineScan:
        """Return the scan with Arrow dictionaries for all columns that are stored as dictionaries."""
        return EngineScan(self.scan.with_dictionaries())

    # ---------------------------------------------------------------------------------------- reading

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches."""
        return self.scan._batches()

    def batches_ahead(self, make: Callable[[pa.RecordBatch], _Made]) -> Iterator[_Made]:
        """Yield `make(batch)` for each batch, in order. Several threads call `make`, so it must be thread-safe."""
        root, table = self.scan._root_and_table()
        counters = self.scan._begin()
        units = read_path.plan(table, self._spec, counters)
        for made in read_path.run(units, self._spec, counters, make):
            self.scan._note_read()
            yield made
        del root

    def tokens(self, count: int) -> list[Token]:
        """Return about `count` scan tokens with their row counts. Large tablets get several."""
        root, table = self.scan._root_and_table()
        made = token.make_tokens(self.scan._store.root_path, table, self._spec, count)
        del root
        return made

    def explanation_of_last_run(self) -> Explanation:
        """Return what the last read of the scan read and skipped."""
        return self.scan.explanation_of_last_run()
