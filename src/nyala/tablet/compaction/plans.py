"""The policy's input (measurements of rowsets), its output (plans), and the cost of work in bytes.

Source: docs/design/kudu.md, "Choice of rowsets to merge".
Difference from Kudu: the cost of one more rowset for a scan is a fixed number of bytes
(`OPEN_BYTES`). In Kudu it is 0.9 % of the tablet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, TypeVar

from nyala.rowset import size

# What one more rowset or file costs a scan, in bytes: about a millisecond (to open it, and to read its
# footer and index), in which the scan could decode a megabyte. It is at most 1/32 of the target size, so
# that a store with small rowsets behaves like one with large rowsets.
OPEN_BYTES: Final = 1 << 20

OPEN_PER_TARGET: Final = 32

# The fixed cost of a compaction in bytes: about 10 ms for syncs and a change of the catalogue, in which
# it could rewrite some megabytes. Without it, a hundred tiny compactions could precede a useful one.
WORK_BYTES: Final = 4 * OPEN_BYTES


@dataclass(frozen=True)
class RowSetLayout:
    """The measurements of one DiskRowSet that the policy needs.

    "The mark" is the ancient history mark: reads of earlier moments are not possible.

    key_min, key_max: encoded keys, both inclusive.
    row_count:        rows in the base, including dead ones.
    redo_files:       (bytes, records) of each file, oldest first.
    redo_columns:     number of REDO records on disk, or an estimate, by column id (also LIVENESS).
    base_columns:     by column id, about how many bytes the column takes in the base data; no entry
                      for a column that the base does not store.
    undo_files:       (bytes, records) of each file, oldest first.
    expired_rows:     rows that died before the mark. A rewrite drops them.
    expired_undo_bytes: a lower bound of the bytes of UNDO that only moments before the mark need;
                      it includes the expired files.
    expired_undo_files: the number of expired UNDO files: the oldest ones, which only moments before
                      the mark need.
    superseded_bytes: bytes of columns that a newer part replaces, or that were dropped before the
                      mark. A rewrite drops them.
    outdated:         written before the table's columns, types or encodings changed. Manual
                      maintenance rewrites such rowsets.
    all_expired:      all rows died before the mark, so the rowset can be dropped.
    text_bytes:       about how much memory the largest text column takes; 0: unknown.
    decoded_bytes:    about how much memory keys and columns take; 0: unknown.
    available:        False if a running compaction has reserved the rowset.

    Estimates of expired data must not be too high. Otherwise a rewrite would remove less than
    planned, and the policy would plan the same rewrite again.
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
        """The number of bytes that a merge of this rowset reads. It writes about as many."""
        return self.base_bytes + self.redo_bytes + self.undo_bytes

    @property
    def expired_bytes(self) -> int:
        """About how many bytes of disk space a rewrite of this rowset frees."""
        live_base = self.base_bytes - self.superseded_bytes
        rows_bytes = live_base * self.expired_rows // max(1, self.row_count)
        return min(self.size_bytes, rows_bytes + self.expired_undo_bytes + self.superseded_bytes)

    @property
    def expired_file_bytes(self) -> int:
        """The number of bytes of the expired UNDO files."""
        return sum(size for size, _ in self.undo_files[: self.expired_undo_files])

    @property
    def kept_base_bytes(self) -> int:
        """The estimated number of bytes of base data that a merge keeps of this rowset.

        Expired rows do not count, nor columns that were replaced or dropped. If the base data takes
        more than 8 times as much in memory as on disk, the estimate starts from an eighth of its
        size in memory. This larger estimate makes the merge write more and smaller rowsets, so that
        each one takes less memory.
        """
        base = max(self.base_bytes - self.superseded_bytes, self.decoded_bytes // size.DECODED_PER_TARGET)
        return base - base * self.expired_rows // max(1, self.row_count)

    def cut_bytes(self, target_bytes: int) -> int:
        """Return the number of bytes that decides how many rowsets a merge of this rowset writes.

        This is `kept_base_bytes`, or more if the rowset has so much text that more rowsets are needed.

        target_bytes: the size of a full rowset.
        """
        return max(self.kept_base_bytes, self.text_bytes * target_bytes // size.TEXT_TARGET_BYTES)


@dataclass(frozen=True)
class MergePlan:
    """Merge these rowsets into `output_count` rowsets of about equal size.

    A plan with a single rowset rewrites it.

    rowsets: ids, by ascending key_min.
    gain:    the number of bytes of reading or disk space that the merge saves, divided by the
             number of bytes that it rewrites.
    purged:  the encoded keys, in hexadecimal and ascending, whose deleted rows are to be erased.
             The merge leaves out all versions of these rows up to the timestamp `purged_until`.
             It keeps rows that were inserted again with these keys after this timestamp.
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
    """Merge some adjacent REDO (or UNDO) files of one rowset.

    files: a slice of the rowset's files of this kind, oldest first.
    """

    rowset: int
    files: slice
    gain: float
    kind: Literal["redo", "undo"] = "redo"


@dataclass(frozen=True)
class ExpirePlan:
    """Drop rowsets whose rows have all expired, and the expired UNDO files of other rowsets."""

    rowsets: tuple[int, ...]
    gain: float


Plan: TypeAlias = MergePlan | MajorPlan | MinorPlan | ExpirePlan

_P = TypeVar("_P", MergePlan, MinorPlan)


def better(one: _P | None, other: _P | None) -> _P | None:
    """Return the plan with the greater gain; the first one if both are equal."""
    if one is None or other is None:
        return one or other
    return other if other.gain > one.gain else one


def output_count(rowsets: Iterable[RowSetLayout], target_bytes: int) -> int:
    """Return the number of rowsets that a merge of these rowsets writes, with about equal sizes.

    If there are several, each has 0.75 to 1.5 times the target size.
    """
    return max(1, round(sum(r.cut_bytes(target_bytes) for r in rowsets) / target_bytes))


def open_bytes(target_bytes: int) -> float:
    """Return the cost of one more rowset or file for a scan, as a number of bytes to read.

    This is 1/32 of the target size, but at most `OPEN_BYTES` (1 MiB).
    """
    return min(OPEN_BYTES, target_bytes / OPEN_PER_TARGET)


def work_bytes(target_bytes: int) -> float:
    """Return the fixed cost of a compaction, as a number of bytes to rewrite.

    Each compaction needs time for syncs and a change of the catalogue. In this time it could
    rewrite about this number of bytes: 1/8 of the target size, but at most
    `WORK_BYTES` (4 MiB).
    """
    return open_bytes(target_bytes) * (WORK_BYTES // OPEN_BYTES)
