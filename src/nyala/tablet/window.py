"""One window of a scan: what is asked of it, and its rows.

    spec        columns, moment, predicate            unit      one rowset's part of a scan
    window      `WINDOW_ROWS` rows of a unit at most:
                  1. liveness at the snapshot
                  2. what the predicate demands of single columns, told as blocks are read, or from frames and codewords
                     (`_Sieve`); where that leaves few rows, all that follows is done for these alone
                  3. the predicate's columns: decode, patch with UNDO and REDO, evaluate
                  4. only then the other columns, and only the rows that are left
                in each of these steps all columns that can by one call, with what has changed (`rowset.together`)

Source: as `read_path`, which cuts scans into windows and puts their rows together again.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile.block_source import BlockForm
from nyala.cfile.encoded_rows import EncodedRows, Jobs, picked, rows_matching, rows_of
from nyala.cfile.encoding.words import text_of
from nyala.cfile.kernels import Question
from nyala.cfile.memory import of_columns, pool
from nyala.cfile.physical import narrow_decimal
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange, clamp, is_key_range, key_range_of
from nyala.lazy_values import LazyValues, lazy_value
from nyala.rowset.disk_rowset import DiskRowSet, is_scan
from nyala.rowset.stats import RowSetStats
from nyala.rowset.together import Told, encoded_columns, picked_columns, sieved_rows, whole_columns
from nyala.schema.arrow_values import rows_of as values_of
from nyala.schema.constraint import Constraint
from nyala.schema.plain_arrays import array_of_bytes, array_of_numbers
from nyala.schema.predicate import BoundPredicate
from nyala.schema.schema import ColumnSchema, Schema
from nyala.schema.word_test import Demanded, WordTest
from nyala.tablet.root import AnyRowSet

__all__ = ["GATHER_SHARE", "ScanCounters", "ScanSpec", "ScanUnit", "count_window", "evened", "growing"]
__all__ += ["in_twos", "in_type", "read_window"]

# Below this share of selected rows the other columns are gathered row by row instead of read whole.
GATHER_SHARE: Final = 1 / 32
# The same for columns whose single values are taken out of frames, which costs the rows that are wanted and no others,
# where a predicate had to be evaluated on all of them; and what of a sieved window is little.
PICK_SHARE: Final = 1 / 4
# So many columns are decoded at once of which some rows are taken.
_TAKEN_TOGETHER: Final = 8
# So few rows, as of a key range, are picked as those of a look-up are: that makes half the calls of a scan's reading.
_FEW_ROWS: Final = 1 << 12


@dataclass(frozen=True)
class ScanUnit:
    """One rowset's part of a scan: rowids [lower, upper) (a DiskRowSet), or the rows between key bounds
    (memory)."""

    rowset: AnyRowSet
    tablet: int  # ordinal
    lower: int
    upper: int
    rowids: np.ndarray | None = None  # memory with key bounds: which rows, in arrival order

    @property
    def is_scan(self) -> bool:
        """Whether it has so many rows that they are read as scans read, the last few of them too."""
        return is_scan(self.upper - self.lower)


class ScanCounters:
    """What a scan met; filled as it runs, by several threads."""

    def __init__(self) -> None:
        self.tablets_total = 0
        self.tablets_read = 0
        self.rowsets_total = 0
        self.rowsets_read = 0
        self.rows_in_range = 0  # that partitions and bounds on the key left
        self.windows_read = 0  # that the run has come to, and that zone maps did not exclude
        self.rows_read = 0  # of these
        self.stats = RowSetStats()
        self.sieved_rows = 0
        self.sieved_rows_left = 0
        self.sieved_oddly = 0  # windows of which nothing was left, or much
        self._lock = threading.Lock()

    def came_to(self, windows: int, rows: int) -> None:
        """So many more windows, and rows of windows, are to be read now."""
        with self._lock:
            self.windows_read += windows
            self.rows_read += rows

    @property
    def sieving_pays(self) -> bool:
        """Whether what was sieved so far left not all of its rows."""
        return self.sieved_rows_left < self.sieved_rows or not self.sieved_rows

    @property
    def sieving_leaves_little(self) -> bool:
        """Whether something was sieved, and few rows of it left."""
        return 0 < self.sieved_rows and self.sieved_rows_left <= self.sieved_rows * PICK_SHARE

    @property
    def share_left(self) -> float:
        """Which share of the rows that were sieved were left; 1 where none were."""
        return self.sieved_rows_left / self.sieved_rows if self.sieved_rows else 1.0

    @property
    def sieving_leaves_some(self) -> bool:
        """Whether windows were sieved, and some rows of each left, but not all: then all columns of the next are wanted
        as they lie, too."""
        return self.sieved_rows > 0 and not self.sieved_oddly

    def sieved(self, rows: int, left: int) -> None:
        """So many rows of a window were sieved, and so many were left."""
        with self._lock:
            self.sieved_rows += rows
            self.sieved_rows_left += left
            self.sieved_oddly += not 0 < left < rows

    def add(self, stats: RowSetStats) -> None:
        """What reading one more piece cost."""
        with self._lock:
            self.stats.add(stats)


@dataclass(frozen=True)
class ScanSpec(LazyValues):
    """What is asked of one table at one timestamp."""

    schema: Schema
    columns: tuple[ColumnSchema, ...]
    snapshot: int
    predicate: BoundPredicate | None = None
    limit: int | None = None
    order_by_key: bool = False
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Columns that come in another Arrow type than their own: a dictionary, a narrow decimal, or a wider type."""
    without_dropped: bool = False
    """Rows that went with their range partition are left out; else who needs them is refused."""

    @lazy_value
    def constraints(self) -> Mapping[str, Constraint]:
        return {} if self.predicate is None else self.predicate.constraints()

    @lazy_value
    def key_range(self) -> KeyRange:
        return key_range_of(self.constraints, self.schema)

    @lazy_value
    def is_key_range(self) -> bool:
        """Whether the predicate says no more than `key_range`: rows between these bounds need not be asked."""
        predicate = self.predicate
        return (
            predicate is not None
            and predicate.is_its_constraints
            and self.constraints.keys() == predicate.columns
            and is_key_range(self.constraints, self.schema)
        )

    @lazy_value
    def listed(self) -> Sequence[Sequence[Any]] | None:
        """Of each key column the values that it may have, ascending, if the predicate says that and nothing else; else
        None. The keys that match are all combinations of these."""
        predicate, columns = self.predicate, self.schema.key_columns
        names = {column.name for column in columns}
        if predicate is None or predicate.columns != names or not predicate.is_its_constraints:
            return None
        if self.constraints.keys() != names:
            return None
        clamped = [clamp(self.constraints[column.name], column.type) for column in columns]
        lists = [() if one.empty else one.values for one in clamped]
        return None if None in lists else [values for values in lists if values is not None]

    @property
    def listed_count(self) -> int | None:
        """How many keys match `listed`."""
        return None if self.listed is None else math.prod(map(len, self.listed))

    @lazy_value
    def listed_keys(self) -> EncodedKeys:
        """The keys that match `listed`, ascending. Cost: a microsecond or two for each."""
        assert self.listed is not None
        rows = itertools.product(*self.listed)
        return self.codec.from_binary(array_of_bytes([self.codec.encode_row(row) for row in rows]))

    @lazy_value
    def arrow_schema(self) -> pa.Schema:
        if not self.types and self.columns is self.schema.columns:
            return self.schema.arrow_schema()
        fields = [column.arrow_field() for column in self.columns]
        return pa.schema([f.with_type(self.types.get(f.name, f.type)) for f in fields])

    @lazy_value
    def codec(self) -> KeyCodec:
        return KeyCodec([column.type for column in self.schema.key_columns])

    @lazy_value
    def can_match(self) -> bool:
        return self.predicate is None or not self.predicate.empty


def read_window(
    unit: ScanUnit,
    spec: ScanSpec,
    lower: int,
    upper: int,
    columns: Sequence[ColumnSchema],
    counters: ScanCounters,
) -> tuple[np.ndarray | None, list[pa.Array]]:
    """The selected rows of [lower, upper), counted from `lower` (None: all of them), and the columns' values for them.

    An empty selection comes with no columns. Rows are in memory that is to be used again soon.
    """
    stats = RowSetStats()
    try:
        with of_columns(len(columns)):
            return _read_window(unit, spec, lower, upper, columns, counters, stats)
    finally:
        counters.add(stats)


def in_twos(
    pieces: Iterable[tuple[ScanUnit, int, int]], window_rows: int, counters: ScanCounters
) -> Iterator[tuple[ScanUnit, int, int]]:
    """Pieces (unit, lower, upper) of windows: an even window and the odd one behind it are one piece, where all between
    them is read, once sieving was seen to leave little.

    Where a predicate leaves little, half of what a window takes is the same for a large one as for a small one. Where
    it leaves much, the first would only come later.
    """
    before: tuple[ScanUnit, int, int] | None = None
    for piece in pieces:
        unit, lower, upper = piece
        is_odd = lower // window_rows % 2 and lower % window_rows == 0
        if (
            before is not None
            and before[0] is unit
            and before[2] == lower
            and is_odd
            and counters.sieving_leaves_little
        ):
            yield unit, before[1], upper
            before = None
            continue
        if before is not None:
            yield before
        before = piece
    if before is not None:
        yield before


def growing(
    pieces: Iterable[tuple[ScanUnit, int, int]], window_rows: int, most: Callable[[], int]
) -> Iterator[tuple[ScanUnit, int, int]]:
    """Pieces of windows, one after the other joined to larger ones where all between them is read: of one window, of
    one, of two, of four, as long as `most`, asked anew for each, is not less. The last of a unit may have so many and a
    quarter: a short one would cost as many turns at the interpreter's lock.

    For who works beside the threads that read: the first comes soon, and the later ones keep these at long calls. They
    lie at multiples of their size, so no block is decoded for two of them. Windows that were cut, so that what is held
    at once is less, stay so.
    """
    before: tuple[ScanUnit, int, int] | None = None
    size, done, end, is_cut = 1, 0, 0, False
    for unit, lower, upper in pieces:
        goes_on = before is not None and before[0] is unit and before[2] == lower
        is_inside = goes_on and lower % window_rows != 0
        if before is not None:
            if goes_on and lower < end and not is_cut and not is_inside:
                before = unit, before[1], upper
                continue
            yield before
            done += -(-(before[2] - before[1]) // window_rows)
            # Windows so far: 1, 2 or 3, 4 to 7, …; their highest bit.
            size = 1 << min(done, most()).bit_length() - 1
        before, is_cut = (unit, lower, upper), is_inside
        rows = size * window_rows
        end = (lower // rows + 1) * rows
        if unit.upper - end <= rows // 4:
            end = unit.upper
    if before is not None:
        yield before


def evened(
    pieces: Iterable[tuple[ScanUnit, int, int]], window_rows: int, rows: int
) -> Iterator[tuple[ScanUnit, int, int]]:
    """Pieces of windows, cut and joined anew at the multiples of `rows`, which are no more than a window's: of so few
    windows that some threads would have none, or one of them much the largest.

    Windows that were cut, so that what is held at once is less, stay so; nothing is read that was not in a piece.
    """
    before: tuple[ScanUnit, int, int] | None = None
    for unit, lower, upper in pieces:
        begins = lower % window_rows == 0 or lower == unit.lower
        if not (begins and (upper % window_rows == 0 or upper == unit.upper)):
            if before is not None:
                yield before
            before = None
            yield unit, lower, upper
            continue
        while lower < upper:
            end = min((lower // rows + 1) * rows, upper)
            if before is not None and before[0] is unit and before[2] == lower and lower % rows:
                before = unit, before[1], end
            else:
                if before is not None:
                    yield before
                before = unit, lower, end
            lower = end
    if before is not None:
        yield before


_NOTHING: Final[tuple[np.ndarray, list[pa.Array]]] = (np.empty(0, np.int64), [])


def _read_window(
    unit: ScanUnit,
    spec: ScanSpec,
    lower: int,
    upper: int,
    columns: Sequence[ColumnSchema],
    counters: ScanCounters,
    stats: RowSetStats,
) -> tuple[np.ndarray | None, list[pa.Array]]:
    rowset, snapshot, nothing = unit.rowset, spec.snapshot, _NOTHING
    mask = rowset.liveness(snapshot, lower, upper, stats)
    if unit.rowids is not None:
        inside = np.zeros(upper - lower, np.bool_)
        inside[unit.rowids[(unit.rowids >= lower) & (unit.rowids < upper)] - lower] = True
        mask = inside if mask is None else mask & inside
    if mask is not None and not mask.any():
        return nothing
    # The rows of a unit on disk are those between the key bounds.
    predicate = None if isinstance(rowset, DiskRowSet) and spec.is_key_range else spec.predicate
    if isinstance(rowset, DiskRowSet) and predicate is not None and counters.sieving_pays:
        sieve = _Sieve(unit, rowset, spec, lower, upper, stats)
        if sieve.asked(mask, columns, all_at_once=counters.sieving_leaves_some):
            counters.sieved(upper - lower, len(sieve.rows))
            if len(sieve.rows) < (upper - lower) * (1 if unit.is_scan else PICK_SHARE):
                return sieve.read(columns)
            if len(sieve.rows) == upper - lower and sieve.tells_all:
                predicate = None
    known = _Decoded(unit, spec, lower, upper, stats)
    if predicate is not None:
        known.read_together(map(spec.schema.by_name, predicate.columns), known.predicate_form)
        matching = predicate.evaluate(known, upper - lower)
        mask = matching if mask is None else mask & matching
    if mask is None or mask.all():
        few = upper - lower <= _FEW_ROWS and not unit.is_scan
        if few and isinstance(rowset, DiskRowSet) and not spec.types:
            others = [column for column in columns if column.name not in known.arrays]
            known.arrays |= zip(
                [column.name for column in others],
                rowset.rows_between(others, snapshot, lower, upper, stats),
                strict=True,
            )
        known.read_together(columns, known.form)
        return None, [
            in_type(known[column.name], column, spec)
            if column.name in known.arrays
            else in_type(_read(unit, column, spec, lower, upper, stats), column, spec)
            for column in columns
        ]
    selected = rows_of(mask)
    if not len(selected):
        return nothing
    out: list[pa.Array] = []
    for first in range(0, len(columns), _TAKEN_TOGETHER):
        out += _some_of_each(columns[first : first + _TAKEN_TOGETHER], known, selected)
    return selected, out


def _some_of_each(columns: Sequence[ColumnSchema], known: _Decoded, rows: np.ndarray) -> list[pa.Array]:
    """Columns at some rows of the window, counted from its first: taken out of what the predicate had decoded, or
    picked as they lie, as many by one call as may lie in memory at once, or as `_some`."""
    unit, spec, lower, upper, stats = known.unit, known.spec, known.lower, known.upper, known.stats
    made: dict[str, pa.Array] = {}
    if isinstance(unit.rowset, DiskRowSet) and unit.is_scan:
        left = [column for column in columns if column.name not in known.arrays]
        made |= picked_columns(unit.rowset, left, spec.types, spec.snapshot, lower, upper, rows, None, stats)
        left = [column for column in left if column.name not in made]
        while encoded := encoded_columns(unit.rowset, left, spec.snapshot, lower, upper, stats):
            jobs = Jobs()
            made |= {name: of.picking(rows, jobs, narrow=name in spec.types) for name, of in encoded.items()}
            jobs.do()
            left = [column for column in left if column.name not in encoded]
    out: list[pa.Array] = []
    for column in columns:
        # What is taken of it stays, the whole is not needed any more.
        whole = known.arrays.pop(column.name, None)
        if whole is not None:
            out.append(in_type(_taken(whole, rows), column, spec))
        elif column.name in made:
            out.append(in_type(made[column.name], column, spec))
        else:
            out.append(_some(unit, column, spec, lower, upper, rows, stats))
    return out


def _taken(whole: pa.Array, rows: np.ndarray) -> pa.Array:
    """Rows of an array, in memory that is used again."""
    return pc.take(values_of(whole), array_of_numbers(rows), boundscheck=False, memory_pool=pool())


def _some(
    unit: ScanUnit,
    column: ColumnSchema,
    spec: ScanSpec,
    lower: int,
    upper: int,
    rows: np.ndarray,
    stats: RowSetStats,
) -> pa.Array:
    """A column at some rows of the window, counted from its first: picked out of it, or read whole where they are
    many."""
    rowset = unit.rowset
    if isinstance(rowset, DiskRowSet):
        if len(rows) < (upper - lower) * PICK_SHARE and rowset.tells(column):
            encoded = rowset.encoded(column, spec.snapshot, lower, upper, stats)
            if encoded is not None:
                return in_type(picked(encoded, rows, narrow=column.name in spec.types), column, spec)
        if len(rows) < (upper - lower) * GATHER_SHARE:
            some = rowset.gather(column, spec.snapshot, rows + lower, stats, within=(lower, upper))
            return in_type(some, column, spec)
    elif len(rows) < (upper - lower) * GATHER_SHARE:
        return in_type(rowset.gather(column, spec.snapshot, rows + lower, stats), column, spec)
    whole = _read(unit, column, spec, lower, upper, stats)
    return in_type(_taken(whole, rows), column, spec)


class _Sieve(Mapping[str, pa.Array]):
    """A window of a scan with a predicate. Which of its rows can match is told, as far as that goes, from frames and
    codewords, before any value is decoded.

    What the predicate demands of single columns is asked of all rows, and the predicate itself, if it says more, of
    those that are left.
    As a mapping it has the columns of these rows, read when first asked for.
    """

    def __init__(
        self,
        unit: ScanUnit,
        rowset: DiskRowSet,
        spec: ScanSpec,
        lower: int,
        upper: int,
        stats: RowSetStats,
    ) -> None:
        self.rows: np.ndarray = np.empty(0, np.int64)  # that are left, counted from `lower`
        self._straight: Told | None = None  # what was told as blocks were read
        self._told: set[str] = set()  # columns whose demands `rows` satisfy
        self._encoded: dict[str, EncodedRows] = {}
        self._arrays: dict[str, pa.Array] = {}
        self._unit, self._rowset, self._spec = unit, rowset, spec
        self._lower, self._upper, self._stats = lower, upper, stats
        predicate = spec.predicate
        assert predicate is not None
        tests = self._word_tests(predicate)
        self._demands: dict[str, Demanded] = {**spec.constraints, **tests}
        self._asks = [(spec.schema.by_name(name), of) for name, of in self._demands.items()]
        # Whether the demands, if all columns tell, say all that the predicate does.
        self._say_all = predicate.is_told and tests.keys() == predicate.word_tests.keys()

    def _word_tests(self, predicate: BoundPredicate) -> dict[str, WordTest]:
        """Of text in a dictionary all that the predicate says, where there are many rows."""
        if not self._unit.is_scan:
            return {}
        found: dict[str, WordTest] = {}
        for name, test in predicate.word_tests.items():
            reader = self._rowset.base_column(self._spec.schema.by_name(name).id)
            if reader is not None and reader.has_dictionary:
                found[name] = test
        return found

    def asked(
        self, mask: np.ndarray | None, columns: Sequence[ColumnSchema], *, all_at_once: bool = False
    ) -> bool:
        """Find the rows of `mask` that may match; False if no column can tell without being decoded.

        columns:     whose values will be wanted of the rows that are left.
        all_at_once: read what these and the constraints need by one call, as far as it can be.
        """
        mask = self._asked_straight(mask, columns)
        left = [(column, of) for column, of in self._asks if column.name not in self._told]
        if left and (len(self.rows) or not self._told):
            if all_at_once:
                # Those that were told are picked from what was read for that.
                more = [column for column in self._telling(columns) if column.name not in self._told]
                self._fetch([*[column for column, _ in left], *more])
            self._ask(mask, left)
        return bool(self._told)

    def _asked_straight(self, mask: np.ndarray | None, columns: Sequence[ColumnSchema]) -> np.ndarray | None:
        """Ask those of the demands that can be as blocks are read; the mask that is left."""
        predicate = self._spec.predicate
        assert predicate is not None
        if not self._unit.is_scan:
            return mask
        wanted = {column.name for column in columns}
        if not self._say_all:
            wanted |= predicate.columns
        place = (self._spec.snapshot, self._lower, self._upper)
        found = sieved_rows(self._rowset, self._asks, wanted, *place, mask, self._stats)
        if found is None:
            return mask
        self._straight, self._told = found, set(found.columns)
        self.rows = found.sieved.rows
        return found.sieved.mask.view(np.bool_)

    def _fetch(self, columns: Iterable[ColumnSchema]) -> None:
        new = {column.name: column for column in columns if column.name not in self._encoded}
        if new and self._unit.is_scan:
            place = (self._spec.snapshot, self._lower, self._upper)
            found = encoded_columns(self._rowset, new.values(), *place, self._stats)
            self._encoded |= found

    def _telling(self, columns: Sequence[ColumnSchema]) -> list[ColumnSchema]:
        return [column for column in columns if self._rowset.tells(column)]

    def _ask(self, mask: np.ndarray | None, asks: Sequence[tuple[ColumnSchema, Demanded]]) -> None:
        """Find the rows of `mask` that satisfy what is demanded of columns that tell."""
        told = self._asked_at_once(asks)
        if told is not None:
            self.rows = told if mask is None else told[mask[told]]
            self._told |= {column.name for column, _ in asks}
            return
        left: np.ndarray | None = None
        for column, demanded in asks:
            if left is not None and len(self._encoded) == 1:  # of which it may be that nothing is left
                self._fetch([others for others, _ in asks])
            encoded = self._encoded.get(column.name)
            if encoded is None:
                rows = (self._lower, self._upper)
                encoded = self._rowset.encoded(column, self._spec.snapshot, *rows, self._stats)
            if encoded is None:
                continue
            self._encoded[column.name] = encoded
            self._told.add(column.name)
            matching = encoded.matches(demanded)
            left = matching if left is None else np.logical_and(left, matching, out=left)
            if not left.any():
                break
        if left is not None:
            self.rows = rows_of(left if mask is None else left & mask)

    def _asked_at_once(self, asks: Sequence[tuple[ColumnSchema, Demanded]]) -> np.ndarray | None:
        """What satisfies all that is demanded, told by one call; None where the columns are not all there, or not all
        can be asked so."""
        questions: list[Question] = []
        for column, demanded in asks:
            encoded = self._encoded.get(column.name)
            asked = None if encoded is None else encoded.questions(demanded)
            if asked is None:
                return None
            questions += asked
        return rows_matching(questions, self._upper - self._lower)

    @property
    def tells_all(self) -> bool:
        """Whether the rows that are left are those that the predicate selects."""
        predicate = self._spec.predicate
        assert predicate is not None
        return self._say_all and self._told >= predicate.columns

    def read(self, columns: Sequence[ColumnSchema]) -> tuple[np.ndarray, list[pa.Array]]:
        """As `read_window`."""
        predicate = self._spec.predicate
        assert predicate is not None
        if len(self.rows) and not self.tells_all:
            keep = predicate.evaluate(self, len(self.rows))
            if not keep.all():
                kept = rows_of(keep)
                self.rows = self.rows[kept]
                self._arrays = {name: _taken(array, kept) for name, array in self._arrays.items()}
        if not len(self.rows):
            return _NOTHING
        self._pick_straight(columns)
        self._fetch(self._telling([column for column in columns if column.name not in self._arrays]))
        self._pick_all(columns)
        return self.rows, [self[column.name] for column in columns]

    def _pick_straight(self, columns: Sequence[ColumnSchema]) -> None:
        """Those of the columns that are read straight from their blocks, at the rows that are left."""
        left = [of for of in columns if of.name not in self._arrays and of.name not in self._encoded]
        if left and self._unit.is_scan:
            place = (self._spec.snapshot, self._lower, self._upper)
            known = (self.rows, self._straight, self._stats)
            found = picked_columns(self._rowset, left, self._spec.types, *place, *known)
            for column in left:
                if column.name in found:
                    self._arrays[column.name] = in_type(found[column.name], column, self._spec)

    def _pick_all(self, columns: Sequence[ColumnSchema]) -> None:
        """Those of the columns that are there as they lie, at the rows that are left: by one call."""
        spec, jobs = self._spec, Jobs()
        arrays: dict[str, tuple[ColumnSchema, pa.Array]] = {}
        for column in columns:
            name = column.name
            encoded = self._encoded.get(name)
            if encoded is not None and name not in self._arrays:
                satisfied = self._demands.get(name)
                array = encoded.picking(self.rows, jobs, narrow=name in spec.types, satisfying=satisfied)
                arrays[name] = column, array
        jobs.do()
        for name, (column, array) in arrays.items():
            self._arrays[name] = in_type(array, column, spec)

    def __getitem__(self, name: str) -> pa.Array:
        if name not in self._arrays:
            column = self._spec.schema.by_name(name)
            self._pick_straight((column,))
            self._pick_all((column,))
            if name not in self._arrays:
                place = (self._lower, self._upper, self.rows)
                self._arrays[name] = _some(self._unit, column, self._spec, *place, self._stats)
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spec.schema.arrow_schema().names)

    def __len__(self) -> int:
        return len(self._spec.schema.columns)


class _Decoded(Mapping[str, pa.Array]):
    """A window's columns for a predicate: decoded when first asked for, to codewords or runs where it has them."""

    def __init__(self, unit: ScanUnit, spec: ScanSpec, lower: int, upper: int, stats: RowSetStats) -> None:
        self.arrays: dict[str, pa.Array] = {}
        self.unit, self.spec = unit, spec
        self.lower, self.upper, self.stats = lower, upper, stats

    def read_together(
        self, columns: Iterable[ColumnSchema], form: Callable[[ColumnSchema], BlockForm]
    ) -> None:
        """Decode those of the columns that can be by one call; the others come when they are asked for."""
        rowset = self.unit.rowset
        if isinstance(rowset, DiskRowSet) and self.unit.is_scan:
            wanted = [(column, form(column)) for column in columns if column.name not in self.arrays]
            place = (self.spec.snapshot, self.lower, self.upper)
            self.arrays |= whole_columns(rowset, wanted, *place, self.stats)

    def form(self, column: ColumnSchema) -> BlockForm:
        """What a column of the answer is read as."""
        wanted = self.spec.types.get(column.name)
        if wanted is not None and pa.types.is_dictionary(wanted):
            return "codes"
        return "plain" if wanted is None or narrow_decimal(column.type) is None else "narrow"

    def predicate_form(self, column: ColumnSchema) -> BlockForm:
        """What a column of the predicate is read as: where it costs less, in a form that the answer does not want."""
        if narrow_decimal(column.type) is None:
            return "codes" if column.type.is_variable else "plain"
        is_wide = column.name not in self.spec.types and column.name in self.spec.arrow_schema.names
        return "plain" if is_wide else "narrow"

    def __getitem__(self, name: str) -> pa.Array:
        found = self.arrays.get(name)
        if found is None:
            column = self.spec.schema.by_name(name)
            rowset, snapshot, stats = self.unit.rowset, self.spec.snapshot, self.stats
            lower, upper = self.lower, self.upper
            if isinstance(rowset, DiskRowSet):
                read = rowset.column
                if narrow_decimal(column.type) is None:
                    read = rowset.coded
                elif self.predicate_form(column) == "narrow":
                    read = rowset.narrow
                found = read(column, snapshot, lower, upper, stats, scanning=self.unit.is_scan)
            else:
                found = rowset.column(column, snapshot, lower, upper, stats)
            self.arrays[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.spec.schema.arrow_schema().names)

    def __len__(self) -> int:
        return len(self.spec.schema.columns)


def _read(
    unit: ScanUnit, column: ColumnSchema, spec: ScanSpec, lower: int, upper: int, stats: RowSetStats
) -> pa.Array:
    """The rows [lower, upper) of a column, in the type asked for if that is how they lie."""
    rowset, wanted = unit.rowset, spec.types.get(column.name)
    if not isinstance(rowset, DiskRowSet):
        return rowset.column(column, spec.snapshot, lower, upper, stats)
    read = rowset.column
    if wanted is not None:
        read = rowset.coded if pa.types.is_dictionary(wanted) else rowset.narrow
    return read(column, spec.snapshot, lower, upper, stats, scanning=unit.is_scan)


def in_type(array: pa.Array, column: ColumnSchema, spec: ScanSpec) -> pa.Array:
    """The values in the type that the scan gives, whatever they were read as."""
    wanted = spec.types.get(column.name, column.type.arrow)
    array = values_of(array)
    if array.type == wanted:
        return array
    if pa.types.is_dictionary(array.type):
        array = text_of(array)
    elif pa.types.is_dictionary(wanted):
        return array.dictionary_encode()
    return array if array.type == wanted else array.cast(wanted)


def count_window(unit: ScanUnit, spec: ScanSpec, lower: int, upper: int, counters: ScanCounters) -> int:
    selected, _ = read_window(unit, spec, lower, upper, (), counters)
    return upper - lower if selected is None else len(selected)
