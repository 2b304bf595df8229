"""Chooses the rowsets of a tablet whose merge saves the most reading within a budget.

This is Kudu's objective, in bytes where Kudu uses fractions of the tablet. Σ adds over the rowsets
of a merge:

    maximise   Σ width + Σ OPEN_BYTES · max(0, 1 - size / target)  -  1.003 · U
    while      Σ weight <= budget

    width    of a merged rowset: the bytes of all rowsets of the tablet in its key range
    U        the bytes of all rowsets of the tablet from the first to the last key of the merge
    size     the number of bytes of base data of a rowset
    target   the size of a full rowset
    weight   the number of bytes that the merge reads of a rowset
    budget   the greatest number of bytes that a merge may read
    1.003    decides between merges that save the same: the one with the smaller U wins

Σ width is the cost of reads in the key ranges of the rowsets. U is subtracted because it is the
cost of these reads after the merge.

OPEN_BYTES is the cost of opening a rowset, as a number of bytes to read. The second sum is the cost
that a merge saves because small rowsets become fewer; a full rowset adds 0 to it.

The best set is found by dynamic programming over a NumPy table (a knapsack problem). The table has
a row for each rowset and a column for each weight. The cell (r, w) holds the greatest sum of the
two Σ terms that a set of rowsets can reach. The set has only rowsets whose first key is not below
that of rowset r, and a total weight of at most w.

Rowsets are added by ascending last key. Each one updates its own row, and the rows of the rowsets
with a smaller first key. Then 1.003 · U is subtracted from the best sum of each of these rows,
where U is the data from the first key of the row's rowset to the last key of the added rowset. The
greatest difference wins. The result is optimal, and takes 0.06 s for 500 rowsets.

Invariants: Q1 (growth), Q2 (progress) and Q3 (reserved rowsets) of `compaction.policy`.
Source: Kudu compaction policy; docs/design/kudu.md, "Choice of rowsets to merge".
Differences from Kudu: a rowset is merged only if the other rowsets of the merge have enough data
(Q1). Widths count current data (base and REDO), but the weight counts all bytes. Rowsets with a
single key may be merged. The factor 1.003 applies to all merges.
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

# One merge reads and writes at most this many rowsets of the target size, as in Kudu. It must be at least
# 1 + 1 / GROWTH, so that a full rowset and the other inputs that Q1 requires fit into one merge.
BUDGET_ROWSETS: Final = 4

# For Q1. With 1, the data near a key, or the rowset, at least doubles with each rewrite. A simulation with
# random keys, and flushes of 1/8 of a target up to 64 targets of data, gave these results:
#     growth   bytes rewritten per inserted byte   average number of rowsets to search for a key
#     0.5      4.3                                 7.2
#     1        5.8                                 5.2
#     1.5      9.6                                 4.0
#     3        14                                  3.1
#     no limit 408                                 1.0
# One more rowset costs a look-up only one more bloom filter, so 1 is best. A `quiet` tablet has no limit.
GROWTH: Final = 1.0

# Kudu's kSupportAdjust: of two merges that save the same, prefer the one without a neighbour that does
# not overlap the others.
SUPPORT_ADJUST: Final = 1.003

# Merges that gain less are useless. The smallest useful merge joins two rowsets to nine tenths of a target.
# It saves OPEN_BYTES less 0.3 % of its bytes, and costs its bytes and WORK_BYTES:
# (1/32 - 0.003) / (0.9 + 1/8) = 0.028.
MERGE_GAIN_MIN: Final = 0.02

# Weights are counted in 1/128 of the budget, as in Kudu, so the table has 129 columns. A rowset weighs at
# least one unit, so no merge opens more than 128 rowsets.
BUDGET_UNITS: Final = 128

# The table costs n² · 129 additions for n rowsets: 0.1 s for 500. A tablet with more rowsets is divided
# into ranges of keys.
ROWSETS_AT_ONCE: Final = 500

# How often the optimum is computed again without rowsets that Q1 forbids. More than once is rare.
ROUNDS: Final = 4


def choose_merge(
    rowsets: Sequence[RowSetLayout],
    *,
    target_bytes: int = TARGET_BYTES,
    growth: float = GROWTH,
    gain_min: float = MERGE_GAIN_MIN,
) -> MergePlan | None:
    """Return the merge that saves the most reading for its cost; None if no merge is worth it.

    The inputs may have at most `BUDGET_ROWSETS` times `target_bytes`. Exception: a rowset with more
    than half of this budget counts as half, so that two such rowsets can be merged.

    target_bytes: the size of a full rowset.
    growth:   a rowset of n bytes is merged only with at least n/growth bytes of other rowsets.
    gain_min: the least gain of a merge: bytes of reading that it saves / bytes that it rewrites.
    Cost: 0.1 s for each 500 rowsets.
    """
    budget = BUDGET_ROWSETS * target_bytes
    best: MergePlan | None = None
    ordered = sorted(rowsets, key=lambda r: (r.key_min, r.key_max, r.id))
    for start in range(0, len(ordered), ROWSETS_AT_ONCE):
        some = ordered[start : start + ROWSETS_AT_ONCE]
        if sum(r.available for r in some) >= 2:
            best = better(best, _Merge(some, target_bytes, budget, growth).best(gain_min))
    return best


class KeySpace:
    """The range of each rowset in the tablet's data, counted in bytes.

    A key has the position x if x bytes of the tablet's data are before it.
    The first and last keys of all rowsets divide the key space into cells. Cells with even numbers
    are these keys themselves, cells with odd numbers the gaps between them. The bytes of a rowset
    are distributed over its gaps as if its keys were evenly distributed between its first and last
    key. A rowset with a single key has all of its bytes in the cell of this key.

    lower, upper: the cells [lower, upper) of each rowset.
    start, end:   the positions at which each rowset begins and ends.
    width:        end - start, the bytes of all rowsets in its key range.
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
            # At least one byte, because look-ups also search rowsets whose columns take no bytes.
            cells[lower : lower + len(parts)] += parts * max(1, rowset.base_bytes + rowset.redo_bytes)
        cdf = np.concatenate([[0.0], np.cumsum(cells)])
        self.start: Floats = cdf[self.lower]
        self.end: Floats = cdf[self.upper]
        self.width: Floats = self.end - self.start
        self.total = float(cdf[-1])

    def _spread(self, keys: list[bytes], rowset: RowSetLayout, lower: int, upper: int) -> Floats:
        """Estimate how a rowset's bytes are distributed over its key range.

        Returns: for each cell of the range, the share of the rowset's bytes in it. The cells are the
                 first and last keys of all rowsets, and the gaps between them.

        keys:         the first and last keys of all rowsets, ascending.
        lower, upper: the numbers of the rowset's first and last cell.
        """
        parts = np.zeros(upper - lower + 1)
        if lower == upper:
            parts[0] = 1.0
            return parts
        # The distance between two keys is computed from 8 bytes of each, as big-endian integers.
        # These bytes follow the common prefix of the rowset's first and last key.
        prefix = _common_prefix(rowset.key_min, rowset.key_max)
        tails = self._tails.get(prefix)
        if tails is None:
            data = b"".join(key[prefix : prefix + 8].ljust(8, b"\0") for key in keys)
            tails = self._tails[prefix] = np.frombuffer(data, ">u8").astype(np.uint64)
        steps = np.diff(tails[lower // 2 : upper // 2 + 1]).astype(np.float64)
        total = steps.sum()  # 0 if the bounds are the same integer, such as "a" and "a\0"
        parts[1::2] = steps / total if total else 1 / len(steps)
        return parts

    def bytes_within(self, sizes: Floats) -> Floats:
        """Return how many bytes each rowset has in the key range of each other rowset, as a matrix.

        Element [r, q] is the number of bytes of rowset q in the key range of rowset r.

        sizes: the number of bytes of each rowset.
        """
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
    """Chooses the merge that saves the most reading, among rowsets that are ordered by key_min."""

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
        candidates = self._with_enough_others(np.flatnonzero(available))
        best: MergePlan | None = None
        for _ in range(ROUNDS):
            if len(candidates) < 2:
                break
            optimum = self._optimum(candidates)
            if len(optimum) < 2:
                break
            kept = self._with_enough_others(optimum)
            plan = self._plan(kept)
            if plan is not None and plan.gain >= gain_min:
                best = better(best, plan)
            if len(kept) == len(optimum):
                if best is not None:
                    break
                # The merge would write as many rowsets as it reads. Try without the heaviest rowset.
                refused = optimum[np.argmax(self._sizes[optimum])]
            else:
                refused = np.setdiff1d(optimum, kept)
            candidates = self._with_enough_others(np.setdiff1d(candidates, refused))
        return best

    def _with_enough_others(self, chosen: Ints) -> Ints:
        """Return the largest subset of `chosen` that gives each rowset enough other data.

        A rowset has enough other data in two cases. Let n be its number of bytes, divided by the
        parameter `growth`:

        - The other rowsets have at least n bytes of data in the rowset's key range.
        - The merged rowset is at least n bytes larger than this rowset. Only the part up to the
          target size counts, because larger output is cut into several rowsets.

        This rule prevents that each small flush rewrites a large rowset.

        chosen: indices of rowsets.
        """
        # A rowset that breaks Q1 also breaks it with fewer others. So the order of removal is irrelevant.
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
        # A rowset much larger than the target becomes several rowsets. This does not count as a loss.
        outputs = max(1, round(float(np.minimum(self._rows[chosen], self._target).sum()) / self._target))
        saved = self._space.width[chosen].sum() - SUPPORT_ADJUST * span + self._open * (len(chosen) - outputs)
        gain = float(saved / (self._sizes[chosen].sum() + self._work))
        inputs = [self._rowsets[index] for index in chosen.tolist()]
        return MergePlan(tuple(r.id for r in inputs), gain, output_count(inputs, self._target))

    def _optimum(self, candidates: Ints) -> Ints:
        """Choose from `candidates` the rowsets whose merge saves the most bytes of reading.

        Only merges that read at most the budget (a number of bytes) are considered. The saved bytes
        are computed by the formula in the module's docstring, minus the cost of opening the rowset
        that the merge writes.

        candidates: indices of rowsets.
        Returns: the indices of the chosen rowsets; empty if no merge saves reading.
        """
        start, end = self._space.start[candidates], self._space.end[candidates]
        value, weight = self._value[candidates], self._weight[candidates]
        # Rows are ordered by start. So the rows that start no later than an item are the first rows.
        row_order = np.argsort(start, kind="stable")
        item_order = np.argsort(end, kind="stable")
        starts = start[row_order]
        rows = np.searchsorted(starts, start, side="right")
        # table[a, w]: the greatest value of rowsets that start no earlier than row a and weigh at most w.
        table = np.zeros((len(candidates), BUDGET_UNITS + 1))
        best, leftmost, last = float(self._open), -1, -1
        for step, item in enumerate(item_order.tolist()):
            count, heavy = int(rows[item]), int(weight[item])
            part = table[:count]
            part[:, heavy:] = np.maximum(part[:, heavy:], part[:, :-heavy] + value[item])
            # No rowset so far ends later than the item. So this is U, or more than U for sets without the item.
            saved = part[:, -1] - SUPPORT_ADJUST * (end[item] - starts[:count])
            top = int(np.argmax(saved))
            if saved[top] > best:
                best, leftmost, last = float(saved[top]), top, step
        if leftmost < 0:
            return np.array([], np.int64)
        items = [i for i in item_order[: last + 1].tolist() if start[i] >= starts[leftmost]]
        return np.sort(candidates[_knapsack(items, value, weight)])


def _knapsack(items: Sequence[int], value: Floats, weight: Ints) -> list[int]:
    """Return the items with the greatest total value and a total weight of at most BUDGET_UNITS.

    items: indices into `value` and `weight`.
    """
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
    """Return the number of bytes with which both byte strings begin alike."""
    length = min(len(one), len(other))
    differ = int.from_bytes(one[:length], "big") ^ int.from_bytes(other[:length], "big")
    return length - (differ.bit_length() + 7) // 8
