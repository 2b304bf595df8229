"""A scan: the rows of one table at one moment, as an immutable relation.

    scan = table.scan(columns=["time", "value"], where="host = 'a'", at=before)
    scan = table.scan().select("time", "value").filter("host = 'a'").at(before)      # the same rows
    scan.to_arrow()  ·  .to_reader()  ·  .to_pandas()  ·  .to_polars()  ·  .to_duckdb(con)  ·  .count()

A scan takes its snapshot when it is made, so every read of it returns the same rows. It keeps the
files that it needs until Python frees the scan, or until nobody has read it for 15 minutes. A read
after these 15 minutes raises `HistoryExpiredError`.

A scan token describes the part of a scan in one tablet, as bytes. Another process or machine that
sees the same files can use the token to read the rows of this part. Source: docs/format/token.md.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from nyala.api.engine_scan import EngineScan
from nyala.api.pinned_rows import PinnedRows, ScannedStore
from nyala.api.scan_arguments import resolve_columns, row_limit
from nyala.env import Env
from nyala.errors import ColumnNotFoundError, InvalidArgumentError, bounded, counted
from nyala.mvcc.timestamp import to_datetime
from nyala.optional import need
from nyala.presentation.explanation import Explanation
from nyala.presentation.previews import html_preview
from nyala.schema.expressions.nodes import Node, all_of
from nyala.schema.expressions.parser import Parameters
from nyala.schema.predicates.predicate import bind, parse_where
from nyala.schema.schema import ColumnSchema
from nyala.tablet.scan import read_path, token
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec
from nyala.tablet.state.root import Root, TableState

if TYPE_CHECKING:
    import duckdb
    import polars as pl

    from nyala.api.types import Moment, PredicateLike


class Readable(Protocol):
    """The table, or view of a table at a moment, that made a scan."""

    def scan(
        self,
        columns: Sequence[str] | pa.Schema | None = None,
        where: Any = None,
        at: Any = None,
        limit: int | None = None,
        order_by_key: bool = False,
        schema: Literal["at", "current"] | None = None,
    ) -> Scan: ...

    def _watch(self, rows: PinnedRows) -> None: ...


class Scan(PinnedRows):
    """The rows of one table at one moment, from `Table.scan`.

    A scan is immutable: `select`, `filter`, `at`, `limit` and `order_by_key` return a new scan.
    They can be called in any order; the filter always applies first, then the key order, then the
    limit. `select` can only choose columns that the scan still has.

    Thread-safe. Nothing is read before a method asks for rows.

    Examples
    --------
    >>> metrics.scan().select("host", "value").filter("value > 1").order_by_key().limit(2).to_arrow().to_pylist()
    [{'host': 'a', 'value': 2.0}, {'host': 'b', 'value': 3.0}]
    """

    _what = "scan"

    def __init__(
        self,
        store: ScannedStore,
        root: Root,
        table: TableState,
        spec: ScanSpec,
        source: Readable,
        schema_of: Literal["at", "current"] | None = None,
        origin: Scan | None = None,
    ) -> None:
        """
        source: the table or view that makes scans at other moments.
        schema_of: the argument `schema` of `Table.scan`, for scans at other moments.
        origin: the scan from which this one was derived. Its `explanation_of_last_run` also shows
            reads of this scan.
        """
        super().__init__(store, root, table)
        self._spec = spec
        self._source = source
        self._schema_of = schema_of
        self._origin = origin
        # The spec and the counters of the last run. Both are replaced together, so threads never mix two runs.
        self._last_run: tuple[ScanSpec, ScanCounters] | None = None

    @property
    def timestamp(self) -> int:
        """The snapshot: every batch up to this timestamp is visible, and none after it."""
        return self._spec.snapshot

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._spec.arrow_schema

    # ---------------------------------------------------------------------------------------- other scans

    def select(self, *columns: str | Sequence[str]) -> Scan:
        """Return a scan with only these columns, in this order.

        Parameters
        ----------
        *columns
            Names of columns of this scan, one by one or in one list.

        Raises
        ------
        ColumnNotFoundError
            The scan has no such column.
        InvalidArgumentError
            A name is given twice, or is not text.

        Examples
        --------
        >>> metrics.scan().select("value").columns
        ['value']
        """
        names = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        chosen = resolve_columns(self._root_and_table()[1], names)  # type: ignore[arg-type]
        return self._derived(columns=self._own_columns([column.name for column in chosen]))

    def filter(self, where: PredicateLike, *, params: Parameters = None) -> Scan:
        """Return a scan of the rows that also satisfy a predicate.

        Parameters
        ----------
        where
            Text such as `"host = 'a' AND value > ?"`, `nyala.col(…)`, `nyala.expr(…)` or a pyarrow
            expression. It may name any column of the table, also one that was not selected.
        params
            Values for `?` (a list) or for `:name` and `$name` (a dict) in the text of `where`.

        Raises
        ------
        InvalidArgumentError, ColumnNotFoundError, SchemaError
            The predicate does not parse, or does not fit the table's columns.

        Examples
        --------
        >>> metrics.scan().filter("value > ?", params=[1]).count()
        2
        """
        added = bind(parse_where(where, params), self._spec.schema)
        if added is None:
            raise InvalidArgumentError(
                "filter takes a predicate, for instance scan.filter(\"host = 'a'\"), not None"
            )
        return self._narrowed(added.tree)

    def _narrowed(self, where: Node) -> Scan:
        """Return a scan of the rows that also satisfy `where`. Raises: as `bind`."""
        old = self._spec.predicate
        trees = (where,) if old is None else (old.tree, where)
        return self._derived(predicate=bind(all_of(trees), self._spec.schema))

    def at(self, at: Moment) -> Scan:
        """Return the same scan at another moment.

        Parameters
        ----------
        at
            A timestamp, datetime, ISO text, tag or `WriteResult`.

        Raises
        ------
        InvalidArgumentError
            A moment in the future, or the scan is of a view whose moment is fixed.
        HistoryExpiredError
            The moment is older than the table's history.
        TableNotFoundError
            The table did not exist at that moment.

        Examples
        --------
        >>> start = db.now()
        >>> metrics.upsert([{"host": "z", "time": 9, "value": 9.0}]).inserted
        1
        >>> metrics.scan().at(start).filter("host = 'z'").count()
        0
        """
        if at is None:
            raise InvalidArgumentError(
                "at takes a timestamp, a datetime, ISO text or a WriteResult, not None"
            )
        spec = self._spec
        has_all = [column.id for column in spec.columns] == [column.id for column in spec.schema.columns]
        where = None if spec.predicate is None else spec.predicate.tree
        columns = None if has_all else self.schema
        made = self._source.scan(columns, where, at, spec.limit, spec.order_by_key, self._schema_of)
        if has_all and spec.types:
            return made._derived(types={n: type for n, type in spec.types.items() if n in made.columns})
        return made

    def limit(self, n: int) -> Scan:
        """Return a scan of at most `n` rows: the first in key order after `order_by_key()`, else any.

        If the scan already has a limit, the smaller of the two applies.

        Examples
        --------
        >>> metrics.scan().limit(1).count()
        1
        """
        n = row_limit("limit", n)
        return self._derived(limit=n if self._spec.limit is None else min(n, self._spec.limit))

    def order_by_key(self) -> Scan:
        """Return a scan that gives its rows in ascending order of the primary key.

        Cost: if rowsets overlap, their rows are merged by key.

        Examples
        --------
        >>> metrics.scan().order_by_key().to_arrow()["host"].to_pylist()
        ['a', 'a', 'b']
        """
        return self._derived(order_by_key=True)

    def with_dictionaries(self, *columns: str | Sequence[str]) -> Scan:
        """Return the same scan with text or binary columns as Arrow dictionaries.

        pandas and polars show such columns as categoricals. Each batch has its own dictionary,
        which may differ from that of another batch.

        Parameters
        ----------
        *columns
            Names of columns, one by one or in one list. Default: the columns that are stored as
            dictionaries in every rowset on disk.

        Raises
        ------
        ColumnNotFoundError
            The scan has no such column.
        InvalidArgumentError
            A column is neither text nor binary.

        Notes
        -----
        For columns that are stored as dictionaries, this costs less than reading text. For other columns
        the scan builds a dictionary for each batch.

        Examples
        --------
        >>> str(metrics.scan().with_dictionaries("host").schema.field("host").type)
        'dictionary<values=string, indices=int32, ordered=0>'
        """
        names = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        types: dict[str, pa.DataType] = {}
        for name in names:
            if not isinstance(name, str):
                raise InvalidArgumentError(
                    f"with_dictionaries takes names of columns, one by one or in a list, not {name!r}"
                )
            (column,) = self._own_columns([name])
            if not column.type.is_variable:
                raise InvalidArgumentError(
                    f"column {name!r} has type {column.type}; only text and binary columns can be read as dictionaries"
                )
            types[name] = pa.dictionary(pa.int32(), column.type.arrow)
        if not columns:
            narrower = read_path.narrower_types(self._root_and_table()[1], self._spec.columns)
            types = {name: type for name, type in narrower.items() if pa.types.is_dictionary(type)}
        return self._derived(types={**self._spec.types, **types})

    # ---------------------------------------------------------------------------------------- results

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a polars DataFrame.

        Decimals of up to 18 digits are passed to polars as they are stored, without a conversion.
        """
        need("polars", "polars")
        from nyala.interop.polars_frames import polars_frame

        return polars_frame(self._engine())

    def to_polars_lazy(self) -> pl.LazyFrame:
        """Return a lazy polars frame over the scan.

        polars passes a query's columns, its limit and its filters to the scan; polars itself applies
        filters that Nyala cannot evaluate. Background threads read ahead, within `memory_limit`.
        """
        need("polars", "polars")
        from nyala.interop.polars_frames import polars_lazy

        return polars_lazy(self._engine())

    def to_duckdb(self, con: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the scan; it is read when a query runs.

        Columns and predicates of the query are pushed into the scan.

        Parameters
        ----------
        con
            The DuckDB connection of the relation. Default: DuckDB's default connection. With DuckDB
            2.0.0, the call switches off an optimizer rule of this connection,
            `outer_join_simplification`, because the rule loses filters on Arrow data.
        """
        from nyala.sql.select.source import ScanSource, duckdb_of, duckdb_table

        relation: duckdb.DuckDBPyRelation = duckdb_of(con).from_arrow(
            duckdb_table(ScanSource(self._engine()))
        )
        return relation

    def head(self, n: int = 10) -> pa.Table:
        """Return at most `n` rows as an Arrow table: the first in key order if the scan is ordered, else any."""
        return self.limit(row_limit("head", n)).to_arrow()

    def count(self) -> int:
        """Count the rows. Reads deletions and the columns of the predicate, but no other columns."""
        root, table = self._root_and_table()
        counters = self._begin()
        total = read_path.count(read_path.plan(table, self._spec, counters), self._spec, counters)
        del root
        return total

    @property
    def num_rows(self) -> int:
        """The number of rows; the same as `count()`."""
        return self.count()

    def explain(self) -> Explanation:
        """Run the scan, discard its rows, and return what the scan read and skipped."""
        root, table = self._root_and_table()
        counters = ScanCounters()
        for _ in read_path.run(read_path.plan(table, self._spec, counters), self._spec, counters):
            pass
        found = Explanation(table, self._spec, counters)
        del root
        return found

    def explanation_of_last_run(self) -> Explanation:
        """Return what the last read of this scan read and skipped.

        After a read by DuckDB or polars, the result shows the columns and the predicate that the engine
        pushed down. If several reads run at the same time, the last one is the one that began last.
        Before the first read, all figures are 0.
        """
        root, table = self._root_and_table()
        spec, counters = self._last_run or (self._spec, None)
        found = Explanation(table, spec, counters)
        del root
        return found

    def tokens(self) -> list[bytes]:
        """Return one scan token per tablet, for `read_token` in any process that sees the files.

        A token includes the tablet's rows that are in no file yet. The files of a token stay on disk
        as long as the caller keeps this scan. The scan's limit applies to each token, and key order
        holds within a token.

        Raises
        ------
        InvalidArgumentError
            The predicate is a pyarrow expression, which cannot be sent to another process.
        """
        root, table = self._root_and_table()
        made = token.make_tokens(self._store.root_path, table, self._spec, 1)
        del root
        return [each.data for each in made]

    def to_spark(self, spark: Any, *, lease: float = 3600) -> Any:
        """Return a Spark DataFrame; the executors read the files.

        Parameters
        ----------
        spark
            The SparkSession.
        lease
            Seconds for which the files stay after the last read of the DataFrame. A read renews the
            lease once a quarter of it has passed. A small scan is copied into the DataFrame, and
            needs no lease.

        Returns
        -------
        pyspark.sql.DataFrame
            The rows of the scan, at its moment.
        """
        # `nyala.spark` is above this package. Only this call opens it, by name.
        return importlib.import_module("nyala.spark").scan_to_spark(spark, self, lease)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the rows as an Arrow C stream.

        If the caller requests dictionaries, or decimals of 4 or 8 bytes, such columns are returned
        as they are stored. For other requested types, Arrow casts the values.
        """
        if requested_schema is None:
            return super().__arrow_c_stream__()
        requested = pa.Schema._import_from_c_capsule(requested_schema)
        types = {**self._spec.types, **read_path.readable_types(requested, self._spec.columns)}
        scan = self._derived(types=types)
        return scan.to_reader().__arrow_c_stream__(requested.__arrow_c_schema__())

    # ---------------------------------------------------------------------------------------- inside

    def _own_columns(self, names: Sequence[str]) -> tuple[ColumnSchema, ...]:
        """Return the columns with these names. Raises: ColumnNotFoundError if the scan has no such column."""
        own = {column.name: column for column in self._spec.columns}
        for name in names:
            if name not in own:
                raise ColumnNotFoundError(f"the scan has no column {name!r}; it has {list(own)}")
        return tuple(own[name] for name in names)

    def _derived(self, **changes: Any) -> Scan:
        """Return a scan of the same snapshot; `changes` are fields of its `ScanSpec`."""
        root, table = self._root_and_table()
        spec = dataclasses.replace(self._spec, **changes)
        made = Scan(self._store, root, table, spec, self._source, self._schema_of, self)
        self._source._watch(made)
        return made

    def _engine(self) -> EngineScan:
        """Return the scan with the methods for query engines."""
        return EngineScan(self)

    def _begin(self) -> ScanCounters:
        """Return new counters for a read.

        `explanation_of_last_run` shows them, for this scan and for the scans that it was derived from.
        """
        run = self._spec, ScanCounters()
        scan: Scan | None = self
        while scan is not None:
            scan._last_run = run
            scan = scan._origin
        return run[1]

    def _read(self, table: TableState) -> Iterator[pa.RecordBatch]:
        counters = self._begin()
        units = read_path.plan(table, self._spec, counters)
        return read_path.run(units, self._spec, counters)

    def _how_to_repeat(self) -> str:
        return f"scan again, with at={self.timestamp} for the same moment"

    def __repr__(self) -> str:
        spec = self._spec
        parts = [
            f"Scan of {self._name} at {to_datetime(spec.snapshot).isoformat()}",
            f"columns {', '.join(self.columns)}",
        ]
        if spec.predicate is not None:
            parts.append(f"where {spec.predicate}")
        if spec.order_by_key:
            parts.append("ordered by key")
        if spec.limit is not None:
            parts.append(f"at most {counted(spec.limit, 'row')}")
        note = spec.predicate.null_note if spec.predicate is not None and spec.predicate.selects_none else ""
        return bounded("; ".join(parts)) + (f" ({note})" if note else "")

    def _repr_html_(self) -> str:
        return html_preview(repr(self), self.head)


def read_token(
    data: bytes, *, env: Env | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the rows of one scan token as record batches.

    Parameters
    ----------
    data
        A token from `Scan.tokens`.
    env
        The files and the clock to use. Default: those of this machine.
    columns
        Read only these of the token's columns, in this order. Default: all.

    Raises
    ------
    CorruptionError
        The bytes are not a token.
    HistoryExpiredError
        The files of the token are gone: make the scan again.
    """
    return token.read_token(data, env, columns)
