"""Large loads and upserts in other processes: the input and output of their tasks.

    writer process        tasks, one tablet each                  writer process
    begin                 write_tablet  (load_write)              commit_load  (load_commit)
      flush the table       the tablet's rows, in key order         settle what changed since S
      S, and its files ──►  look up each key in the files of S ──►  link the files; one catalogue
      hold its rowsets      → staged rowset and delta files         transaction for all tablets

Only numbers, texts and lists (JSON) are exchanged, never code.

Invariants
    J1  The files of the plan hold everything up to the snapshot S: a key's place in them is its
        place at S.
    J2  The writer process holds a job's rowsets while the job's lease lives, so that no merge moves
        rows that staged deltas refer to. That saves work, but correctness does not need it: the
        commit settles rows of missing rowsets again, by key.
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
from nyala.tablet.compaction.file_jobs import Output, decode_output, encode_output
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.state.entries import RowSetFiles
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.state.validation import checked, is_unsigned

if TYPE_CHECKING:
    from nyala.delta.delta_file import WrittenDelta
    from nyala.tablet.store import Store

__all__ = ["LoadPlan", "StagedDelta", "StagedTablet", "TabletFiles", "begin_load"]

_COUNTS: Final = ("inserted", "updated", "deleted", "ignored")
# How long to wait for a running merge. The commit settles rows of rowsets that it merges away
# later.
_WAIT_FOR_MERGES_S: Final = 5.0


@dataclass(frozen=True)
class TabletFiles:
    """One tablet as of the job's snapshot S."""

    id: int
    partition: Partition
    rowsets: tuple[RowSetFiles, ...]


@dataclass(frozen=True)
class LoadPlan:
    """A table as of the job's snapshot S. `version` is the catalogue's, for the lease."""

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
        """The plan with these tablets only, for one task."""
        return dataclasses.replace(self, tablets=tuple(self.tablets[ordinal] for ordinal in ordinals))

    def table_state(
        self, env: Env | None, ordinals: Sequence[int], cache: BlockCache | None = None
    ) -> TableState:
        """The table with these tablets, open rowsets and empty memory. env None: no rowsets."""
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
    """Encode buckets, and bounds in hexadecimal."""
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
    """The files that a task staged for one tablet, and the counts of its rows as of S.

    idle: rowsets of dead rows: the given columns of rows that changed nothing as of S. They are
        never committed; the commit settles those whose keys changed since S again.
    """

    tablet_id: int
    rowsets: tuple[WrittenRowSet, ...] = ()
    deltas: tuple[StagedDelta, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    idle: tuple[WrittenRowSet, ...] = ()

    def to_json(self) -> dict[str, Any]:
        # The same form as a compaction's output, one delta at a time.
        return {
            "tablet_id": self.tablet_id,
            "rowsets": encode_output(Output(rowsets=self.rowsets))["rowsets"],
            "deltas": [
                {
                    "rowset_id": made.rowset_id,
                    "redo": encode_output(Output(redo=(made.path, made.delta)))["redo"],
                }
                for made in self.deltas
            ],
            "counts": self.counts,
            "idle": encode_output(Output(rowsets=self.idle))["rowsets"],
        }

    @staticmethod
    def from_json(fields: dict[str, Any]) -> StagedTablet:
        """Raises: ValueError, TypeError, LookupError, AttributeError for invalid fields."""
        empty: dict[str, Any] = {"part": None, "undo": None, "redo": None, "rowsets": []}
        deltas = []
        for made in fields["deltas"]:
            redo = decode_output({**empty, "redo": made["redo"]}).redo
            if redo is None or redo[1].kind != "redo" or not redo[1].column_ids:
                raise ValueError(f"changes of rowset {made['rowset_id']!r} are not a REDO file")
            deltas.append(checked(StagedDelta(made["rowset_id"], *redo)))
        counts = fields["counts"]
        if not set(counts) <= set(_COUNTS) or not all(map(is_unsigned, counts.values())):
            raise ValueError(f"invalid counts {counts}")
        rowsets, idle = (
            decode_output({**empty, "rowsets": fields[which]}).rowsets for which in ("rowsets", "idle")
        )
        return checked(StagedTablet(fields["tablet_id"], rowsets, tuple(deltas), counts, idle))


# ------------------------------------------------------------------------------------------------ begin


def begin_load(store: Store, name: str, lease: str | None, holder: str = "a job") -> LoadPlan:
    """Flush the table to files, and return its plan (J1). Called in the writer process.

    lease:  name of the job's lease, under which its rowsets are held. None: the job changes no
            existing row.
    holder: the job and its process in words, for users who wait for its end.
    Cost:   other writers wait for the flush of the table's memory.
    Raises: TableNotFoundError; as `flush`.
    """
    store.check_writable()
    table_id = store.root.table(name).id
    if lease is not None:
        rowsets = {rowset.id for tablet in store.root.table(name).tablets for rowset in tablet.rowsets}
        store.reservations.wait_free(rowsets, _WAIT_FOR_MERGES_S)
    flush(
        store, {tablet.id for tablet in store.root.table(name).tablets}
    )  # most of the flush happens without the commit lock
    with store.flush_lock, Uninterrupted(), store.commit_lock:
        store.check_writable()
        table = store.root.table(name)
        # A running merge keeps changes in memory, so it is revoked, as by any direct commit.
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
