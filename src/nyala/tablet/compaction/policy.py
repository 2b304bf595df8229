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

`rowset_selection` chooses merges.

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
Source: docs/design/compaction.md, "Compaction policy"; docs/design/kudu.md, "Choice of rowsets to merge"; the
logarithmic method (Bentley and Saxe, 1980).
Departures from Kudu: Q1. Space is a reason of its own (KUDU-1625), deletes count as REDO (KUDU-3619). Others: see
`plans` and `rowset_selection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from nyala.delta.redo_selection import FILES_MIN, choose_redo_files
from nyala.delta.run import LIVENESS
from nyala.rowset.size import TARGET_BYTES
from nyala.tablet.compaction.plans import (
    ExpirePlan,
    MajorPlan,
    MergePlan,
    MinorPlan,
    Plan,
    RowSetLayout,
    better,
    open_bytes,
    output_count,
    work_bytes,
)
from nyala.tablet.compaction.rowset_selection import BUDGET_ROWSETS, GROWTH, KeySpace, choose_merge

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
    if not chosen or not (due or files >= EXPIRED_FILES_MIN or freed >= open_bytes(target_bytes)):
        return None
    return ExpirePlan(tuple(r.id for r in chosen), freed / work_bytes(target_bytes))


def choose_rewrite(
    rowsets: Sequence[RowSetLayout], *, target_bytes: int = TARGET_BYTES, space_ratio: float = SPACE_RATIO
) -> MergePlan | None:
    """The rowset whose rewrite gives back most for its cost, if it is `space_ratio` garbage."""
    best = None
    for rowset in rowsets:
        freed = rowset.expired_bytes
        if not rowset.available or rowset.all_expired or freed < open_bytes(target_bytes):
            continue  # a small one waits until it is merged with its neighbours
        if freed >= space_ratio * rowset.size_bytes:
            gain = freed / (rowset.size_bytes - freed + work_bytes(target_bytes))
            if best is None or gain > best.gain:
                best = MergePlan((rowset.id,), gain, output_count([rowset], target_bytes))
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
            best = better(best, _minor_of(rowset, "redo", FILES_MIN, target_bytes))
        best = better(best, _minor_of(rowset, "undo", UNDO_FILES_MIN, target_bytes))
    return best


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
    size = sum(r.cut_bytes(target_bytes) for r in group)
    return size if len(group) == 1 else size / output_count(group, target_bytes)


def _merge_plan(group: Sequence[RowSetLayout], target_bytes: int) -> MergePlan:
    space = KeySpace(group)
    files = open_bytes(target_bytes) * (len(group) - 1)
    spared = float(space.width.sum()) - space.total + files + sum(r.expired_bytes for r in group)
    cost = sum(r.size_bytes for r in group) + work_bytes(target_bytes)
    return MergePlan(tuple(r.id for r in group), max(0.0, spared / cost), output_count(group, target_bytes))


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
    return MergePlan((rowset.id,), plan.gain, output_count([rowset], target_bytes))


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
    little = rowset.redo_bytes < open_bytes(target_bytes) and len(rowset.redo_files) < FILES_MIN
    if not due or (little and redo_ratio_min > 0):
        return None
    some = _major_plan(rowset, sorted(due), target_bytes)
    every = _major_plan(rowset, sorted(rowset.redo_columns), target_bytes)
    return every if every.gain >= some.gain else some


def _major_plan(rowset: RowSetLayout, columns: Sequence[int], target_bytes: int) -> MajorPlan:
    """Read and write the columns' base, all REDO once (what is not brought in stays in one file)."""
    files = len(rowset.redo_files) - (len(columns) < len(rowset.redo_columns))
    redo = sum(_redo_column_bytes(rowset, column) for column in columns)
    spared = REDO_COST * redo + open_bytes(target_bytes) * files
    base = sum(_base_column_bytes(rowset, column) for column in columns)
    return MajorPlan(
        rowset.id, tuple(columns), spared / (base + rowset.redo_bytes + work_bytes(target_bytes))
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
    spared = open_bytes(target_bytes) * (len(merged) - 1) * FILES_MIN / files_min
    cost = sum(size for size, _ in merged) + work_bytes(target_bytes)
    return MinorPlan(rowset.id, slice(first + chosen.start, first + chosen.stop), spared / cost, kind)


def _expired_file_bytes(rowset: RowSetLayout) -> int:
    """Of what expired, that which goes with whole files; without their sizes, all of it if there is one."""
    if not rowset.undo_files:
        return rowset.expired_undo_bytes if rowset.expired_undo_files else 0
    return sum(size for size, _ in rowset.undo_files[: rowset.expired_undo_files])
