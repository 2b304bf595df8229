"""The policy's input and output: layouts of rowsets and plans, and the cost of work in bytes.

Source: docs/design/kudu.md, "Choice of rowsets to merge". Departure: a small rowset costs a fixed
number of bytes (`OPEN_BYTES`), not 0.9 % of a tablet of any size. For the same reason, whether a
gain is too small depends on the work, not the tablet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypeVar

from nyala.rowset import size

# The cost of one more rowset or file for a scan, in bytes: it takes about a millisecond (open,
# footer, index, a call per column), and a megabyte is decoded in that time. At most 1/32 of the
# target, so that a store of small rowsets behaves like one of large rowsets.
OPEN_BYTES: Final = 1 << 20

OPEN_PER_TARGET: Final = 32

# The fixed cost of a compaction in bytes: files to sync and a catalogue change, about 10 ms at
# a few hundred MB/s of rewriting. It keeps a hundred tiny gains from going before one large gain.
WORK_BYTES: Final = 4 * OPEN_BYTES


@dataclass(frozen=True)
class RowSetLayout:
    """One DiskRowSet as the policy sees it.

    key_min, key_max: canonical encoded keys, both inclusive.
    row_count:        rows in the base, including dead ones.
    redo_files:       (bytes, records), oldest first.
    redo_columns:     column id (also LIVENESS) -> number of REDO records on disk, or an estimate.
    base_columns:     column id -> bytes of base. If empty, the sizes are unknown: the policy divides
                      the base equally among the columns. A column that the base does not store
                      has 0 (LIVENESS, a column added later).
    undo_files:       (bytes, records), oldest first; empty: do not merge them.
    expired_rows:     rows dead since before the history mark, which a rewrite drops.
    expired_undo_bytes: a lower bound of the UNDO that no readable snapshot needs, including
                      `expired_undo_files`.
    expired_undo_files: how many of the oldest UNDO files are completely beyond the mark.
    superseded_bytes: columns in the base file or in parts that a newer part replaces, or that were
                      dropped before the history begins. A rewrite drops them.
    outdated:         written before the table's columns, types or encodings changed; manual
                      maintenance rewrites it.
    all_expired:      every row is dead and beyond the mark, so the rowset can be dropped.
    text_bytes:       about how much memory the text of the largest text column takes; 0: unknown.
    decoded_bytes:    about how much memory keys and columns take; 0: unknown.
    available:        False while a running compaction has reserved it.

    Whatever counts as expired must be gone after a rewrite. So estimates err downwards; otherwise
    the same rewrite would be planned again (Q2).
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
        """All bytes that a merge reads; it writes about as many."""
        return self.base_bytes + self.redo_bytes + self.undo_bytes

    @property
    def expired_bytes(self) -> int:
        """The bytes that a rewrite frees."""
        live_base = self.base_bytes - self.superseded_bytes
        rows_bytes = live_base * self.expired_rows // max(1, self.row_count)
        return min(self.size_bytes, rows_bytes + self.expired_undo_bytes + self.superseded_bytes)

    @property
    def kept_base_bytes(self) -> int:
        """Base bytes without expired rows, from which rowsets of the target size are cut.

        Larger if needed, so that a rowset of the target size takes at most `DECODED_PER_TARGET`
        times that in memory.
        """
        base = max(self.base_bytes - self.superseded_bytes, self.decoded_bytes // size.DECODED_PER_TARGET)
        return base - base * self.expired_rows // max(1, self.row_count)

    def cut_bytes(self, target_bytes: int) -> int:
        """`kept_base_bytes`, or more, so that a rowset's text stays within `TEXT_TARGET_BYTES`."""
        return max(self.kept_base_bytes, self.text_bytes * target_bytes // size.TEXT_TARGET_BYTES)


@dataclass(frozen=True)
class MergePlan:
    """Merge these rowsets, by ascending key_min, into `output_count` rowsets of about equal size.

    A single rowset is rewritten.

    purged: encoded keys in hexadecimal, ascending. What they were up to `purged_until` is left out.
    """

    rowsets: tuple[int, ...]
    gain: float
    output_count: int = 1
    purged: tuple[str, ...] = ()
    purged_until: int = 0


@dataclass(frozen=True)
class MajorPlan:
    """Merge the REDO of these columns (ascending ids, also LIVENESS) into the base."""

    rowset: int
    columns: tuple[int, ...]
    gain: float


@dataclass(frozen=True)
class MinorPlan:
    """Merge these adjacent REDO (or UNDO) files of the rowset, counted from the oldest."""

    rowset: int
    files: slice
    gain: float
    kind: Literal["redo", "undo"] = "redo"


@dataclass(frozen=True)
class ExpirePlan:
    """Drop the `all_expired` rowsets, and the `expired_undo_files` oldest UNDO files of others."""

    rowsets: tuple[int, ...]
    gain: float


Plan: TypeAlias = MergePlan | MajorPlan | MinorPlan | ExpirePlan

_P = TypeVar("_P", MergePlan, MinorPlan)


def better(one: _P | None, other: _P | None) -> _P | None:
    """The plan with the greater gain; the first if they are equal."""
    if one is None or other is None:
        return one or other
    return other if other.gain > one.gain else one


def output_count(rowsets: Iterable[RowSetLayout], target_bytes: int) -> int:
    """The number of equal rowsets nearest to the target: each has 0.75 to 1.5 of it."""
    return max(1, round(sum(r.cut_bytes(target_bytes) for r in rowsets) / target_bytes))


def open_bytes(target_bytes: int) -> float:
    return min(OPEN_BYTES, target_bytes / OPEN_PER_TARGET)


def work_bytes(target_bytes: int) -> float:
    return open_bytes(target_bytes) * (WORK_BYTES // OPEN_BYTES)
