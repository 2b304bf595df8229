"""Reading: one snapshot planned on the driver, its tokens read by the executors straight from the files.

    planner worker                                      executor's worker
    connect(read_only) → scan(columns, where, at)       read(partition)
      → lease with expiry                                 → renew the lease
      → tokens, packed into a few partitions   ────────►  → files (and the token's own rows) → Arrow batches

A token carries all that an executor needs: it opens no catalogue and replays no log. Spark plans once for
the life of a DataFrame, so its snapshot is pinned with it; the lease keeps the files, and each read renews it.

Cost: a task of the Python data source takes some 50 ms of a core before it reads a byte, so tablets are packed:
two partitions for each core at most.
Left out: column pruning (Spark 4.3 does not tell a Python source which columns a query needs: give `columns`),
and tokens whose rows in memory would be too large to travel in a partition.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

import nyala
from nyala import handover
from nyala.catalog.leases import open_remote_lease
from nyala.env import SYSTEM
from nyala.errors import HistoryExpiredError
from nyala.scan import read_token
from nyala.spark.options import ReadOptions
from nyala.spark.types import arrow_schema, check_schema, conform

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "NyalaReader",
    "TokenPartition",
    "freeze_gc_once",
    "lease_of_version",
    "pack",
    "partitions_wanted",
    "table_schema",
]

PARTITIONS_PER_CORE: Final = 2
# A lease is written anew (and synced) only when less than this share of its time is left.
RENEWED_BELOW: Final = 0.75


def table_schema(options: ReadOptions) -> tuple[pa.Schema, int]:
    """The schema of what `options` ask for, and the snapshot that answers them from now on."""
    with nyala.connect(options.path, read_only=True) as db:
        scan = db.table(options.table).scan(columns=options.columns, where=options.where, at=options.at)
        return scan.schema, scan.timestamp


def partitions_wanted() -> int:
    """How many partitions a read may have: tablets are packed into as many."""
    return PARTITIONS_PER_CORE * (os.cpu_count() or 1)


class TokenPartition(InputPartition):
    """Scan tokens that one Spark task reads one after the other, and the lease that keeps their files. Pickled."""

    def __init__(self, tokens: list[bytes], lease: str) -> None:
        super().__init__(tokens)
        self.tokens = tokens
        self.lease = lease


def pack(tokens: list[bytes], partitions: int) -> list[list[bytes]]:
    """At most `partitions` groups of neighbouring tokens, as equal in number as can be. Never empty."""
    count = max(1, min(partitions, len(tokens)))
    bounds = [len(tokens) * i // count for i in range(count + 1)]
    return [tokens[lower:upper] for lower, upper in itertools.pairwise(bounds)]


class NyalaReader(DataSourceReader):
    """Lives in a planner worker, and as a pickled copy in every task. No `pushFilters`: see the package."""

    def __init__(self, options: ReadOptions, schema: StructType, timestamp: int | None) -> None:
        self._options = options
        self._schema = schema
        self._timestamp = timestamp

    def partitions(self) -> list[InputPartition]:
        options = self._options
        wanted = options.partitions or partitions_wanted()
        at = options.at if self._timestamp is None else self._timestamp
        with nyala.connect(options.path, read_only=True) as db:
            # Taken while this process' own lease stands, and for a version that is not newer than the scan's: there
            # is no moment in which a file of the scan could go.
            lease = lease_of_version(options.path, db.stats()["version"], options.lease_s)
            scan = db.table(options.table).scan(columns=self._schema.fieldNames(), where=options.where, at=at)
            check_schema(self._schema, options.table, scan.schema)
            return [TokenPartition(group, lease) for group in pack(scan.tokens(), wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TokenPartition)
        lease = HeldLease(self._options.path, partition.lease, self._options.lease_s)
        return read_tokens(partition.tokens, lease, arrow_schema(self._schema))


@dataclass(frozen=True)
class HeldLease:
    """A lease as tasks carry it: where, its name, and for how long each read renews it."""

    path: str
    name: str
    lease_s: int

    def keep(self) -> None:
        """Renew it, unless most of its time is left. Raises: HistoryExpiredError when it is over."""
        lease = open_remote_lease(SYSTEM, self.path, self.name)
        assert lease.expires_us is not None
        if lease.expires_us - SYSTEM.clock.now_us() < self.lease_s * 1_000_000 * RENEWED_BELOW:
            handover.renew_lease(self.path, self.name, self.lease_s)


def read_tokens(tokens: list[bytes], lease: HeldLease, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the tokens, in exactly `schema`. In a task, on an executor."""
    freeze_gc_once()
    for token in tokens:
        lease.keep()
        for batch in read_token(token):
            yield conform(batch, schema)


# Leases that this planner worker has taken and that later DataFrames over the same version may share.
_leases: dict[tuple[str, int, int], str] = {}


def lease_of_version(path: str, version: int, lease_s: int) -> str:
    """The name of a lease on a version of the catalogue, for at least `lease_s` seconds from now.

    To be called while something else still keeps that version: an open reader, or a root in this process.
    """
    wanted = (path, version, lease_s)
    name = _leases.get(wanted)
    if name is not None:
        with contextlib.suppress(HistoryExpiredError):
            handover.renew_lease(path, name, lease_s)
            return name
    lease = handover.remote_lease(path, lease_s)
    lease.announce(version)
    for old in [key for key in _leases if key[0] == path and key[1] < version]:
        del _leases[old]
    _leases[wanted] = lease.name
    return lease.name


_frozen = False


def freeze_gc_once() -> None:
    """Take what this worker has imported out of the garbage collector's sight.

    PySpark's workers collect after every task; walking pandas, pyarrow and pyspark each time is a third of what a
    small task costs.
    """
    global _frozen
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
