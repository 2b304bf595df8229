"""The commits that changed a table: their timestamps, and how many rows each one changed.

The store keeps no list of commits. It keeps only the messages that users gave for commits. So this
module finds the commits in the changes of the table: each distinct timestamp of a change is one
commit. A row counts as inserted, updated or deleted as in a feed of all versions
(`changes.versions`).

Cost: reads the rowids and timestamps of changes, and LIVENESS, but no other values. Memory: the
changes of one rowset, and four numbers per commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.catalog.model import CommitMessage
from nyala.delta.run import Timestamps
from nyala.tablet.changes.batches import DELETE, INSERT, UPDATE, commit_columns
from nyala.tablet.changes.records import Touched, rowsets_of
from nyala.tablet.changes.spec import ChangeSpec
from nyala.tablet.changes.versions import version_types
from nyala.tablet.scan.parallel import in_parallel
from nyala.tablet.state.root import TableState

_TYPES: Final = (INSERT, UPDATE, DELETE)
_SCHEMA: Final = pa.schema(
    [
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("inserted", pa.int64(), nullable=False),
        pa.field("updated", pa.int64(), nullable=False),
        pa.field("deleted", pa.int64(), nullable=False),
        pa.field("tables", pa.list_(pa.string()), nullable=False),
        pa.field("message", pa.string()),
    ]
)


@dataclass(frozen=True)
class CommitCounts:
    """The commits of a table, with the number of rows that each commit changed.

    timestamps: the timestamp of each commit, ascending.
    counts:     one row per commit: the numbers of inserted, updated and deleted rows.
    """

    timestamps: Timestamps
    counts: npt.NDArray[np.int64]

    @staticmethod
    def total(parts: list[CommitCounts]) -> CommitCounts:
        """Join several counts: each commit once, with the sums of its counts."""
        if not parts:
            return CommitCounts(np.empty(0, np.int64), np.empty((0, len(_TYPES)), np.int64))
        timestamps, place = np.unique(
            np.concatenate([part.timestamps for part in parts]), return_inverse=True
        )
        counts = np.zeros((len(timestamps), len(_TYPES)), np.int64)
        np.add.at(counts, place, np.concatenate([part.counts for part in parts]))
        return CommitCounts(timestamps, counts)


def commit_counts(table: TableState, since: int, until: int) -> CommitCounts:
    """Count the rows that each commit inserted, updated and deleted in the table.

    The result has the commits after `since`, up to and including `until`.
    """
    spec = ChangeSpec((), 0, since, until, "all")
    found = CommitCounts.total([])
    if since >= until:
        return found
    for rowset in rowsets_of(table, spec):
        touched = Touched(table, rowset, spec)
        parts = in_parallel(((touched, *split) for split in touched.splits()), lambda split: _counted(*split))
        found = CommitCounts.total([found, *parts])
    return found


def _counted(touched: Touched, lower: int, upper: int) -> CommitCounts:
    moments, moment_of, types = version_types(touched, lower, upper)
    counts = np.column_stack(
        [np.bincount(moment_of[types == kind], minlength=len(moments)) for kind in _TYPES]
    )
    kept = counts.any(axis=1)
    return CommitCounts(moments[kept], counts[kept].astype(np.int64))


def commit_table(found: Mapping[str, CommitCounts], messages: Mapping[int, CommitMessage]) -> pa.Table:
    """Return the commits of several tables, with the fields of `nyala.Commit` as columns.

    found: the commits of each table, by the table's name. messages: by timestamp.
    """
    names = sorted(found)
    total = CommitCounts.total([found[name] for name in names])
    count = len(total.timestamps)
    # (commit, table) as two arrays of indexes, which are then sorted by commit.
    of_commit = np.concatenate(
        [
            np.empty(0, np.int64),
            *(np.searchsorted(total.timestamps, found[name].timestamps) for name in names),
        ]
    )
    of_table = np.repeat(np.arange(len(names)), [len(found[name].timestamps) for name in names])
    order = np.argsort(of_commit, kind="stable")
    offsets = np.searchsorted(of_commit[order], np.arange(count + 1))
    table_names = pa.array(names, pa.string()).take(pa.array(of_table[order], pa.int64()))
    said = [messages.get(at) for at in total.timestamps.tolist()] if messages else [None] * count
    arrays = [
        *commit_columns(total.timestamps),
        *(pa.array(total.counts[:, kind]) for kind in range(len(_TYPES))),
        pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), table_names),
        pa.array([None if message is None else message.message for message in said], pa.string()),
    ]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)
