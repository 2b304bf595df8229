"""Which compaction of a tablet pays best now. Pure: layouts of rowsets in, a plan out; others carry it out.

      bytes in a key's       ┌─────────────────── w: 8 MB, flushed just now ──────────────────┐     height 2
      neighbourhood          ┌──── a: 32 MB ────┐┌──── b: 32 MB ────┐┌─c─┐┌─d─┐┌───── e ──────┐     height 1
                             0 ───────────────── share of the tablet's data ──────────────── 1

    merge     w with others like it: fewer rowsets to look for a key in (Kudu's objective); c with d: fewer files
    rewrite   one rowset of which half is dead rows or history that nobody can read: gives the disk back
    major     REDO of some columns into the base: scans of the present stop paying for it
    minor     many delta files of a rowset into one
    expire    what is out of reach as a whole goes by a catalogue transaction, without reading a byte

One currency for all of them, so that they can be compared, also across tablets:

    gain = bytes of reading (or disk) that are spared / bytes that are rewritten

"Spared" are the bytes that a reader no longer passes who meets each key as often as there is data near it: a rowset
that covers `width` of the data is in the way of as many bytes. So merging two equal rowsets of one key range has a
gain of about 1, four of them 3; a gain of 0.02 pays after fifty passes over the data.

Kudu's objective, here in bytes (divide by the tablet's for Kudu's fractions). `width` is the share of the CDF of the
data that a rowset covers, `U` the span of the union:

    maximise   Σ width + Σ OPEN_BYTES · max(0, 1 - size / target)  -  1.003 · U     while   Σ weight <= budget

Kudu solves it in two passes (fractional bounds for each left-most rowset, then an exact knapsack where a bound
promises 5 % more). Here the exact knapsacks of *all* left-most rowsets are the rows of one NumPy table: rowsets come
by ascending key_max, each updates the rows of those that start no later than it. n vector operations take the place
of n² / 2 steps in Python, and the result is the optimum: 0.06 s for 500 rowsets.

Invariants
    Q1  Growth. An input of a merge has at least 1/growth of its own bytes as company: in its own key range, or by
        becoming part of a rowset larger by as much, up to the target. So a byte is rewritten O(log(data / flush))
        times (the bytes near its key, or of its rowset, grow by that factor each time), where the objective alone
        rewrites a full rowset for each small flush over it.
    Q2  Progress. Each merge lowers Σ width + OPEN_BYTES · (number of rowsets) by its gain times its bytes; a rewrite
        needs garbage that it removes, a major REDO, a minor and an expiry files. So when no more is written the work
        comes to an end.
    Q3  Rowsets that are not available are in the CDF (merging across them would be a loss) but in no plan.
    Q4  After `plan_full` no two rowsets overlap, none has REDO, and it has nothing left to say.

Left out: flushes and their order (`maintenance`), room on disk, and who is reading.
Source: Kudu facts §5.4–5.6, Kudu docs/design-docs/compaction-policy.md; the logarithmic method (Bentley and
Saxe, 1980).
Departures from Kudu: Q1. A small rowset is worth a fixed number of bytes, not 0.9 % of a tablet of whatever size; for
the same reason what is too little is measured against the work, not against the tablet. The CDF is of the data of the
present (base and REDO), the weight of all bytes. Space is a reason of its own (KUDU-1625), deletes count as REDO
(KUDU-3619). Rowsets of one key take part. The 1.003 holds always (Kudu spares unions that exceed the sum, which
is no gain in either case).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nyala.delta.compaction_policy import FILES_MIN, choose_redo_files
from nyala.delta.run import LIVENESS

__all__ = [
    "ExpirePlan",
    "MajorPlan",
    "MergePlan",
    "MinorPlan",
    "Plan",
    "PolicyOptions",
    "RowSetLayout",
    "average_height",
    "best_plan",
    "choose_expire",
    "choose_major",
    "choose_merge",
    "choose_minor",
    "choose_rewrite",
    "plan_full",
]

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

TARGET_BYTES: Final = 32 << 20  # Kudu's budgeted_compaction_target_rowset_size

# One merge reads and writes at most this many rowsets of the target size: Kudu's 128 MB of 32 MB. No less than
# 1 + 1 / GROWTH, or a full rowset and the company it needs would not fit into one merge.
BUDGET_ROWSETS: Final = 4

# Decoded, a rowset may take this many times the target: a merge holds one that it writes in memory several times over,
# and data that compress much better than this make rowsets that are smaller on disk.
DECODED_PER_TARGET: Final = 8

# What a rowset or file more costs a scan, as bytes: about a millisecond (open, footer, index, a call per column), in
# which a megabyte is decoded. At most 1/32 of the target, so that a store of small rowsets behaves like one of large
# ones.
OPEN_BYTES: Final = 1 << 20
OPEN_PER_TARGET: Final = 32

# What a piece of work costs whatever its size, as bytes: files to sync and a catalogue transaction, some 10 ms at a few
# hundred MB/s of rewriting. It keeps a hundred tiny gains from going before one that is felt.
WORK_BYTES: Final = 4 * OPEN_BYTES

# Q1. What a byte is rewritten into is twice as dense or twice as large: the doubling of a binary counter. Simulated
# with random keys in flushes of 1/8 of a target up to 64 targets, the bytes rewritten per byte inserted and the average
# height meanwhile are, for 0.5: 4.3 and 7.2; 1: 5.8 and 5.2; 1.5: 9.6 and 4.0; 3: 14 and 3.1; without limit: 408 and
# 1.0. A rowset more to look a key up in is a bloom filter more; rewriting takes a core from whoever waits for it. So 1,
# and the rest once the tablet is `quiet`.
GROWTH: Final = 1.0

# Kudu's kSupportAdjust: of two merges that spare the same, the one that does not drag in a neighbour without overlap.
SUPPORT_ADJUST: Final = 1.003

# The last join that is found, of two rowsets to nine tenths of a target, spares OPEN_BYTES less 0.3 % of its bytes, for
# these and WORK_BYTES: (1/32 - 0.003) / (0.9 + 1/8) = 0.028. Less than 0.02 is rearranging.
MERGE_GAIN_MIN: Final = 0.02

# Weights are counted in 1/128 of the budget (1 MB of 128, like Kudu's), so that the table is 129 wide; none weighs less
# than one, so no merge opens more than 128 rowsets.
BUDGET_UNITS: Final = 128

# The table costs n² · 129 additions: 25 ms for 250 rowsets, 0.1 s for 500. More are looked at in runs of neighbours.
ROWSETS_AT_ONCE: Final = 500

# How often the optimum is sought again without those that it may not have by Q1. It is seldom sought twice.
ROUNDS: Final = 4

# Kudu's tablet_delta_store_major_compact_min_ratio: REDO of a tenth of the base. A tenth of the rows patched may make
# a scan of the column slower by 0.3; and each byte of base is rewritten at most once per tenth that changes.
REDO_RATIO_MIN: Final = 0.1

# A byte of REDO costs a scan as much as this many of base (0.1 of REDO may cost 0.3, see above): it is sorted in and
# scattered besides being decoded.
REDO_COST: Final = 3.0

# Half of a rowset is garbage: then each byte written gives a byte back, and the disk holds at most twice what is
# needed.
SPACE_RATIO: Final = 0.5
# A major delta compaction of columns that are half of the base or more writes half of it, and lets that half of the old
# file stand: the disk would hold up to twice the base, for ever, of a table whose rows are upserted whole.
REWRITE_SHARE: Final = 0.5

# By hand it is asked for: a tenth is worth it.
SPACE_RATIO_FULL: Final = 0.1

# Expired files go one by one, as they once came; a catalogue transaction for less than 16 of them, or than OPEN_BYTES,
# can wait. The same number of UNDO files is worth a merge: no scan of the present opens them, so there is no hurry.
EXPIRED_FILES_MIN: Final = 16
UNDO_FILES_MIN: Final = 16


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
        base = max(self.base_bytes - self.superseded_bytes, self.decoded_bytes // DECODED_PER_TARGET)
        return base - base * self.expired_rows // max(1, self.row_count)


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


@dataclass(frozen=True)
class PolicyOptions:
    """What can be adjusted; each default has its derivation above.

    budget_bytes: None is BUDGET_ROWSETS times the target.
    growth:       Q1; `math.inf` is Kudu's rule.
    quiet:        nobody has written to the tablet for a while: no limit to growth, and all REDO is due. Otherwise a
                  height of up to about log2(data / flush) + 1 would stay, and a tenth of REDO.
    """

    target_bytes: int = TARGET_BYTES
    budget_bytes: int | None = None
    growth: float = GROWTH
    redo_ratio_min: float = REDO_RATIO_MIN
    space_ratio: float = SPACE_RATIO
    quiet: bool = False

    @property
    def budget(self) -> int:
        return BUDGET_ROWSETS * self.target_bytes if self.budget_bytes is None else self.budget_bytes


# --- the next work --------------------------------------------------------------------------------


def best_plan(rowsets: Sequence[RowSetLayout], options: PolicyOptions | None = None) -> Plan | None:
    """The best next work of one tablet; None when nothing pays.

    What can be dropped without reading goes first, for it makes all other work smaller; its gain is then at least that
    of what waits behind it. Else the greatest gain.
    Cost: that of `choose_merge`; the rest is one pass.
    """
    options = options or PolicyOptions()
    target = options.target_bytes
    growth = np.inf if options.quiet else options.growth
    ratio = 0.0 if options.quiet else options.redo_ratio_min
    plans: list[Plan | None] = [
        choose_rewrite(rowsets, target_bytes=target, space_ratio=options.space_ratio),
        _or_rewrite(choose_major(rowsets, target_bytes=target, redo_ratio_min=ratio), rowsets, target),
        choose_minor(rowsets, target_bytes=target, redo_ratio_min=ratio),
        choose_merge(rowsets, target_bytes=target, budget_bytes=options.budget, growth=growth),
    ]
    best = max((plan for plan in plans if plan is not None), key=lambda plan: plan.gain, default=None)
    expire = choose_expire(rowsets, target_bytes=target)
    if expire is None:
        return best
    return expire if best is None else replace(expire, gain=max(expire.gain, best.gain))


def choose_expire(
    rowsets: Sequence[RowSetLayout], *, target_bytes: int = TARGET_BYTES, by_hand: bool = False
) -> ExpirePlan | None:
    """All that can be dropped as a whole, once it is worth a catalogue transaction (`by_hand`: always)."""
    chosen = [r for r in rowsets if r.available and (r.all_expired or r.expired_undo_files)]
    freed = sum(r.size_bytes if r.all_expired else _expired_file_bytes(r) for r in chosen)
    files = sum(0 if r.all_expired else r.expired_undo_files for r in chosen)
    due = by_hand or any(r.all_expired for r in chosen)
    if not chosen or not (due or files >= EXPIRED_FILES_MIN or freed >= _open_bytes(target_bytes)):
        return None
    return ExpirePlan(tuple(r.id for r in chosen), freed / _work_bytes(target_bytes))


def choose_rewrite(
    rowsets: Sequence[RowSetLayout], *, target_bytes: int = TARGET_BYTES, space_ratio: float = SPACE_RATIO
) -> MergePlan | None:
    """The rowset whose rewrite gives back most for its cost, if it is `space_ratio` garbage."""
    best = None
    for rowset in rowsets:
        freed = rowset.expired_bytes
        if not rowset.available or rowset.all_expired or freed < _open_bytes(target_bytes):
            continue  # a small one waits until it is merged with its neighbours
        if freed >= space_ratio * rowset.size_bytes:
            gain = freed / (rowset.size_bytes - freed + _work_bytes(target_bytes))
            if best is None or gain > best.gain:
                best = MergePlan((rowset.id,), gain, _output_count([rowset], target_bytes))
    return best


def choose_major(
    rowsets: Sequence[RowSetLayout],
    *,
    target_bytes: int = TARGET_BYTES,
    redo_ratio_min: float = REDO_RATIO_MIN,
) -> MajorPlan | None:
    """The major delta compaction that spares scans of the present most for its cost."""
    plans = (_major_of(rowset, target_bytes, redo_ratio_min) for rowset in rowsets if rowset.available)
    return max((plan for plan in plans if plan), key=lambda plan: plan.gain, default=None)


def choose_minor(
    rowsets: Sequence[RowSetLayout],
    *,
    target_bytes: int = TARGET_BYTES,
    redo_ratio_min: float = REDO_RATIO_MIN,
) -> MinorPlan | None:
    """The merge of delta files that spares most for its cost, where no major one is due that would take them all."""
    best: MinorPlan | None = None
    for rowset in rowsets:
        if not rowset.available:
            continue
        due = _major_of(rowset, target_bytes, redo_ratio_min)
        if due is None or len(due.columns) < len(rowset.redo_columns):
            best = _better(best, _minor_of(rowset, "redo", FILES_MIN, target_bytes))
        best = _better(best, _minor_of(rowset, "undo", UNDO_FILES_MIN, target_bytes))
    return best


def choose_merge(
    rowsets: Sequence[RowSetLayout],
    *,
    target_bytes: int = TARGET_BYTES,
    budget_bytes: int | None = None,
    growth: float = GROWTH,
    gain_min: float = MERGE_GAIN_MIN,
) -> MergePlan | None:
    """The rowsets whose merge spares most within the budget; None when nothing spares enough.

    budget_bytes: of base and deltas. A rowset heavier than half of it counts as half: otherwise two such rowsets
                  would overlap for ever. Only then a merge exceeds the budget.
    Cost: 0.1 s for 500 rowsets, from there on linear.
    """
    assert target_bytes > 0 and growth > 0, (target_bytes, growth)
    budget = BUDGET_ROWSETS * target_bytes if budget_bytes is None else budget_bytes
    best: MergePlan | None = None
    ordered = sorted(rowsets, key=lambda r: (r.key_min, r.key_max, r.id))
    for start in range(0, len(ordered), ROWSETS_AT_ONCE):
        some = ordered[start : start + ROWSETS_AT_ONCE]
        if sum(r.available for r in some) >= 2:
            best = _better(best, _Merge(some, target_bytes, budget, growth).best(gain_min))
    return best


def average_height(rowsets: Sequence[RowSetLayout]) -> float:
    """Rowsets that a key must be looked for in, on average over the data; 0.0 without rowsets (Kudu's metric).

    Cost: n vector operations over at most 4 n cells.
    """
    space = _KeySpace(rowsets)
    return float(space.width.sum() / space.total) if rowsets else 0.0


# --- compact() by hand ----------------------------------------------------------------------------


def plan_full(rowsets: Sequence[RowSetLayout], *, target_bytes: int = TARGET_BYTES) -> list[Plan]:
    """All work after which Q4 holds, for those that are available. But for the expiry, each is in one plan at most.

    Overlapping rowsets are merged with all that they are connected to, whatever their size. What then lies side by
    side is joined up to the target. A rowset alone with REDO gets a major delta compaction of all columns, or is
    rewritten when a tenth of it is garbage, or when it is outdated.
    """
    plans: list[Plan] = []
    expire = choose_expire(rowsets, target_bytes=target_bytes, by_hand=True)
    if expire is not None:
        plans.append(expire)
    ordered = sorted(rowsets, key=lambda r: (r.key_min, r.id))
    live = [r for r in ordered if r.available and not r.all_expired]
    reserved = [r for r in ordered if not r.available]
    for group in _joined(_connected(live), reserved, target_bytes):
        if len(group) > 1 or group[0].outdated:
            plans.append(_merge_plan(group, target_bytes))
        elif group[0].expired_bytes - _expired_file_bytes(group[0]) > SPACE_RATIO_FULL * group[0].size_bytes:
            plans.append(_merge_plan(group, target_bytes))
        elif group[0].redo_files:
            major = _major_plan(group[0], sorted(group[0].redo_columns), target_bytes)
            # What a part would leave behind is garbage as well: better once than a part now and a rewrite after it.
            plans.append(_or_rewrite(major, group, target_bytes, SPACE_RATIO_FULL) or major)
    return plans


def _connected(ordered: Iterable[RowSetLayout]) -> list[list[RowSetLayout]]:
    """Groups of rowsets (by ascending key_min) of which each overlaps another of the group; bounds are inclusive."""
    groups: list[list[RowSetLayout]] = []
    reach = b""
    for rowset in ordered:
        if groups and rowset.key_min <= reach:
            groups[-1].append(rowset)
            reach = max(reach, rowset.key_max)
        else:
            groups.append([rowset])
            reach = rowset.key_max
    return groups


def _joined(
    groups: Iterable[list[RowSetLayout]], reserved: Sequence[RowSetLayout], target_bytes: int
) -> list[list[RowSetLayout]]:
    """Neighbours together while what one and the other will be cut into fits into one rowset.

    Not across a reserved rowset (Q3). Two results side by side do not fit, so that once is enough (Q4).
    """
    joined: list[list[RowSetLayout]] = []
    for group in groups:
        fits = (
            bool(joined)
            and _cut_bytes(joined[-1], target_bytes) + _cut_bytes(group, target_bytes) <= target_bytes
        )
        if fits and not any(
            r.key_min <= group[0].key_min and joined[-1][-1].key_min <= r.key_max for r in reserved
        ):
            joined[-1].extend(group)
        else:
            joined.append(list(group))
    return joined


def _cut_bytes(group: Sequence[RowSetLayout], target_bytes: int) -> float:
    """Size of one rowset that the group becomes; one alone stays what it is."""
    size = sum(r.kept_base_bytes for r in group)
    return size if len(group) == 1 else size / _output_count(group, target_bytes)


def _merge_plan(group: Sequence[RowSetLayout], target_bytes: int) -> MergePlan:
    space = _KeySpace(group)
    files = _open_bytes(target_bytes) * (len(group) - 1)
    spared = float(space.width.sum()) - space.total + files + sum(r.expired_bytes for r in group)
    cost = sum(r.size_bytes for r in group) + _work_bytes(target_bytes)
    return MergePlan(tuple(r.id for r in group), max(0.0, spared / cost), _output_count(group, target_bytes))


def _or_rewrite(
    plan: MajorPlan | None,
    rowsets: Iterable[RowSetLayout],
    target_bytes: int,
    share: float = REWRITE_SHARE,
) -> MajorPlan | MergePlan | None:
    """The plan; or, if its columns are `share` of the base, the rewrite of the whole rowset.

    It costs little more then, and leaves no base file of which most is superseded. Not where there is more UNDO than
    that: a part leaves UNDO as it is, a rewrite would write all of it anew each time.
    """
    if plan is None:
        return None
    rowset = next(r for r in rowsets if r.id == plan.rowset)
    moved = sum(rowset.base_columns.get(column, 0) for column in plan.columns)
    if rowset.undo_bytes > moved or moved < share * max(1, rowset.base_bytes - rowset.superseded_bytes):
        return plan
    return MergePlan((rowset.id,), plan.gain, _output_count([rowset], target_bytes))


# --- delta compactions ----------------------------------------------------------------------------


def _major_of(rowset: RowSetLayout, target_bytes: int, redo_ratio_min: float) -> MajorPlan | None:
    """What of the rowset's REDO is due, if any.

    A column is due at a tenth of its bytes, or of its rows. When one is, all go if that spares more for its cost:
    then no REDO file stays. A little REDO (a rowset of a thousand rows that are updated all day) waits until there are
    files enough for a minor compaction: each major one leaves an UNDO file.
    """
    if not rowset.redo_files or not rowset.redo_columns:
        return None
    due = [
        column
        for column, records in rowset.redo_columns.items()
        if records >= redo_ratio_min * max(1, rowset.row_count)
        or _redo_column_bytes(rowset, column) >= redo_ratio_min * max(1, _base_column_bytes(rowset, column))
    ]
    little = rowset.redo_bytes < _open_bytes(target_bytes) and len(rowset.redo_files) < FILES_MIN
    if not due or (little and redo_ratio_min > 0):
        return None
    some = _major_plan(rowset, sorted(due), target_bytes)
    every = _major_plan(rowset, sorted(rowset.redo_columns), target_bytes)
    return every if every.gain >= some.gain else some


def _major_plan(rowset: RowSetLayout, columns: Sequence[int], target_bytes: int) -> MajorPlan:
    """Read and write the columns' base, all REDO once (what is not brought in stays in one file)."""
    files = len(rowset.redo_files) - (len(columns) < len(rowset.redo_columns))
    redo = sum(_redo_column_bytes(rowset, column) for column in columns)
    spared = REDO_COST * redo + _open_bytes(target_bytes) * files
    base = sum(_base_column_bytes(rowset, column) for column in columns)
    return MajorPlan(
        rowset.id, tuple(columns), spared / (base + rowset.redo_bytes + _work_bytes(target_bytes))
    )


def _redo_column_bytes(rowset: RowSetLayout, column: int) -> float:
    """A column's part of the REDO files, by its records."""
    return rowset.redo_bytes * rowset.redo_columns[column] / max(1, sum(rowset.redo_columns.values()))


def _base_column_bytes(rowset: RowSetLayout, column: int) -> float:
    """Bytes of the column's base once it is written: LIVENESS takes a bit for each row at most."""
    if column == LIVENESS:
        return max(rowset.base_columns.get(column, 0), rowset.row_count / 8)
    if rowset.base_columns:
        return rowset.base_columns.get(column, 0)
    # Not known: as if there were a key column besides those that changed.
    return rowset.base_bytes / (1 + sum(other != LIVENESS for other in rowset.redo_columns))


def _minor_of(
    rowset: RowSetLayout, kind: Literal["redo", "undo"], files_min: int, target_bytes: int
) -> MinorPlan | None:
    if kind == "redo":
        files, first = rowset.redo_files, 0
    else:
        # A file leaves as a whole once its newest record has expired: a large one is not made any larger.
        files, first = rowset.undo_files, len(rowset.undo_files)
        while first and files[first - 1][0] < target_bytes // 4:
            first -= 1
    chosen = choose_redo_files(files[first:], files_min)
    if chosen is None:
        return None
    merged = files[first + chosen.start : first + chosen.stop]
    # Scans of the past are the only ones to open UNDO files; as many fewer files are needed for a merge of REDO.
    spared = _open_bytes(target_bytes) * (len(merged) - 1) * FILES_MIN / files_min
    cost = sum(size for size, _ in merged) + _work_bytes(target_bytes)
    return MinorPlan(rowset.id, slice(first + chosen.start, first + chosen.stop), spared / cost, kind)


# --- merging compaction ---------------------------------------------------------------------------


class _KeySpace:
    """Where rowsets lie in the CDF of the tablet's data, in bytes of the present.

    Keys are cut into cells: the points that are a bound of a rowset, and the gaps between them, points at even places.
    A rowset's bytes are spread over its gaps as if its keys were even: keys as 8-byte big-endian integers past the
    prefix that its bounds share. A rowset of a single key has all of them in its point.

    lower, upper: each rowset's cells [lower, upper).
    start, end:   its place in the CDF; width = end - start, the bytes of all rowsets in its key range.
    """

    def __init__(self, rowsets: Sequence[RowSetLayout]) -> None:
        keys = sorted({key for r in rowsets for key in (r.key_min, r.key_max)})
        place = {key: 2 * index for index, key in enumerate(keys)}
        self.lower: Ints = np.array([place[r.key_min] for r in rowsets], np.int64)
        self.upper: Ints = np.array([place[r.key_max] for r in rowsets], np.int64) + 1
        self._tails: dict[int, npt.NDArray[np.uint64]] = {}
        self._parts = [self._spread(keys, r, place[r.key_min], place[r.key_max]) for r in rowsets]
        cells = np.zeros(max(1, 2 * len(keys) - 1))
        for rowset, lower, parts in zip(rowsets, self.lower.tolist(), self._parts, strict=True):
            # At least a byte: rows without bytes still have to be looked for.
            cells[lower : lower + len(parts)] += parts * max(1, rowset.base_bytes + rowset.redo_bytes)
        cdf = np.concatenate([[0.0], np.cumsum(cells)])
        self.start: Floats = cdf[self.lower]
        self.end: Floats = cdf[self.upper]
        self.width: Floats = self.end - self.start
        self.total = float(cdf[-1])

    def _spread(self, keys: list[bytes], rowset: RowSetLayout, lower: int, upper: int) -> Floats:
        """What share of the rowset lies in each of its cells."""
        parts = np.zeros(upper - lower + 1)
        if lower == upper:
            parts[0] = 1.0
            return parts
        prefix = _common_prefix(rowset.key_min, rowset.key_max)
        tails = self._tails.get(prefix)
        if tails is None:
            data = b"".join(key[prefix : prefix + 8].ljust(8, b"\0") for key in keys)
            tails = self._tails[prefix] = np.frombuffer(data, ">u8").astype(np.uint64)
        steps = np.diff(tails[lower // 2 : upper // 2 + 1]).astype(np.float64)
        # Bounds such as "a" and "a\0" are one integer.
        total = steps.sum()
        parts[1::2] = steps / total if total else 1 / len(steps)
        return parts

    def bytes_within(self, sizes: Floats) -> Floats:
        """[r, q]: how many of rowset q's `sizes` lie in the key range of r."""
        within = np.empty((len(sizes), len(sizes)))
        for index, parts in enumerate(self._parts):
            lower = self.lower[index]
            running = np.concatenate([[0.0], np.cumsum(parts)])
            upto = np.clip(self.upper - lower, 0, len(parts))
            within[:, index] = sizes[index] * (
                running[upto] - running[np.clip(self.lower - lower, 0, len(parts))]
            )
        return within


class _Merge:
    """The choice of one merge among rowsets that are in order of key_min."""

    def __init__(self, rowsets: Sequence[RowSetLayout], target: int, budget: int, growth: float) -> None:
        self._rowsets = rowsets
        self._target, self._growth = target, growth
        self._open, self._work = _open_bytes(target), _work_bytes(target)
        self._space = _KeySpace(rowsets)
        self._sizes: Floats = np.array([r.size_bytes for r in rowsets], np.float64)
        self._rows: Floats = np.array([r.kept_base_bytes for r in rowsets], np.float64)
        self._within = self._space.bytes_within(self._sizes)
        self._value = self._space.width + self._open * np.maximum(0.0, 1 - self._rows / target)
        unit = max(1.0, budget / BUDGET_UNITS)
        self._weight = np.clip(np.ceil(self._sizes / unit), 1, BUDGET_UNITS // 2).astype(np.int64)

    def best(self, gain_min: float) -> MergePlan | None:
        available = np.array([r.available for r in self._rowsets])
        candidates = self._grown(np.flatnonzero(available))
        best: MergePlan | None = None
        for _ in range(ROUNDS):
            if len(candidates) < 2:
                break
            optimum = self._optimum(candidates)
            if len(optimum) < 2:
                break
            kept = self._grown(optimum)
            plan = self._plan(kept)
            if plan is not None and plan.gain >= gain_min:
                best = _better(best, plan)
            if len(kept) == len(optimum):
                if best is not None:
                    break
                # Of no use after all (it makes as many rowsets as it takes): look for one without the heaviest.
                refused = optimum[np.argmax(self._sizes[optimum])]
            else:
                refused = np.setdiff1d(optimum, kept)
            candidates = self._grown(np.setdiff1d(candidates, refused))
        return best

    def _grown(self, chosen: Ints) -> Ints:
        """The greatest part of `chosen` in which each has the company that Q1 asks for.

        More company never hurts another one, so taking away who has too little leads to it, in whatever order.
        """
        while len(chosen) and self._growth < np.inf:
            company = self._within[np.ix_(chosen, chosen)].sum(axis=1) - self._sizes[chosen]
            rows = self._rows[chosen]
            joined = min(float(rows.sum()), float(self._target)) - rows
            enough = (self._sizes[chosen] <= self._growth * company) | (rows <= self._growth * joined)
            if enough.all():
                break
            chosen = chosen[enough]
        return chosen

    def _plan(self, chosen: Ints) -> MergePlan | None:
        if len(chosen) < 2:
            return None
        span = self._space.end[chosen].max() - self._space.start[chosen].min()
        # A rowset far above the target becomes several: no loss to be charged.
        outputs = max(1, round(float(np.minimum(self._rows[chosen], self._target).sum()) / self._target))
        spared = (
            self._space.width[chosen].sum() - SUPPORT_ADJUST * span + self._open * (len(chosen) - outputs)
        )
        gain = float(spared / (self._sizes[chosen].sum() + self._work))
        inputs = [self._rowsets[index] for index in chosen.tolist()]
        return MergePlan(tuple(r.id for r in inputs), gain, _output_count(inputs, self._target))

    def _optimum(self, candidates: Ints) -> Ints:
        """The set of candidates with the greatest objective within the budget, ascending; empty when none is above 0.

        The objective is that of the module less OPEN_BYTES for the rowset that remains, so a set of one has none.
        """
        start, end = self._space.start[candidates], self._space.end[candidates]
        value, weight = self._value[candidates], self._weight[candidates]
        # Ties of start and end have to lie together: those who start no later are the first so many rows.
        row_order = np.argsort(start, kind="stable")
        item_order = np.argsort(end, kind="stable")
        starts = start[row_order]
        rows = np.searchsorted(starts, start, side="right")
        # table[a, w]: greatest value of rowsets that start no earlier than a and weigh no more than w.
        table = np.zeros((len(candidates), BUDGET_UNITS + 1))
        best, leftmost, last = float(self._open), -1, -1
        for step, item in enumerate(item_order.tolist()):
            count, heavy = int(rows[item]), int(weight[item])
            part = table[:count]
            part[:, heavy:] = np.maximum(part[:, heavy:], part[:, :-heavy] + value[item])
            # Nobody up to here ends later, so this span is that of the union or, for sets without the item, more.
            spared = part[:, -1] - SUPPORT_ADJUST * (end[item] - starts[:count])
            top = int(np.argmax(spared))
            if spared[top] > best:
                best, leftmost, last = float(spared[top]), top, step
        if leftmost < 0:
            return np.array([], np.int64)
        items = [i for i in item_order[: last + 1].tolist() if start[i] >= starts[leftmost]]
        return np.sort(candidates[_knapsack(items, value, weight)])


def _knapsack(items: Sequence[int], value: Floats, weight: Ints) -> list[int]:
    """The items of greatest value within BUDGET_UNITS, the lightest such set that one pass finds."""
    row = np.zeros(BUDGET_UNITS + 1)
    taken = np.zeros((len(items), BUDGET_UNITS + 1), np.bool_)
    for index, item in enumerate(items):
        heavy = int(weight[item])
        more = row[:-heavy] + value[item]
        taken[index, heavy:] = more > row[heavy:]
        row[heavy:] = np.maximum(row[heavy:], more)
    left = int(np.argmax(row))
    chosen = []
    for index in range(len(items) - 1, -1, -1):
        if taken[index, left]:
            chosen.append(items[index])
            left -= int(weight[items[index]])
    return chosen


# --- small things ---------------------------------------------------------------------------------


def _better(one: _P | None, other: _P | None) -> _P | None:
    """The plan of greater gain; the first of equals."""
    if one is None or other is None:
        return one or other
    return other if other.gain > one.gain else one


def _output_count(rowsets: Iterable[RowSetLayout], target_bytes: int) -> int:
    """Rowsets of about equal size, nearest to the target: 0.75 to 1.5 of it, and no small rest."""
    return max(1, round(sum(r.kept_base_bytes for r in rowsets) / target_bytes))


def _expired_file_bytes(rowset: RowSetLayout) -> int:
    """Of what expired, that which goes with whole files; without their sizes, all of it if there is one."""
    if not rowset.undo_files:
        return rowset.expired_undo_bytes if rowset.expired_undo_files else 0
    return sum(size for size, _ in rowset.undo_files[: rowset.expired_undo_files])


def _open_bytes(target_bytes: int) -> float:
    return min(OPEN_BYTES, target_bytes / OPEN_PER_TARGET)


def _work_bytes(target_bytes: int) -> float:
    return _open_bytes(target_bytes) * (WORK_BYTES // OPEN_BYTES)


def _common_prefix(one: bytes, other: bytes) -> int:
    """Bytes that both begin with."""
    length = min(len(one), len(other))
    differ = int.from_bytes(one[:length], "big") ^ int.from_bytes(other[:length], "big")
    return length - (differ.bit_length() + 7) // 8
