"""Scan tokens return the rows of their scan, and need neither catalogue nor log (K1)."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import key_value_table, open_database

import nyala
from nyala.api.database import Database
from nyala.api.scan import Scan, read_token
from nyala.errors import ColumnNotFoundError, CorruptionError, HistoryExpiredError, InvalidArgumentError
from nyala.tablet.changes.change_token import make_change_tokens, read_change_token
from nyala.tablet.scan import token as tokens_module
from nyala.tablet.scan.open_rowsets import OpenRowSets
from nyala.tablet.scan.token import MAGIC, VERSION

NAMES = ("s", "n", "a", "t")
WHERES = (
    None,
    "a > 2",
    "a IS NULL OR t = 'new'",
    "s = 'a' AND n BETWEEN 2 AND 9",
    "NOT (t IN ('old', 'x'))",
    "n = 3 AND s >= 'a'",
)


MOMENTS: list[int] = []
# Of a process that has read all tokens before.
OPEN = OpenRowSets()


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Return a store with four tablets, with rows and changes in files, frozen memory and memory."""
    with open_database(tmp_path_factory.mktemp("token") / "s") as db:
        hashes, ranges = nyala.hash_partition("s", buckets=2), nyala.range_partition("n", splits=[6])
        columns = {"s": "string", "n": "int32", "a": "int64", "t": "string"}
        table = db.create_table("t", columns, ["s", "n"], [hashes, ranges])

        MOMENTS.append(db.now())

        def upsert(first: int, last: int, text: str) -> None:
            keys = [(s, n) for n in range(first, last) for s in ("", "a", "a\0", "zz")]
            rows = [{"s": s, "n": n, "a": None if n % 5 == 4 else n % 5, "t": text} for s, n in keys]
            MOMENTS.append(table.upsert(rows).timestamp)

        upsert(0, 8, "old")
        table.flush()
        upsert(4, 10, "new")
        MOMENTS.append(table.delete([{"s": "a", "n": n} for n in (0, 5)]).timestamp)
        table.flush()
        table.update([{"s": "zz", "n": n, "a": n} for n in range(3, 9)])
        upsert(10, 12, "x")
        store: Any = db._writer()

        def full(change: object) -> None:
            raise nyala.StorageError("the disk is full")

        store._commit = full
        with pytest.raises(nyala.StorageError):
            table.flush()
        del store._commit
        MOMENTS.append(table.delete([{"s": "", "n": n} for n in (1, 10)]).timestamp)
        table.update([{"s": "zz", "n": n, "a": -n, "t": None} for n in (3, 11)])
        upsert(12, 13, "young")
        yield db


def rows_of(scan: Scan, columns: list[str] | None = None) -> list[list[dict[str, Any]]]:
    """Return the rows of each token."""
    return [
        [row for batch in read_token(token, columns=columns) for row in batch.to_pylist()]
        for token in scan.tokens()
    ]


def in_any_order(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (tuple((v is not None, v if v is not None else 0) for v in row.values()) for row in rows), key=repr
    )


@given(
    where=st.sampled_from(WHERES),
    columns=st.lists(st.sampled_from(NAMES), unique=True),
    order=st.booleans(),
    moment=st.integers(0, 20),
    data=st.data(),
)
def test_k1_tokens_return_the_rows_of_their_scan(
    db: Database, where: str | None, columns: list[str], order: bool, moment: int, data: st.DataObject
) -> None:
    """All tokens together return each row of the scan once, also through open rowsets."""
    at = MOMENTS[moment % len(MOMENTS)]
    scan = db["t"].scan(columns=columns, where=where, at=at, order_by_key=order)
    expected = scan.to_arrow()
    tokens = scan.tokens()
    batches = [list(read_token(token)) for token in tokens]
    assert all(batch.schema == scan.schema for part in batches for batch in part)
    assert sum(batch.num_rows for part in batches for batch in part) == expected.num_rows
    found = [row for part in batches for batch in part for row in batch.to_pylist()]
    assert in_any_order(found) == in_any_order(expected.to_pylist())
    again = [batch for token in tokens for batch in tokens_module.read_token(token, opened=OPEN)]
    assert [row for batch in again for row in batch.to_pylist()] == found
    assert sum(batch.num_rows for batch in again) == expected.num_rows
    if order and columns:
        everything = expected.to_pylist()
        for part in batches:  # the rows of a token are in the order of the scan
            rest = iter(everything)
            assert all(any(row == other for other in rest) for batch in part for row in batch.to_pylist())
    narrower = data.draw(st.lists(st.sampled_from(columns), unique=True) if columns else st.just([]))
    narrow = [
        row for token in tokens for batch in read_token(token, columns=narrower) for row in batch.to_pylist()
    ]
    assert in_any_order(narrow) == in_any_order(
        [{name: row[name] for name in narrower} for row in expected.to_pylist()]
    )


def test_tokens_of_past_moments(db: Database) -> None:
    """A token of an earlier moment applies UNDO and no later changes."""
    table = db["t"]
    counts = set()
    created, *later = MOMENTS
    for at in (created, *(stamp - d for stamp in later for d in (0, 1))):
        scan = table.scan(at=at, order_by_key=True)
        assert in_any_order([row for part in rows_of(scan) for row in part]) == in_any_order(
            scan.to_arrow().to_pylist()
        )
        counts.add(scan.count())
    assert len(counts) > 4


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 3, 1000])
def test_a_limit_holds_per_token(db: Database, limit: int, order: bool) -> None:
    """Each token returns at most `limit` rows: the first ones, if an order is requested."""
    scan = db["t"].scan(limit=limit, order_by_key=order)
    whole = rows_of(db["t"].scan(order_by_key=order))
    found = rows_of(scan)
    assert [len(part) for part in found] == [min(limit, len(part)) for part in whole]
    if order:
        assert found == [part[:limit] for part in whole]


def test_later_writes_do_not_change_a_token(db: Database) -> None:
    """Rows that are written or flushed later are not in the token."""
    with db.batch() as batch:
        batch.upsert("t", [{"s": "a", "n": 3, "a": 77}])
    scan = db["t"].scan(order_by_key=True)
    tokens, before = scan.tokens(), scan.to_arrow().to_pylist()
    db["t"].update(set={"a": 5}, where="TRUE")
    db["t"].delete([{"s": "zz", "n": 2}])
    db["t"].flush()
    found = [row for token in tokens for batch in read_token(token) for row in batch.to_pylist()]
    assert in_any_order(found) == in_any_order(before)


def test_impossible_tokens_are_refused_early(db: Database) -> None:
    """A pyarrow expression cannot be in a token, and a token has only the columns of its scan."""
    with pytest.raises(InvalidArgumentError, match="cannot be sent in a scan token"):
        db["t"].scan(where=pc.field("a") > 3).tokens()
    token = db["t"].scan(columns=["s", "a"]).tokens()[0]
    with pytest.raises((InvalidArgumentError, ColumnNotFoundError), match="'t'"):
        list(read_token(token, columns=["t"]))


def test_any_damage_is_corruption(db: Database) -> None:
    """Flipped bits, missing bytes and other bytes raise CorruptionError; no row is returned."""
    token = db["t"].scan(columns=["s", "a"], where="a >= 0").tokens()[0]
    good = list(read_token(token))
    assert good
    positions = {*range(64), *range(64, len(token), max(1, len(token) // 200)), len(token) - 1}
    for at in sorted(positions):
        damaged = token[:at] + bytes([token[at] ^ (1 << at % 8)]) + token[at + 1 :]
        with pytest.raises(CorruptionError):
            list(read_token(damaged))
    for length in {0, 1, 7, 19, 20, 21, len(token) // 2, len(token) - 1}:
        with pytest.raises(CorruptionError):
            list(read_token(token[:length]))
    with pytest.raises(CorruptionError):
        list(read_token(token + b"\0"))
    with pytest.raises(CorruptionError, match="not a scan token"):
        list(read_token(b"x" * 100))
    assert list(read_token(token)) == good


def test_a_key_min_above_the_key_max_is_corruption(db: Database) -> None:
    """The bounds of rowsets are validated even if the checksum is right."""
    token = db["t"].scan(order_by_key=True).tokens()[0]
    end = 20 + int.from_bytes(token[16:20], "little")
    meta = json.loads(token[20:end])
    rowset = meta["rowsets"][0]["files"]["rowset"]
    assert rowset["key_min"] < rowset["key_max"]
    rowset["key_min"], rowset["key_max"] = rowset["key_max"], rowset["key_min"]
    text = json.dumps(meta).encode()
    body = token[:16] + struct.pack("<I", len(text)) + text + token[end:]
    forged = body[:12] + struct.pack("<I", google_crc32c.value(body[16:])) + body[16:]
    with pytest.raises(CorruptionError, match="key_min greater than its key_max"):
        list(read_token(forged))


def test_a_token_of_another_version_is_refused(db: Database) -> None:
    """A newer version of Nyala may have another layout of tokens."""
    token = db["t"].scan().tokens()[0]
    newer = MAGIC + struct.pack("<I", VERSION + 1) + token[12:]
    with pytest.raises(CorruptionError, match=f"version {VERSION}"):
        list(read_token(newer))


def test_the_layout_is_the_documented_one(db: Database) -> None:
    """A token has the fields of the module's docstring, and files inside the store's folder (K2)."""
    token = db["t"].scan(where="a > 0").tokens()[0]
    magic, version, crc, length = struct.unpack_from("<8sIII", token)
    assert (magic, version, crc) == (MAGIC, VERSION, google_crc32c.value(token[16:]))
    meta = json.loads(token[20 : 20 + length])
    assert meta["path"] == db.path and meta["where"] is not None and meta["columns"] == list(NAMES)
    paths = [part["files"]["rowset"]["path"] for part in meta["rowsets"]]
    paths += [file["path"] for part in meta["rowsets"] for file in part["files"]["deltas"]]
    assert paths and all((Path(db.path) / path).is_file() and ".." not in path for path in paths)


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("memory", [False, True])
def test_deleted_files_of_a_token_are_expired_history(tmp_path: Path, order: bool, memory: bool) -> None:
    """A task that starts too late gets an error that says what to do."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1, 2], "v": [1, 2]})
        db.flush()
        if memory:
            table.insert({"k": [0, 3], "v": [0, 3]})
        (token,) = table.scan(order_by_key=order).tokens()
        assert [row["k"] for batch in read_token(token) for row in batch.to_pylist()] in (
            [[0, 1, 2, 3], [0, 3, 1, 2]] if memory else [[1, 2]]
        )
        db.drop_table("t", purge=True)
        db._writer().collect_garbage()
        with pytest.raises(HistoryExpiredError, match=r"\.base.*load again"):
            list(read_token(token))


def test_deleted_files_of_a_change_token_are_expired_history(tmp_path: Path) -> None:
    """A task that starts too late gets an error that says what to do."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1, 2], "v": [1, 2]})
        db.flush()
        feed = table.changes(0)
        (token,) = make_change_tokens(db.path, feed._root_and_table()[1], feed._spec)
        assert sum(batch.num_rows for batch in read_change_token(token)) == 2
        for path in (tmp_path / "s" / "data").rglob("*.base*"):
            path.unlink()
        with pytest.raises(
            HistoryExpiredError, match=r"table 't'.*\.base.*lease .*has ended.*start the job again"
        ):
            list(read_change_token(token))


def test_a_narrower_read_of_a_token_with_a_wider_key_column(tmp_path: Path) -> None:
    """Rows in memory are sorted by a key column in its wider type, also if it is not returned."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"a": "string", "b": "int16"}, ["a", "b"])
        table.insert([("x", 2)])
        db.flush()
        table.insert([("x", 1), ("y", 1)])
        wider = pa.schema({"a": pa.string(), "b": pa.int64()})
        (token,) = table.scan(columns=wider, order_by_key=True).tokens()
        found = pa.Table.from_batches(list(read_token(token, columns=["a"])))
        assert found.to_pydict() == {"a": ["x", "x", "y"]}
        found = pa.Table.from_batches(list(read_token(token)))
        assert found.schema == wider and found["b"].to_pylist() == [1, 2, 1]


def test_a_token_needs_neither_catalogue_nor_log(tmp_path: Path) -> None:
    """A token can be read after the catalogue and the log were deleted."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1, 2], "v": [1, 2]})
    db.flush()
    table.update({"k": [1], "v": [10]})
    table.insert({"k": [3], "v": [3]})
    (token,) = table.scan(order_by_key=True).tokens()
    db.close()
    (tmp_path / "s" / "nyala.json").unlink()
    shutil.rmtree(tmp_path / "s" / "checkpoints")
    for segment in (tmp_path / "s" / "wal").iterdir():
        segment.unlink()
    found = pa.Table.from_batches(list(read_token(token)))
    assert found.to_pydict() == {"k": [1, 2, 3], "v": [10, 2, 3]}
