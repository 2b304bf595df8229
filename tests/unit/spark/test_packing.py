"""Scan tokens are packed into few partitions with about equal numbers of rows. Large tokens are
stored in files.
"""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import open_database

import nyala
from nyala.api.scan import read_token
from nyala.catalog.leases import living_leases, open_remote_lease
from nyala.env import SYSTEM, Env, SystemRandomness, system_files
from nyala.errors import HistoryExpiredError
from nyala.handover import commits as handover
from nyala.objects import address
from nyala.objects.address import Address
from nyala.spark.source import reader
from nyala.spark.source.changes import change_schema, plan_changes, read_changes
from nyala.spark.source.options import ChangeOptions, ReadOptions
from nyala.spark.source.reader import FileRange, load_token, pack, store_tokens
from nyala.spark.types import arrow_schema, spark_schema
from nyala.tablet.scan import read_path
from nyala.tablet.scan.token import Token
from nyala.testing.clock import ManualClock


@given(sizes=st.lists(st.integers(1, 1000), max_size=200), partitions=st.integers(1, 16))
def test_every_token_in_exactly_one_partition(sizes: list[int], partitions: int) -> None:
    tokens = [Token(b"%d" % i, size) for i, size in enumerate(sizes)]
    packed = pack(tokens, partitions)
    assert [data for group in packed for data in group] == [token.data for token in tokens]
    assert 1 <= len(packed) <= partitions
    rows = {token.data: token.rows for token in tokens}
    assert max(sum(rows[data] for data in group) for group in packed) <= (
        sum(sizes) / partitions + max(sizes, default=0)
    )


@pytest.mark.parametrize(
    ("sizes", "packed"),
    [
        ([10, 10, 10, 90], [[10, 10, 10], [90]]),
        ([90, 10, 10, 10], [[90], [10, 10, 10]]),
        ([40, 40, 10, 10], [[40], [40, 10, 10]]),
    ],
)
def test_a_large_token_is_alone_in_its_partition(sizes: list[int], packed: list[list[int]]) -> None:
    """If it had others with it, one task would read nearly all rows."""
    tokens = [Token(b"%d" % size, size) for size in sizes]
    assert [[int(data) for data in group] for group in pack(tokens, 2)] == packed


def test_a_read_has_two_partitions_a_core_unless_it_is_small() -> None:
    cells = reader.CELLS_PER_TASK
    expected = [
        reader.partition_count(rows, 1, cores=4) for rows in (0, 1, cells, cells + 1, 3 * cells, 10**10)
    ]
    assert expected == [1, 1, 1, 2, 3, 8]
    assert reader.partition_count(cells, 16, cores=4) == 8
    assert reader.partition_count(10, 0, cores=4) == 1


def test_a_large_tablet_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens together have the rows of the scan."""
    monkeypatch.setattr(read_path, "SPLIT_ROWS", 10)
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        for begin in (0, 50):
            table.insert({"k": list(range(begin, begin + 50)), "v": [0] * 50})
            table.flush()
        table.update({"k": list(range(0, 100, 7)), "v": [7] * 15})
        table.insert({"k": [100, 101], "v": [0, 0]})
        table.delete({"k": [3]})
        scan = table.scan()
        tokens = scan._engine().tokens(4)
        assert len(scan.tokens()) == 1 and 4 <= len(tokens) <= 6
        assert max(token.rows for token in tokens) <= 40
        rows = pa.Table.from_batches(batch for token in tokens for batch in read_token(token.data))
        assert rows.sort_by("k").equals(scan.to_arrow().sort_by("k"))
        assert len(table.scan(order_by_key=True)._engine().tokens(4)) == 1
        assert len(table.scan(limit=5)._engine().tokens(4)) == 1


def test_a_task_renews_its_lease_as_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read may take longer than its lease. A read that pauses for longer gets an error."""
    clock = ManualClock()
    env = Env(system_files(), clock, SystemRandomness())
    monkeypatch.setattr(reader, "SYSTEM", env)
    monkeypatch.setattr(address, "SYSTEM", env)
    path = str(tmp_path / "s")
    with open_database(tmp_path / "s", clock=clock) as db:
        db.create_table("t", {"k": "int64"}, ["k"])
        lease = handover.remote_lease(path, 100, env)
        keep = reader.HeldLease(Address(path), lease.name, 100).keeper()
        for _ in range(50):
            keep()
            clock.advance(11)
            assert len(living_leases(env, path, clock.now_us())) == 1
        clock.advance(100)
        with pytest.raises(HistoryExpiredError, match="load again"):
            keep()


def test_large_tokens_are_stored_in_a_file_of_the_lease(tmp_path: Path) -> None:
    """Large tokens are not pickled, and their file is removed with the lease."""
    path = str(tmp_path / "s")
    with nyala.connect(path) as db:
        db.create_table("t", {"k": "int64"}, ["k"])
    lease = handover.remote_lease(path, 60)
    (group,) = store_tokens(Address(path), lease.name, [[b"small", b"x" * 100]], inline_max_bytes=150)
    assert group[0] == b"small"
    assert isinstance(group[1], FileRange) and load_token(group[1], Address(path)) == b"x" * 100
    open_remote_lease(SYSTEM, path, lease.name).release()
    with pytest.raises(HistoryExpiredError, match="load again"):
        load_token(group[1], Address(path))
    assert list((tmp_path / "s" / "leases").iterdir()) == []


@given(
    st.lists(st.lists(st.binary(max_size=300), max_size=8), max_size=6),
    st.integers(0, 2000),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_pickled_size_of_a_partition_is_bounded(
    tmp_path: Path, groups: list[list[bytes]], limit: int, together: bool
) -> None:
    """Many small tokens are bounded too. Their order is kept, and each group needs one file at
    most.
    """
    path = str(tmp_path)
    lease = handover.remote_lease(path, 60)
    placed = store_tokens(Address(path), lease.name, groups, limit, together=together)
    assert [[load_token(one, Address(path)) for one in group] for group in placed] == groups
    for group in [list(itertools.chain(*placed))] if together else placed:
        inline = [one for one in group if isinstance(one, bytes)]
        assert not inline or len(pickle.dumps(inline)) <= limit
        assert len({one.path for one in group if isinstance(one, FileRange)}) <= 1
        # The tokens in the file did not fit into the limit.
        filed = [one.size for one in group if isinstance(one, FileRange)]
        assert not filed or sum(map(len, inline)) + min(filed) + 64 * len(group) > limit
    lease.release()


@pytest.mark.parametrize("what", ["rows", "changes", "first changes"])
def test_a_partition_of_many_tablets_is_pickled_in_a_megabyte(tmp_path: Path, what: str) -> None:
    """Eight tablets with 400 kB in memory each, and one task that reads all of them."""
    path = str(tmp_path / "s")
    with nyala.connect(path, maintenance=False) as db:
        table = db.create_table(
            "t", {"k": "int64", "v": "string"}, ["k"], [nyala.hash_partition("k", buckets=8)]
        )
        begun = 0 if what == "first changes" else db.now()
        table.insert({"k": list(range(32_000)), "v": [f"{k:0100}" for k in range(32_000)]})
        made: list[Any]
        if what != "rows":
            options = ChangeOptions(path, "t", partitions=1)
            schema = spark_schema(change_schema(options))
            made = plan_changes(db, options, schema, begun, db.now())
            read = read_changes(made[0], options, arrow_schema(schema))
        else:
            schema = spark_schema(table.schema)
            source = reader.NyalaReader(ReadOptions(path, "t", partitions=1), schema, None)
            made = source.partitions()
            read = source.read(made[0])
        assert len(made) == 1 and len(pickle.dumps(made[0])) <= 1 << 20
        assert sum(batch.num_rows for batch in read) == 32_000
