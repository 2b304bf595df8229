"""The kinds of tables that the model test uses, and limits so small that a few rows reach them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import ModuleType
from typing import Any
from unittest import mock

import nyala
from nyala.cfile import format, memory
from nyala.delta import mem_store
from nyala.rowset import mem_rowset, skipping
from nyala.rowset.key_lookup import key_runs, stored_keys
from nyala.schema import schema
from nyala.tablet.changes import spec
from nyala.tablet.changes.spec import SLICE_VERSIONS
from nyala.tablet.recovery import bootstrap
from nyala.tablet.scan import read_path, split
from nyala.wal.format import SEGMENT_SIZE_BYTES
from nyala.wal.writer import LogWriter
from tests.model.versions import Column, Key, Range, Table


@dataclass(frozen=True)
class Shape:
    """A kind of table.

    key:       the name and type of each key column.
    keys:      the keys of single operations: few, so that each is written, flushed and merged often.
    nth_key:   a function from a number to a key, for large batches.
    range_on:  the index of the key column with range partitions; None: no ranges.
    borders:   the possible bounds of ranges.
    hash_on:   the key columns with hash partitions; empty: no hash partitions.
    encoding:  the encoding of the key columns.
    """

    name: str
    key: tuple[tuple[str, str], ...]
    keys: Sequence[Key]
    nth_key: Callable[[int], Key]
    range_on: int | None = None
    borders: Sequence[Any] = ()
    hash_on: tuple[str, ...] = ()
    encoding: str = "auto"

    def partitions(
        self, buckets: int, ranges: Sequence[tuple[Any, Any]], names: Mapping[str, str] | None = None
    ) -> list[Any]:
        """Return the partitions. names: from the first to the present names of key columns."""
        names = names or {name: name for name, _ in self.key}
        out: list[Any] = []
        if self.hash_on and buckets > 1:
            out.append(nyala.hash_partition(*(names[name] for name in self.hash_on), buckets=buckets))
        if self.range_on is not None:
            out.append(nyala.range_partition(names[self.key[self.range_on][0]], bounds=list(ranges)))
        return out

    def ranges(self) -> list[tuple[Any, Any]]:
        """Return adjacent ranges over all keys; a new table has the first two."""
        ends = [None, *self.borders, None]
        return list(itertools.pairwise(ends)) if self.range_on is not None else [(None, None)]


DAYS = [dt.date(1969, 12, 31), dt.date(2026, 11, 21)]
MOMENTS = [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC), dt.datetime(2026, 11, 21, tzinfo=dt.UTC)]

INTEGER = Shape(
    "integer", (("k", "int32"),), [(k,) for k in range(-2, 4)], lambda n: (1 - n,), range_on=0, borders=(0, 2)
)
STRING = Shape(
    "string",
    (("k", "string"),),
    [(k,) for k in ("", "a", "a\0", "ab", "é", "zz" * 20)],
    lambda n: (f"{'ab'[n % 2]}{n:05d}",),
    hash_on=("k",),
)
COMPOSITE = Shape(
    "composite",
    (("s", "varchar(40)"), ("n", "int16"), ("d", "date")),
    [
        *((s, n, DAYS[0]) for s in ("", "a", "a\0") for n in (-1, 0)),
        ("a", 0, DAYS[1]),
        ("a\0", 1, DAYS[1]),
    ],
    lambda n: (f"s{n % 5}", n % 7 - 5, dt.date(2000, 1, 1) + dt.timedelta(n)),
    range_on=1,
    borders=(0, 1),
    hash_on=("s", "d"),
)
# A key of numbers, so that only the keys of some rows are stored (sparse keys).
NUMBERS = Shape(
    "numbers",
    (("n", "int64"), ("t", "timestamp"), ("p", "decimal(4,1)")),
    [
        *((n, MOMENTS[0], Decimal("-0.1")) for n in (-(2**63), -1, 0, 2**63 - 1)),
        *((0, moment, price) for moment in MOMENTS for price in (Decimal("0.0"), Decimal("999.9"))),
    ],
    lambda n: (
        n // 100 - 1,
        MOMENTS[0] + dt.timedelta(microseconds=n % 100 // 10),
        Decimal(n % 10 - 5).scaleb(-1),
    ),
    range_on=0,
    borders=(0, 1),
    hash_on=("t", "p"),
    encoding="for",
)
SHAPES = {shape.name: shape for shape in (INTEGER, STRING, COMPOSITE, NUMBERS)}

# (name, type, nullable, default) of the first columns outside the key.
FIRST_COLUMNS = (
    ("a", "int8", True, None),
    ("b", "varchar(2)", True, None),
    ("c", "int64", False, 7),
    ("d", "double", False, 1.5),
)


def columns_of(shape: Shape, more: Sequence[tuple[str, str]]) -> list[Column]:
    out = [Column(id, name, type, nullable=False, in_key=True) for id, (name, type) in enumerate(shape.key)]
    for name, type, nullable, default in FIRST_COLUMNS:
        name = f"{name}_" if name in dict(shape.key) else name
        out.append(Column(len(out), name, type, nullable, default, default))
    out += [Column(len(out) + n, f"more{n}", type) for n, (type, _) in enumerate(more)]
    return out


def make_table(
    db: nyala.Database, shape: Shape, name: str, history: Any, options: Options, key_only: bool
) -> Table:
    """Create the table, and return its model."""
    columns = columns_of(shape, options.more)
    columns = [column for column in columns if column.in_key or not key_only]
    encodings = {f"more{n}": encoding for n, (_, encoding) in enumerate(options.more)}
    ranges = shape.ranges()[: 2 if shape.range_on is not None else 1]
    db.create_table(
        name,
        {
            column.name: nyala.column(
                column.type,
                nullable=column.nullable,
                default=column.write,
                encoding=shape.encoding if column.in_key else encodings.get(column.name, "auto"),
                block_size=options.block_size and max(options.block_size, schema.MIN_BLOCK_SIZE_BYTES),
            )
            for column in columns
        },
        [column.name for column in columns if column.in_key],
        shape.partitions(2, ranges),
        history=history,
    )
    now = db.now()
    return Table(columns, [Range(lower, upper, now) for lower, upper in ranges], shape.range_on)


# (module, limit, value): values of limits that a few rows reach.
_TINY: Sequence[tuple[ModuleType, str, int]] = (
    (format, "BLOCK_SIZE_BYTES_MIN", 16),
    (format, "BLOCK_SIZE_BYTES_DEFAULT", 16),
    (format, "KEY_BLOCK_SIZE_BYTES_DEFAULT", 16),
    (format, "BLOOM_ROWS_PER_BLOCK_LOG2", 0),
    (format, "SPARSE_KEY_ROWS_LOG2", 1),
    (format, "SPARSE_TEXT_KEY_ROWS_LOG2", 2),
    (format, "SPARSE_WIDE_KEY_ROWS_LOG2", 3),
    (format, "DICTIONARY_BYTES_MAX", 40),
    (format, "COALESCED_READ_BYTES_MAX", 100),
    (schema, "MIN_BLOCK_SIZE_BYTES", 16),
    (split, "_SCAN_ROWS_MIN", 1),
    (key_runs, "TAIL_KEYS_MAX", 3),
    (mem_rowset, "_SMALL_INSERTS", 2),
    (mem_rowset, "_SMALL_ROWS", 4),
    (mem_store, "_SMALL_APPENDS", 2),
    (mem_store, "_SMALL_RECORDS", 4),
    (read_path, "SPLIT_ROWS", 4),
    (read_path, "GAP_ROWS", 1),
    (read_path, "_INLINE_ROWS", 2),
    (memory, "_RANGE_ROWS_MAX", 4),
    (bootstrap, "GATHER_ROWS", 3),
    (bootstrap, "GATHER_BYTES", 200),
    (skipping, "_DEFAULT_ROWS_LOG2", 1),
    (stored_keys, "_READ_ROWS_LOG2", 6),
    (stored_keys, "_GATHERED_ROWS", 4),
)


@contextlib.contextmanager
def tiny(yes: bool = True) -> Iterator[None]:
    """Set tiny limits if `yes`: blocks of two numbers, splits of four rows, log segments of 2 KB."""
    with contextlib.ExitStack() as stack:
        for module, name, value in _TINY if yes else ():
            assert hasattr(module, name), f"{module.__name__} has no {name}: update this list"
            stack.enter_context(mock.patch.object(module, name, value))
        if yes:
            # Default arguments are copies of limits, so they are replaced too.
            assert LogWriter.__init__.__kwdefaults__["segment_size_bytes"] == SEGMENT_SIZE_BYTES
            sizes = {"segment_size_bytes": 2000}
            stack.enter_context(mock.patch.dict(LogWriter.__init__.__kwdefaults__, sizes))
            usual = spec.ChangeSpec.__init__.__defaults__
            assert usual is not None and usual[-2:] == (1 << 18, SLICE_VERSIONS)
            stack.enter_context(
                mock.patch.object(spec.ChangeSpec.__init__, "__defaults__", (*usual[:-2], 4, 3))
            )
        yield


@dataclass(frozen=True)
class Options:
    """How a store is opened and its tables are created, as a random test draws it.

    more:      (type, encoding) of further columns, which are named `more0`, `more1`, …
    keys_only: whether tables have only key columns.
    """

    tiny: bool = True
    direct_commit_bytes: int = 64 << 20
    rowset_target_bytes: int = 32 << 20
    block_size: int | None = None
    more: tuple[tuple[str, str], ...] = ()
    keys_only: bool = False

    def __repr__(self) -> str:
        """Return the constructor call, with the fields that are not defaults."""
        usual = Options()
        fields = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(usual, field.name)
        ]
        return f"Options({', '.join(fields)})"
