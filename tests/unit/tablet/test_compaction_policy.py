"""The compaction policy: reads stay cheap, disk space is freed, and the work ends."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.delta.run import LIVENESS
from nyala.tablet.compaction.plans import (
    OPEN_BYTES,
    ExpirePlan,
    MajorPlan,
    MergePlan,
    MinorPlan,
    RowSetLayout,
)
from nyala.tablet.compaction.policy import (
    EXPIRED_FILES_MIN,
    UNDO_FILES_MIN,
    best_plan,
    choose_expire,
    choose_major,
    choose_minor,
    plan_full,
)
from nyala.tablet.compaction.rowset_selection import (
    BUDGET_ROWSETS,
    BUDGET_UNITS,
    SUPPORT_ADJUST,
    KeySpace,
    choose_merge,
)

MB = 1 << 20


def key(value: int) -> bytes:
    return value.to_bytes(8, "big")


def layout(number: int, low: int | bytes, high: int | bytes, size: int = 32 * MB, **rest) -> RowSetLayout:
    """Return a rowset with `size` bytes of base, a row per 100 bytes, and these REDO files and columns.

    It also has three columns without REDO.
    """
    files = rest.setdefault("redo_files", ())
    fields = {
        "row_count": max(1, size // 100),
        "base_bytes": size,
        "redo_bytes": sum(bytes_ for bytes_, _ in files),
        "undo_bytes": 0,
        "redo_columns": {},
        **rest,
    }
    columns = [100, 101, 102, *(column for column in fields["redo_columns"] if column != LIVENESS)]
    fields.setdefault("base_columns", dict.fromkeys(columns, size // len(columns)))
    low = key(low) if isinstance(low, int) else low
    high = key(high) if isinstance(high, int) else high
    return RowSetLayout(number, low, high, **fields)


# --- height ---------------------------------------------------------------------------------------


def average_height(rowsets):
    """Return the average number of rowsets to search for a key (Kudu's metric); 0.0 without rowsets."""
    space = KeySpace(rowsets)
    return float(space.width.sum() / space.total) if rowsets else 0.0


# --- merging: the objective -----------------------------------------------------------------------


def cdf_places(rowsets):
    """Return (start, end) of each rowset in the CDF of the data, computed directly from the definition."""
    keys = sorted({k for r in rowsets for k in (r.key_min, r.key_max)})
    cells = [(k, k) for k in keys] + list(itertools.pairwise(keys))
    cells.sort()  # each key before the gap that begins at it

    def share(r, low, high):
        if not (r.key_min <= low and high <= r.key_max):
            return 0.0
        if r.key_min == r.key_max:
            return 1.0
        prefix = 0
        while prefix < min(len(r.key_min), len(r.key_max)) and r.key_min[prefix] == r.key_max[prefix]:
            prefix += 1

        def number(k):
            return int.from_bytes(k[prefix : prefix + 8].ljust(8, b"\0"), "big")

        return (number(high) - number(low)) / (number(r.key_max) - number(r.key_min))

    widths = [sum((r.base_bytes + r.redo_bytes) * share(r, *cell) for r in rowsets) for cell in cells]
    return [
        (
            sum(
                w
                for (low, high), w in zip(cells, widths, strict=True)
                if high <= r.key_min and low < r.key_min
            ),
            sum(w for (_, high), w in zip(cells, widths, strict=True) if high <= r.key_max),
        )
        for r in rowsets
    ]


def objective(rowsets, places, chosen, target):
    """Return the objective of `rowset_selection` for one set, in bytes."""
    width = sum(places[i][1] - places[i][0] for i in chosen)
    span = max(places[i][1] for i in chosen) - min(places[i][0] for i in chosen)
    small = sum(max(0.0, 1 - rowsets[i].base_bytes / target) for i in chosen) - 1
    return width - SUPPORT_ADJUST * span + min(OPEN_BYTES, target / 32) * small


@st.composite
def tablets(draw, most=9):
    """Draw a few rowsets whose bounds are in a small range, so that ties, single keys and
    inclusions are common.
    """
    prefix = draw(st.sampled_from([b"", b"customer/"]))
    rowsets = []
    for number in range(draw(st.integers(0, most))):
        low, high = sorted(draw(st.tuples(st.integers(0, 20), st.integers(0, 20))))
        size = draw(st.sampled_from([1, 2, 5, 16, 31, 32, 33, 60, 64])) * MB
        rowsets.append(layout(number, prefix + bytes([low]), prefix + bytes([high]), size))
    return rowsets


@given(tablets(), st.sampled_from([64 * MB, 32 * MB, 8 * MB]))
@settings(max_examples=settings().max_examples, deadline=None)
def test_the_merge_is_the_best_of_all_subsets(rowsets, target):
    """Kudu's choice is within 5 % of the optimum; this choice is the optimum."""
    plan = choose_merge(rowsets, target_bytes=target, growth=math.inf, gain_min=0)
    places = cdf_places(rowsets)
    unit = BUDGET_ROWSETS * target / BUDGET_UNITS
    weights = [min(max(1, math.ceil(r.size_bytes / unit)), BUDGET_UNITS // 2) for r in rowsets]
    best = max(
        (
            objective(rowsets, places, chosen, target)
            for count in range(1, len(rowsets) + 1)
            for chosen in itertools.combinations(range(len(rowsets)), count)
            if sum(weights[i] for i in chosen) <= BUDGET_UNITS
        ),
        default=0.0,
    )
    if plan is None:
        assert best <= 1e-6
    else:
        assert sum(weights[i] for i in plan.rowsets) <= BUDGET_UNITS
        assert objective(rowsets, places, plan.rowsets, target) == pytest.approx(best)


@given(tablets(), st.sampled_from([0.5, 1.0, 3.0]))
@settings(max_examples=settings().max_examples, deadline=None)
def test_q1_a_rowset_is_merged_only_with_enough_other_data(rowsets, growth):
    """Q1: a rowset takes part in a merge only if the other inputs are large enough.

    Otherwise each small flush over a large rowset would rewrite it.
    """
    target = 32 * MB
    plan = choose_merge(rowsets, target_bytes=target, growth=growth)
    for number in () if plan is None else plan.rowsets:
        own = rowsets[number]
        others = [rowsets[i] for i in plan.rowsets if i != number]
        joined = min(target, own.base_bytes + sum(r.base_bytes for r in others)) - own.base_bytes
        within = sum(
            r.size_bytes * _overlap(own, r)
            for r in others
            if r.key_min <= own.key_max and own.key_min <= r.key_max
        )
        assert own.size_bytes <= growth * max(joined, within) * (1 + 1e-9)


def _overlap(own, other):
    """Return the share of the other rowset's keys between the bounds of `own`."""
    low, high = max(own.key_min[-1], other.key_min[-1]), min(own.key_max[-1], other.key_max[-1])
    if other.key_min == other.key_max:
        return 1.0
    return (high - low) / (other.key_max[-1] - other.key_min[-1])


# --- merging: special cases ---------------------------------------------------------


def test_rowsets_with_dead_rows_of_one_key_are_merged():
    """A key that is deleted and inserted again all day has a dead row in each flushed rowset.

    These rowsets are merged. In Kudu's policy their width is 0.
    """
    plan = choose_merge([layout(i, 7, 7, 1000) for i in range(50)])
    assert plan is not None and len(plan.rowsets) == 50 and plan.output_count == 1
    assert choose_merge([layout(i, 7, 7) for i in range(3)]) is not None, (
        "full rowsets of one key satisfy Q1 for each other"
    )


def test_rowsets_larger_than_the_budget_are_merged_two_by_two():
    """Rowsets larger than the budget are merged in pairs. Otherwise they would overlap forever."""
    plan = choose_merge([layout(i, 0, 100, 500 * MB) for i in range(5)])
    assert plan is not None and len(plan.rowsets) == 2 and plan.output_count == round(1000 / 32)


def test_a_long_history_makes_a_merge_expensive():
    """A small rowset with a long history is not rewritten to join a neighbour of a megabyte."""
    hot = layout(1, 0, 100, MB, undo_bytes=300 * MB)
    assert choose_merge([hot, layout(2, 101, 200, MB)]) is None
    assert choose_merge([hot, layout(2, 0, 100, MB)], growth=math.inf) is None


def test_thousands_of_rowsets_are_planned_in_parts():
    """A tablet that was not compacted for a year is planned in bounded memory."""
    numbers = random.Random(1).sample(range(3000), 3000)
    plan = choose_merge([layout(-i, 10 * i, 10 * i + 9, 32 * MB if i < 1500 else 10_000) for i in numbers])
    assert plan is not None and len(plan.rowsets) == BUDGET_UNITS
    first = -plan.rowsets[0]
    assert first >= 1500
    assert plan.rowsets == tuple(-i for i in range(first, first + BUDGET_UNITS)), "in order of their keys"


# --- space ----------------------------------------------------------------------------------------


def test_an_expiry_has_at_least_the_gain_of_the_best_other_plan():
    """Otherwise an expiry of a few kilobytes could delay the merge of eight overlapping rowsets."""
    wide = [layout(i, 0, 100) for i in range(8)]
    merge = best_plan(wide)
    files = {"undo_bytes": 1600, "expired_undo_bytes": 1600, "expired_undo_files": EXPIRED_FILES_MIN}
    plan = best_plan([*wide[1:], layout(0, 0, 100, **files)])
    assert isinstance(plan, ExpirePlan) and plan.gain == pytest.approx(merge.gain, rel=0.01)


def test_a_few_small_expired_files_are_not_dropped_yet():
    """A few expired files are kept until there are more, because files expire one by one."""
    one = layout(2, 0, 100, undo_bytes=MB, expired_undo_bytes=1000, expired_undo_files=1)
    assert choose_expire([one]) is None
    assert choose_expire([one], manual=True) is not None
    assert choose_expire([dataclasses.replace(one, expired_undo_files=EXPIRED_FILES_MIN)]) is not None


# --- delta compactions ----------------------------------------------------------------------------


def test_only_updated_columns_are_compacted():
    """If a tenth of one column of fifty was updated, the others are neither read nor written."""
    base = dict.fromkeys(range(1, 51), 32 * MB // 50)
    rowset = layout(
        1, 0, 100, redo_files=((2 * MB, 40_000),), redo_columns={7: 40_000, 8: 10}, base_columns=base
    )
    plan = choose_major([rowset])
    assert isinstance(plan, MajorPlan) and 7 in plan.columns
    assert (
        choose_major(
            [dataclasses.replace(rowset, redo_files=((8000, 400),), redo_bytes=8000, redo_columns={7: 400})]
        )
        is None
    )
    other = dataclasses.replace(
        rowset, redo_columns={7: 40_000, 8: 10}, base_columns={7: 600_000, 8: 30 * MB}
    )
    assert choose_major([other]).columns == (7,), "a large column with a few records is not rewritten"


def test_all_columns_are_compacted_if_the_others_cost_little():
    """Column 8 has few changes, but without it a REDO file would remain for these."""
    redo = {"redo_files": ((2 * MB, 100_500),), "redo_columns": {7: 100_000, 8: 500}}
    rowset = layout(1, 0, 100, base_columns={7: 2 * MB, 8: 200_000, 9: 29 * MB}, **redo)
    assert choose_major([rowset]).columns == (7, 8)


def test_deletes_alone_are_compacted():
    """KUDU-3619: they slow down every scan, like updates."""
    rowset = layout(1, 0, 100, redo_files=((2 * MB, 100_000),), redo_columns={LIVENESS: 100_000})
    assert best_plan([rowset]) == choose_major([rowset])
    assert choose_major([rowset]).columns == (LIVENESS,)
    # The compaction writes little: the REDO as UNDO, and one bit per row.
    assert choose_major([rowset]).gain > 1


def test_many_redo_files_are_merged_by_the_logarithmic_rule():
    sizes = (8000, 4000, 1000, 1000, 1000)
    rowset = layout(1, 0, 100, redo_files=[(s, 10) for s in sizes], redo_columns={1: 50})
    assert choose_minor([rowset]) is None
    rowset = dataclasses.replace(rowset, redo_files=[(s, 10) for s in (9000, *sizes[1:], 1000)])
    assert best_plan([rowset]) == choose_minor([rowset])
    plan = choose_minor([rowset])
    assert plan.files == slice(1, 6) and plan.kind == "redo"


# --- plans of all kinds ---------------------------------------------------------------------------


def test_plans_of_different_kinds_are_compared():
    """The plan that saves the most reading is first: eight overlapping rowsets, then a tenth of REDO."""
    redo = {"redo_files": ((4 * MB, 40_000),), "redo_columns": {1: 40_000}}
    wide = [layout(i, 0, 100) for i in range(8)]
    updated = layout(100, 200, 300, **redo)
    assert isinstance(best_plan([*wide, updated]), MergePlan)
    side_by_side = [layout(1, 0, 99, 12 * MB), layout(2, 100, 199, 12 * MB)]
    assert isinstance(best_plan(side_by_side), MergePlan)
    assert isinstance(best_plan([*side_by_side, updated]), MajorPlan)
    assert best_plan([]) is None


def test_plan_full():
    """Overlapping rowsets are merged, small ones joined, REDO is applied, and expired data dropped."""
    redo = {
        "redo_files": ((1000, 10),),
        "redo_columns": {2: 5, LIVENESS: 5},
        "base_columns": {1: 30 * MB, 2: 2 * MB},
    }
    rowsets = [
        layout(1, 0, 10, **redo),
        layout(2, 10, 20),  # bounds are inclusive: key 10 may be in both
        layout(3, 15, 30),
        layout(4, 40, 50, **redo),
        layout(5, 60, 70, 1000),
        layout(6, 80, 90, 1000, **redo),
        layout(7, 100, 110),
        layout(8, 120, 130, expired_rows=100_000),
        layout(9, 0, 200, all_expired=True),
    ]
    plans = plan_full(rowsets)
    assert [p.rowsets for p in plans if isinstance(p, ExpirePlan)] == [(9,)]
    assert [(p.rowsets, p.output_count) for p in plans if isinstance(p, MergePlan)] == [
        ((1, 2, 3), 3),
        ((5, 6), 1),
        ((8,), 1),
    ]
    assert [(p.rowset, p.columns) for p in plans if isinstance(p, MajorPlan)] == [(4, (LIVENESS, 2))]
    assert all(p.gain >= 0 for p in plans)
    assert plan_full([]) == []


def test_plan_full_joins_rowsets_that_fit_after_a_merge():
    """Two halves of 25 MB leave room for 6 MB. Otherwise a second compact() would find work."""
    rowsets = [layout(1, 0, 10, 25 * MB), layout(2, 5, 20, 25 * MB), layout(3, 30, 40, 6 * MB)]
    assert [(p.rowsets, p.output_count) for p in plan_full(rowsets)] == [((1, 2, 3), 2)]


# --- stability: a simulated tablet ---------------------------------------------------------------

# Rows of twenty columns of 50 bytes; a record of REDO or UNDO holds one value.
ROW_BYTES = 1000
COLUMNS = 20
RECORD_BYTES = 50
TARGET = 256_000


@dataclasses.dataclass
class Rowset:
    """A rowset in the simulation: keys, the time at which each row died, and a dict for each delta file."""

    keys: np.ndarray
    dead: np.ndarray
    redo: list[dict[int, Counter]]
    undo: list[Counter]  # oldest first: time -> bytes


class Tablet:
    """Simulates a tablet with the facts that the policy needs: sizes, keys and times."""

    def __init__(self, history=10**9):
        self.quiet, self.history = False, history
        self.rowsets: dict[int, Rowset] = {}
        self.now = self.next_id = self.written = self.user = self.steps = 0

    def insert(self, keys):
        keys = np.sort(np.unique(keys))
        self.user += len(keys) * ROW_BYTES
        for part in np.array_split(keys, max(1, round(len(keys) * ROW_BYTES / TARGET))):
            self._add(Rowset(part, np.full(len(part), 2**60), [], []))

    def change(self, keys, column=1):
        """Add a REDO file to each rowset that has one of the keys. Column LIVENESS deletes the rows."""
        for rowset in self.rowsets.values():
            hit = np.isin(rowset.keys, keys) & (rowset.dead == 2**60)
            count = int(hit.sum())
            if count:
                if column == LIVENESS:
                    rowset.dead[hit] = self.now
                rowset.redo.append({column: Counter({self.now: count})})
                self.user += count * RECORD_BYTES

    def layouts(self):
        return [self._layout(number, rowset) for number, rowset in self.rowsets.items()]

    def work(self):
        """Execute plans until the policy returns none (Q2)."""
        for _ in range(1000):
            plan = best_plan(self.layouts(), target_bytes=TARGET, quiet=self.quiet)
            if plan is None:
                return
            self.steps += 1
            self.carry_out(plan)
        raise AssertionError("the work has no end")

    def carry_out(self, plan):
        match plan:
            case ExpirePlan():
                for number in plan.rowsets:
                    if self._layout(number, self.rowsets[number]).all_expired:
                        del self.rowsets[number]
                    else:
                        del self.rowsets[number].undo[: self._expired_files(self.rowsets[number])]
            case MinorPlan(kind="redo"):
                redo = self.rowsets[plan.rowset].redo
                redo[plan.files] = [self._merged_redo(redo[plan.files])]
                self.written += self._redo_bytes(redo[plan.files.start])
            case MinorPlan():
                undo = self.rowsets[plan.rowset].undo
                undo[plan.files] = [self._kept(sum(undo[plan.files], Counter()))]
                self.written += sum(undo[plan.files.start].values())
            case MajorPlan():
                rowset = self.rowsets[plan.rowset]
                merged = self._merged_redo(rowset.redo)
                rowset.undo.append(self._as_undo({c: merged.pop(c) for c in plan.columns}))
                rowset.redo = [merged] if merged else []
                share = len([c for c in plan.columns if c != LIVENESS]) / COLUMNS
                self.written += int(len(rowset.keys) * ROW_BYTES * share) + sum(rowset.undo[-1].values())
            case MergePlan():
                self._merge(plan)

    def _merge(self, plan):
        inputs = [self.rowsets.pop(number) for number in plan.rowsets]
        keys, dead = (np.concatenate([getattr(r, name) for r in inputs]) for name in ("keys", "dead"))
        undo = sum((sum(r.undo, self._as_undo(self._merged_redo(r.redo))) for r in inputs), Counter())
        left = self._kept(undo)
        order = np.argsort(keys, kind="stable")
        order = order[dead[order] > self.mark]
        for part in np.array_split(order, plan.output_count):
            files = [Counter({t: b // plan.output_count for t, b in left.items()})] if left else []
            if len(part):
                self._add(Rowset(keys[part], dead[part], [], files))
                self.written += len(part) * ROW_BYTES + sum(sum(f.values()) for f in files)

    @property
    def mark(self):
        return self.now - self.history

    @property
    def size_bytes(self):
        return sum(r.size_bytes for r in self.layouts())

    def _add(self, rowset):
        self.next_id += 1
        self.rowsets[self.next_id] = rowset

    def _kept(self, undo):
        return Counter({t: b for t, b in undo.items() if t > self.mark})

    def _expired_files(self, rowset):
        return sum(1 for _ in itertools.takewhile(lambda f: not self._kept(f), rowset.undo))

    def _layout(self, number, rowset):
        undo_bytes = sum(sum(f.values()) for f in rowset.undo)
        rows = len(rowset.keys)
        merged = self._merged_redo(rowset.redo)
        expired = int((rowset.dead <= self.mark).sum())
        return RowSetLayout(
            number,
            key(int(rowset.keys[0])),
            key(int(rowset.keys[-1])),
            rows,
            rows * ROW_BYTES,
            sum(self._redo_bytes(f) for f in rowset.redo),
            undo_bytes,
            [(self._redo_bytes(f), self._redo_bytes(f) // RECORD_BYTES) for f in rowset.redo],
            {column: times.total() for column, times in merged.items()},
            base_columns=dict.fromkeys(range(COLUMNS), rows * ROW_BYTES // COLUMNS),
            undo_files=[(sum(f.values()), sum(f.values()) // RECORD_BYTES) for f in rowset.undo],
            expired_rows=expired,
            expired_undo_bytes=undo_bytes - sum(sum(self._kept(f).values()) for f in rowset.undo),
            expired_undo_files=self._expired_files(rowset),
            all_expired=expired == rows,
        )

    @staticmethod
    def _merged_redo(files):
        merged: dict[int, Counter] = {}
        for file in files:
            for column, times in file.items():
                merged[column] = merged.get(column, Counter()) + times
        return merged

    @staticmethod
    def _redo_bytes(file):
        return RECORD_BYTES * sum(times.total() for times in file.values())

    @staticmethod
    def _as_undo(columns):
        times = sum(columns.values(), Counter())
        return Counter({t: n * RECORD_BYTES for t, n in times.items()})


def check_stable(tablet, steps_per_round, rounds):
    """Check that no plan is left, and that few plans were executed."""
    assert best_plan(tablet.layouts(), target_bytes=TARGET, quiet=tablet.quiet) is None
    assert tablet.steps <= steps_per_round * rounds


@pytest.mark.parametrize("flush_rows", [pytest.param(32, marks=pytest.mark.long), 256])
def test_random_inserts_are_rewritten_a_logarithm_of_times(flush_rows):
    """Each flush covers the whole key range, which is the worst case."""
    rng = np.random.default_rng(1)
    tablet = Tablet()
    rounds = 16_384 // flush_rows
    for _ in range(rounds):
        tablet.insert(rng.integers(0, 2**60, flush_rows))
        tablet.work()
        doublings = math.log2(tablet.user / (flush_rows * ROW_BYTES))
        assert tablet.written <= tablet.user * (1 + doublings)
        assert average_height(tablet.layouts()) <= 2 + doublings
    check_stable(tablet, 2, rounds)
    height, written = average_height(tablet.layouts()), tablet.written
    assert height > 1.5
    tablet.quiet = True
    tablet.work()
    assert average_height(tablet.layouts()) < 1.1, "a quiet tablet is compacted as by compact()"
    assert tablet.written - written <= 2 * height * tablet.user
    assert len(tablet.rowsets) <= 1.5 * tablet.user / TARGET


def test_ascending_keys_do_not_leave_thousands_of_tiny_rowsets():
    """Small rowsets are joined although they do not overlap."""
    tablet = Tablet()
    for number in range(512):
        tablet.insert(np.arange(8 * number, 8 * number + 8))
        tablet.work()
        assert len(tablet.rowsets) <= 2 * tablet.user / TARGET + 2 + math.log2(TARGET / (8 * ROW_BYTES))
    assert tablet.written <= math.log2(TARGET / (8 * ROW_BYTES)) * tablet.user
    check_stable(tablet, 1, 512)


def test_hot_keys_keep_few_files_and_a_bounded_history():
    """A fifteenth of the rows is updated all day. REDO, files and disk space stay bounded."""
    tablet = Tablet(history=50)
    tablet.insert(np.arange(1500))
    tablet.work()
    hot = np.arange(0, 1500, 15)
    live = tablet.size_bytes
    for number in range(400):
        tablet.now += 1
        tablet.change(hot, column=number % 2)
        tablet.work()
        needed = live + min(number + 1, tablet.history) * len(hot) * RECORD_BYTES
        assert tablet.size_bytes <= 1.5 * needed
        for rowset in tablet.layouts():
            assert len(rowset.redo_files) <= 8
            assert len(rowset.undo_files) <= 3 * UNDO_FILES_MIN
    check_stable(tablet, len(tablet.rowsets), 400)
    assert tablet.written <= 12 * (tablet.user - live), (
        "a column is rewritten at most once per tenth of its rows"
    )


def test_space_of_deleted_rows_is_freed():
    """First their REDO is merged; when no moment needs the rows, they are removed."""
    tablet = Tablet(history=5)
    tablet.insert(np.arange(4000))
    tablet.work()
    full = tablet.size_bytes
    rng = np.random.default_rng(1)
    rounds = 0
    for part in np.array_split(rng.permutation(4000), 40):
        tablet.now += 1
        rounds += 1
        tablet.change(part, column=LIVENESS)
        tablet.work()
        alive = 4000 - 100 * max(0, rounds - tablet.history)
        assert tablet.size_bytes <= 2.2 * alive * ROW_BYTES + 0.1 * full
    check_stable(tablet, 2 * len(tablet.rowsets) + 16, rounds)
    tablet.now += 10
    tablet.work()
    assert tablet.rowsets == {}


@given(tablets(most=25), st.booleans(), st.booleans())
@settings(max_examples=settings().max_examples, deadline=None)
def test_q2_the_work_ends_for_any_tablet(rowsets, quiet, rest):
    """Q2: after a limited number of plans there is no plan left.

    This holds also if merges cut their output at the target size, and the last rowset is small.
    """
    rowsets = list(rowsets)
    for steps in itertools.count():
        plan = best_plan(rowsets, quiet=quiet)
        if plan is None:
            break
        assert steps < 10 * 25
        rowsets = carried_out(rowsets, plan, 32 * MB if rest else None)


@given(tablets(most=25), st.sampled_from([32 * MB, 8 * MB, 100 * MB]))
@settings(max_examples=settings().max_examples, deadline=None)
def test_q4_after_plan_full_no_work_is_left(rowsets, target):
    """Q4: after all plans of `plan_full`, no rowsets overlap, and a second call returns no plan."""
    rowsets = list(rowsets)
    for plan in plan_full(rowsets, target_bytes=target):
        assert isinstance(plan, MergePlan)
        rowsets = carried_out(rowsets, plan)
    ordered = sorted(rowsets, key=lambda r: r.key_min)
    assert all(one.key_max < other.key_min for one, other in itertools.pairwise(ordered))
    assert plan_full(rowsets, target_bytes=target) == []


def carried_out(rowsets, plan, cut_at=None):
    """Return the layouts after a merge.

    The output rowsets have equal sizes or, with `cut_at`, this size and a smaller last one.
    """
    merged = [r for r in rowsets if r.id in plan.rowsets]
    size = sum(r.base_bytes for r in merged)
    low, high = min(r.key_min for r in merged), max(r.key_max for r in merged)
    sizes = [size // plan.output_count] * plan.output_count
    if cut_at is not None:
        sizes = [min(cut_at, size - offset) for offset in range(0, size, cut_at)]
    first, last = (int.from_bytes(k.ljust(16, b"\0"), "big") for k in (low, high))
    if last - first < 1000:  # the range has too few keys to be cut
        sizes = [size]
    ends = list(itertools.accumulate(sizes))
    cuts = [first + (last - first) * end // ends[-1] for end in ends[:-1]]
    lows = [low, *(cut.to_bytes(16, "big") for cut in cuts)]
    highs = [*((cut - 1).to_bytes(16, "big") for cut in cuts), high]
    number = max(r.id for r in rowsets) + 1
    new = [layout(number + i, *bounds) for i, bounds in enumerate(zip(lows, highs, sizes, strict=True))]
    return [r for r in rowsets if r.id not in plan.rowsets] + new


def test_if_most_of_the_base_is_compacted_the_rowset_is_rewritten() -> None:
    """A part with most columns would leave a base file of mostly superseded columns."""
    sizes = {1: 3 * MB, 2: 10 * MB, 3: 27 * MB}
    for columns, kind, by_hand_kind in (
        ({1}, MajorPlan, MajorPlan),
        ({2}, MajorPlan, MergePlan),
        ({2, 3}, MergePlan, MergePlan),
    ):
        rowset = layout(
            1, 0, 9, 40 * MB, base_columns=sizes, redo_files=[(8 * MB, 90_000)],
            redo_columns=dict.fromkeys(columns, 90_000),
        )  # fmt: skip
        (by_hand,) = plan_full([rowset])
        assert isinstance(best_plan([rowset]), kind) and isinstance(by_hand, by_hand_kind)


def test_a_long_history_is_not_rewritten_for_each_change_of_whole_rows() -> None:
    """Rows are upserted whole all the time, and there is a week of UNDO. The policy writes a part."""
    rowset = layout(
        1, 0, 9, 40 * MB, base_columns={1: 40 * MB}, undo_bytes=400 * MB, redo_files=[(8 * MB, 90_000)],
        redo_columns={1: 90_000},
    )  # fmt: skip
    assert isinstance(best_plan([rowset]), MajorPlan)
    assert isinstance(best_plan([dataclasses.replace(rowset, undo_bytes=4 * MB)]), MergePlan)
