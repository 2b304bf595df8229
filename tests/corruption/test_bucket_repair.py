"""Check and repair of a store in a bucket. A repair rewrites derived data and a damaged checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.corruption.test_check import bytes_of, flipped

import nyala
from nyala.cfile.column import BASE, BLOOM, ColumnKey
from nyala.testing import S3Server
from nyala.testing.s3_server import WireFault


class Stored:
    """A store at a file:// URL, whose objects are files that a test can damage, and its rows at two moments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.url = f"file://{self.folder}"
        self.cache = folder / "cache"
        with self.connect() as db:
            table = db.create_table("t", {"k": "int64", "v": "string"}, "k")
            table.insert({"k": range(200), "v": ["old"] * 200})
            db.flush()
            table.update({"k": [1, 2], "v": ["new", "new"]})
            self.moment = db.now()
            table.delete({"k": [3]})
            db._writer().write_checkpoint()
            table.insert([(1000, "in the log")])
            db._writer().write_checkpoint()
        self.expected = self.rows()

    def connect(self) -> nyala.Database:
        return nyala.connect(self.url, cache_dir=self.cache, group_interval=0, maintenance=False)

    def rows(self) -> list[pa.Table]:
        with self.connect() as db:
            return [db["t"].scan(order_by_key=True, at=at).to_arrow() for at in (None, self.moment)]

    @property
    def file(self) -> Path:
        (found,) = self.folder.glob("data/*/*.base")
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Stored]:
    yield Stored(tmp_path)


def damaged_bloom(store: Stored) -> Path:
    path = store.file
    path.write_bytes(flipped(path.read_bytes(), bytes_of(path, ColumnKey(BLOOM))[3]))
    return path


def surplus(store: Stored) -> Path:
    store.file.write_bytes(store.file.read_bytes() + b"more")
    return store.file


def damaged_checkpoint(store: Stored) -> Path:
    path = max(store.folder.glob("ckpt/*"))
    path.write_bytes(flipped(path.read_bytes(), 200))
    return path


@pytest.mark.parametrize(
    ("damage", "kind", "repair"),
    [
        (damaged_bloom, "index", "rewrote rowset"),
        (surplus, "surplus", "rewrote rowset"),
        (damaged_checkpoint, "checkpoint", "replaced the damaged checkpoint ckpt/"),
    ],
)
def test_derived_data_are_repaired_without_a_loss(
    store: Stored, damage: Callable[[Stored], Path], kind: str, repair: str
) -> None:
    path = damage(store)
    assert [(p.kind, p.path, p.repairable) for p in nyala.check(store.url).problems] == [
        (kind, f"{store.url}/{path.relative_to(store.folder)}", True)
    ]
    report = nyala.check(store.url, repair=True)
    assert report.ok and len(report.repairs) == 1 and repair in report.repairs[0], report
    assert nyala.check(store.url).ok and store.rows() == store.expected


def test_an_open_uses_the_checkpoint_before_a_damaged_one(store: Stored) -> None:
    damaged_checkpoint(store)
    with nyala.connect(store.url, read_only=True, cache_dir=store.cache) as reader:
        assert reader["t"].scan(order_by_key=True).to_arrow() == store.expected[0]
    assert store.rows() == store.expected


def test_damaged_rows_are_not_repaired(store: Stored) -> None:
    with store.connect() as db:
        column = db._writer().root.table("t").schema.columns[1].id
    whole = store.file.read_bytes()
    damaged = flipped(whole, bytes_of(store.file, ColumnKey(BASE, 0, column))[3])
    store.file.write_bytes(damaged)
    report = nyala.check(store.url, repair=True)
    assert [p.kind for p in report.problems] == ["damage"] and report.repairs == ()
    assert any("restore the store from a backup" in note for note in report.notes)
    assert store.file.read_bytes() == damaged


@pytest.mark.parametrize("fault", ["403", "drop before"])
@pytest.mark.parametrize("verb", ["HEAD", "GET"])
def test_an_error_of_the_bucket_is_not_damage(tmp_path: Path, verb: str, fault: WireFault) -> None:
    """If the bucket fails during a check, the check raises its error and reports no problem."""
    with S3Server() as server:
        with nyala.connect(server.url, storage_options=server.options, cache_dir=tmp_path) as db:
            db.create_table("t", {"k": "int64"}, "k").insert([(1,)])
            db.flush()
        server.faults = lambda request: fault if request.verb == verb and "/data/" in request.key else None
        with pytest.raises(nyala.StorageError, match="403" if fault == "403" else "the connection broke"):
            nyala.check(server.url, storage_options=server.options)


def test_a_repair_beside_a_writer_is_refused(store: Stored) -> None:
    with S3Server() as server:
        with nyala.connect(server.url, storage_options=server.options, cache_dir=store.cache) as db:
            db.create_table("t", {"k": "int64"}, "k").insert([(1,)])
            db._writer().write_checkpoint()
            (checkpoint,) = [key for key in server.bodies() if "/ckpt/" in key]
            server.put(checkpoint, flipped(server.bodies()[checkpoint], 200))
            with pytest.raises(nyala.LockedError, match="close it there, then repair the store"):
                nyala.check(server.url, repair=True, storage_options=server.options)
            db["t"].insert([(2,)])
