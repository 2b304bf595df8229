"""Reading: one snapshot planned on the driver, its tokens read by the executors straight from the files.

    planner worker                                      executor's worker
    connect(read_only) → scan(columns, where, at)       read(partition)
      → lease with expiry                                 → renew the lease
      → tokens, packed into a few partitions   ────────►  → files (and the token's own rows) → Arrow batches

A token carries all that an executor needs: it opens no catalogue and replays no log. Spark plans once for
the life of a DataFrame, so its snapshot is pinned with it; the lease keeps the files, and each read renews it.
What a tablet has in memory travels with its token. Of all tokens of a partition at most 0.9 MB stands inside it, which
Spark pickles and sends through the driver; the others are in a file beside the lease, which lives as long (`place`).

Cost: a task of the Python data source takes some 50 ms of a core before it reads a byte, so tablets are packed
into two partitions for each core at most, of about equal numbers of rows, and into fewer where there is less to read
than that is worth: a small table is one partition. Large tablets are cut.
Left out: column pruning (Spark 4.3 does not tell a Python source which columns a query needs: give `columns`, or
ask through `nyala.spark.sql`).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pyspark.sql.datasource import DataSourceReader, InputPartition

import nyala
from nyala.catalog.leases import open_remote_lease
from nyala.env import SYSTEM, mark_of_ancestor
from nyala.errors import ColumnNotFoundError, Error, HistoryExpiredError, InvalidArgumentError, SchemaError
from nyala.handover import commits as handover
from nyala.spark.errors import named, naming, place_of
from nyala.spark.source.option_messages import errors_in_options
from nyala.spark.source.options import ReadOptions
from nyala.spark.types import arrow_schema, check_schema, conform
from nyala.tablet.scan.open_rowsets import OpenRowSets
from nyala.tablet.scan.token import Token, read_token, tablet_of
from nyala.tablet.state.leased_files import kept_by_lease

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from nyala.api.table import Table

__all__ = [
    "CELLS_PER_TASK",
    "JVM",
    "PARTITIONS_PER_CORE",
    "FilePart",
    "HeldLease",
    "NyalaReader",
    "PlacedToken",
    "TokenPartition",
    "begin_task",
    "in_task",
    "lease_of_version",
    "load_placed",
    "pack",
    "partitions_wanted",
    "place",
    "read_tokens",
    "table_key",
    "table_schema",
]

PARTITIONS_PER_CORE: Final = 2
# A cell takes about 60 ns from the file to Spark's row (2026-11-21, lineitem), so a task of so many takes 30 ms. Below
# that a second one costs more than it takes over.
CELLS_PER_TASK: Final = 500_000
# A planner worker and its daemon come and go; the process of this name above them is the driver.
JVM: Final = "java"
# A lease is written anew (and synced) only when less than this share of its time is left.
RENEWED_BELOW: Final = 0.75
# What travels inside a partition: Spark pickles partitions, keeps them on the driver and sends them one by one.
INLINE_MAX_BYTES: Final = 900_000  # Spark warns of a task of 1000 KiB, what goes with it included
# What pickle adds to a token, and what a place in a file takes.
_PICKLED_BYTES: Final = 64


class FilePart(NamedTuple):
    """Bytes [offset, offset + size) of a file."""

    path: str
    offset: int
    size: int


PlacedToken: TypeAlias = "bytes | FilePart"
"""A token, or where it lies."""


def table_schema(options: ReadOptions) -> tuple[pa.Schema, int]:
    """The schema of what `options` ask for, and the snapshot that answers them from now on."""
    with nyala.connect(options.path, read_only=True) as db:
        table = db.table(options.table)
        try:
            scan = table.scan(columns=options.columns, where=options.where, at=options.at)
        except (ColumnNotFoundError, InvalidArgumentError, SchemaError) as error:
            raise _of_option(error, table, options) from None
        return scan.schema, scan.timestamp


def _of_option(error: Error, table: Table, options: ReadOptions) -> Error:
    """The error with the name of the option before its sentence, if that option alone makes it."""
    scans: dict[str, Callable[[], object]] = {
        "columns": lambda: table.scan(columns=options.columns),
        "where": lambda: table.scan(where=options.where),
    }
    for name, scan in scans.items():
        try:
            scan()
        except Error as found:
            if str(found) == str(error):
                return naming(error, f"option {name}")
    return error


def table_key(options: ReadOptions) -> list[str]:
    """The names of the key's columns."""
    with nyala.connect(options.path, read_only=True) as db:
        return db.table(options.table).primary_key


def partitions_wanted(rows: int, columns: int, cores: int | None = None) -> int:
    """Into how many partitions a read of so many rows and columns is packed. cores: None, those of this machine."""
    needed = -(-rows * max(columns, 1) // CELLS_PER_TASK)
    return max(1, min(PARTITIONS_PER_CORE * (cores or os.cpu_count() or 1), needed))


class TokenPartition(InputPartition):
    """Scan tokens that one Spark task reads one after the other, and the lease that keeps their files. Pickled."""

    def __init__(self, tokens: list[PlacedToken], lease: str) -> None:
        super().__init__(tokens)
        self.tokens = tokens
        self.lease = lease


def pack(tokens: Sequence[Token], partitions: int) -> list[list[bytes]]:
    """At most `partitions` groups of neighbouring tokens, of about as many rows each; one group without any tokens."""
    total = sum(token.rows for token in tokens)
    if not total:
        return [[token.data for token in tokens]]
    groups: list[list[bytes]] = [[] for _ in range(partitions)]
    before = 0
    for token in tokens:
        # Where its middle falls, so that neither a large first nor a large last token draws others to it.
        groups[(before + token.rows // 2) * partitions // total].append(token.data)
        before += token.rows
    return [group for group in groups if group]


def place(
    path: str,
    lease: str,
    groups: Sequence[Sequence[bytes]],
    inline_max_bytes: int = INLINE_MAX_BYTES,
    *,
    together: bool = False,
) -> list[list[PlacedToken]]:
    """The groups, in each of which at most `inline_max_bytes` are pickled: the smallest tokens. The others of a group
    are in one file, which lives as long as the lease.

    together: the groups are pickled together, as what a task's function knows is: then all of them are one.
    """
    if together:
        placed = iter(
            _place_group(path, lease, [token for group in groups for token in group], inline_max_bytes)
        )
        return [[next(placed) for _ in group] for group in groups]
    return [_place_group(path, lease, group, inline_max_bytes) for group in groups]


def _place_group(path: str, lease: str, group: Sequence[bytes], inline_max_bytes: int) -> list[PlacedToken]:
    placed: list[PlacedToken] = list(group)
    left = inline_max_bytes - _PICKLED_BYTES * len(group)
    by_size = sorted(range(len(group)), key=lambda place: len(group[place]))
    kept = 0
    while kept < len(group) and (left := left - len(group[by_size[kept]])) >= 0:
        kept += 1
    filed = sorted(by_size[kept:])
    if filed:
        keeper = open_remote_lease(SYSTEM, path, lease)
        parts = [group[place] for place in filed]
        file = keeper.keep_file(f"{SYSTEM.randomness.token_hex(8)}.token", *parts)
        offsets = itertools.accumulate(map(len, parts), initial=0)
        for place, part, offset in zip(filed, parts, offsets, strict=False):
            placed[place] = FilePart(file, offset, len(part))
    return placed


class NyalaReader(DataSourceReader):
    """Lives in a planner worker, and as a pickled copy in every task. No `pushFilters`: see the package."""

    def __init__(
        self, options: ReadOptions, schema: StructType, timestamp: int | None, cores: int | None = None
    ) -> None:
        """cores: of the session; None: nobody knows."""
        self._options = options
        self._schema = schema
        self._timestamp = timestamp
        self._cores = cores

    @errors_in_options()
    def partitions(self) -> list[InputPartition]:
        options = self._options
        with named(f"table {options.table!r}"):
            return self._partitions()

    def _partitions(self) -> list[InputPartition]:
        options = self._options
        at = options.at if self._timestamp is None else self._timestamp
        with nyala.connect(options.path, read_only=True) as db:
            # Taken while this process' own lease stands, and for a version that is not newer than the scan's: there
            # is no moment in which a file of the scan could go.
            lease = lease_of_version(options.path, db.stats().version, options.lease_s)
            scan = db.table(options.table).scan(columns=self._schema.fieldNames(), where=options.where, at=at)
            check_schema(self._schema, options.table, scan.schema)
            wanted = options.partitions or partitions_wanted(
                scan._engine().rows_planned(), len(scan.schema), self._cores
            )
            groups = place(options.path, lease, pack(scan._engine().tokens(wanted), wanted))
            return [TokenPartition(group, lease) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TokenPartition)
        lease = HeldLease(self._options.path, partition.lease, self._options.lease_s)
        return read_tokens(partition.tokens, lease, arrow_schema(self._schema), self._options.table)


@dataclass(frozen=True)
class HeldLease:
    """A lease as tasks carry it: where, its name, and for how long each read renews it."""

    path: str
    name: str
    lease_s: float

    def keep(self) -> None:
        """Renew it, unless most of its time is left. Raises: HistoryExpiredError when it is over."""
        lease = open_remote_lease(SYSTEM, self.path, self.name)
        assert lease.expires_us is not None
        if lease.expires_us - SYSTEM.clock.now_us() < self.lease_s * 1_000_000 * RENEWED_BELOW:
            handover.renew_lease(self.path, self.name, self.lease_s, SYSTEM)

    def give_back(self) -> None:
        """End it. For who has it alone."""
        with contextlib.suppress(HistoryExpiredError):
            open_remote_lease(SYSTEM, self.path, self.name).release()

    def keeper(self) -> Callable[[], None]:
        """To be called as often as one likes while reading: looks at the lease now, then each tenth of its time."""
        next_s = -1.0

        def keep() -> None:
            nonlocal next_s
            now_s = SYSTEM.clock.monotonic_s()
            if now_s >= next_s:
                self.keep()
                next_s = now_s + self.lease_s / 10

        return keep


def read_tokens(
    tokens: Sequence[PlacedToken], lease: HeldLease, schema: pa.Schema, table: str
) -> Iterator[pa.RecordBatch]:
    """The rows of the tokens, in exactly `schema`. In a task, on an executor."""
    begin_task()
    keep = lease.keeper()
    with named(f"table {table!r}"):
        for placed in tokens:
            keep()
            token = load_placed(placed)
            try:
                for batch in read_token(token, opened=_opened):
                    yield conform(batch, schema)
                    keep()
            except Error as error:
                naming(error, place_of(table, tablet_of(token)))
                raise


# What this worker leaves open for its later tasks.
_opened: Final = OpenRowSets()


def load_placed(placed: PlacedToken) -> bytes:
    """The token, wherever it is. Raises: HistoryExpiredError when its lease is over."""
    if isinstance(placed, bytes):
        return placed
    with kept_by_lease("this read", "load again"):
        file = SYSTEM.files.open(placed.path)
        try:
            return bytes(file.read(placed.offset, placed.size))
        finally:
            file.close()


# Leases that this process has taken and that later DataFrames over the same version may share: in a planner worker, and
# in a driver, whose threads ask at once.
_leases: dict[tuple[str, int, float], str] = {}
_leases_lock = threading.Lock()


def lease_of_version(
    path: str, version: int, lease_s: float, owner: str | None = None, *, shared: bool = True
) -> str:
    """The name of a lease on a version of the catalogue, for `lease_s` seconds from now, or RENEWED_BELOW of them.

    owner: mark of the process for which it is; None: in a planner worker, the driver's JVM. The lease ends with it.
    shared: it may be one that another frame over this version has; else it is a new one, and nobody else gets it.
    To be called while something else still keeps that version: an open reader, or a root in this process.
    """
    wanted = (path, version, lease_s)
    name = _leases.get(wanted) if shared else None
    if name is not None:
        with contextlib.suppress(HistoryExpiredError):
            HeldLease(path, name, lease_s).keep()
            return name
    lease = handover.remote_lease(path, lease_s, owner=owner or mark_of_ancestor(JVM))
    lease.announce(version)
    if not shared:
        return lease.name
    with _leases_lock:
        for old in [key for key in _leases if key[0] == path and key[1] < version]:
            del _leases[old]
        _leases[wanted] = lease.name
    return lease.name


Rows: TypeAlias = "Iterator[pa.RecordBatch]"


def in_task(rows: Callable[[Rows], Rows]) -> Callable[[Rows], Rows]:
    """The function for `mapInArrow`: begins the task before it is asked for rows, which is after its input came."""

    def begin(batches: Rows) -> Rows:
        begin_task()
        return rows(batches)

    return begin


_modules_frozen = 0


def begin_task() -> None:
    """Make each task of Python's cost less; every task calls it first.

    PySpark's workers collect garbage after every task; walking pandas, pyarrow and pyspark each time takes 20 ms, which
    is more than a small task does. So what this worker has imported is taken out of the collector's sight: at its
    first task, and again when more was imported since, as pyarrow does with pandas when it meets a list.
    """
    global _modules_frozen
    if len(sys.modules) > _modules_frozen:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)
