"""What scans keep: nothing that is read now and then, all that is asked for often; and no block is decoded twice at
once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.cfile.memory import MemoryFiles

from nyala.cfile.block_source import BlockSource
from nyala.cfile.cache import BlockCache
from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.first_pass import PASSES, FirstPass
from nyala.cfile.read_stats import ReadStats
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.errors import CorruptionError
from nyala.schema.types import parse_type

COLUMN = ColumnKey(BASE, 0, 10)
ROWS = 1000  # in 16 blocks of 64
VALUES = pa.array(range(ROWS))


@pytest.fixture
def cache() -> BlockCache:
    return BlockCache(1 << 20)


@pytest.fixture
def column(files: MemoryFiles, cache: BlockCache) -> ColumnReader:
    with CFileWriter(files, "f") as writer:
        writer.append_column(ColumnWriteSpec(COLUMN, parse_type("int64"), "plain", "none", 512), VALUES)
        writer.finish()
    found = CFileReader(files, "f", cache).column(COLUMN)
    assert found is not None and found.block_count == 16
    return found


def scan(column: ColumnReader, lower: int, upper: int) -> ReadStats:
    stats = ReadStats()
    assert column.read(lower, upper, stats=stats, scanning=True).equals(VALUES[lower:upper])
    return stats


def test_a_table_that_is_scanned_now_and_then_leaves_nothing_behind(
    column: ColumnReader, cache: BlockCache
) -> None:
    """One report over everything would push out what look-ups need, and fill memory that nothing asks for again: also
    one that reads the table several times."""
    for _ in range(PASSES):
        assert scan(column, 0, ROWS).blocks_read == 16
        assert len(cache) == 0
    assert scan(column, 0, ROWS).blocks_read == 16
    assert len(cache) == 16
    assert scan(column, 0, ROWS) == ReadStats(cache_hits=16)


def test_a_block_that_is_scanned_in_parts_is_decoded_once(column: ColumnReader, cache: BlockCache) -> None:
    """Windows of a scan are smaller than blocks of narrow values: each part would decode all of its block."""
    for _ in range(PASSES):
        read = [scan(column, lower, lower + 16) for lower in range(0, 64, 16)]
        assert [stats.blocks_read for stats in read] == [1, 0, 0, 0]
        assert len(cache) == 0, "after the last part nobody needs it"
    read = [scan(column, lower, lower + 16) for lower in range(0, 64, 16)]
    assert [stats.blocks_read for stats in read] == [1, 0, 0, 0]
    assert len(cache) == 1


def test_what_a_look_up_read_stays_when_a_scan_comes_by(column: ColumnReader, cache: BlockCache) -> None:
    """A scan would throw out the blocks that `get` lives on."""
    assert column.singles.gather(np.array([70])).to_pylist() == [70]
    assert len(cache) == 1
    for lower in range(64, 128, 16):
        assert scan(column, lower, lower + 16) == ReadStats(cache_hits=1)
    assert len(cache) == 1


def test_who_reads_past_the_cache_is_no_look_up(column: ColumnReader, cache: BlockCache) -> None:
    """After a check or a compaction the next scan would keep all that it reads."""
    assert column.read(0, ROWS, fill_cache=False).equals(VALUES)
    scan(column, 0, ROWS)
    assert len(cache) == 0


def test_a_scan_that_picks_rows_keeps_nothing_either(column: ColumnReader, cache: BlockCache) -> None:
    """A selective scan of everything decodes everything: that is no reason to keep it."""
    rows = np.array([3, 500, 501])
    for _ in range(PASSES):
        assert column.singles.gather(rows, scanning=True).to_pylist() == [3, 500, 501]
        assert len(cache) == 0
    assert column.singles.gather(rows, scanning=True).to_pylist() == [3, 500, 501]
    assert len(cache) == 2


def held(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> tuple[threading.Event, list[int]]:
    """Decoding stops until the event is set, then does `act`; the blocks that were decoded."""
    go, decoded = threading.Event(), []
    real = BlockSource.decode

    def slow(self: BlockSource, data: pa.Buffer, block: int, offset: int, as_: Any) -> pa.Array:
        decoded.append(block)
        assert go.wait(30)
        act()
        return real(self, data, block, offset, as_)

    monkeypatch.setattr(BlockSource, "decode", slow)
    return go, decoded


def two_at_once(column: ColumnReader, go: threading.Event) -> list[Any]:
    """Two threads scan the first block, the second one when the first is decoding it; results or errors."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(column.read, 0, 64, scanning=True)
        while not column._source._first_pass._decoding:
            pass
        second = pool.submit(column.read, 0, 64, scanning=True)
        (decoding,) = column._source._first_pass._decoding.values()
        while decoding.event is None:
            pass
        go.set()
        return [future.exception() or future.result() for future in (first, second)]


def test_threads_that_want_one_block_decode_it_once(
    column: ColumnReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring windows are read at the same time; of a block that both lie in each would do all of the work."""
    go, decoded = held(monkeypatch, lambda: None)
    for found in two_at_once(column, go):
        assert found.equals(VALUES[:64])
    assert decoded == [0]


def test_an_error_reaches_all_who_wait(column: ColumnReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread would wait for ever for a block that another one failed to decode, or take it for read."""

    def fail() -> None:
        raise CorruptionError("no such block", "f", 0)

    go, _ = held(monkeypatch, fail)
    assert [type(found) for found in two_at_once(column, go)] == [CorruptionError, CorruptionError]
    monkeypatch.undo()
    assert not column._source._first_pass._decoding
    assert scan(column, 0, 64).blocks_read == 1


def test_a_thread_that_fails_fails_what_is_its_own() -> None:
    """A block that has landed and is not kept may be another thread's by then: it would lose what it read well, and
    who waits for it would get the error of a file's other end."""
    blocks: FirstPass[str] = FirstPass()
    first, _ = blocks.claim(["read", "damaged"])
    blocks.land(first, "read", "by the first")
    second, _ = blocks.claim(["read"])
    _, waiting = blocks.claim(["read", "damaged"])
    error = CorruptionError("damaged", "f", 0)
    blocks.fail(first, error)
    blocks.land(second, "read", "by the second")
    assert waiting["read"].result() == "by the second"
    with pytest.raises(CorruptionError, match="damaged"):
        waiting["damaged"].result()
    assert not blocks._decoding
