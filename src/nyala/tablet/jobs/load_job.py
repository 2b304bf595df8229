"""Loads: large writes whose files are written by tasks in other processes.

This module defines the input and the output of the tasks.

    1  begin_load    writer process   flushes the table, and returns a `LoadPlan`: the table's files as
                                      of a moment S
    2  write_tablet  tasks            each reads the rows for one tablet, in key order, looks up their
                                      keys in the files of S, and writes rowsets and delta files
    3  commit_load   writer process   resolves rows again whose keys changed after S; commits the files
                                      of all tablets by one change of the catalogue

The processes exchange only JSON, never code.

Invariants
    J1  The plan's files contain all changes up to the moment S. So the rowset and rowid at which a
        task finds a key in these files are those at S.
    J2  The writer process holds a job's rowsets until the job's lease ends, so no merge moves rows
        that the job changes. This only saves work: if a rowset is missing nevertheless, the commit
        resolves its rows again, by key.
    J3  The job's lease keeps the files of S from being deleted.

Source: docs/design/loads-and-jobs.md, "Executors write the files of a large load";
docs/design/rules.md, W6 and R4.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nyala.catalog.model import TableEntry, TabletEntry
from nyala.cfile.blocks.cache import BlockCache
from nyala.env import Env
from nyala.env.interrupts import Uninterrupted
from nyala.partition.model import Partition, PartitionSchema
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.writer import WrittenRowSet
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import Schema
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.state.entries import (
    RowSetFiles,
    decode_delta,
    decode_written_rowset,
    encode_delta,
    encode_written_rowset,
)
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.state.validation import checked, is_unsigned

if TYPE_CHECKING:
    from nyala.delta.delta_file import WrittenDelta
    from nyala.tablet.store import Store

_COUNTS: Final = ("inserted", "updated", "deleted", "ignored")
# How long to wait for a running merge. If it takes longer, it is revoked.
_WAIT_FOR_MERGES_S: Final = 5.0


@dataclass(frozen=True)
class TabletFiles:
    """One tablet of a load's plan, with its rowsets as of the plan's moment S."""

    id: int
    partition: Partition
    rowsets: tuple[RowSetFiles, ...]


@dataclass(frozen=True)
class LoadPlan:
    """The input of a load's tasks: a table, and its files as of the moment S (`snapshot`).

    version: the version of the catalogue that names these files. The job's lease needs it.
    """

    root_path: str
    table_id: int
    table: str
    schema: Schema
    partition_schema: PartitionSchema
    tablets: tuple[TabletFiles, ...]
    snapshot: int
    version: int
    rowset_target_bytes: int
    limits: Limits = DEFAULT_LIMITS

    def to_json(self) -> dict[str, Any]:
        return {
            "root_path": self.root_path,
            "table_id": self.table_id,
            "table": self.table,
            "schema": json.loads(self.schema.to_json()),
            "partition_schema": json.loads(self.partition_schema.to_json()),
            "tablets": [_tablet_to_json(tablet) for tablet in self.tablets],
            "snapshot": self.snapshot,
            "version": self.version,
            "rowset_target_bytes": self.rowset_target_bytes,
            "limits": dataclasses.asdict(self.limits),
        }

    @staticmethod
    def from_json(fields: dict[str, Any]) -> LoadPlan:
        return LoadPlan(
            **{
                **fields,
                "schema": Schema.from_json(json.dumps(fields["schema"])),
                "partition_schema": PartitionSchema.from_json(json.dumps(fields["partition_schema"])),
                "tablets": tuple(map(_tablet_from_json, fields["tablets"])),
                "limits": Limits(**fields["limits"]),
            }
        )

    def only(self, ordinals: Sequence[int]) -> LoadPlan:
        """Return the plan with only these tablets (by their index in `tablets`), for one task."""
        return dataclasses.replace(self, tablets=tuple(self.tablets[ordinal] for ordinal in ordinals))

    def table_state(
        self, env: Env | None, ordinals: Sequence[int], cache: BlockCache | None = None
    ) -> TableState:
        """Return the table with these tablets of the plan (by their index), and open their rowsets.

        env: None: return the tablets without rowsets, and open no file.
        """
        entry = TableEntry(
            self.table_id, self.table, "", None, self.schema, {self.schema.version: self.schema},
            self.partition_schema,
        )  # fmt: skip
        bare = TableState(entry, (), self.limits)
        chosen = [self.tablets[ordinal] for ordinal in ordinals]
        return dataclasses.replace(
            bare,
            tablets=tuple(
                TabletState(
                    TabletEntry(tablet.id, self.table_id, tablet.partition, 0),
                    MemRowSet(bare.codec, self.schema),
                    (),
                    ()
                    if env is None
                    else tuple(f.open(env, self.root_path, cache, self.schema) for f in tablet.rowsets),
                )
                for tablet in chosen
            ),
        )


def _tablet_to_json(tablet: TabletFiles) -> dict[str, Any]:
    return {
        "id": tablet.id,
        "partition": partition_to_json(tablet.partition),
        "rowsets": [files.to_json() for files in tablet.rowsets],
    }


def _tablet_from_json(fields: dict[str, Any]) -> TabletFiles:
    return TabletFiles(
        fields["id"],
        partition_from_json(fields["partition"]),
        tuple(map(RowSetFiles.from_json, fields["rowsets"])),
    )


def partition_to_json(partition: Partition) -> dict[str, Any]:
    """Return the partition as JSON: its hash buckets, and its range bounds in hexadecimal."""
    return {
        "buckets": list(partition.hash_buckets),
        "lower": None if partition.range_lower is None else partition.range_lower.hex(),
        "upper": None if partition.range_upper is None else partition.range_upper.hex(),
    }


def partition_from_json(fields: dict[str, Any]) -> Partition:
    lower, upper = fields["lower"], fields["upper"]
    return Partition(
        tuple(fields["buckets"]),
        None if lower is None else bytes.fromhex(lower),
        None if upper is None else bytes.fromhex(upper),
    )


# ------------------------------------------------------------------------------------------------ output of tasks


@dataclass(frozen=True)
class StagedDelta:
    """A REDO file that a task staged for a rowset; `path` is relative to the store's folder."""

    rowset_id: int
    path: str
    delta: WrittenDelta


@dataclass(frozen=True)
class StagedTablet:
    """The files that a task staged for one tablet, and the counts of its rows.

    The task resolved its rows as of the moment S of the job's plan.

    rowsets: new rows.
    deltas:  changes of existing rows.
    counts:  the number of inserted, updated, deleted and ignored rows.
    idle:    files with rows that change nothing as of S, such as updates of missing keys. The
             commit never adds these files to the table. It resolves their rows again if another
             writer changed the keys of the rows after S. The rows are marked as dead, so that
             nobody takes them for new rows.
    """

    tablet_id: int
    rowsets: tuple[WrittenRowSet, ...] = ()
    deltas: tuple[StagedDelta, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    idle: tuple[WrittenRowSet, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "tablet_id": self.tablet_id,
            "rowsets": [encode_written_rowset(made) for made in self.rowsets],
            "deltas": [
                {"rowset_id": made.rowset_id, "redo": [made.path, encode_delta(made.delta)]}
                for made in self.deltas
            ],
            "counts": self.counts,
            "idle": [encode_written_rowset(made) for made in self.idle],
        }

    @staticmethod
    def from_json(fields: dict[str, Any]) -> StagedTablet:
        """Decode and check the files of a tablet.

        Raises: ValueError, TypeError, LookupError, AttributeError for invalid fields.
        """
        deltas = []
        for made in fields["deltas"]:
            path, delta = made["redo"][0], decode_delta(made["redo"][1])
            if delta.kind != "redo" or not delta.column_ids:
                raise ValueError(f"changes of rowset {made['rowset_id']!r} are not a REDO file")
            deltas.append(checked(StagedDelta(made["rowset_id"], path, delta)))
        counts = fields["counts"]
        if not set(counts) <= set(_COUNTS) or not all(map(is_unsigned, counts.values())):
            raise ValueError(
                f"invalid row counts {counts}: expected numbers >= 0 under the names {', '.join(_COUNTS)}"
            )
        rowsets, idle = (tuple(map(decode_written_rowset, fields[which])) for which in ("rowsets", "idle"))
        return checked(StagedTablet(fields["tablet_id"], rowsets, tuple(deltas), counts, idle))


# ------------------------------------------------------------------------------------------------ begin


def begin_load(store: Store, name: str, lease: str | None, holder: str = "a job") -> LoadPlan:
    """Flush the table to files, and return its load plan. Called in the writer process.

    lease:  the name of the job's lease. The table's rowsets are held until the lease ends.
            None: hold no rowsets, because the job changes no existing rows.
    holder: describes the job and its process, for messages to users who wait for the rowsets.
    Cost:   two flushes. Other writers wait only during the second flush, which writes the rows that
            came during the first flush.
    Raises: TableNotFoundError; the errors of `flush`.
    """
    store.check_writable()
    table_id = store.root.table(name).id
    if lease is not None:
        rowsets = {rowset.id for tablet in store.root.table(name).tablets for rowset in tablet.rowsets}
        store.reservations.wait_free(rowsets, _WAIT_FOR_MERGES_S)
    # A first flush without the commit lock, so that the second one is short.
    flush(store, {tablet.id for tablet in store.root.table(name).tablets})
    with store.flush_lock, Uninterrupted(), store.commit_lock:
        store.check_writable()
        table = store.root.table(name)
        # A running merge would keep changes in memory (C3 of `compaction.lifecycle`).
        ids = [rowset.id for tablet in table.tablets for rowset in tablet.rowsets]
        store.reservations.revoke(filter(store.reservations.holds_deltas, ids))
        flush(store, {tablet.id for tablet in table.tablets})
        root, snapshot = store.root, store.marks.applied
        table = root.tables[table_id]
        if lease is not None:
            ids = [rowset.id for tablet in table.tablets for rowset in tablet.rowsets]
            store.job_reservations.take(store, lease, ids, holder)
    return LoadPlan(
        store.root_path,
        table_id,
        table.name,
        table.schema,
        table.entry.partition_schema,
        tuple(
            TabletFiles(tablet.id, tablet.partition, tuple(map(RowSetFiles.of, tablet.rowsets)))
            for tablet in table.tablets
        ),
        snapshot,
        root.version,
        store.options.rowset_target_bytes,
        table.limits,
    )
