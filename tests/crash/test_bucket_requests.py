"""The process ends at each request to the bucket, before or after its effect, in every kind of
work.

Acknowledged batches exist at the next open, and the interrupted work happened completely or not at
all. The next open finds no damage.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

import nyala
from nyala.api.database import Database
from nyala.catalog import object_leases
from nyala.env import SYSTEM, Env
from nyala.errors import StorageError
from nyala.handover import inbox
from nyala.objects.base import Objects
from nyala.objects.memory import MemoryObjects
from nyala.objects.remote_files import RemoteFiles
from nyala.tablet.media import bucket as medium
from nyala.tablet.store import Store, StoreOptions
from nyala.testing import FaultyObjects, SimulatedCrash
from nyala.testing.faulty_objects import at
from tests import loads
from tests.figures import counted
from tests.sampled import every_nth

Contents = dict[str, list[tuple[object, ...]]]


def open_bucket(objects: Objects, cache: Path) -> Database:
    env = Env(RemoteFiles.over(objects, SYSTEM, str(cache), 1 << 26), SYSTEM.clock, SYSTEM.randomness)
    options = StoreOptions(maintenance=False, direct_commit_bytes=20_000)
    return Database(Store.open_in_bucket(env, objects, options, 0.0))


def rows(table: nyala.Table, at: int | None = None) -> list[tuple[object, ...]]:
    columns = table.scan(at=at, order_by_key=True).to_arrow().columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def contents(db: Database) -> Contents:
    return {name: rows(db[name]) for name in db.list_tables()}


def prepare(db: Database) -> None:
    t = db.create_table("t", {"k": "int64", "v": "string"}, "k", nyala.hash_partition("k", buckets=2))
    db.create_table("u", {"k": "int64"}, "k")
    for value in ("first", "second"):
        t.upsert({"k": range(40), "v": [value] * 40})
        db.flush()
        t.delete({"k": [1 if value == "first" else 2]})
    db["u"].insert([(1,)])


def write(db: Database) -> None:
    with db.batch() as batch:
        batch.upsert("t", {"k": [3, 100], "v": ["new", "new"]})
        batch.insert("u", [(2,)])


def transact(db: Database, count: int = 2) -> None:
    with db.transaction() as tx:
        tx["t"].upsert({"k": range(30, 30 + count), "v": ["x" * 900] * count})
        tx["u"].insert([(tx["t"].count(),)])
        tx["t"].delete(where="k = 3")


def alter(db: Database) -> None:
    with db["t"].alter() as change:
        change.add_column("n", "int64", default=5)


def load(db: Database) -> None:
    """Upsert by tasks that write rowset and delta files, as in Spark."""
    loads.run(db, "upsert", {"k": [3, 4, 500, 501], "v": ["of a load"] * 4})


def checkpoint(db: Database) -> None:
    db.flush()
    db._writer().collect_garbage()


WORK: dict[str, Callable[[Database], object]] = {
    "a batch over two tables": write,
    "a transaction": transact,
    "a transaction committed as files": lambda db: transact(db, 60),
    "a flush": lambda db: db.flush(),
    "a compaction": lambda db: db["t"].compact(),
    "a batch committed as files": lambda db: db["t"].upsert({"k": range(30, 90), "v": ["x" * 900] * 60}),
    "an alteration": alter,
    "a load": load,
    "a new table": lambda db: db.create_table("w", {"k": "int64"}, "k"),
    "a dropped table": lambda db: db.drop_table("u"),
    "a checkpoint, and garbage": checkpoint,
}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set limits so that checkpoints come early, garbage is removed at once, and nothing polls the bucket."""
    monkeypatch.setattr(inbox, "POLL_S", 3600.0)
    monkeypatch.setattr(medium, "_SLOTS_MAX", 1)
    monkeypatch.setattr(object_leases, "GRACE_S", 0.0)
    monkeypatch.setattr(object_leases, "_LISTED_S", 0.0)


def before_and_after(work: Callable[[Database], object], folder: Path) -> tuple[Contents, Contents, int]:
    """Return the content of the tables before and after the work, and its number of requests."""
    objects = FaultyObjects(MemoryObjects())
    db = open_bucket(objects, folder / "cache")
    prepare(db)
    before, begun = contents(db), len(objects.requests)
    work(db)
    requests = len(objects.requests) - begun
    after = contents(db)
    db.close()
    return before, after, requests


def end_at(
    work: Callable[[Database], object],
    number: int,
    when: str,
    folder: Path,
    before: Contents,
    after: Contents,
) -> None:
    bucket = MemoryObjects()
    objects = FaultyObjects(bucket)
    db = open_bucket(objects, folder / "cache")
    prepare(db)
    moment = db.now()
    objects.faults = at(len(objects.requests) + number, when)  # type: ignore[assignment]
    acknowledged = False
    with contextlib.suppress(SimulatedCrash, StorageError):
        work(db)
        acknowledged = True
    with contextlib.suppress(SimulatedCrash, StorageError):
        db.close()
    with contextlib.closing(open_bucket(bucket.client(), folder / "again")) as again:
        found = contents(again)
        expected = [after] if acknowledged else [before, after]
        assert found in expected, f"request {number}, {when}"
        for name in before.keys() & found.keys():
            assert rows(again[name], moment) == before[name]
        assert again.check().ok
        if not acknowledged and found == before:
            work(again)
            assert contents(again) == after
        again["t"].upsert({"k": [777], "v": ["later"]})
        assert again["t"].get(777) is not None


@pytest.mark.parametrize("name", WORK)
def test_the_process_ends_at_a_request(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """At some requests; `make test-long` takes all."""
    before, after, requests = before_and_after(WORK[name], tmp_path)
    assert requests > 0
    places = list(itertools.product(range(1, requests + 1), ("crash before", "crash after")))
    for number, when in every_nth(24, places, request) if len(places) > 12 else places:
        end_at(WORK[name], number, when, tmp_path, before, after)


def test_the_process_ends_at_a_request_of_an_open(tmp_path: Path) -> None:
    """The open creates the store, or takes it over from a killed writer."""
    for created in (False, True):
        for number in itertools.count(1, 3):
            bucket = MemoryObjects()
            expected: Contents = {}
            if not created:
                db = open_bucket(bucket.client(), tmp_path / "cache")
                prepare(db)
                expected = contents(db)
                db._writer()._medium.lock.release()  # type: ignore[attr-defined]  # its thread ends
            ended = False
            for when in ("crash before", "crash after"):
                objects = FaultyObjects(bucket.client(), at(number, when))  # type: ignore[arg-type]
                with contextlib.suppress(SimulatedCrash):
                    open_bucket(objects, tmp_path / "cache").close()
                ended = ended or (len(objects.requests) >= number and objects._crashed)
            with contextlib.closing(open_bucket(bucket.client(), tmp_path / "again")) as again:
                assert contents(again) == expected
                assert again.check().ok
            if not ended:
                break
        assert number > 5


@pytest.mark.long
@pytest.mark.parametrize("name", WORK)
def test_the_process_ends_at_every_request(name: str, tmp_path: Path) -> None:
    before, after, requests = before_and_after(WORK[name], tmp_path)
    with counted("ended at a request to the bucket", "processes") as tried:
        for number, when in itertools.product(range(1, requests + 1), ("crash before", "crash after")):
            end_at(WORK[name], number, when, tmp_path, before, after)
            tried.append(1)
