"""Batch reads: the driver plans a snapshot as scan tokens, and the executors read their files
directly.

    planner worker                                      executor's worker
    open the store, scan(columns, where, at)            read(partition)
    take a lease on the snapshot's files                renew the lease
    pack the scan tokens into a few partitions ──────►  read the files, yield Arrow batches

A *planner worker* is a Python process that Spark starts on the driver's machine. A token has
everything that an executor needs, so the executor opens no catalogue and replays no log. Spark
plans a DataFrame once, so all its reads see one snapshot. The lease keeps the snapshot's files.

A token also has the rows that its tablet has in memory. Spark pickles a partition and sends it
through the driver, so a partition has at most 0.9 MB of tokens. `store_tokens` writes larger tokens
to a file that is kept as long as the lease.

Cost: a task of a Python data source takes some 50 ms of a core before it reads a byte. So there are
at most two partitions per core, with about equal numbers of rows, and fewer if there is little to
read.

Spark 4.3 does not tell a Python data source which columns a query needs. To read fewer columns, use
the option `columns`, or `nyala.spark.sql`.
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
from nyala.spark.errors import add_place, errors_naming, place_text
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
    "FileRange",
    "HeldLease",
    "NyalaReader",
    "TokenOrRange",
    "TokenPartition",
    "begin_task",
    "in_task",
    "lease_of_version",
    "load_token",
    "open_read_only",
    "pack",
    "partition_count",
    "read_tokens",
    "store_tokens",
    "table_schema",
]

PARTITIONS_PER_CORE: Final = 2
# A task reads this many cells (rows × columns) in about 30 ms: 60 ns each (2026-11-21, lineitem).
# With fewer cells, a second task would take more time than it saves.
CELLS_PER_TASK: Final = 500_000
# The name of the driver's JVM, an ancestor process of a planner worker. It lives as long as the session.
JVM: Final = "java"
# The maximum size of the tokens in a partition. Spark pickles partitions and keeps them on the driver.
INLINE_MAX_BYTES: Final = 900_000  # Spark warns about tasks above 1000 KiB in total
# The size that pickle adds to a token, and the pickled size of a `FileRange`.
_PICKLED_BYTES: Final = 64


class FileRange(NamedTuple):
    """The bytes [offset, offset + size) of a file."""

    path: str
    offset: int
    size: int


TokenOrRange: TypeAlias = "bytes | FileRange"
"""A scan token, or its position in a file."""


def open_read_only(address: Address) -> Database:
    """Open a store for reading. Raises the errors of `nyala.connect`."""
    if address.in_bucket:
        return Database(open_address_for_reading(address))
    return nyala.connect(address.path, read_only=True)


def table_schema(options: ReadOptions) -> tuple[pa.Schema, list[str], int]:
    """Return (schema of the rows, names of the key columns, snapshot timestamp) of a read."""
    with open_read_only(options.address) as db:
        table = db._table(options.table)  # also finds a table that was dropped after the moment of the read
        try:
            scan = table.scan(columns=options.columns, where=options.where, at=options.at)
        except (ColumnNotFoundError, InvalidArgumentError, SchemaError) as error:
            raise _with_option_name(error, table, options) from None
        return scan.schema, list(scan._root_and_table()[1].schema.key_names), scan.timestamp


def _with_option_name(error: Error, table: Table, options: ReadOptions) -> Error:
    """Add the name of the option that caused the error, `columns` or `where`, to its message.

    To find the option, the function repeats the scan with only this option.
    """
    scans: dict[str, Callable[[], object]] = {
        "columns": lambda: table.scan(columns=options.columns),
        "where": lambda: table.scan(where=options.where),
    }
    for name, scan in scans.items():
        try:
            scan()
        except Error as found:
            if str(found) == str(error):
                return add_place(error, f"option {name}")
    return error


def partition_count(rows: int, columns: int, cores: int | None = None) -> int:
    """Return the number of Spark partitions for a result of this size.

    cores: the cores of the session. None: those of this machine.
    """
    needed = -(-rows * max(columns, 1) // CELLS_PER_TASK)
    return max(1, min(PARTITIONS_PER_CORE * (cores or os.cpu_count() or 1), needed))


class TokenPartition(InputPartition):
    """A partition of Spark: scan tokens that one task reads, and the lease that keeps their files."""

    def __init__(self, tokens: list[TokenOrRange], lease: str) -> None:
        super().__init__(tokens)
        self.tokens = tokens
        self.lease = lease


def pack(tokens: Sequence[Token], partitions: int) -> list[list[bytes]]:
    """Group neighbouring tokens into at most `partitions` groups with about equal numbers of rows."""
    total = sum(token.rows for token in tokens)
    if not total:
        return [[token.data for token in tokens]]
    groups: list[list[bytes]] = [[] for _ in range(partitions)]
    before = 0
    for token in tokens:
        # A token belongs to the group of its middle row.
        groups[(before + token.rows // 2) * partitions // total].append(token.data)
        before += token.rows
    return [group for group in groups if group]


def store_tokens(
    address: Address,
    lease: str,
    groups: Sequence[Sequence[bytes]],
    inline_max_bytes: int = INLINE_MAX_BYTES,
    *,
    together: bool = False,
) -> list[list[TokenOrRange]]:
    """Write large scan tokens to files, so that Spark sends at most `inline_max_bytes` per partition.

    groups:   the tokens of each partition.
    together: apply the limit to all partitions together, because Spark pickles them as one object.

    Returns the same lists, in which a FileRange replaces each large token. Each partition has its
    own file; with `together` there is one file. The files are kept as long as the lease.
    """
    if together:
        stored = iter(
            _store_group(address, lease, [token for group in groups for token in group], inline_max_bytes)
        )
        return [[next(stored) for _ in group] for group in groups]
    return [_store_group(address, lease, group, inline_max_bytes) for group in groups]


def _store_group(
    address: Address, lease: str, group: Sequence[bytes], inline_max_bytes: int
) -> list[TokenOrRange]:
    """Write the largest scan tokens of `group` to a file, so that the others fit `inline_max_bytes`.

    lease: the id of the lease that keeps the file.

    Returns the list, in which a FileRange replaces each token that was written to the file.
    """
    stored: list[TokenOrRange] = list(group)
    left = inline_max_bytes - _PICKLED_BYTES * len(group)
    by_size = sorted(range(len(group)), key=lambda number: len(group[number]))
    inline = 0
    while inline < len(group) and (left := left - len(group[by_size[inline]])) >= 0:
        inline += 1
    in_file = sorted(by_size[inline:])
    if in_file:
        tokens = [group[number] for number in in_file]
        job_lease = open_job_lease(address.env, address.path, lease)
        file = job_lease.keep_file(f"{SYSTEM.randomness.token_hex(8)}.token", *tokens)
        offsets = itertools.accumulate(map(len, tokens), initial=0)
        for number, token, offset in zip(in_file, tokens, offsets, strict=False):
            stored[number] = FileRange(file, offset, len(token))
    return stored


class NyalaReader(DataSourceReader):
    """The reader of `spark.read`: plans a scan in one process, and reads it in Spark's tasks.

    Tasks get pickled copies of it. The method `pushFilters` is missing on purpose: Spark would lose
    rows (see `nyala.spark`).
    """

    def __init__(
        self, options: ReadOptions, schema: StructType, timestamp: int | None, cores: int | None = None
    ) -> None:
        """Create a reader.

        timestamp: the snapshot to read. None: the option `at` names it.
        cores: the number of cores of the Spark session. None: unknown.
        """
        self._options = options
        self._schema = schema
        self._timestamp = timestamp
        self._cores = cores

    @errors_in_options()
    def partitions(self) -> list[InputPartition]:
        options = self._options
        with errors_naming(f"table {options.table!r}"):
            return self._partitions()

    def _partitions(self) -> list[InputPartition]:
        options = self._options
        at = options.at if self._timestamp is None else self._timestamp
        with open_read_only(options.address) as db:
            # `db` has a lease of its own, and its version is not newer than the scan's. So no file
            # of the scan is removed before the new lease exists.
            lease = lease_of_version(options.address, db._view_at(None)[0].version, options.lease_s)
            scan = db._table(options.table).scan(
                columns=self._schema.fieldNames(), where=options.where, at=at
            )
            check_schema(self._schema, options.table, scan.schema)
            partitions = options.partitions or partition_count(
                scan._engine().rows_planned(), len(scan.schema), self._cores
            )
            tokens = pack(scan._engine().tokens(partitions), partitions)
            groups = store_tokens(options.address, lease, tokens)
            return [TokenPartition(group, lease) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TokenPartition)
        lease = HeldLease(self._options.address, partition.lease, self._options.lease_s)
        return read_tokens(partition.tokens, lease, arrow_schema(self._schema), self._options.table)


@dataclass(frozen=True)
class HeldLease:
    """A lease that a task can renew: the store, the lease's name, and its duration in seconds."""

    address: Address
    name: str
    lease_s: float

    def keep(self) -> None:
        """Renew the lease. In a folder, do so only if a quarter of its duration has passed.

        Raises HistoryExpiredError if the lease has expired.
        """
        keep_job_lease(self.address.env, self.address.path, self.name, self.lease_s)

    def end_lease(self) -> None:
        """End the lease. Call this only if no other DataFrame uses the lease."""
        with contextlib.suppress(HistoryExpiredError):
            open_job_lease(self.address.env, self.address.path, self.name).release()

    def keeper(self) -> Callable[[], None]:
        """Return a function that renews the lease. A task calls it after each batch.

        Most calls only read the clock: the function calls `keep` at most once per tenth of the
        lease's duration.
        """
        next_s = -1.0

        def keep() -> None:
            nonlocal next_s
            now_s = SYSTEM.clock.monotonic_s()
            if now_s >= next_s:
                self.keep()
                next_s = now_s + self.lease_s / 10

        return keep


def read_tokens(
    tokens: Sequence[TokenOrRange], lease: HeldLease, schema: pa.Schema, table: str
) -> Iterator[pa.RecordBatch]:
    """Read the rows of the tokens, in exactly `schema`. Runs in a task on an executor."""
    begin_task()
    keep = lease.keeper()
    with errors_naming(f"table {table!r}"):
        for stored in tokens:
            keep()
            token = load_token(stored, lease.address)
            try:
                for batch in read_token(token, lease.address.env, opened=_opened):
                    yield conform(batch, schema)
                    keep()
            except Error as error:
                add_place(error, place_text(table, tablet_of(token)))
                raise


# Rowsets that stay open for later tasks of this worker.
_opened: Final = OpenRowSets()


def load_token(stored: TokenOrRange, address: Address) -> bytes:
    """Return the bytes of a scan token.

    stored: the bytes themselves, or a `FileRange`: the part of a file from which they are read.

    Raises HistoryExpiredError if the lease that kept the file has expired.
    """
    if isinstance(stored, bytes):
        return stored
    with kept_by_lease("this read", "load again"):
        file = address.env.files.open(stored.path)
        try:
            return bytes(file.read(stored.offset, stored.size))
        finally:
            file.close()


# Leases that later DataFrames of this process on the same version of the catalogue share.
_leases: dict[tuple[Address, int, float], str] = {}
_leases_lock = threading.Lock()


def lease_of_version(
    address: Address, version: int, lease_s: float, owner: str | None = None, *, shared: bool = True
) -> str:
    """Return the name of a lease that keeps the files of a version of the catalogue.

    lease_s: the duration of the lease in seconds.
    owner:   identifies a process with which the lease ends. None: the driver's JVM, if this process
             is a planner worker, which the JVM started.
    shared:  whether to return a lease that other reads of this process use too. If False, the lease
             is new, and only the caller uses it.

    During the call, the caller must have a reader of this version open, or hold its `root`.
    Otherwise the files could be deleted before the lease keeps them.
    """
    key = (address, version, lease_s)
    name = _leases.get(key) if shared else None
    if name is not None:
        with contextlib.suppress(HistoryExpiredError):
            HeldLease(address, name, lease_s).keep()
            return name
    lease = handover.remote_lease(address.path, lease_s, address.env, owner or mark_of_ancestor(JVM))
    lease.announce(version)
    if not shared:
        return lease.name
    with _leases_lock:
        for old in [other for other in _leases if other[0] == address and other[1] < version]:
            del _leases[old]
        _leases[key] = lease.name
    return lease.name


Rows: TypeAlias = "Iterator[pa.RecordBatch]"


def in_task(rows: Callable[[Rows], Rows]) -> Callable[[Rows], Rows]:
    """Wrap a function for `mapInArrow` so that `begin_task` runs before it.

    `begin_task` then runs while the task waits for its first batch.
    """

    def begin(batches: Rows) -> Rows:
        begin_task()
        return rows(batches)

    return begin


_modules_frozen = 0


def begin_task() -> None:
    """Exclude imported modules from garbage collection. Every task calls this first.

    PySpark's workers collect garbage after every task. With pandas, pyarrow and pyspark, this takes
    20 ms, more than a small task. So objects are frozen at the first task of a worker, and again
    after further imports, such as pandas.
    """
    global _modules_frozen
    if len(sys.modules) > _modules_frozen:
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)
