"""A check takes the memory of a window of rows, whatever the rowset holds, and finds at the borders of windows what it
finds within them."""

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
    """The most bytes that Arrow's two pools and NumPy had allocated, each at its own moment."""

    bytes = 0


# What was allocated from them may live on in a cache: they must outlive it.
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
    assert len(takers) > 1, "what is measured would be no more than the pool's own module takes"
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
    """(columns of a key of two numbers, how they lie being said; what makes them of ascending numbers)."""
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
    """An eighth of the window, and hardly a cache: what both may take is a part of the rowset, as of one of 4 million
    rows."""
    monkeypatch.setattr(memory, "_RANGE_ROWS_MAX", 1 << 14)
    monkeypatch.setattr(check, "_CACHE_BYTES", 1 << 21)


@pytest.mark.parametrize("name", each(3, list(KEYS)))
def test_a_check_takes_the_memory_of_a_window_of_rows(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All encoded keys, whether the filter has them, and when each row came and went: 100 bytes a row and more, of a
    rowset of any size."""
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
        # Base, UNDO (when each row came), REDO (a value or a death for each), as they are in memory.
        total_bytes = keys.nbytes + ROWS * (8 + 17 + 24)
        del keys, rowset
    assert total_bytes > 2 * BOUND_BYTES
    with measured(monkeypatch) as peak:
        report = nyala.check(tmp_path / "s")
    assert report.ok and report.rows == ROWS
    assert peak.bytes < BOUND_BYTES, f"{peak.bytes:,} bytes, of a rowset of {total_bytes:,}"


def test_keys_in_two_rowsets_are_compared_a_window_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two rowsets over the same keys, few in the one, many in the other; of some keys both have a row, one of them
    dead."""
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
