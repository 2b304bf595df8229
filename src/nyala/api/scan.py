"""Reading: a scan of one table at one moment, and the forms in which it hands over its rows.

    scan = table.scan(columns=["time", "value"], where="host = 'a' AND time >= 5", at=before)
    scan.to_arrow()  ·  .to_reader()  ·  .to_pandas()  ·  .to_polars()  ·  .to_duckdb(con)  ·  .head()  ·
    .count()  ·  .explain()

A scan takes its snapshot when it is made, may be read many times with one answer, and keeps the files it
needs until it is collected, or 15 minutes unread; then it raises HistoryExpiredError.

Scan tokens carry one tablet's part of a scan to another process, or machine, that sees the same files:
snapshot, schema, files with their offsets, predicate, and what the tablet has in memory as Arrow; whoever
holds one needs neither the catalogue nor the log.

Source: docs/how-to/expressions.md; docs/design/processes-and-locks.md, "Scan tokens".
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Protocol, Self, TypeVar

import pyarrow as pa

from nyala.cfile.physical import narrow_decimal
from nyala.env import Env
from nyala.errors import ColumnNotFoundError, HistoryExpiredError, InvalidArgumentError, SchemaError
from nyala.mvcc.timestamp import to_datetime
from nyala.optional import need
from nyala.presentation.explanation import Explanation
from nyala.presentation.previews import ROWS_COUNTED, preview, row_count_text, told
from nyala.presentation.unknown_methods import no_attribute, not_pickled
from nyala.schema.alteration import widens
from nyala.schema.arrow_values import telling_damage
from nyala.schema.expressions.nodes import Node, all_of
from nyala.schema.predicates.predicate import BoundPredicate, bind
from nyala.schema.schema import ColumnSchema
from nyala.schema.sizes import whole_number
from nyala.schema.types import parse_type
from nyala.tablet.scan import read_path, token
from nyala.tablet.scan.estimate import Estimate, estimate, row_count
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec
from nyala.tablet.scan.token import Token
from nyala.tablet.state.history import check_dropped
from nyala.tablet.state.root import Root, TableState

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

_Made = TypeVar("_Made")

# A scan that nobody reads for this long gives back its files.
UNREAD_LIMIT_S: Final = 15 * 60.0


class ScannedStore(Protocol):
    """What a scan needs of the store it reads: the writer's, or a reader process's."""

    env: Env
    root_path: str

    def check_open(self) -> None: ...


class PinnedRows(abc.ABC):
    """Rows that can be read many times with one answer, in the forms that people use; holds the root that they are in
    until it is collected or 15 minutes unread. Thread-safe; nothing is read before it is asked for."""

    _what: ClassVar[str]

    def __init__(self, store: ScannedStore, root: Root, table: TableState) -> None:
        self._store = store
        self._root: Root | None = root
        self._table: TableState | None = table
        self._name = table.name
        self._lock = threading.Lock()
        self._last_read_s = store.env.clock.monotonic_s()

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    @property
    @abc.abstractmethod
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""

    @abc.abstractmethod
    def _read(self, table: TableState) -> Iterator[pa.RecordBatch]:
        """The rows, which lie in `table`."""

    @abc.abstractmethod
    def _again(self) -> str:
        """How to ask anew for the same rows."""

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of record batches, in bounded memory."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return pa.Table.from_batches(list(self._batches()), schema=self.schema)

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """The rows as a pandas DataFrame; `options` go to `pyarrow.Table.to_pandas`."""
        need("pandas")
        rows = self.to_arrow()
        with telling_damage(rows):
            return rows.to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars DataFrame."""
        polars: Any = need("polars", "polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
        return frame

    def to_duckdb(self, con: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation over the rows, on `con` or on DuckDB's default connection."""
        from nyala.sql.source import duckdb_of

        relation: duckdb.DuckDBPyRelation = duckdb_of(con).from_arrow(self.to_arrow())
        return relation

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Arrow's stream protocol: `pa.table(rows)`, `pl.DataFrame(rows)`, DuckDB's `FROM rows`."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __iter__(self) -> NoReturn:
        raise TypeError(not_looped_over(f"a {self._what}", self._what.split()[-1]))

    if not TYPE_CHECKING:

        def __getitem__(self, item: object) -> NoReturn:
            rows = self._what.split()[-1]
            raise TypeError(not_indexed(f"a {self._what}", item, rows, rows))

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name)

        def __reduce__(self) -> NoReturn:
            raise not_pickled(self)

        def __copy__(self) -> Self:
            return self  # a handle: any number of threads may use it

    def expire_if_unread(self) -> None:
        """Give back the files when nobody read for 15 minutes. Called by maintenance."""
        with self._lock:
            if self._store.env.clock.monotonic_s() - self._last_read_s > UNREAD_LIMIT_S:
                self._root = self._table = None

    def give_back(self) -> None:
        """Give back the files for good: the Database was closed."""
        with self._lock:
            self._root = self._table = None

    def _batches(self) -> Iterator[pa.RecordBatch]:
        root, table = self._take()
        for batch in self._read(table):
            # The generator's own frame keeps the root; the touch keeps a slow consumer from being expired.
            self._last_read_s = self._store.env.clock.monotonic_s()
            yield batch
        del root

    def _take(self) -> tuple[Root, TableState]:
        # Who closes the store gives up its lock or lease, and with it the files.
        self._store.check_open()
        with self._lock:
            root, table = self._root, self._table
            self._last_read_s = self._store.env.clock.monotonic_s()
        if root is None or table is None:
            raise HistoryExpiredError(
                f"this {self._what} of {self._name!r} was not read for {UNREAD_LIMIT_S / 60:.0f} minutes and gave back "
                f"its files: {self._again()}"
            )
        return root, table


class Scan(PinnedRows):
    """Rows of one table at one moment. Made by `Table.scan`; thread-safe; nothing is read before it is asked
    for."""

    _what = "scan"

    def __init__(
        self, store: ScannedStore, root: Root, table: TableState, spec: ScanSpec, origin: Scan | None = None
    ) -> None:
        """origin: the scan that this one was made of, narrowed or in other types; what is read here is read through it
        too."""
        super().__init__(store, root, table)
        self._spec = spec
        self._origin = origin
        # What was asked last, and what it cost: set in one step, and each run has its own, so threads never mix two.
        self._last_run: tuple[ScanSpec, ScanCounters] | None = None

    def _derived(self, root: Root, table: TableState, spec: ScanSpec) -> Scan:
        """The same rows, or some of them, in another form."""
        return Scan(self._store, root, table, spec, self)

    def _begin(self) -> ScanCounters:
        """The counters of a run that begins: of this scan, and of all that it was made of."""
        run = self._spec, ScanCounters()
        scan: Scan | None = self
        while scan is not None:
            scan._last_run = run
            scan = scan._origin
        return run[1]

    @property
    def timestamp(self) -> int:
        """The snapshot: every batch up to this timestamp is in, none after it."""
        return self._spec.snapshot

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return self._spec.arrow_schema

    # ---------------------------------------------------------------------------------------- results

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars DataFrame. Cost: decimals of up to 18 digits are handed over as they are stored."""
        need("polars", "polars")
        from nyala.interop.polars_frames import polars_frame

        return polars_frame(self)

    def to_polars_lazy(self) -> pl.LazyFrame:
        """A lazy polars frame: columns that a query names, limits, and what is understood of filters reach the scan.

        Windows are read by threads ahead of polars, a few at a time, as `memory_limit` allows.
        """
        need("polars", "polars")
        from nyala.interop.polars_frames import polars_lazy

        return polars_lazy(self)

    def to_duckdb(self, con: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation over the scan, on `con` or on DuckDB's default connection, read when a query needs it.

        Columns and predicates of the query are pushed into the scan, and its batches are read as DuckDB works them off.
        On a connection of DuckDB 2.0.0 its rule `outer_join_simplification` is switched off, which forgets filters on
        what is no table of DuckDB's own.
        """
        from nyala.sql.source import ScanSource, duckdb_of, duckdb_table

        relation: duckdb.DuckDBPyRelation = duckdb_of(con).from_arrow(duckdb_table(ScanSource(self)))
        return relation

    def head(self, n: int = 10) -> pa.Table:
        """The first `n` of the rows that the scan gives: in key order if it was asked for that, otherwise any."""
        n = _row_count("head", n)
        root, table = self._take()
        limit = n if self._spec.limit is None else min(n, self._spec.limit)
        return self._derived(root, table, dataclasses.replace(self._spec, limit=limit)).to_arrow()

    def why_empty(self) -> str:
        """Why the scan has no row, where that is plain: a column is compared with NULL. Empty otherwise."""
        predicate = self._spec.predicate
        return "" if predicate is None else predicate.null_note

    def check_readable(self) -> None:
        """Raises: HistoryExpiredError when it needs a range partition that was there then and was dropped since."""
        _, table = self._take()
        if self._spec.can_match:
            check_dropped(table, self._spec.snapshot, self._spec.constraints)

    def count(self) -> int:
        """How many rows; decodes only what the predicate and deletions need."""
        root, table = self._take()
        counters = self._begin()
        total = read_path.count(read_path.plan(table, self._spec, counters), self._spec, counters)
        del root
        return total

    def __len__(self) -> int:
        return self.count()

    def explain(self) -> Explanation:
        """Run the scan, throw its rows away, and say what was read and what was skipped."""
        root, table = self._take()
        counters = ScanCounters()
        for _ in read_path.run(read_path.plan(table, self._spec, counters), self._spec, counters):
            pass
        found = Explanation(table, self._spec, counters)
        del root
        return found

    def explanation_of_last_run(self) -> Explanation:
        """As `explain`, of what was last read through this scan, as far as that came: by itself, or by an engine that
        asked it for columns and predicates, which are shown then (`to_duckdb`, `to_polars_lazy`). Of several at a time
        the one that began last. Before the first it says so; all figures that were read are 0 then."""
        root, table = self._take()
        spec, counters = self._last_run or (self._spec, None)
        found = Explanation(table, spec, counters)
        del root
        return found

    def tokens(self) -> list[bytes]:
        """One token per tablet that the scan has to read: for `read_token`, in any process that sees the files.

        What a tablet holds in memory travels inside its token. The caller keeps the files alive: with this
        scan, or with a lease. A `limit` holds per token; key order holds within a token.
        Raises: InvalidArgumentError for a predicate that is a pyarrow expression (it cannot travel).
        """
        return [made.data for made in self._balanced_tokens(1)]

    def _balanced_tokens(self, count: int) -> list[Token]:
        """About `count` tokens with their row counts: as `tokens`, with large tablets cut."""
        root, table = self._take()
        made = token.make_tokens(self._store.root_path, table, self._spec, count)
        del root
        return made

    def _rows_to_look_at(self) -> int:
        """At most so many rows are looked at, as bounds on the key and zone maps of rowsets say; reads no row."""
        root, table = self._take()
        found = token.planned_rows(table, self._spec)
        del root
        return found

    def _text_bytes(self) -> dict[str, float]:
        """See `token.text_bytes`."""
        root, table = self._take()
        found = token.text_bytes(table, self._spec)
        del root
        return found

    def to_spark(self, spark: Any, *, lease: float = 3600) -> Any:
        """A Spark DataFrame over the scan's tokens, read by the executors straight from the files.

        lease: seconds for which the files of the scan are kept after the DataFrame was last read: a read renews it when
               a quarter has gone. Few rows stand in the DataFrame itself, and need none.
        """
        # `nyala.spark` stands above this package. This call alone opens it, by name, when it is used.
        return importlib.import_module("nyala.spark").scan_to_spark(spark, self, lease)

    def with_dictionaries(self, *columns: str | Sequence[str]) -> Scan:
        """The same rows, these text or binary columns as Arrow dictionaries (in pandas and polars: categoricals).

        columns: names, one by one or in a list. A column that is named comes as a dictionary however it is stored.
                 None at all stands for the text columns that have a dictionary in every rowset on disk: where one
                 rowset's file fell back to plain, and where much lies in memory still, text stays text.
        Cost:    of values that lie in dictionaries less than without; others have theirs made, batch by batch. Batches
                 of several rowsets have several dictionaries.
        Raises:  ColumnNotFoundError, and InvalidArgumentError for a column that is neither text nor binary.
        """
        root, table = self._take()
        given = {column.name: column for column in self._spec.columns}
        names = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        for name in names:
            if not isinstance(name, str):
                raise InvalidArgumentError(
                    f"with_dictionaries takes names of columns, one by one or in a list, not {name!r}"
                )
            if name not in given:
                raise ColumnNotFoundError(f"the scan has no column {name!r}; it has {list(given)}")
            if not given[name].type.is_variable:
                raise InvalidArgumentError(
                    f"column {name!r} has type {given[name].type}; only text and binary come as dictionaries"
                )
        types = {str(name): pa.dictionary(pa.int32(), given[str(name)].type.arrow) for name in names}
        if not columns:
            narrower = read_path.narrower_types(table, self._spec.columns)
            types = {name: type for name, type in narrower.items() if pa.types.is_dictionary(type)}
        spec = dataclasses.replace(self._spec, types={**self._spec.types, **types})
        return self._derived(root, table, spec)

    def _with_narrow_decimals(self) -> Scan:
        """The same rows, decimals of up to 18 digits as Arrow's decimals of 4 and 8 bytes, as they are stored.

        Where Arrow has none (before pyarrow 19), and for columns that another type was asked for, as before.
        """
        root, table = self._take()
        narrow = {
            column.name: type
            for column in self._spec.columns
            if column.name not in self._spec.types and (type := narrow_decimal(column.type)) is not None
        }
        spec = dataclasses.replace(self._spec, types={**self._spec.types, **narrow})
        return self._derived(root, table, spec)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Arrow's stream protocol. Who asks for dictionaries of text or binary, or for narrow decimals, gets them as
        they lie in the files; other types that are asked for are Arrow's casts."""
        if requested_schema is None:
            return super().__arrow_c_stream__()
        asked = pa.Schema._import_from_c_capsule(requested_schema)
        root, table = self._take()
        types = {**self._spec.types, **read_path.readable_types(asked, self._spec.columns)}
        scan = self._derived(root, table, dataclasses.replace(self._spec, types=types))
        return scan.to_reader().__arrow_c_stream__(asked.__arrow_c_schema__())

    def compacted(self, names: Collection[str] | None = None) -> Scan:
        """The same rows in types that an engine takes at less cost: see `read_path.narrower_types`.

        names: of these columns only; None: of all.
        """
        root, table = self._take()
        columns = [column for column in self._spec.columns if names is None or column.name in names]
        types = {**read_path.narrower_types(table, columns), **self._spec.types}
        return self._derived(root, table, dataclasses.replace(self._spec, types=types))

    def narrowed(self, columns: Sequence[str], where: Node | None = None) -> Scan:
        """The same rows at the same moment with only these of its columns, and of them those that also match `where`.

        Raises: ColumnNotFoundError, and InvalidArgumentError or SchemaError for a predicate that does not bind. A scan
        with a limit takes no further predicate: it would choose other rows.
        """
        root, table = self._take()
        strange = [name for name in columns if name not in self.schema.names]
        if strange:
            raise ColumnNotFoundError(f"the scan has no column {strange[0]!r}; it has {self.schema.names}")
        given = {column.name: column for column in self._spec.columns}
        kept = tuple(given[column.name] for column in self._spec.schema.project(list(columns)))
        spec = dataclasses.replace(self._spec, columns=kept)
        if where is not None:
            if self.limited:
                raise InvalidArgumentError("a scan with a limit takes no further predicate")
            trees = (where,) if spec.predicate is None else (spec.predicate.tree, where)
            spec = dataclasses.replace(spec, predicate=bind(all_of(trees), spec.schema))
        return self._derived(root, table, spec)

    @property
    def limited(self) -> bool:
        """Whether the scan has a limit on its rows."""
        return self._spec.limit is not None

    @property
    def table_version(self) -> tuple[int, int]:
        """The ids of the table and of the schema that the scan reads by: equal ones mean one schema."""
        _, table = self._take()
        return table.id, table.schema.version

    def is_key(self, name: str) -> bool:
        """Whether the column alone is the table's primary key."""
        return [column.name for column in self._spec.schema.key_columns] == [name]

    @property
    def lacks_ranges(self) -> bool:
        """Whether range partitions of its moment were dropped since: only predicates that need none of their rows can
        be answered."""
        root, table = self._take()
        lacking = any(gone.missing_at(self._spec.snapshot) for gone in table.entry.dropped)
        del root
        return lacking

    def estimate(self, where: Node) -> Estimate:
        """How many rows there are, and which share of them `where` will leave: guesses, for planners.

        Raises: as `narrowed`.
        """
        scan = self.narrowed((), where)
        root, table = scan._take()
        found = estimate(table, scan._spec)
        del root
        return found

    def rows_held(self) -> int:
        """How many rows the table has, dead ones too, but no more than the scan's limit. Reads nothing."""
        root, table = self._take()
        rows, limit = row_count(table), self._spec.limit
        del root
        return rows if limit is None else min(rows, limit)

    def dictionary_size(self, name: str) -> int:
        """The number of entries in the column's largest dictionary on disk; 0: there is none."""
        root, table = self._take()
        size = read_path.dictionary_size(table, self._spec.schema.by_name(name))
        del root
        return size

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, without a reader around them."""
        return self._batches()

    def batches_ahead(self, make: Callable[[pa.RecordBatch], _Made]) -> Iterator[_Made]:
        """What `make` makes of each batch, in their order, by the threads that read.

        make: called by several threads at once.
        """
        root, table = self._take()
        counters = self._begin()
        units = read_path.plan(table, self._spec, counters)
        for made in read_path.run(units, self._spec, counters, make):
            self._last_read_s = self._store.env.clock.monotonic_s()
            yield made
        del root

    # ---------------------------------------------------------------------------------------- inside

    def _read(self, table: TableState) -> Iterator[pa.RecordBatch]:
        counters = self._begin()
        units = read_path.plan(table, self._spec, counters)
        return read_path.run(units, self._spec, counters)

    def _again(self) -> str:
        return f"scan again, with at={self.timestamp} for the same moment"

    @told
    def __repr__(self) -> str:
        root, table = self._take()
        counters = ScanCounters()
        shown = 10 if self._spec.limit is None else min(10, self._spec.limit)
        spec = dataclasses.replace(self._spec, limit=shown)
        head = pa.Table.from_batches(
            list(read_path.run(read_path.plan(table, spec, counters), spec, counters)), schema=self.schema
        )
        most = ROWS_COUNTED + 1
        spec = dataclasses.replace(self._spec, limit=min(most, self._spec.limit or most))
        count = head.num_rows
        if count == shown:
            count = read_path.count(read_path.plan(table, spec, counters), spec, counters)
        del root
        at = to_datetime(self.timestamp).isoformat()
        lines = [f"Scan of {self._name} at {at}, {row_count_text(count)}", preview(head)]
        if not head.num_rows and (why := self.why_empty()):
            lines.append(f"({why})")
        return "\n".join(lines)


def read_token(
    data: bytes, *, env: Env | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one scan token as record batches.

    columns: read only these of the token's columns, in this order.
    Raises: CorruptionError for bytes that are no token, HistoryExpiredError when its files are gone ("load
    again").
    """
    return token.read_token(data, env, columns)


def resolve_columns(table: TableState, columns: Sequence[str] | None) -> tuple[ColumnSchema, ...]:
    """Raises: ColumnNotFoundError, InvalidArgumentError."""
    if columns is None:
        return table.schema.columns
    if isinstance(columns, str):
        names = [name.strip() for name in columns.split(",")]
        meant = f"where={columns!r}" if any(sign in columns for sign in "=<>") else f"columns={names!r}"
        raise InvalidArgumentError(f"columns takes a list of names, not the text {columns!r}: write {meant}")
    given: Any = columns
    if not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        raise InvalidArgumentError(f"columns takes a list of names, not {columns!r}")
    if len(set(columns)) != len(columns):
        raise InvalidArgumentError(f"columns names a column twice: {list(columns)}")
    return table.schema.project(columns)


def requested_types(
    columns: Sequence[ColumnSchema], wanted: pa.Schema
) -> tuple[tuple[ColumnSchema, ...], dict[str, pa.DataType]]:
    """The columns as `wanted` asks for them, and the types of those that come in another one than their own: a wider
    one, or a dictionary of text. Types are read as `create_table` reads them: large_string is string.

    Raises: SchemaError for a type that is not the column's nor wider, for a dictionary that a scan does not give, and
    for NOT NULL where NULL may be.
    """
    shown, types = [], {}
    for column, field in zip(columns, wanted, strict=True):
        asked = parse_type(field.type)
        if not widens(column.type, asked):
            raise SchemaError(
                f"column {column.name!r} is {column.type}, asked for as {asked}: a column comes in its own type or in "
                "a wider one; cast what you have read"
            )
        if column.nullable and not field.nullable:
            raise SchemaError(
                f"column {column.name!r} may hold NULL, and is asked for as NOT NULL: ask for it with nullable=True"
            )
        if pa.types.is_dictionary(field.type):
            types[column.name] = _dictionary_asked(column, field.type)
        elif asked.arrow != column.type.arrow:
            types[column.name] = asked.arrow
        shown.append(dataclasses.replace(column, nullable=True) if field.nullable else column)
    return tuple(shown), types


def _dictionary_asked(column: ColumnSchema, asked: pa.DataType) -> pa.DataType:
    """Raises: SchemaError for another one than `Scan.with_dictionaries` gives."""
    if not column.type.is_variable:
        raise SchemaError(
            f"column {column.name!r} is {column.type}, asked for as {asked}: only text and binary come as dictionaries"
        )
    given = pa.dictionary(pa.int32(), column.type.arrow)
    if asked != given:
        raise SchemaError(
            f"column {column.name!r} is asked for as {asked}: a scan gives pa.dictionary(pa.int32(), "
            f"pa.{column.type.arrow}()), as with_dictionaries({column.name!r}) does; cast what you have read"
        )
    return given


def make_spec(
    table: TableState,
    snapshot: int,
    columns: Sequence[str] | pa.Schema | None,
    where: Any,
    limit: int | None,
    order_by_key: bool,
) -> ScanSpec:
    """Check what the user asked for. Raises: ColumnNotFoundError, InvalidArgumentError, SchemaError."""
    if limit is not None:
        limit = _row_count("limit", limit)
    predicate: BoundPredicate | None = bind(where, table.schema)
    wanted = resolve_columns(table, columns.names if isinstance(columns, pa.Schema) else columns)
    types: dict[str, pa.DataType] = {}
    if isinstance(columns, pa.Schema):
        wanted, types = requested_types(wanted, columns)
    return ScanSpec(table.schema, wanted, snapshot, predicate, limit, order_by_key, types)


def _row_count(what: str, given: object) -> int:
    """The rows that were asked for, NumPy's whole numbers too. Raises: InvalidArgumentError for what is no number."""
    count = whole_number(given)
    if count is None or count < 0:
        raise InvalidArgumentError(f"{what} takes a number of rows, 0 or more, not {given!r}")
    return count


def not_looped_over(what: str, rows: str) -> str:
    """What to write instead of `for row in …`. rows: how its rows are asked for in Python."""
    return (
        f"{what} is not looped over itself: `for batch in {rows}.to_reader():` goes through its record batches in "
        f"bounded memory, {rows}.to_arrow().to_pylist() is a list of all rows as dicts, {rows}.to_pandas() a data frame"
    )


def not_indexed(what: str, item: object, rows: str, column: str) -> str:
    """What to write instead of `…[item]`. rows, column: how rows are asked for in Python, and those of one column."""
    if isinstance(item, str):
        return f"{what} is not indexed: {column}.to_arrow()[{item!r}] is that column, as Arrow has it"
    return f"{what} is not indexed: {rows}.to_arrow() and {rows}.to_pandas() are, table.get(key) is a row by its key"
