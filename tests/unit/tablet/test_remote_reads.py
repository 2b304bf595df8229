"""Stores with data files in a bucket return the same results as a folder, in few rounds of requests."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.remote import DataInBucket
from tests.support import compact_deltas, open_database, rows

import nyala
from nyala.env import SYSTEM, Env
from nyala.errors import CorruptionError, StorageError
from nyala.objects.base import Objects
from nyala.objects.chunk_cache import CHUNK_BYTES
from nyala.objects.folder import FolderObjects
from nyala.objects.memory import MemoryObjects
from nyala.objects.open import open_objects
from nyala.tablet.scan import parallel
from nyala.tablet.scan.token import read_token
from nyala.testing import S3Server

ROWS = 270_000
COMPOSITE = ["sensor", "time"]


def readings(first: int, count: int) -> pa.Table:
    """Return rows that do not compress, so that columns and bloom filters have several chunks."""
    chance, times = np.random.default_rng(first), np.arange(first, first + count)
    return pa.table(
        {
            "sensor": (times % 7).astype(np.int32),
            "time": times,
            "value": chance.random(count),
            "other": chance.integers(0, 1 << 60, count),
            "note": np.array([f"note {number}" for number in range(50)])[times % 50],
        }
    )


TYPES = {"sensor": "int32", "time": "int64", "value": "double", "other": "int64", "note": "string"}


class Pair:
    """The same table twice: in a folder, and with its data files in a bucket."""

    def __init__(self, path: Path, key: list[str]) -> None:
        self.files = DataInBucket(path / "remote", path / "cache")
        self.local = open_database(path / "local", direct_commit_bytes=1)
        self.remote = open_database(path / "remote", files=self.files, direct_commit_bytes=1)
        for db in (self.local, self.remote):
            db.create_table("t", TYPES, key)
        self.path, self.key = path, key

    def both(self, work: Callable[[nyala.Database], Any]) -> None:
        for db in (self.local, self.remote):
            work(db)

    def reopen(self) -> None:
        """Close the store in the bucket and open it with an empty cache."""
        self.remote.close()
        bucket = self.files.bucket
        self.files.end()
        self.files = DataInBucket(self.path / "remote", self.path / "cache", bucket)
        self.remote = open_database(self.path / "remote", files=self.files, direct_commit_bytes=1)

    def cold_rounds(self, work: Callable[[nyala.Database], Any]) -> int:
        """Return how many rounds `work` takes with an empty cache.

        Assert that its result is the same as in the folder.
        """
        self.reopen()
        results: list[Any] = [work(self.local)]
        rounds = self.files.rounds(lambda: results.append(work(self.remote)))
        assert results[0] == results[1]
        return rounds


@pytest.fixture(scope="module", params=["time", "sensor, time"])
def large(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Return tables with one rowset of 270,000 rows and two REDO files."""
    pair = Pair(tmp_path_factory.mktemp("pair"), request.param.split(", "))
    data = readings(0, ROWS)
    pair.both(lambda db: db["t"].insert(data))
    for count in (200_000, 300):  # a file above 1 MB is not fetched whole
        changes = readings(1, ROWS).slice(0, count).set_column(1, "time", pa.array(range(count)))
        changes = changes.set_column(0, "sensor", pa.array([time % 7 for time in range(count)], pa.int32()))
        pair.both(lambda db, changes=changes: db["t"].update(changes))  # type: ignore[misc]
    assert max(delta.size_bytes for delta in pair.remote._writer().state.deltas.values()) > 1 << 20
    assert len(pair.remote._writer().state.rowsets) == 1 and len(pair.remote._writer().state.deltas) == 3
    yield pair
    pair.local.close()
    pair.remote.close()
    pair.files.end()


def key_of(pair: Pair, time: int) -> dict[str, int]:
    return {name: {"sensor": time % 7, "time": time}[name] for name in pair.key}


def test_a_cold_look_up_takes_three_rounds(large: Pair) -> None:
    """The rounds are: footers; bloom filters and first keys; blocks of keys, values and changes."""
    for time in (123_456, 5, ROWS - 1):
        assert large.cold_rounds(lambda db, time=time: db["t"].get(key_of(large, time))) <= 3
    assert large.cold_rounds(lambda db: db["t"].get(key_of(large, ROWS + 5))) <= 3


def test_a_cold_look_up_of_many_keys_takes_three_rounds(large: Pair) -> None:
    keys = [key_of(large, time) for time in range(0, ROWS + 1000, 9973)]
    assert large.cold_rounds(lambda db: db["t"].get_many(keys).to_pylist()) <= 3


def test_a_write_finds_its_keys_in_three_rounds(large: Pair) -> None:
    rows = readings(77_000, 5)
    large.reopen()
    assert large.files.rounds(lambda: large.remote["t"].insert(rows, on_conflict="ignore")) <= 3


def test_a_cold_key_range_takes_few_rounds(large: Pair) -> None:
    """The rounds are: footers; blocks at both bounds; blocks of the rows."""
    where = (
        f"{large.key[0]} >= 3 and {large.key[0]} < 6" if len(large.key) == 1 else "sensor = 3 and time < 900"
    )
    assert large.cold_rounds(lambda db: rows(db["t"], where=where)) <= 4


def test_a_cold_scan_takes_two_rounds(large: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds are: footers of all files; blocks of the two splits."""
    monkeypatch.setattr(parallel, "AHEAD_MAX", 1)
    monkeypatch.setattr("nyala.tablet.scan.read_path.AHEAD_MAX", 1)
    for where in (None, "value > 0.9", "other < 0 or note = 'note 7'"):
        assert large.cold_rounds(lambda db, where=where: rows(db["t"], where=where)) <= 2
    for where in (None, "value > 0.9"):
        scan = {"columns": ["note", "value", "other"], "where": where}
        assert large.cold_rounds(lambda db, scan=scan: db["t"].scan(**scan).to_arrow().to_pydict()) <= 2
    assert large.cold_rounds(lambda db: db["t"].count("value < 0.5")) <= 2


def test_a_cold_query_of_net_changes_takes_two_rounds(large: Pair) -> None:
    """The rounds are: footers and delta files; values of the changed rows."""

    def changes(db: nyala.Database) -> pa.Table:
        oldest = min(
            delta.timestamp_max for delta in db._writer().state.deltas.values() if delta.kind == "undo"
        )
        found = (
            db["t"].changes(since=oldest).to_arrow().drop_columns(["_commit_version", "_commit_timestamp"])
        )
        return found.sort_by([(name, "ascending") for name in found.column_names])

    assert large.cold_rounds(changes) <= 2


def test_a_scan_reads_only_the_columns_that_it_needs(large: Pair) -> None:
    large.reopen()
    large.remote["t"].scan(["note"]).to_arrow()
    few = large.files.remote.cache.fetched_bytes
    large.reopen()
    large.remote["t"].scan().to_arrow()
    assert few < large.files.remote.cache.fetched_bytes / 3


def test_a_warm_store_makes_no_request(large: Pair) -> None:
    large.reopen()
    large.remote["t"].scan().to_arrow()
    before = len(large.files.requests)
    large.remote["t"].scan(where="value > 0.5").to_arrow()
    assert len(large.files.requests) == before


def test_tokens_are_read_from_the_bucket(large: Pair) -> None:
    """A process with an empty cache reads tokens, as Spark's tasks do."""
    for where in (None, "value > 0.9"):
        scan = large.remote["t"].scan(where=where, order_by_key=True)
        expected = large.local["t"].scan(where=where, order_by_key=True).to_arrow()
        large.files.forget()
        env = Env(large.files, SYSTEM.clock, SYSTEM.randomness)
        found = [batch for token in scan.tokens() for batch in read_token(token, env)]
        assert pa.Table.from_batches(found).equals(expected)


def test_a_damaged_chunk_of_the_cache_is_fetched_again(large: Pair, tmp_path: Path) -> None:
    """If the disk of the cache damages blocks, footers or filters, they are fetched again."""
    large.reopen()
    expected = rows(large.local["t"])
    large.remote["t"].scan().to_arrow()
    cache = large.files.remote.cache
    held = sum(len(entry.copy.held) for entry in cache._copied.values() if entry.copy is not None)
    large.remote.close()
    for path in large.path.joinpath("cache").rglob("*"):
        if path.is_file() and path.name != "lock":
            damaged = bytearray(path.read_bytes())
            for offset in range(100, len(damaged), CHUNK_BYTES):
                damaged[offset] ^= 0xFF
            path.write_bytes(damaged)
    large.remote = open_database(large.path / "remote", files=large.files, direct_commit_bytes=1)
    before = cache.requests
    assert rows(large.remote["t"]) == expected
    assert 0 < cache.requests - before <= held


def test_a_damaged_object_is_an_error(large: Pair) -> None:
    large.reopen()
    objects = large.files.bucket
    state = large.remote._writer().state
    key = next(iter(state.rowsets.values())).path
    good = objects.get(key)
    try:
        objects.put(key, good[:1000] + bytes([good[1000] ^ 1]) + good[1001:])
        with pytest.raises(CorruptionError, match="CRC-32C"):
            rows(large.remote["t"])
        objects.delete([key])
        large.reopen()
        with pytest.raises(StorageError, match="is missing, and its rows with it"):
            rows(large.remote["t"])
    finally:
        objects.put(key, good)


def small_steps(db: nyala.Database) -> None:
    """Let a few rows reach flushes, all kinds of compactions and direct commits."""
    table, chance = db["t"], random.Random(8)
    for step in range(12):
        data = readings(step * 50, 120)
        table.upsert(data) if step % 3 else table.insert(data, on_conflict="ignore")
        table.delete([{"sensor": time % 7, "time": time} for time in range(step * 40, step * 40 + 9)])
        if chance.random() < 0.7:
            db.flush()
        if step == 6:
            compact_deltas(db._writer())
        if step in (4, 10):
            table.compact()
    db._writer().collect_garbage()


@contextlib.contextmanager
def a_bucket(kind: str, path: Path) -> Iterator[Objects]:
    if kind == "memory":
        yield MemoryObjects()
    elif kind == "folder":
        yield FolderObjects(str(path / "bucket"))
    else:
        with S3Server() as server, contextlib.closing(open_objects(server.url, server.options)) as objects:
            yield objects


@pytest.mark.parametrize(
    ("kind", "direct_commit_bytes"), [("memory", 1), ("folder", 64 << 20), ("s3", 64 << 20)]
)
def test_writes_flushes_and_compactions_give_the_same_rows(
    tmp_path: Path, kind: str, direct_commit_bytes: int
) -> None:
    """The bucket has exactly the files that the catalogue names."""
    with open_database(tmp_path / "local", direct_commit_bytes=direct_commit_bytes) as db:
        db.create_table("t", TYPES, COMPOSITE)
        small_steps(db)
        expected = rows(db["t"])
    with a_bucket(kind, tmp_path) as bucket:
        files = DataInBucket(tmp_path / "remote", tmp_path / "cache", bucket)
        with open_database(tmp_path / "remote", files=files, direct_commit_bytes=direct_commit_bytes) as db:
            db.create_table("t", TYPES, COMPOSITE)
            small_steps(db)
            assert rows(db["t"]) == expected and len(expected) > 500
            assert {info.key for info in bucket.list("data/")} == named(db)
        assert not (tmp_path / "remote" / "data").exists()
        files.end()
        files = DataInBucket(tmp_path / "remote", tmp_path / "cache", bucket)
        bucket.put("data/1/77-0123456789abcdef.base", b"left by a crash")
        with open_database(tmp_path / "remote", files=files) as db:
            assert rows(db["t"]) == expected
            assert {info.key for info in bucket.list("data/")} == named(db)
        files.end()


def named(db: nyala.Database) -> set[str]:
    """Return the data files that the catalogue names."""
    state = db._writer().state
    return {path for path in {*state.files(), *state.garbage} if path.startswith("data/")}
