"""What the compaction policy looks at and what it says: layouts of rowsets, plans, and what work costs as bytes.

Source: docs/design/kudu.md, "Choice of rowsets to merge". Departure: a small rowset is worth a fixed number of bytes
(`OPEN_BYTES`), not 0.9 % of a tablet of whatever size; for the same reason what is too little is measured against the
work, not against the tablet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypeVar

from nyala.rowset import size

# What a rowset or file more costs a scan, as bytes: about a millisecond (open, footer, index, a call per column), in
# which a megabyte is decoded. At most 1/32 of the target, so that a store of small rowsets behaves like one of large
# ones.
OPEN_BYTES: Final = 1 << 20

OPEN_PER_TARGET: Final = 32

# What a piece of work costs whatever its size, as bytes: files to sync and a catalogue transaction, some 10 ms at a few
# hundred MB/s of rewriting. It keeps a hundred tiny gains from going before one that is felt.
WORK_BYTES: Final = 4 * OPEN_BYTES


@dataclass(frozen=True)
class RowSetLayout:
    """What the policy must know of one DiskRowSet.

    key_min, key_max: canonical encoded keys, both inclusive.
    row_count:        rows in the base, dead ones too.
    redo_files:       (bytes, records), oldest first.
    redo_columns:     column id (LIVENESS too) -> records, or an estimate, of REDO on disk.
    base_columns:     column id -> bytes of base; where it is not known columns count as equal. A column that the base
                      does not hold has 0 (LIVENESS, a column added later).
    undo_files:       (bytes, records), oldest first; empty: they are not to be merged.
    expired_rows:     rows dead since before the history mark, which a rewrite drops.
    expired_undo_bytes: UNDO that no readable snapshot needs, at least that much, `expired_undo_files` included.
    expired_undo_files: so many of the oldest UNDO files are beyond the mark as a whole.
    superseded_bytes: columns of the base file, or of parts, that a newer part has, or that were dropped before the
                      history begins: a rewrite drops them.
    outdated:         written before the table's columns, types or encodings changed: a rewrite by hand brings it on.
    all_expired:      every row is dead and beyond the mark: the rowset can be dropped.
    text_bytes:       what the text of one column takes in memory, about, of that which has most; 0: not known.
    decoded_bytes:    what keys and columns take in memory, about; 0: not known.
    available:        False while a running compaction has it reserved.

    What is called expired must be gone after the rewrite: estimates err downwards, or the rewrite comes again (Q2).
    """

    id: int
    key_min: bytes
    key_max: bytes
    row_count: int
    base_bytes: int
    redo_bytes: int
    undo_bytes: int
    redo_files: Sequence[tuple[int, int]]
    redo_columns: Mapping[int, int]
    base_columns: Mapping[int, int] = field(default_factory=dict)
    undo_files: Sequence[tuple[int, int]] = ()
    expired_rows: int = 0
    expired_undo_bytes: int = 0
    expired_undo_files: int = 0
    superseded_bytes: int = 0
    outdated: bool = False
    all_expired: bool = False
    available: bool = True
    decoded_bytes: int = 0
    text_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """All that a merge reads, and about what it writes."""
        return self.base_bytes + self.redo_bytes + self.undo_bytes

    @property
    def expired_bytes(self) -> int:
        """What a rewrite gives back."""
        live_base = self.base_bytes - self.superseded_bytes
        rows_bytes = live_base * self.expired_rows // max(1, self.row_count)
        return min(self.size_bytes, rows_bytes + self.expired_undo_bytes + self.superseded_bytes)

    @property
    def kept_base_bytes(self) -> int:
        """Base without expired rows: what rowsets of the target size are cut from. Or, if that is more, so much
        that a rowset of the target size is within `DECODED_PER_TARGET`."""
        base = max(self.base_bytes - self.superseded_bytes, self.decoded_bytes // size.DECODED_PER_TARGET)
        return base - base * self.expired_rows // max(1, self.row_count)

    def cut_bytes(self, target_bytes: int) -> int:
        """`kept_base_bytes`; or, if that is more, so much that a rowset of the target size is within
        `TEXT_TARGET_BYTES`."""
        return max(self.kept_base_bytes, self.text_bytes * target_bytes // size.TEXT_TARGET_BYTES)


@dataclass(frozen=True)
class MergePlan:
    """Merge rowsets, by ascending key_min, into `output_count` of about equal size; one alone is rewritten."""

    rowsets: tuple[int, ...]
    gain: float
    output_count: int = 1


@dataclass(frozen=True)
class MajorPlan:
    """Bring the REDO of these columns (ascending ids, LIVENESS may be one) into the base."""

    rowset: int
    columns: tuple[int, ...]
    gain: float


@dataclass(frozen=True)
class MinorPlan:
    """Merge these neighbours among the rowset's REDO (or UNDO) files, counted from the oldest."""

    rowset: int
    files: slice
    gain: float
    kind: Literal["redo", "undo"] = "redo"


@dataclass(frozen=True)
class ExpirePlan:
    """Drop the rowsets that are `all_expired`, and the `expired_undo_files` oldest UNDO files of the others."""

    rowsets: tuple[int, ...]
    gain: float


Plan: TypeAlias = MergePlan | MajorPlan | MinorPlan | ExpirePlan

_P = TypeVar("_P", MergePlan, MinorPlan)


def better(one: _P | None, other: _P | None) -> _P | None:
    """The plan of greater gain; the first of equals."""
    if one is None or other is None:
        return one or other
    return other if other.gain > one.gain else one


def output_count(rowsets: Iterable[RowSetLayout], target_bytes: int) -> int:
    """Rowsets of about equal size, nearest to the target: 0.75 to 1.5 of it, and no small rest."""
    return max(1, round(sum(r.cut_bytes(target_bytes) for r in rowsets) / target_bytes))


def open_bytes(target_bytes: int) -> float:
    return min(OPEN_BYTES, target_bytes / OPEN_PER_TARGET)


def work_bytes(target_bytes: int) -> float:
    return open_bytes(target_bytes) * (WORK_BYTES // OPEN_BYTES)
