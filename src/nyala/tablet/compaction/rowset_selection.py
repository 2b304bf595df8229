"""Chooses the rowsets of a tablet whose merge saves most reading within a budget.

This is Kudu's objective, in bytes (divide by the tablet's bytes for Kudu's fractions). `width` is
the share of the data's CDF that a rowset covers, `U` the span of the union:

    maximise   Σ width + Σ OPEN_BYTES · max(0, 1 - size / target)  -  1.003 · U
    while      Σ weight <= budget

Kudu solves it in two passes: fractional bounds for each left-most rowset, then an exact knapsack
where a bound promises 5 % more. Here the exact knapsacks of *all* left-most rowsets are the rows of
one NumPy table. Rowsets come by ascending key_max, and each updates the rows of those that start no
later. n vector operations replace n² / 2 steps in Python, and the result is optimal: 0.06 s for 500
rowsets.

Invariants: Q1, Q2 and Q3 of `compaction.policy`.
Source: Kudu compaction policy; docs/design/kudu.md, "Choice of rowsets to merge".
Departures from Kudu: Q1. The CDF counts current data (base and REDO), the weight counts all bytes.
Rowsets of one key take part. The factor 1.003 always applies (Kudu exempts unions that exceed the
sum, which never gain).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from nyala.rowset.size import TARGET_BYTES
from nyala.tablet.compaction.plans import (
    MergePlan,
    RowSetLayout,
    better,
    open_bytes,
    output_count,
    work_bytes,
)

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

# One merge reads and writes at most this many rowsets of the target size: Kudu's 128 MB of 32 MB.
# At least 1 + 1 / GROWTH, or a full rowset and the company it needs would not fit into one merge.
BUDGET_ROWSETS: Final = 4

# Q1: a byte is rewritten into something twice as dense or twice as large, like the carry of a
# binary counter. Simulated with random keys in flushes of 1/8 of a target, up to 64 targets. Bytes
# rewritten per byte inserted, and average height: for 0.5: 4.3 and 7.2; 1: 5.8 and 5.2; 1.5: 9.6
# and 4.0; 3: 14 and 3.1; without limit: 408 and 1.0. One more rowset costs a look-up one more bloom
# filter; rewriting takes a core from others. So 1, and no limit once the tablet is `quiet`.
GROWTH: Final = 1.0

# Kudu's kSupportAdjust: of two merges that save the same, prefer the one without a non-overlapping
# neighbour.
SUPPORT_ADJUST: Final = 1.003

# The last possible join, of two rowsets to nine tenths of a target, saves OPEN_BYTES less 0.3 % of
# its bytes, and costs these bytes and WORK_BYTES: (1/32 - 0.003) / (0.9 + 1/8) = 0.028. Below 0.02
# nothing is gained.
MERGE_GAIN_MIN: Final = 0.02

# Weights are counted in 1/128 of the budget (1 MB of 128, as in Kudu), so the table is 129 wide. A
# rowset weighs at least one unit, so no merge opens more than 128 rowsets.
BUDGET_UNITS: Final = 128

# The table costs n² · 129 additions: 25 ms for 250 rowsets, 0.1 s for 500. More are split into
# neighbours.
ROWSETS_AT_ONCE: Final = 500

# How often the optimum is computed again without rowsets that Q1 forbids; seldom more than once.
ROUNDS: Final = 4


def choose_merge(
    rowsets: Sequence[RowSetLayout],
    *,
    target_bytes: int = TARGET_BYTES,
    budget_bytes: int | None = None,
    growth: float = GROWTH,
    gain_min: float = MERGE_GAIN_MIN,
) -> MergePlan | None:
    """The merge that saves most within the budget; None if none saves enough.

    budget_bytes: counts base and deltas. A rowset heavier than half of it counts as half; otherwise
        two such rowsets would overlap forever. Only then does a merge exceed the budget.
    Cost: 0.1 s for 500 rowsets, linear beyond.
    """
    assert target_bytes > 0 and growth > 0, (target_bytes, growth)
    budget = BUDGET_ROWSETS * target_bytes if budget_bytes is None else budget_bytes
    best: MergePlan | None = None
    ordered = sorted(rowsets, key=lambda r: (r.key_min, r.key_max, r.id))
    for start in range(0, len(ordered), ROWSETS_AT_ONCE):
        some = ordered[start : start + ROWSETS_AT_ONCE]
        if sum(r.available for r in some) >= 2:
            best = better(best, _Merge(some, target_bytes, budget, growth).best(gain_min))
    return best


class KeySpace:
    """Where each rowset is among the tablet's current data, counted in bytes before a key (the CDF).

    Keys are cut into cells: the points that bound a rowset (even numbers), and the gaps between
    them. A rowset's bytes are spread over its gaps as if its keys were evenly distributed. For
    that, keys count as 8-byte big-endian integers after the common prefix of its bounds. A rowset
    of one key has all of its bytes in that point.

    lower, upper: each rowset's cells [lower, upper).
    start, end:   its range in the CDF; width = end - start, the bytes of all rowsets in its key
                  range.
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
            # At least one byte: rows without bytes must be searched too.
            cells[lower : lower + len(parts)] += parts * max(1, rowset.base_bytes + rowset.redo_bytes)
        cdf = np.concatenate([[0.0], np.cumsum(cells)])
        self.start: Floats = cdf[self.lower]
        self.end: Floats = cdf[self.upper]
        self.width: Floats = self.end - self.start
        self.total = float(cdf[-1])

    def _spread(self, keys: list[bytes], rowset: RowSetLayout, lower: int, upper: int) -> Floats:
        """The share of the rowset in each of its cells."""
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
        # Bounds such as "a" and "a\0" are the same integer.
        total = steps.sum()
        parts[1::2] = steps / total if total else 1 / len(steps)
        return parts

    def bytes_within(self, sizes: Floats) -> Floats:
        """[r, q]: how many of rowset q's `sizes` are in the key range of r."""
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
    """The choice of one merge among rowsets in order of key_min."""

    def __init__(self, rowsets: Sequence[RowSetLayout], target: int, budget: int, growth: float) -> None:
        self._rowsets = rowsets
        self._target, self._growth = target, growth
        self._open, self._work = open_bytes(target), work_bytes(target)
        self._space = KeySpace(rowsets)
        self._sizes: Floats = np.array([r.size_bytes for r in rowsets], np.float64)
        self._rows: Floats = np.array([r.cut_bytes(target) for r in rowsets], np.float64)
        self._within = self._space.bytes_within(self._sizes)
        self._value = self._space.width + self._open * np.maximum(0.0, 1 - self._rows / target)
        unit = max(1.0, budget / BUDGET_UNITS)
        self._weight = np.clip(np.ceil(self._sizes / unit), 1, BUDGET_UNITS // 2).astype(np.int64)

    def best(self, gain_min: float) -> MergePlan | None:
        available = np.array([r.available for r in self._rowsets])
        candidates = self._with_company(np.flatnonzero(available))
        best: MergePlan | None = None
        for _ in range(ROUNDS):
            if len(candidates) < 2:
                break
            optimum = self._optimum(candidates)
            if len(optimum) < 2:
                break
            kept = self._with_company(optimum)
            plan = self._plan(kept)
            if plan is not None and plan.gain >= gain_min:
                best = better(best, plan)
            if len(kept) == len(optimum):
                if best is not None:
                    break
                # It makes as many rowsets as it takes, so it is useless: try without the heaviest.
                refused = optimum[np.argmax(self._sizes[optimum])]
            else:
                refused = np.setdiff1d(optimum, kept)
            candidates = self._with_company(np.setdiff1d(candidates, refused))
        return best

    def _with_company(self, chosen: Ints) -> Ints:
        """The largest subset of `chosen` in which each rowset has the company that Q1 demands.

        More company never hurts another rowset, so removing those with too little finds it in any
        order.
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
        # A rowset far above the target becomes several; that is not charged as a loss.
        outputs = max(1, round(float(np.minimum(self._rows[chosen], self._target).sum()) / self._target))
        saved = self._space.width[chosen].sum() - SUPPORT_ADJUST * span + self._open * (len(chosen) - outputs)
        gain = float(saved / (self._sizes[chosen].sum() + self._work))
        inputs = [self._rowsets[index] for index in chosen.tolist()]
        return MergePlan(tuple(r.id for r in inputs), gain, output_count(inputs, self._target))

    def _optimum(self, candidates: Ints) -> Ints:
        """The set with the greatest objective within the budget; empty if none exceeds 0.

        The objective is the module's, less OPEN_BYTES for the rowset that remains, so a set of one
        has none.
        """
        start, end = self._space.start[candidates], self._space.end[candidates]
        value, weight = self._value[candidates], self._weight[candidates]
        # Rows are ordered by start, so the rowsets that start no later than an item are the first
        # rows.
        row_order = np.argsort(start, kind="stable")
        item_order = np.argsort(end, kind="stable")
        starts = start[row_order]
        rows = np.searchsorted(starts, start, side="right")
        # table[a, w]: greatest value of rowsets that start no earlier than a and weigh no more than
        # w.
        table = np.zeros((len(candidates), BUDGET_UNITS + 1))
        best, leftmost, last = float(self._open), -1, -1
        for step, item in enumerate(item_order.tolist()):
            count, heavy = int(rows[item]), int(weight[item])
            part = table[:count]
            part[:, heavy:] = np.maximum(part[:, heavy:], part[:, :-heavy] + value[item])
            # No rowset so far ends later, so this is the union's span, or more for sets without the
            # item.
            saved = part[:, -1] - SUPPORT_ADJUST * (end[item] - starts[:count])
            top = int(np.argmax(saved))
            if saved[top] > best:
                best, leftmost, last = float(saved[top]), top, step
        if leftmost < 0:
            return np.array([], np.int64)
        items = [i for i in item_order[: last + 1].tolist() if start[i] >= starts[leftmost]]
        return np.sort(candidates[_knapsack(items, value, weight)])


def _knapsack(items: Sequence[int], value: Floats, weight: Ints) -> list[int]:
    """The most valuable items within BUDGET_UNITS; the lightest such set that one pass finds."""
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


def _common_prefix(one: bytes, other: bytes) -> int:
    """The number of bytes that both begin with."""
    length = min(len(one), len(other))
    differ = int.from_bytes(one[:length], "big") ^ int.from_bytes(other[:length], "big")
    return length - (differ.bit_length() + 7) // 8
