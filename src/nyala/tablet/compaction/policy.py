"""Chooses the compaction of a tablet that saves the most reading for its cost.

The functions are pure: they get measurements of rowsets (`RowSetLayout`), and return plans. The
picture shows the key range of each rowset of a tablet, from the smallest key on the left to the
greatest key on the right. A look-up must search each rowset whose range has the key: here two.

    ┌───────────── w: 8 MB, flushed just now ──────────────┐
    ┌──── a: 32 MB ────┐┌──── b: 32 MB ────┐┌─c─┐┌─d─┐┌─e──┐

    merge     rowsets whose key ranges overlap, so that look-ups search fewer rowsets (Kudu's
              objective); small neighbours, such as c and d, so that scans open fewer files
    rewrite   one rowset in which half of the bytes are dead rows or expired history
    major     merges REDO of some columns into the base, so that scans of the present need not apply it
    minor     merges many delta files of a rowset into one
    expire    drops expired files and rowsets by a change of the catalogue, without reading them

The gains of all plans have the same unit, so they can be compared, even between tablets:

    gain = (saved bytes of reading or of disk space) / (rewritten bytes)

The `width` of a rowset is the number of bytes that all rowsets have in its key range. Reads of keys
in this range are slower because they must also search this rowset. The estimate assumes that reads
are distributed over the keys like the data. So a merge of two equal rowsets of one key range has a
gain of about 1, and a merge of four has 3. A compaction with a gain of 0.02 pays off after the data
was read fifty times.

Invariants
    Q1  Growth. A merge rewrites a rowset only together with enough other data: at least as many
        bytes as the rowset has, divided by the constant `GROWTH`, which is 1. Either the other
        inputs have this much data in the rowset's key range, or the output is larger than the
        rowset by this much, within the target size. So each byte is rewritten only
        O(log(data / flush)) times. By Kudu's objective alone, each small flush would rewrite a full
        rowset in its key range.
    Q2  Progress. Without new writes the work ends. Each merge lowers the sum of all widths and of
        the costs of opening all rowsets (OPEN_BYTES), because its gain is above 0. A rewrite
        removes garbage, a major compaction removes REDO, and a minor compaction and an expiry
        remove files.
    Q3  No plan contains a rowset that another compaction has reserved. But its data counts in the
        widths of other rowsets: it stays in their key range, so reads must search it after a merge
        too.
    Q4  After `plan_full` no two rowsets overlap, none has REDO, and a second `plan_full` returns
        nothing.

Not part of the policy: flushes (`maintenance`), disk space, and current readers.
Source: docs/design/compaction.md, "Compaction policy"; docs/design/kudu.md, "Choice of rowsets to
merge"; the logarithmic method (Bentley and Saxe, 1980). Differences from Kudu: Q1; plans that free
space and save no reading (KUDU-1625); deletes count as REDO (KUDU-3619). Others: see `plans` and
`rowset_selection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from nyala.delta.file_selection import FILES_MIN, first_file_to_merge
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
from nyala.tablet.compaction.rowset_selection import GROWTH, KeySpace, choose_merge

# A column is due for a major delta compaction if it has REDO for a tenth of its base: Kudu's
# tablet_delta_store_major_compact_min_ratio. So much REDO makes a scan of the column about 30 % slower.
REDO_RATIO_MIN: Final = 0.1

# A byte of REDO costs a scan as much as this many base bytes, because it is not only decoded, but also
# sorted and applied to rows.
REDO_COST: Final = 3.0

# A rowset is rewritten once half of it is garbage. Then each written byte frees a byte, and the disk
# holds at most twice the needed data.
SPACE_RATIO: Final = 0.5

# A major delta compaction leaves the old values of its columns in the base file. If these are half of
# the base, the whole rowset is rewritten instead. Otherwise a table whose rows are always upserted whole
# would take up to twice its base on disk.
REWRITE_SHARE: Final = 0.5

# For compactions that a user calls: a tenth of garbage is worth a rewrite.
SPACE_RATIO_FULL: Final = 0.1

# Fewer expired files than this, with less than OPEN_BYTES, are not worth a change of the catalogue.
EXPIRED_FILES_MIN: Final = 16

# UNDO files are merged if there are this many. Scans of the present do not open them.
UNDO_FILES_MIN: Final = 16


def best_plan(
    rowsets: Sequence[RowSetLayout], *, target_bytes: int = TARGET_BYTES, quiet: bool = False
) -> Plan | None:
    """Return the best next plan for one tablet; None if no plan is worth its cost.

    A plan that drops expired files comes first, if it is worth its cost, because it makes all other
    work smaller. Without such a plan, return the plan with the greatest gain.

    The caller compares the plans of several tablets by their gain. Dropping files may have a small
    gain, but the tablet's other plans must not wait longer because of this. So the `gain` of a plan
    that drops files is raised to that of the tablet's best other plan, if that is greater.

    target_bytes: the size of a full rowset.
    quiet: nobody has written to the tablet for a while. Then merges may rewrite large rowsets for
           little new data, and all REDO is merged, so that reads become as fast as after
           `Table.compact`.
    Cost: that of `choose_merge`, and one pass over the rowsets.
    """
    target = target_bytes
    growth, ratio = (np.inf, 0.0) if quiet else (GROWTH, REDO_RATIO_MIN)
    plans: list[Plan | None] = [
        choose_rewrite(rowsets, target_bytes=target),
        _or_rewrite(choose_major(rowsets, target_bytes=target, redo_ratio_min=ratio), rowsets, target),
        choose_minor(rowsets, target_bytes=target, redo_ratio_min=ratio),
        choose_merge(rowsets, target_bytes=target, growth=growth),
    ]
    best = max((plan for plan in plans if plan is not None), key=lambda plan: plan.gain, default=None)
    expire = choose_expire(rowsets, target_bytes=target)
    if expire is None:
        return best
    return expire if best is None else replace(expire, gain=max(expire.gain, best.gain))


def choose_expire(
    rowsets: Sequence[RowSetLayout], *, target_bytes: int = TARGET_BYTES, manual: bool = False
) -> ExpirePlan | None:
    """Return a plan that drops all expired files and rowsets, if that is worth a change of the catalogue.

    Returns None if nothing has expired, or too little.

    manual: a user called the compaction: return the plan even if it frees little.
    """
    chosen = [r for r in rowsets if r.available and (r.all_expired or r.expired_undo_files)]
    freed = sum(r.size_bytes if r.all_expired else r.expired_file_bytes for r in chosen)
    files = sum(0 if r.all_expired else r.expired_undo_files for r in chosen)
    due = manual or any(r.all_expired for r in chosen)
    if not chosen or not (due or files >= EXPIRED_FILES_MIN or freed >= open_bytes(target_bytes)):
        return None
    return ExpirePlan(tuple(r.id for r in chosen), freed / work_bytes(target_bytes))


def choose_rewrite(rowsets: Sequence[RowSetLayout], *, target_bytes: int = TARGET_BYTES) -> MergePlan | None:
    """Return the rewrite of one rowset that frees the most bytes for its cost.

    A rowset is rewritten only if at least half of it is garbage (`SPACE_RATIO`). None: no such rowset.
    """
    best = None
    for rowset in rowsets:
        freed = rowset.expired_bytes
        if not rowset.available or rowset.all_expired or freed < open_bytes(target_bytes):
            continue  # a small rowset waits until it is merged with its neighbours
        if freed >= SPACE_RATIO * rowset.size_bytes:
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
    """Return the major delta compaction with the greatest gain for scans of the present.

    Returns None if no column is due.
    redo_ratio_min: a column is due if its REDO has at least this many records per row, or this many
                    bytes per byte of its base data.
    """
    plans = (_major_of(rowset, target_bytes, redo_ratio_min) for rowset in rowsets if rowset.available)
    return max((plan for plan in plans if plan), key=lambda plan: plan.gain, default=None)


def choose_minor(
    rowsets: Sequence[RowSetLayout],
    *,
    target_bytes: int = TARGET_BYTES,
    redo_ratio_min: float = REDO_RATIO_MIN,
) -> MinorPlan | None:
    """Return the minor delta compaction with the greatest gain; None if no rowset has enough files.

    If a major delta compaction of all columns is due for a rowset, its REDO files are not merged.
    redo_ratio_min: as in `choose_major`.
    """
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
    """Return the plans of a full compaction.

    After them no two rowsets overlap, none has REDO, and a second call returns nothing. Rowsets
    that another compaction has reserved are left out.

    Rowsets that overlap, directly or through others, are merged. Then neighbours are joined up to
    the target size. A rowset that is not merged is rewritten if a tenth of it is garbage. It is
    also rewritten if the table's columns, types or encodings changed after it was written.
    Otherwise, if it has REDO, it gets a major delta compaction of all columns.

    Each rowset is in at most one of these plans. One more plan drops all expired files and rowsets.
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
        elif group[0].expired_bytes - group[0].expired_file_bytes > SPACE_RATIO_FULL * group[0].size_bytes:
            plans.append(_merge_plan(group, target_bytes))
        elif group[0].redo_files:
            major = _major_plan(group[0], sorted(group[0].redo_columns), target_bytes)
            # A major compaction may leave so much garbage that a rewrite would follow. Then rewrite now.
            plans.append(_or_rewrite(major, group, target_bytes, SPACE_RATIO_FULL) or major)
    return plans


def _connected(ordered: Iterable[RowSetLayout]) -> list[list[RowSetLayout]]:
    """Divide rowsets, ordered by key_min, into groups. Rowsets of different groups never overlap."""
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
    """Join neighbouring groups of rowsets to one group, if the merged rows fit into one rowset.

    Groups are not joined if a rowset between them is reserved. One pass is enough: after it, no two
    neighbours fit into one rowset.

    reserved: the rowsets that another compaction is changing; they are in no group.
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
    """Return the average size of the rowsets that a merge of `group` writes, in bytes.

    If the group has only one rowset, return the size of this rowset.
    """
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
    """Return `plan`, or a rewrite of its rowset if the plan's columns are most of the base.

    share: how much of the base is "most".
    The rewrite then costs little more than the plan, and leaves no superseded columns in the base
    file. But it also writes all UNDO again. So `plan` is returned if the rowset has more bytes of
    UNDO than the plan's columns have in the base.
    """
    if plan is None:
        return None
    rowset = next(r for r in rowsets if r.id == plan.rowset)
    moved = sum(rowset.base_columns.get(column, 0) for column in plan.columns)
    if rowset.undo_bytes > moved or moved < share * max(1, rowset.base_bytes - rowset.superseded_bytes):
        return plan
    return MergePlan((rowset.id,), plan.gain, output_count([rowset], target_bytes))


def _major_of(rowset: RowSetLayout, target_bytes: int, redo_ratio_min: float) -> MajorPlan | None:
    """Return the major delta compaction that is due for the rowset; None if no column is due.

    REDO records are changes that were made after the base data was written. A column is due in two
    cases:

    - It has at least `redo_ratio_min` REDO records per row of the rowset.
    - Its REDO has at least `redo_ratio_min` times as many bytes as its base data.

    A column with less REDO waits, because each major compaction adds an UNDO file. All columns wait
    while the rowset has little REDO in few files, unless `redo_ratio_min` is 0. The plan has the
    due columns or all columns with REDO, whichever saves more for its cost. With all columns, no
    REDO file stays.
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
    """Return the plan of a major delta compaction of these columns, with its gain.

    The compaction writes the base of these columns, and the REDO of the other columns as a new
    file. So the cost is the base of these columns and the REDO of all columns.
    """
    files = len(rowset.redo_files) - (len(columns) < len(rowset.redo_columns))
    redo = sum(_redo_column_bytes(rowset, column) for column in columns)
    saved = REDO_COST * redo + open_bytes(target_bytes) * files
    base = sum(_base_column_bytes(rowset, column) for column in columns)
    return MajorPlan(rowset.id, tuple(columns), saved / (base + rowset.redo_bytes + work_bytes(target_bytes)))


def _redo_column_bytes(rowset: RowSetLayout, column: int) -> float:
    """Return about how many bytes of REDO a column has, in proportion to its number of records."""
    return rowset.redo_bytes * rowset.redo_columns[column] / max(1, sum(rowset.redo_columns.values()))


def _base_column_bytes(rowset: RowSetLayout, column: int) -> float:
    """Return about how many bytes a column takes in the base data after a compaction.

    LIVENESS counts as at least a bit per row, because the compaction may add it to the base.
    """
    base = rowset.base_columns.get(column, 0)
    return max(base, rowset.row_count / 8) if column == LIVENESS else base


def _minor_of(
    rowset: RowSetLayout, kind: Literal["redo", "undo"], files_min: int, target_bytes: int
) -> MinorPlan | None:
    if kind == "redo":
        files, first = rowset.redo_files, 0
    else:
        # A file is dropped when its newest record has expired. In a larger file, old records would stay longer.
        files, first = rowset.undo_files, len(rowset.undo_files)
        while first and files[first - 1][0] < target_bytes // 4:
            first -= 1
    chosen = first_file_to_merge([size for size, _ in files[first:]], files_min)
    if chosen is None:
        return None
    merged = files[first + chosen :]
    # Only scans of the past open UNDO files, so one UNDO file less saves less than one REDO file less.
    saved = open_bytes(target_bytes) * (len(merged) - 1) * FILES_MIN / files_min
    cost = sum(size for size, _ in merged) + work_bytes(target_bytes)
    return MinorPlan(rowset.id, slice(first + chosen, len(files)), saved / cost, kind)
