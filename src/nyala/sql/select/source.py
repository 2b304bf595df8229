"""Makes a scan a table of DuckDB, which pushes columns and predicates of a statement into the scan.

While DuckDB plans a statement, it offers each predicate to the table, and the table accepts the
predicate or not (`duckdb._sources`). Then DuckDB reads a stream of record batches: the columns that
it needs, of the rows that match the accepted predicates. DuckDB applies the other predicates
itself.

The scan gives accepted predicates the same meaning as DuckDB: NULL matches nothing, NaN equals NaN
and is greater than all other values, and text compares by bytes.

Invariants
    Q1  A predicate is accepted only if it binds to the table's schema, and if the scan has no
        limit. The scan would apply the predicate before the limit, but DuckDB means it after the
        limit.

DuckDB does not offer predicates that it derives while it runs, such as the keys of a join. For
joins, `sql.select.partners` finds which values of one table select the rows of another table.

Source: docs/design/sql-and-polars.md, "DuckDB plans, Nyala reads" and "Which predicates a scan takes".
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import functools
import math
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from nyala.errors import Error, InvalidArgumentError
from nyala.interop.text_views import VIEW_TYPES, TextViews
from nyala.optional import need
from nyala.schema.expressions import nodes
from nyala.schema.expressions.literals import to_literal
from nyala.schema.expressions.nodes import Node
from nyala.schema.expressions.value_lists import supported_array
from nyala.sql.select.connection import without_lost_filters

if TYPE_CHECKING:
    from nyala.api.engine_scan import EngineScan
    from nyala.tablet.scan.estimate import Estimate

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# A table with at least this many rows accepts a predicate if at most these shares of its rows match, or are read.
_ROWS_MIN: Final = 1 << 17
_MATCHING_MAX: Final = 1 / 200
_READ_MAX: Final = 1 / 4
# The statement's largest table also accepts predicates that match at most _EACH_MAX each and _TOGETHER_MAX together.
_TOGETHER_MAX: Final = 1 / 8
_EACH_MAX: Final = 1 / 2
# DuckDB receives text columns with larger dictionaries as string views.
_DICTIONARY_MAX: Final = 1 << 13
# Partners are used if the other column has at most this number of values, and at most this share of rows can match.
_PARTNERS_MAX: Final = 1 << 13
_PARTNERS_MATCHING_MAX: Final = 1 / 8
_OPERATORS: Final = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


class Planning:
    """What DuckDB's last planning of a statement showed about one table, for the next planning.

    DuckDB requests the row count of the table before it offers predicates, and it does not reduce
    the count for accepted predicates. So a statement with accepted predicates is planned twice. The
    second time, the count is the number of rows that match these predicates. A wrong count makes a
    slow plan, never a wrong answer.
    """

    def __init__(self, largest: bool = False) -> None:
        """largest: whether the table is the largest one of the statement.

        Usually a scan applies only predicates that save much: few rows match them, or few rows must
        be read. The scan of the largest table can also apply predicates that each match up to half of
        the rows. It does so if few rows match all of these predicates together. DuckDB applies the
        predicates that the scan does not apply.
        """
        self.largest = largest
        self.found: dict[Node, Estimate] = {}
        self.takes: dict[Node, bool] = {}  # whether a scan can apply the predicate
        # The matching shares of the offered predicates that exclude at least half of the rows.
        self.offered: list[float] = []
        self.together = False  # all of these predicates are accepted, because few rows match all of them
        self.taken: list[float] = []  # the matching shares of the accepted predicates
        self.applied: list[Node] = []  # the accepted predicates
        self.mentions = 0  # how often the statement names the table
        self.matching = 1.0  # the share of the rows that is reported to DuckDB as the row count

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Restore the counter `mentions` when the `with` block ends.

        `mentions` counts how often the statement names the table: each request of DuckDB for the row
        count adds 1. Registering the table in DuckDB causes a request, too, which must not count.
        """
        mentions = self.mentions
        yield
        self.mentions = mentions

    def begin(self) -> None:
        """Prepare for DuckDB's next planning of the statement.

        Decides from the predicates of the last planning which predicates the scan will apply, and
        which row count DuckDB will receive. Then forgets the predicates of the last planning.
        """
        self.together, self.matching = self._for_next_planning()
        self.taken, self.applied, self.offered, self.mentions = [], [], [], 0

    @property
    def would_change(self) -> bool:
        """Whether DuckDB should plan the statement again.

        True if the scan would then apply other predicates than in the last planning, or if DuckDB
        would receive another row count.
        """
        return self._for_next_planning() != (self.together, self.matching)

    def _for_next_planning(self) -> tuple[bool, float]:
        """Return (together, matching) for DuckDB's next planning, from the predicates of the last planning.

        together: whether the scan applies every predicate that at most half of the table's rows match.
            True only for the statement's largest table, and only if few of its rows match all of
            these predicates together. With False, the scan usually applies a predicate only if few
            rows match it or few rows must be read.
        matching: a number from 0 to 1, the estimated share of the rows that the scan returns. DuckDB
            receives this number times the table's number of rows as the row count for its plan.
        """
        if not self.mentions:
            return self.together, self.matching
        if self.mentions > 1:  # it is not known to which mention of the table a predicate belongs
            return False, 1.0
        together = self.largest and math.prod(self.offered) <= _TOGETHER_MAX
        return together, math.prod(self.offered if together else self.taken)


class _Stream:
    """Keeps the values of some columns while DuckDB reads a stream of a table's rows.

    The values later select the rows of another table that can join these rows (`select/partners.py`).
    columns: the names of these columns.
    """

    def __init__(self, columns: Collection[str]) -> None:
        self.ended = False
        self._kept: dict[str, list[pa.Array]] = {name: [] for name in columns}
        self._rows = 0

    def note(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        if self._rows > _PARTNERS_MAX:
            self._kept = {}
        for name, arrays in self._kept.items():
            arrays.append(batch.column(name))

    def values(self, column: str) -> list[pa.Array] | None:
        """Return all values of the column; None before the stream ends, and for too many values."""
        return self._kept.get(column) if self.ended else None


class ScanSource:
    """A scan that DuckDB can read any number of times. Thread-safe.

    For each read, DuckDB chooses the columns and the predicates.

    schema: the schema of the rows that DuckDB reads.
    runs: one scan for each read by DuckDB, with the columns and predicates of this read. Empty without
        `keep_runs`.
    failure: the first error of a read. DuckDB reports only its text, so the caller raises this
        error.
    """

    def __init__(
        self,
        scan: EngineScan,
        keep_runs: bool = False,
        planning: Planning | None = None,
        columns: Collection[str] | None = None,
    ) -> None:
        """Make the scan a source of rows for DuckDB.

        keep_runs: whether `runs` collects the scan of each read, to explain the statement later.
        planning: what DuckDB's last planning of the statement showed about the table. None: nothing yet.
        columns: the columns that the statement may read; None: all. Limiting them can save reading.

        Raises: InvalidArgumentError for columns whose names differ only in case.
        """
        check_distinct_names(scan.name, scan.schema.names)
        self.scan = scan.with_cheap_types(columns)
        self.schema = _with_views(self.scan)
        self.planning = planning or Planning()
        self.runs: list[EngineScan] = []
        # Both are set before rows are read (`select/partners.py`).
        self.looked_up: set[str] = set()  # columns whose values select rows of other tables
        # (a column of this table, the source of another table, the column there that has all values needed here)
        self.partners: list[tuple[str, ScanSource, str]] = []
        self._streams: list[_Stream] = []
        self.failure: BaseException | None = None
        self._keep_runs = keep_runs
        self._lock = threading.Lock()
        self._filters = not scan.has_limit

    @property
    def planned_by(self) -> Hashable:
        """The facts about this table on which DuckDB's plan of a statement depends.

        A plan can be used for every source with equal facts. The row count is rounded to a power of
        two, because another count makes a plan slower, never wrong.
        """
        scan = self.scan
        return (
            scan.name,
            scan.table_version,
            self.schema,
            scan.rows_held().bit_length(),
            scan.has_removed_ranges,
        )

    def rows(self) -> int:
        """Return the estimated number of rows for DuckDB's planner."""
        self.planning.mentions += 1
        return max(1, int(self.scan.rows_held() * self.planning.matching))

    def applies(self, predicate: Node) -> bool:
        """Return whether the scan applies a predicate that DuckDB offers.

        The scan applies the predicate if this saves reading or returning many rows. Otherwise DuckDB
        applies the predicate: it does so faster, and then also estimates joins better. If a range
        partition was removed since the scan's moment, the scan applies every predicate that it can,
        because it must exclude the removed rows.
        """
        accepted = self._accepts(predicate)
        if accepted:
            self.planning.applied.append(predicate)
        return accepted

    def _accepts(self, predicate: Node) -> bool:
        known = self.planning.takes
        try:
            if predicate not in known:
                known[predicate] = self.takes(predicate)
        except RecursionError:
            return False
        if not known[predicate]:
            return False
        if self.scan.has_removed_ranges:
            return True
        if self.scan.rows_held() < _ROWS_MIN:
            return False
        if predicate not in self.planning.found:
            try:
                self.planning.found[predicate] = self.scan.estimate(predicate)
            except Error as error:  # DuckDB passes on only its text
                self.failure = self.failure or error
                raise
        found = self.planning.found[predicate]
        selective = found.matching <= _EACH_MAX
        if selective:
            self.planning.offered.append(found.matching)
        if (
            found.matching > _MATCHING_MAX
            and found.read > _READ_MAX
            and not (self.planning.together and selective)
        ):
            return False
        self.planning.taken.append(found.matching)
        return True

    def takes(self, predicate: Node) -> bool:
        """Whether the scan can apply the predicate: the table has its columns, and the scan has no row limit."""
        if not self._filters:
            return False
        try:
            self.scan.narrowed((), predicate)
        except (Error, RecursionError):
            return False
        return True

    def begin(self) -> None:
        """Prepare the next planning or run of the statement.

        Discards the column values of this table that earlier runs kept. (A run uses them to skip rows
        of a joined table.)
        """
        self.planning.begin()
        with self._lock:
            self._streams = []

    def values_of(self, column: str) -> pa.ChunkedArray | None:
        """Return all values of a column; None unless DuckDB read all of them in one stream."""
        with self._lock:
            streams = list(self._streams)
        arrays = streams[0].values(column) if len(streams) == 1 else None
        kind = self.schema.field(column).type
        return None if arrays is None else pa.chunked_array(arrays, kind)

    def _with_partners(self) -> Iterator[Node]:
        """Yield predicates `column IN (…)` that exclude rows of this table which a join would drop anyway.

        The join drops a row if the other table does not contain its value. The lists are the other table's values.
        Leaves out a predicate that saves little reading. Yields nothing for a small table.
        """
        if not self._filters or not self.partners:
            return
        if self.scan.rows_held() < _ROWS_MIN:
            return
        for column, other, of_column in self.partners:
            given = other.values_of(of_column)
            values = None if given is None else _distinct(given)
            if values is not None:
                listed = nodes.col(column).isin(values)
                if self.scan.is_key(column):  # a value has at most one row, which is looked up by key
                    yield listed
                    continue
                found = self.scan.estimate(listed)
                if found.matching <= _PARTNERS_MATCHING_MAX or found.read <= _READ_MAX:
                    yield listed

    def reader(self, columns: Sequence[str] | None, predicate: Node | None) -> pa.RecordBatchReader:
        """Return the matching rows as a stream in bounded memory. Rows that a join would drop may be missing."""
        projection = self.schema.names if columns is None else columns
        try:
            terms = [*([] if predicate is None else [predicate]), *self._with_partners()]
            predicate = nodes.all_of(terms) if terms else None
            scan = self.scan.narrowed(projection, predicate)
        except BaseException as error:
            self.failure = self.failure or error
            raise
        stream = _Stream(self.looked_up.intersection(projection))
        with self._lock:
            self._streams.append(stream)
            if self._keep_runs:
                self.runs.append(scan)
        schema = pa.schema([self.schema.field(name) for name in scan.schema.names])
        make = _as_it_is if schema == scan.schema else TextViews(schema)
        batches = scan.batches_ahead(make)
        return pa.RecordBatchReader.from_batches(schema, self._noted(batches, stream))

    def _noted(self, batches: Iterator[pa.RecordBatch], stream: _Stream) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                stream.note(batch)
                yield batch
            stream.ended = True
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = self.failure or error
            raise


def _distinct(values: pa.ChunkedArray) -> pa.Array | None:
    """Return the distinct values without NULL, as the list of a predicate `column IN (…)`.

    None: such a predicate does not support the type of the values.
    """
    chunks = [supported_array(chunk) for chunk in values.chunks]
    if not all(chunk is not None for chunk in chunks):
        return None
    return pa.chunked_array(chunks).drop_null().unique() if chunks else pa.array([])


def check_distinct_names(table: str, columns: Sequence[str]) -> None:
    """Check that no two columns differ only in case. Raises: InvalidArgumentError.

    DuckDB renames the second of two such columns. A statement that names it would get the values of
    the first.
    """
    seen: dict[str, str] = {}
    for name in columns:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidArgumentError(
                f"table {table!r} has the columns {other!r} and {name!r}, and SQL ignores case in names: "
                "rename one by `with table.alter() as a: a.rename_column(old, new)`, or run the SQL on "
                f"table.scan(columns=[{name!r}]).to_duckdb(), which has only one of them"
            )


def _with_views(scan: EngineScan) -> pa.Schema:
    """Return the scan's schema with string views in place of large dictionaries.

    DuckDB converts the whole dictionary of each batch. Grouping 1,000,000 rows took 144 ms with a
    dictionary of 100,000 entries, and 77 ms with string views. With 5,000 entries both took the
    same time, and with fewer entries dictionaries are faster.
    """
    fields = []
    for field in scan.schema:
        if pa.types.is_dictionary(field.type) and scan.dictionary_size(field.name) > _DICTIONARY_MAX:
            field = field.with_type(VIEW_TYPES.get(field.type.value_type, field.type))
        fields.append(field)
    return pa.schema(fields)


def _as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def duckdb_of(con: Any) -> Any:
    """Switch off a faulty rule of DuckDB's optimiser in a connection, and return the connection.

    The rule can lose conditions of a statement (`select/connection.py`).
    con: a connection; None: the module `duckdb`, which is DuckDB's default connection.
    Raises: InvalidArgumentError for any other object; ImportError without DuckDB.
    """
    module = need("duckdb", "sql")
    if con is not None and not hasattr(con, "from_arrow"):
        raise InvalidArgumentError(
            f"to_duckdb takes a connection of duckdb.connect(), and not {con!r}; without an argument it uses DuckDB's "
            "default connection"
        )
    without_lost_filters(con or module)
    return con or module


def duckdb_table(source: ScanSource) -> Any:
    """Return an object that DuckDB's `con.register(name, …)` and `con.from_arrow(…)` take as a table.

    It reads the rows from its attribute `source`. Between two statements the attribute can be replaced,
    so that a prepared plan reads another scan. The new source must have an equal `planned_by`: the
    facts on which the plan depends.
    """
    return _source_class()(source)


@functools.cache
def _source_class() -> Callable[[ScanSource], Any]:
    """Return the class of the objects that `duckdb_table` returns.

    Its base class is not a public part of DuckDB, so a test checks that the installed DuckDB has it.
    Raises: ImportError if DuckDB does not have the base class.
    """
    try:
        from duckdb._sources import ArrowScanSource
    except ImportError as error:
        from duckdb import __version__

        raise ImportError(
            f"Nyala does not work with DuckDB {__version__}: pip install 'nyala[sql]' installs one that it works with"
        ) from error

    class NyalaScanSource(ArrowScanSource):
        schema_is_stable = True

        def __init__(self, source: ScanSource) -> None:
            super().__init__(None)
            self.source = source

        def rows(self) -> int | None:
            rows: int = self.source.rows()
            return rows

        def __arrow_c_schema__(self) -> Any:
            return self.source.schema.__arrow_c_schema__()

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return self.source.reader(None, None).__arrow_c_stream__(requested_schema)

        def accepts(self, predicate: Any) -> bool:
            found = predicate_of_node(predicate)
            taken: bool = found is not None and self.source.applies(found)
            return taken

        def stream(self, columns: Sequence[int] | None, filters: Sequence[Any]) -> tuple[Any, bool]:
            names = self.source.schema.names
            wanted = None if columns is None else [names[index] for index in columns]
            terms = [predicate_of_node(node) for node in filters]
            assert None not in terms, "a filter that was not accepted"
            reader = self.source.reader(wanted, nodes.all_of(terms) if terms else None)  # type: ignore[arg-type]
            return reader.__arrow_c_stream__(), columns is not None

    return NyalaScanSource


def predicate_of_node(node: Any) -> Node | None:
    """Return a predicate tree of DuckDB as a predicate of Nyala; None if Nyala has no such predicate."""
    try:
        return _of_node(node)
    except (Error, RecursionError):
        return None


def _of_node(node: Any) -> Node | None:
    kind = type(node).__name__
    if kind == "Binary" and node.op in ("AND", "OR"):
        parts = [_of_node(part) for part in _operands(node)]
        if any(part is None for part in parts):
            return None
        return (nodes.all_of if node.op == "AND" else nodes.any_of)(parts)  # type: ignore[arg-type]
    if kind == "Unary" and node.op == "NOT":
        part = _of_node(node.operand)
        return None if part is None else nodes.Not(part)
    column = _column_of(getattr(node, "left" if kind == "Binary" else "operand", None))
    if column is None:
        return None
    if kind == "Postfix" and node.op in ("IS NULL", "IS NOT NULL"):
        return nodes.IsNull(nodes.Column(column), negated=node.op == "IS NOT NULL")
    if kind == "Binary" and node.op in _OPERATORS:
        known, value = _literal_of(node.right)
        return nodes.compare(column, _OPERATORS[node.op], to_literal(value)) if known else None
    if kind == "In" and node.values:
        return _in_list(column, node.values)
    return None


def _in_list(column: str, listed: Sequence[Any]) -> Node | None:
    """Return `column IN (…)` as a predicate; None if the constants are not all of one known type.

    listed: the constants, as nodes of DuckDB's tree. Converts all constants at once, because there
        may be many.
    """
    if {type(constant).__name__ for constant in listed} != {"Lit"}:
        return None
    values = [constant.value for constant in listed]
    known, _ = _literal_of(listed[0])
    if not known or len({constant.type for constant in listed}) > 1 or len(set(map(type, values))) > 1:
        return None
    if listed[0].type == "TIMESTAMP WITH TIME ZONE":
        return nodes.col(column).isin(pa.array(values, pa.timestamp("us", "UTC")))
    return nodes.col(column).isin(values)


def _operands(node: Any) -> list[Any]:
    """Return the operands of a chain of one operator, such as `a AND b AND c`, left to right."""
    out, pending = [], [node]
    while pending:
        part = pending.pop()
        if type(part).__name__ == "Binary" and part.op == node.op:
            pending += (part.right, part.left)
        else:
            out.append(part)
    return out


def _column_of(node: Any) -> str | None:
    if type(node).__name__ != "Col" or len(node.parts) != 1:
        return None
    return str(node.parts[0])


def _literal_of(node: Any) -> tuple[bool, Any]:
    """Return (whether a node of DuckDB's tree is a constant of a known type, its value)."""
    if type(node).__name__ != "Lit":
        return False, None
    value = node.value
    if node.type == "TIMESTAMP WITH TIME ZONE":
        try:
            return True, _EPOCH + dt.timedelta(microseconds=value)
        except (TypeError, OverflowError):
            return False, None
    if node.type == "DATE":
        return type(value) is dt.date, value
    if node.type.startswith("DECIMAL"):
        return isinstance(value, decimal.Decimal) and value.is_finite(), value
    wanted = {"BOOLEAN": bool, "VARCHAR": str, "BLOB": bytes, "FLOAT": float, "DOUBLE": float}.get(
        node.type, int
    )
    return type(value) is wanted, value
