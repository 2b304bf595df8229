"""Scan tokens become few Spark partitions, of about as many rows each; none is lost, and large ones go by file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import open_database

import nyala
from nyala import handover
from nyala.catalog.leases import living_leases, open_remote_lease
from nyala.env import SYSTEM, Env, SystemRandomness, system_files
from nyala.errors import HistoryExpiredError
from nyala.scan import read_token
from nyala.spark import reader
from nyala.spark.reader import load_placed, pack, place
from nyala.tablet import read_path
from nyala.tablet.token import Token
from nyala.testing.clock import ManualClock


@given(sizes=st.lists(st.integers(1, 1000), max_size=200), partitions=st.integers(1, 16))
def test_every_token_in_exactly_one_partition(sizes: list[int], partitions: int) -> None:
    """A token left out would be missing rows, one twice would be rows twice."""
    tokens = [Token(b"%d" % i, size) for i, size in enumerate(sizes)]
    packed = pack(tokens, partitions)
    assert [data for group in packed for data in group] == [token.data for token in tokens]
    assert 1 <= len(packed) <= partitions
    rows = {token.data: token.rows for token in tokens}
    assert max(sum(rows[data] for data in group) for group in packed) <= (
        sum(sizes) / partitions + max(sizes, default=0)
    )


def test_a_read_has_two_partitions_a_core_unless_it_is_small() -> None:
    """A task costs as much as half a million cells: a small table is read by one, a large one by all cores."""
    cells = reader.CELLS_PER_TASK
    wanted = [
        reader.partitions_wanted(rows, 1, cores=4) for rows in (0, 1, cells, cells + 1, 3 * cells, 10**10)
    ]
    assert wanted == [1, 1, 1, 2, 3, 8]
    assert reader.partitions_wanted(cells, 16, cores=4) == 8
    assert reader.partitions_wanted(10, 0, cores=4) == 1


def test_a_large_tablet_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of one tablet is read by as many tasks as one of many; the rows of all tokens are those of the scan."""
    monkeypatch.setattr(read_path, "WINDOW_ROWS", 10)
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        for begin in (0, 50):
            table.insert({"k": list(range(begin, begin + 50)), "v": [0] * 50})
            table.flush()
        table.update({"k": list(range(0, 100, 7)), "v": [7] * 15})
        table.insert({"k": [100, 101], "v": [0, 0]})
        table.delete({"k": [3]})
        scan = table.scan()
        tokens = scan._tokens_in_pieces(4)
        assert len(scan.tokens()) == 1 and 4 <= len(tokens) <= 6
        assert max(token.rows for token in tokens) <= 40
        rows = pa.Table.from_batches(batch for token in tokens for batch in read_token(token.data))
        assert rows.sort_by("k").equals(scan.to_arrow().sort_by("k"))
        assert len(table.scan(order_by_key=True)._tokens_in_pieces(4)) == 1
        assert len(table.scan(limit=5)._tokens_in_pieces(4)) == 1


def test_a_task_renews_its_lease_as_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that takes longer than its lease keeps its files; one that stood still for longer is told so."""
    clock = ManualClock()
    env = Env(system_files(), clock, SystemRandomness())
    monkeypatch.setattr(reader, "SYSTEM", env)
    path = str(tmp_path / "s")
    with open_database(tmp_path / "s", clock=clock) as db:
        db.create_table("t", {"k": "int64"}, ["k"])
        lease = handover.remote_lease(path, 100, env)
        keep = reader.HeldLease(path, lease.name, 100).keeper()
        for _ in range(50):
            keep()
            clock.advance(11)
            assert len(living_leases(env, path, clock.now_us())) == 1
        clock.advance(100)
        with pytest.raises(HistoryExpiredError, match="load again"):
            keep()


def test_large_tokens_go_by_file_which_lives_as_long_as_the_lease(tmp_path: Path) -> None:
    """A gigabyte in memory must not be pickled through the driver; nor stay behind when the job is over."""
    path = str(tmp_path / "s")
    with nyala.connect(path) as db:
        db.create_table("t", {"k": "int64"}, ["k"])
    lease = handover.remote_lease(path, 60)
    (group,) = place(path, lease.name, [[b"small", b"x" * 100]], inline_max_bytes=10)
    assert group[0] == b"small"
    assert isinstance(group[1], str) and load_placed(group[1]) == b"x" * 100
    open_remote_lease(SYSTEM, path, lease.name).release()
    with pytest.raises(HistoryExpiredError, match="load again"):
        load_placed(group[1])
    assert list((tmp_path / "s" / "leases").iterdir()) == []
