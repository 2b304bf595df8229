"""Transactions on a store in a bucket, as in a folder, and of a writer that is fenced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.env import SYSTEM
from nyala.objects.open import open_objects
from nyala.objects.remote_files import RemoteFiles
from nyala.tablet.store import Store, StoreOptions
from nyala.testing.s3_server import S3Server
from tests.support import rows

URL = "s3://bucket/store"


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def connect(server: S3Server, folder: Path, **options: Any) -> nyala.Database:
    return nyala.connect(
        URL, storage_options=server.options, cache_dir=folder / "cache", group_interval=0, **options
    )


def filled(db: nyala.Database) -> nyala.Table:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", nyala.hash_partition("k", buckets=2))
    table.insert([(k, k) for k in range(20)])
    db.flush()
    table.update([{"k": 1, "v": 10}])
    table.delete(2)
    return table


def test_reads_writes_and_conflicts(server: S3Server, tmp_path: Path) -> None:
    """A transaction sees its own writes, and the second of two commits of the same keys raises ConflictError."""
    with connect(server, tmp_path, maintenance=False) as db:
        table = filled(db)
        expected = dict(rows(table))
        winner, loser = db.transaction(), db.transaction()
        for tx in (winner, loser):
            tx["t"].update(set={"v": nyala.expr("v + 1")}, where="k < 4")
            tx["t"].insert([(2, 22), (50, 50)])
            tx["t"].delete([5])
        expected |= {k: expected[k] + 1 for k in (0, 1, 3)} | {2: 22, 50: 50}
        del expected[5]
        assert dict(rows(winner["t"])) == expected and winner["t"].get_many([5, 50]).num_rows == 1
        table.update([{"k": 19, "v": 0}])
        db.flush()
        winner.commit()
        table.compact()
        with pytest.raises(nyala.ConflictError, match="and 5 other keys after"):
            loser.commit()
        assert dict(rows(table)) == expected | {19: 0}
    with connect(server, tmp_path, maintenance=False) as db:
        assert dict(rows(db["t"])) == expected | {19: 0} and db.check().ok


def test_threads_that_change_one_row_all_succeed(server: S3Server, tmp_path: Path) -> None:
    """`db.run` repeats a transaction after a conflict."""
    with connect(server, tmp_path) as db:
        filled(db)

        def increment(tx: nyala.Transaction) -> None:
            tx["t"].update([{"k": 1, "v": tx["t"][1]["v"] + 1}])

        threads = [threading.Thread(target=lambda: [db.run(increment) for _ in range(5)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert db["t"][1]["v"] == 25


def test_a_writer_that_is_fenced_during_a_transaction(server: S3Server, tmp_path: Path) -> None:
    """The commit raises FencedError and writes nothing, although no other writer changed its keys."""
    with connect(server, tmp_path, maintenance=False) as db:
        filled(db)
    old = connect(server, tmp_path, maintenance=False)
    block = old.transaction()
    block["t"].update([{"k": 7, "v": -1}])
    block["t"].insert([(70, 70)])
    client = open_objects(URL, server.options)
    env = replace(SYSTEM, files=RemoteFiles.over(client, SYSTEM, str(tmp_path / "successor"), 1 << 26))
    with nyala.Database(Store.open_in_bucket(env, client, StoreOptions(maintenance=False), 0.0)) as successor:
        successor["t"].update([{"k": 8, "v": -2}])
        with pytest.raises(nyala.FencedError, match="nothing of this call was written"):
            block.commit()
        with pytest.raises(nyala.TransactionEndedError, match="failed to commit"):
            block.commit()
        with pytest.raises(nyala.StorageError, match="connect"):
            old.transaction()
        successor["t"].update([{"k": 7, "v": -3}])
        found = dict(rows(successor["t"]))
        assert (found[7], found[8], found.get(70)) == (-3, -2, None) and successor.check().ok
    old.close()
