"""Rows and keys of lineitem for the steps of `ingest_lookup`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

import numpy as np
import pyarrow as pa

from bench import data

CHANGED = "l_quantity"
ZIPF_EXPONENT = 0.99  # as YCSB has it
HOT_STRIDE = 7_368_787  # a prime, so that frequent rows are far from each other


class Rows:
    """Rows and keys for the steps, the same for every store. The table is a memory map."""

    def __init__(self, table: pa.Table, new_lines: Mapping[str, int]) -> None:
        """new_lines: for each step, the number that it adds to line numbers to make new keys."""
        self.table = table
        self._new_lines = new_lines

    def keys(self, places: np.ndarray) -> pa.Table:
        return self.table.select(data.LINEITEM_KEY).take(pa.array(places))

    def rows(self, places: np.ndarray) -> pa.Table:
        return self.table.take(pa.array(places)).combine_chunks()

    def new(self, places: np.ndarray, step: str) -> pa.Table:
        """Return copies of rows with new keys. The keys are distinct if no row number occurs twice
        in a step.
        """
        rows = self.rows(places)
        line = rows.column("l_linenumber").to_numpy() + np.int32(self._new_lines[step])
        at = rows.column_names.index("l_linenumber")
        return rows.set_column(at, rows.schema.field(at), pa.array(line, rows.schema.field(at).type))

    def half_new(self, old: np.ndarray, new: np.ndarray, step: str) -> pa.Table:
        """Return rows in random order: half of them new, and half existing with a changed value."""
        rows = self.rows(old)
        at = rows.column_names.index(CHANGED)
        changed = pa.array([Decimal("17.00")] * len(rows), rows.schema.field(at).type)
        rows = rows.set_column(at, rows.schema.field(at), changed)
        both = pa.concat_tables([rows, self.new(new, step)]).combine_chunks()
        return both.take(pa.array(np.random.default_rng(len(both)).permutation(len(both))))

    def spread(self, lower: int, upper: int) -> np.ndarray:
        """Return row numbers `lower` to `upper` - 1 of an order that jumps over the table and has
        each row once.

        The order is computed by a stride. A shuffled array of row numbers would count as memory of
        the store.
        """
        total = self.table.num_rows
        stride = max(1, int(total * 0.6180339887))
        while math.gcd(stride, total) > 1:
            stride += 1
        return np.arange(lower, upper, dtype=np.int64) * stride % total

    def zipfian(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return `count` distinct row numbers, drawn by Zipf's law. Frequent rows are far from each
        other.
        """
        total, power = self.table.num_rows, 1 - ZIPF_EXPONENT
        found = np.empty(0, np.int64)
        while len(found) < count:
            ranks = ((total**power - 1) * rng.random(count) + 1) ** (1 / power)
            places = np.minimum(ranks.astype(np.int64) - 1, total - 1) * HOT_STRIDE % total
            drawn = np.concatenate([found, places])
            found = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        return found[:count]
