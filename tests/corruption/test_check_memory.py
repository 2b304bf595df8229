"""A check reads a range of rows at a time, so its memory does not grow with the rowset."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.sampled import each
from tests.support import open_database

import nyala
from nyala.cfile import memory
from nyala.tablet import check


class Peak:
    """The peak of the bytes in Arrow's two pools and NumPy: the sum of the three peaks."""

    bytes = 0


# Kept, because memory that was allocated from a pool may stay in a cache.
_POOLS: list[pa.MemoryPool] = []


@contextmanager
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peak]:
    peak = Peak()
    before = pa.default_memory_pool()
    arrow, blocks = pa.proxy_memory_pool(before), pa.proxy_memory_pool(memory.pool())
    _POOLS.extend((arrow, blocks))
    gc.collect()
    their_own = memory.pool
    takers = [
        m for name, m in sys.modules.items() if name.startswith("nyala.") and vars(m).get("pool") is their_own
    ]
    assert len(takers) > 1, "no other module uses the pool, so nothing would be measured"
    with monkeypatch.context() as patch:
        for module in takers:
            patch.setattr(module, "pool", lambda: blocks)
        pa.set_memory_pool(arrow)
        tracemalloc.start()
        try:
            yield peak
            peak.bytes = arrow.max_memory() + blocks.max_memory() + tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(before)


def numbers(encoding: str) -> tuple[dict[str, object], Callable[[np.ndarray], dict[str, pa.Array]]]:
    """Return the columns of a key of two numbers, and a function that makes keys of ascending numbers."""
    types = {"a": nyala.column("int64", encoding=encoding), "b": nyala.column("int32", encoding=encoding)}
    return types, lambda n: {"a": pa.array(n // 7), "b": pa.array(n % 7, pa.int32())}


KEYS = {
    "sparse": numbers("for"),
    "dense": numbers("plain"),
    "text": (
        {"k": nyala.column("string", encoding="plain")},
        lambda n: {"k": pa.array(np.char.zfill(n.astype("S"), 20)).cast(pa.string())},
    ),
}
ROWS = 1 << 19
BOUND_BYTES = 16_000_000


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the range of rows and the cache small, so that they are small parts of the test's rowset."""
    monkeypatch.setattr(memory, "_RANGE_ROWS_MAX", 1 << 14)
    monkeypatch.setattr(check, "_CACHE_BYTES", 1 << 21)


@pytest.mark.parametrize("name", each(3, list(KEYS)))
def test_a_check_takes_the_memory_of_a_range_of_rows(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The keys and the change timestamps of all rows would take several times the limit."""
    small(monkeypatch)
    types, make = KEYS[name]
    n = np.arange(ROWS)
    with open_database(tmp_path / "s", direct_commit_bytes=1 << 20) as db:
        table = db.create_table("t", {**types, "v": "int64"}, list(types))
        table.insert(pa.table({**make(n), "v": n}))
        table.update(pa.table({**make(n[::2]), "v": -n[::2]}))
        table.delete(pa.table(make(n[1::2])))
        db.flush()
        (rowset,) = db._writer().root.table("t").tablets[0].rowsets
        assert rowset.undo and rowset.redo and rowset.row_count == ROWS
        assert rowset.keys.has_all_encoded == (name == "dense")
        keys = rowset.keys.read(0, ROWS)
        # The size in memory of the base data, UNDO (an insert per row) and REDO (a value or a delete per row).
        total_bytes = keys.nbytes + ROWS * (8 + 17 + 24)
        del keys, rowset
    assert total_bytes > 2 * BOUND_BYTES
    with measured(monkeypatch) as peak:
        report = nyala.check(tmp_path / "s")
    assert report.ok and report.rows == ROWS
    assert peak.bytes < BOUND_BYTES, f"{peak.bytes:,} bytes, of a rowset of {total_bytes:,}"


def test_keys_in_two_rowsets_are_compared_by_ranges_of_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two rowsets have the same bounds. Some keys are in both, as a dead row and a live row."""
    small(monkeypatch)
    n = np.arange(ROWS)
    types, make = KEYS["sparse"]
    with open_database(tmp_path / "s", direct_commit_bytes=1 << 20) as db:
        table = db.create_table("t", types, list(types))
        table.insert(pa.table(make(n)))
        some = n[:: ROWS // 1000]
        table.delete(pa.table(make(some)))
        db.flush()
        table.insert(pa.table(make(some)))
        db.flush()
        assert len(db._writer().root.table("t").tablets[0].rowsets) == 2
    with measured(monkeypatch) as peak:
        assert nyala.check(tmp_path / "s").ok
    assert peak.bytes < BOUND_BYTES, f"{peak.bytes:,} bytes"
