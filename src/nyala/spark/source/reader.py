"""Batch reads: the driver plans one snapshot as scan tokens, and the executors read their files directly.

    planner worker                                      executor's worker
    connect(read_only) → scan(columns, where, at)       read(partition)
      → lease with expiry                                 → renew the lease
      → tokens, packed into a few partitions   ────────►  → files (and the token's own rows) → Arrow batches

A token has everything that an executor needs, so the executor opens no catalogue and replays no log. Spark plans a
DataFrame once, so all its reads see one snapshot. The lease keeps the snapshot's files, and each read renews the lease.

Rows that a tablet has in memory travel with its token. Spark pickles a partition and sends it through the driver, so a
partition holds at most 0.9 MB of tokens. The other tokens are in a file that lives as long as the lease (`place`).

Cost: a task of the Python data source takes some 50 ms of a core before it reads a byte. So tokens are packed into at
most two partitions per core, with about equal numbers of rows, and into fewer if there is little to read. A small table
is one partition. Large tablets are split.

No column pruning: Spark 4.3 does not tell a Python source which columns a query needs. Use the option `columns`, or
`nyala.spark.sql`.
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
from nyala.api.database import Database
from nyala.api.opening.open_bucket import open_address_for_reading
from nyala.catalog.job_leases import keep_job_lease, open_job_lease
from nyala.env import SYSTEM, mark_of_ancestor
from nyala.errors import ColumnNotFoundError, Error, HistoryExpiredError, InvalidArgumentError, SchemaError
from nyala.handover import commits as handover
from nyala.objects.address import Address
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
    "reading",
    "table_schema",
]

PARTITIONS_PER_CORE: Final = 2
# A cell takes about 60 ns from the file to Spark's row (2026-11-21, lineitem), so a task with this many takes 30 ms.
# With fewer cells, a second task costs more time than it saves.
CELLS_PER_TASK: Final = 500_000
# The driver's JVM is the ancestor process of this name. Planner workers and their daemon do not live as long.
JVM: Final = "java"
# The bytes of tokens inside a partition. Spark pickles partitions, keeps them on the driver and sends them one by one.
INLINE_MAX_BYTES: Final = 900_000  # Spark warns about tasks above 1000 KiB in total
# The pickled overhead of a token, and the pickled size of a `FilePart`.
_PICKLED_BYTES: Final = 64


class FilePart(NamedTuple):
    """Bytes [offset, offset + size) of a file."""

    path: str
    offset: int
    size: int


PlacedToken: TypeAlias = "bytes | FilePart"
"""A token, or its position in a file."""


def reading(address: Address) -> Database:
    """Open a store for reading. Raises: as `nyala.connect`."""
    if address.in_bucket:
        return Database(open_address_for_reading(address))
    return nyala.connect(address.path, read_only=True)


def table_schema(options: ReadOptions) -> tuple[pa.Schema, list[str], int]:
    """Return the schema of a read with these options, the key's columns, and the timestamp of its snapshot."""
    with reading(options.address) as db:
        table = db._table(options.table)  # it may have been dropped since the moment of the read
        try:
            scan = table.scan(columns=options.columns, where=options.where, at=options.at)
        except (ColumnNotFoundError, InvalidArgumentError, SchemaError) as error:
            raise _of_option(error, table, options) from None
        return scan.schema, list(scan._take()[1].schema.key_names), scan.timestamp


def _of_option(error: Error, table: Table, options: ReadOptions) -> Error:
    """Put the option's name before the error's message, if that option alone causes the same error."""
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


def partitions_wanted(rows: int, columns: int, cores: int | None = None) -> int:
    """Return the number of partitions for a read. cores: None for the number of this machine."""
    needed = -(-rows * max(columns, 1) // CELLS_PER_TASK)
    return max(1, min(PARTITIONS_PER_CORE * (cores or os.cpu_count() or 1), needed))


class TokenPartition(InputPartition):
    """Scan tokens that one Spark task reads in order, and the lease that keeps their files. Spark pickles it."""

    def __init__(self, tokens: list[PlacedToken], lease: str) -> None:
        super().__init__(tokens)
        self.tokens = tokens
        self.lease = lease


def pack(tokens: Sequence[Token], partitions: int) -> list[list[bytes]]:
    """Group neighbouring tokens into at most `partitions` groups with about equal numbers of rows; one if no rows."""
    total = sum(token.rows for token in tokens)
    if not total:
        return [[token.data for token in tokens]]
    groups: list[list[bytes]] = [[] for _ in range(partitions)]
    before = 0
    for token in tokens:
        # The group is that of the token's middle row, so that a large first or last token does not attract others.
        groups[(before + token.rows // 2) * partitions // total].append(token.data)
        before += token.rows
    return [group for group in groups if group]


def place(
    address: Address,
    lease: str,
    groups: Sequence[Sequence[bytes]],
    inline_max_bytes: int = INLINE_MAX_BYTES,
    *,
    together: bool = False,
) -> list[list[PlacedToken]]:
    """Move all but the smallest tokens of each group into a file, so that at most `inline_max_bytes` are pickled.

    Each group has at most one file, which lives as long as the lease.
    together: the groups are pickled together (in a task's function), so the limit is for all groups, with one file.
    """
    if together:
        placed = iter(
            _place_group(address, lease, [token for group in groups for token in group], inline_max_bytes)
        )
        return [[next(placed) for _ in group] for group in groups]
    return [_place_group(address, lease, group, inline_max_bytes) for group in groups]


def _place_group(
    address: Address, lease: str, group: Sequence[bytes], inline_max_bytes: int
) -> list[PlacedToken]:
    placed: list[PlacedToken] = list(group)
    left = inline_max_bytes - _PICKLED_BYTES * len(group)
    by_size = sorted(range(len(group)), key=lambda place: len(group[place]))
    kept = 0
    while kept < len(group) and (left := left - len(group[by_size[kept]])) >= 0:
        kept += 1
    filed = sorted(by_size[kept:])
    if filed:
        keeper = open_job_lease(address.env, address.path, lease)
        parts = [group[place] for place in filed]
        file = keeper.keep_file(f"{SYSTEM.randomness.token_hex(8)}.token", *parts)
        offsets = itertools.accumulate(map(len, parts), initial=0)
        for place, part, offset in zip(filed, parts, offsets, strict=False):
            placed[place] = FilePart(file, offset, len(part))
    return placed


class NyalaReader(DataSourceReader):
    """Plans in a planner worker; a pickled copy reads in every task. No `pushFilters`: see the package."""

    def __init__(
        self, options: ReadOptions, schema: StructType, timestamp: int | None, cores: int | None = None
    ) -> None:
        """cores: the session's number of cores; None if unknown."""
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
        with reading(options.address) as db:
            # This process' own lease is still valid, and this version is not newer than the scan's. So no file of the
            # scan can be removed in between.
            lease = lease_of_version(options.address, db._view_at(None)[0].version, options.lease_s)
            scan = db._table(options.table).scan(
                columns=self._schema.fieldNames(), where=options.where, at=at
            )
            check_schema(self._schema, options.table, scan.schema)
            wanted = options.partitions or partitions_wanted(
                scan._engine().rows_planned(), len(scan.schema), self._cores
            )
            groups = place(options.address, lease, pack(scan._engine().tokens(wanted), wanted))
            return [TokenPartition(group, lease) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TokenPartition)
        lease = HeldLease(self._options.address, partition.lease, self._options.lease_s)
        return read_tokens(partition.tokens, lease, arrow_schema(self._schema), self._options.table)


@dataclass(frozen=True)
class HeldLease:
    """A lease in the form that tasks carry: store, name, and for how many seconds each read renews it."""

    address: Address
    name: str
    lease_s: float

    def keep(self) -> None:
        """Renew the lease unless most of its time is left. Raises: HistoryExpiredError if it has expired."""
        keep_job_lease(self.address.env, self.address.path, self.name, self.lease_s)

    def give_back(self) -> None:
        """End the lease. Only for a lease that is not shared."""
        with contextlib.suppress(HistoryExpiredError):
            open_job_lease(self.address.env, self.address.path, self.name).release()

    def keeper(self) -> Callable[[], None]:
        """Return a function to call often while reading. It checks the lease at once, then each tenth of its time."""
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
    """Read the rows of the tokens, in exactly `schema`. Runs in a task on an executor."""
    begin_task()
    keep = lease.keeper()
    with named(f"table {table!r}"):
        for placed in tokens:
            keep()
            token = load_placed(placed, lease.address)
            try:
                for batch in read_token(token, lease.address.env, opened=_opened):
                    yield conform(batch, schema)
                    keep()
            except Error as error:
                naming(error, place_of(table, tablet_of(token)))
                raise


# Rowsets that this worker keeps open for its later tasks.
_opened: Final = OpenRowSets()


def load_placed(placed: PlacedToken, address: Address) -> bytes:
    """Return the token, from its file if it is in one. Raises: HistoryExpiredError if its lease has expired."""
    if isinstance(placed, bytes):
        return placed
    with kept_by_lease("this read", "load again"):
        file = address.env.files.open(placed.path)
        try:
            return bytes(file.read(placed.offset, placed.size))
        finally:
            file.close()


# Leases of this process (a planner worker or a driver with several threads) that later DataFrames over the same version
# may share.
_leases: dict[tuple[Address, int, float], str] = {}
_leases_lock = threading.Lock()


def lease_of_version(
    address: Address, version: int, lease_s: float, owner: str | None = None, *, shared: bool = True
) -> str:
    """Return the name of a lease on a version of the catalogue.

    It lasts for `lease_s` seconds; a shared lease that already exists, for at least RENEWED_BELOW of them.
    owner: mark of the process with which the lease ends; None: the driver's JVM, if this is a planner worker.
    shared: whether other frames over this version may use the same lease. If False, the lease is new.
    The caller must keep that version during the call, by an open reader or a root in this process.
    """
    wanted = (address, version, lease_s)
    name = _leases.get(wanted) if shared else None
    if name is not None:
        with contextlib.suppress(HistoryExpiredError):
            HeldLease(address, name, lease_s).keep()
            return name
    lease = handover.remote_lease(address.path, lease_s, address.env, owner or mark_of_ancestor(JVM))
    lease.announce(version)
    if not shared:
        return lease.name
    with _leases_lock:
        for old in [key for key in _leases if key[0] == address and key[1] < version]:
            del _leases[old]
        _leases[wanted] = lease.name
    return lease.name


Rows: TypeAlias = "Iterator[pa.RecordBatch]"


def in_task(rows: Callable[[Rows], Rows]) -> Callable[[Rows], Rows]:
    """Wrap a function for `mapInArrow` so that it calls `begin_task` at once, before its input has come."""

    def begin(batches: Rows) -> Rows:
        begin_task()
        return rows(batches)

    return begin


_modules_frozen = 0


def begin_task() -> None:
    """Exclude imported modules from garbage collection. Every task calls this first.

    PySpark's workers collect garbage after every task. Walking pandas, pyarrow and pyspark each time takes 20 ms, more
    than a small task. So the modules are frozen at the worker's first task, and again when more have been imported.
    (pyarrow imports pandas when it converts a list.)
    """
    global _modules_frozen
    if len(sys.modules) > _modules_frozen:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)
