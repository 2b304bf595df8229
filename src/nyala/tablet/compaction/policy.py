"""Chooses the compaction of a tablet that pays best. Pure: layouts of rowsets in, a plan out.

    bytes near     ┌─────────────────── w: 8 MB, flushed just now ──────────────────┐     height 2
    a key          ┌──── a: 32 MB ────┐┌──── b: 32 MB ────┐┌─c─┐┌─d─┐┌───── e ──────┐     height 1
                   0 ───────────────── share of the tablet's data ──────────────── 1

    merge     w with others like it: fewer rowsets to search for a key (Kudu's objective);
              c with d: fewer files
    rewrite   one rowset with half dead rows or unreadable history: frees disk space
    major     the REDO of some columns into the base: scans of the present no longer apply it
    minor     many delta files of a rowset into one
    expire    drops expired files and rowsets by a catalogue change, without reading them

All plans use one currency, so that they can be compared, also across tablets:

    gain = bytes of reading (or disk) that are saved / bytes that are rewritten

"Saved" counts the bytes that readers no longer pass, if each key is read as often as there is data
near it: a rowset that covers `width` of the data stands in the way of as many bytes. So merging two
equal rowsets of one key range has a gain of about 1, merging four has 3. A gain of 0.02 pays after
fifty passes over the data.

`rowset_selection` chooses merges.

Invariants
    Q1  Growth. An input of a merge has other inputs of at least 1/growth of its own bytes as
        company, either in its own key range or in the resulting rowset, up to the target. So a byte
        is rewritten O(log(data / flush)) times: the bytes near its key, or of its rowset, grow by
        that factor each time. Kudu's objective alone rewrites a full rowset for each small flush
        over it.
    Q2  Progress. Each merge lowers Σ width + OPEN_BYTES · (number of rowsets) by its gain times its
        bytes. A rewrite needs garbage to remove, a major needs REDO, a minor and an expiry need
        files. So without new writes the work comes to an end.
    Q3  Rowsets that are not available count in the CDF (merging across them would be a loss), but
        no plan contains them.
    Q4  After `plan_full` no two rowsets overlap, none has REDO, and `plan_full` returns nothing
        more.

Left out: flushes and their order (`maintenance`), disk space, and current readers.
Source: docs/design/compaction.md, "Compaction policy"; docs/design/kudu.md, "Choice of rowsets to
merge"; the logarithmic method (Bentley and Saxe, 1980). Departures from Kudu: Q1. Space is a reason
of its own (KUDU-1625), deletes count as REDO (KUDU-3619). Others: see `plans` and
`rowset_selection`.
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

# Kudu's tablet_delta_store_major_compact_min_ratio: REDO of a tenth of the base. Patching a tenth
# of the rows may slow a scan of the column by 0.3, and each base byte is rewritten at most once per
# tenth that changes.
REDO_RATIO_MIN: Final = 0.1

# A byte of REDO costs a scan as much as this many base bytes (0.1 of REDO may cost 0.3, see above):
# besides decoding, it is sorted and scattered.
REDO_COST: Final = 3.0

# Half of a rowset is garbage: each written byte frees a byte, and the disk holds at most twice the
# needed data.
SPACE_RATIO: Final = 0.5

# A major delta compaction of half of the base leaves that half in the old file. A table whose rows
# are upserted whole would then take up to twice its base on disk, forever; a rewrite avoids that.
REWRITE_SHARE: Final = 0.5

# For compactions on request: a tenth of garbage is worth a rewrite.
SPACE_RATIO_FULL: Final = 0.1

# Expired files are dropped in groups: a catalogue change for fewer than 16 of them, or for
# less than OPEN_BYTES, can wait. As many UNDO files are worth a merge: scans of the present do not
# open them.
EXPIRED_FILES_MIN: Final = 16

UNDO_FILES_MIN: Final = 16


@dataclass(frozen=True)
class PolicyOptions:
    """Adjustable parameters; each default is derived above.

    budget_bytes: None is BUDGET_ROWSETS times the target.
    growth:       Q1; `math.inf` is Kudu's rule.
    quiet:        nobody has written to the tablet for a while: growth is not limited, and all REDO
                  is due. Otherwise a height of about log2(data / flush) + 1 would stay, and a tenth
                  of REDO.
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
    """The best next work of one tablet; None if nothing pays.

    Expiry goes first, because it makes all other work smaller; its gain is raised to that of the
    best other plan. Otherwise the greatest gain wins.
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
    rowsets: Sequence[RowSetLayout], *, target_bytes: int = TARGET_BYTES, manual: bool = False
) -> ExpirePlan | None:
    """Everything that can be dropped whole, if that is worth a transaction (`manual`: always)."""
    chosen = [r for r in rowsets if r.available and (r.all_expired or r.expired_undo_files)]
    freed = sum(r.size_bytes if r.all_expired else _expired_file_bytes(r) for r in chosen)
    files = sum(0 if r.all_expired else r.expired_undo_files for r in chosen)
    due = manual or any(r.all_expired for r in chosen)
    if not chosen or not (due or files >= EXPIRED_FILES_MIN or freed >= open_bytes(target_bytes)):
        return None
    return ExpirePlan(tuple(r.id for r in chosen), freed / work_bytes(target_bytes))


def choose_rewrite(
    rowsets: Sequence[RowSetLayout], *, target_bytes: int = TARGET_BYTES, space_ratio: float = SPACE_RATIO
) -> MergePlan | None:
    """The rewrite that frees most for its cost, of a rowset with at least `space_ratio` garbage."""
    best = None
    for rowset in rowsets:
        freed = rowset.expired_bytes
        if not rowset.available or rowset.all_expired or freed < open_bytes(target_bytes):
            continue  # a small rowset waits until it is merged with its neighbours
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
    """The major delta compaction that saves scans of the present most for its cost."""
    plans = (_major_of(rowset, target_bytes, redo_ratio_min) for rowset in rowsets if rowset.available)
    return max((plan for plan in plans if plan), key=lambda plan: plan.gain, default=None)


def choose_minor(
    rowsets: Sequence[RowSetLayout],
    *,
    target_bytes: int = TARGET_BYTES,
    redo_ratio_min: float = REDO_RATIO_MIN,
) -> MinorPlan | None:
    """The merge of delta files that saves most, unless a major compaction would take them all."""
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
    """All work that leads to Q4 for the available rowsets. Plans do not overlap, except the expiry.

    Overlapping rowsets are merged in connected groups of any size. Then neighbours are joined up to
    the target. A single rowset with REDO gets a major delta compaction of all columns. It is
    rewritten instead if a tenth of it is garbage, or if it is outdated.
    """
    plans: list[Plan] = []
    expire = choose_expire(rowsets, target_bytes=target_bytes, manual=True)
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
            # A part would leave garbage behind: one rewrite now is better than a part now and a
            # rewrite later.
            plans.append(_or_rewrite(major, group, target_bytes, SPACE_RATIO_FULL) or major)
    return plans


def _connected(ordered: Iterable[RowSetLayout]) -> list[list[RowSetLayout]]:
    """Connected groups of overlapping rowsets, which come by ascending key_min."""
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
    """Join neighbouring groups while their results fit into one rowset.

    Never across a reserved rowset (Q3). No two results fit together, so one pass is enough (Q4).
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
    """The size of one rowset that the group becomes; a single rowset stays as it is."""
    size = sum(r.cut_bytes(target_bytes) for r in group)
    return size if len(group) == 1 else size / output_count(group, target_bytes)


def _merge_plan(group: Sequence[RowSetLayout], target_bytes: int) -> MergePlan:
    space = KeySpace(group)
    files = open_bytes(target_bytes) * (len(group) - 1)
    saved = float(space.width.sum()) - space.total + files + sum(r.expired_bytes for r in group)
    cost = sum(r.size_bytes for r in group) + work_bytes(target_bytes)
    return MergePlan(tuple(r.id for r in group), max(0.0, saved / cost), output_count(group, target_bytes))


def _or_rewrite(
    plan: MajorPlan | None,
    rowsets: Iterable[RowSetLayout],
    target_bytes: int,
    share: float = REWRITE_SHARE,
) -> MajorPlan | MergePlan | None:
    """The plan, or a rewrite of the whole rowset if the plan's columns are `share` of the base.

    The rewrite costs little more then, and leaves no base file of mostly superseded columns. The
    plan is kept if the rowset has more UNDO than that: a part leaves UNDO as it is, a rewrite would
    write it again.
    """
    if plan is None:
        return None
    rowset = next(r for r in rowsets if r.id == plan.rowset)
    moved = sum(rowset.base_columns.get(column, 0) for column in plan.columns)
    if rowset.undo_bytes > moved or moved < share * max(1, rowset.base_bytes - rowset.superseded_bytes):
        return plan
    return MergePlan((rowset.id,), plan.gain, output_count([rowset], target_bytes))


def _major_of(rowset: RowSetLayout, target_bytes: int, redo_ratio_min: float) -> MajorPlan | None:
    """The major delta compaction that is due for the rowset; None: none is.

    A column is due if a tenth of its bytes, or of its rows, has REDO. If one is due, all columns
    are compacted if that saves more for its cost, because then no REDO file stays. Little REDO (a
    thousand rows that are updated all day) waits until there are enough files for a minor
    compaction: each major one leaves an UNDO file.
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
    """Reads and writes the columns' base, and all REDO once (the rest stays in one file)."""
    files = len(rowset.redo_files) - (len(columns) < len(rowset.redo_columns))
    redo = sum(_redo_column_bytes(rowset, column) for column in columns)
    saved = REDO_COST * redo + open_bytes(target_bytes) * files
    base = sum(_base_column_bytes(rowset, column) for column in columns)
    return MajorPlan(rowset.id, tuple(columns), saved / (base + rowset.redo_bytes + work_bytes(target_bytes)))


def _redo_column_bytes(rowset: RowSetLayout, column: int) -> float:
    """A column's share of the REDO files, by its records."""
    return rowset.redo_bytes * rowset.redo_columns[column] / max(1, sum(rowset.redo_columns.values()))


def _base_column_bytes(rowset: RowSetLayout, column: int) -> float:
    """Bytes of the column's base once it is written: LIVENESS takes at most a bit per row."""
    if column == LIVENESS:
        return max(rowset.base_columns.get(column, 0), rowset.row_count / 8)
    if rowset.base_columns:
        return rowset.base_columns.get(column, 0)
    # Unknown: assume one key column besides the changed columns.
    return rowset.base_bytes / (1 + sum(other != LIVENESS for other in rowset.redo_columns))


def _minor_of(
    rowset: RowSetLayout, kind: Literal["redo", "undo"], files_min: int, target_bytes: int
) -> MinorPlan | None:
    if kind == "redo":
        files, first = rowset.redo_files, 0
    else:
        # A file is dropped once its newest record has expired, so large files are not made larger.
        files, first = rowset.undo_files, len(rowset.undo_files)
        while first and files[first - 1][0] < target_bytes // 4:
            first -= 1
    chosen = choose_redo_files(files[first:], files_min)
    if chosen is None:
        return None
    merged = files[first + chosen.start : first + chosen.stop]
    # Only scans of the past open UNDO files, so a merge must remove more of them than of REDO
    # files.
    saved = open_bytes(target_bytes) * (len(merged) - 1) * FILES_MIN / files_min
    cost = sum(size for size, _ in merged) + work_bytes(target_bytes)
    return MinorPlan(rowset.id, slice(first + chosen.start, first + chosen.stop), saved / cost, kind)


def _expired_file_bytes(rowset: RowSetLayout) -> int:
    """The expired bytes in whole files; without file sizes, all of them if there is such a file."""
    if not rowset.undo_files:
        return rowset.expired_undo_bytes if rowset.expired_undo_files else 0
    return sum(size for size, _ in rowset.undo_files[: rowset.expired_undo_files])
