"""Mistakes of users: each raises the error of docs/how-to/errors.md, with a message that says what to do, and changes
nothing."""

# ruff: noqa: E501  (the cases are a table)
from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

import nyala
from nyala.api.database import Database
from nyala.catalog.checkpoint import _crc
from nyala.catalog.format import FORMAT_VERSION
from nyala.env import system_files
from nyala.testing.faulty_files import FaultyFiles
from tests.support import key_value_table, open_database, rows


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = open_database(tmp_path / "s")
    table = db.create_table(
        "t",
        {
            "a": "string",
            "n": "int32",
            "must": nyala.column("int8", nullable=False),
            "text": "string",
            "small": "varchar(3)",
        },
        ["a", "n"],
        [nyala.range_partition("n", bounds=[(0, 100)])],
    )
    table.insert([{"a": "x", "n": 1, "must": 1, "text": "one", "small": "abc"}])
    yield db
    db.close()


def soon() -> dt.datetime:
    """Return a time without zone, some hours ahead of UTC, as local clocks east of Greenwich show it."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None) + dt.timedelta(hours=3)


GOOD = {"a": "y", "n": 2, "must": 2}
GOOD_COLUMNS = {name: [value] for name, value in GOOD.items()}
CASES: list[tuple[str, Callable[[Any], Any], type[Exception], list[str], str]] = [
    ("insert a taken key", lambda t: t.insert([{"a": "x", "n": 1, "must": 1}]), nyala.DuplicateKeyError, ["already-present"], "upsert"),
    ("the same key twice", lambda t: t.insert([GOOD, GOOD]), nyala.DuplicateKeyError, ["already-present"], "duplicate key in this batch: rows 0 and 1 have the same key;"),
    ("the same key twice, and taken", lambda t: t.insert([{"a": "x", "n": 1, "must": 1}] * 2), nyala.DuplicateKeyError, ["already-present"] * 2, "already has a row with this key"),
    ("update a missing key", lambda t: t.update([GOOD]), nyala.KeyNotFoundError, ["not-found"], "on_missing"),
    ("delete a missing key", lambda t: t.delete([{"a": "y", "n": 2}]), nyala.KeyNotFoundError, ["not-found"], "on_missing"),
    ("columns that are none", lambda t: t.scan(columns=5), nyala.InvalidArgumentError, [], "columns takes a list of names, not 5"),
    ("not a name", lambda t: t.scan(columns=["a", 5]), nyala.InvalidArgumentError, [], "columns takes a list of names, not ['a', 5]"),
    ("set that is no mapping", lambda t: t.update(set=5), nyala.InvalidArgumentError, [], "update takes set={column: value or expression}, not set=5"),
    ("no partition", lambda t: t.insert([{"a": "y", "n": 100, "must": 1}]), nyala.NoPartitionError, ["no-partition"], "range partition"),
    ("NULL in the key", lambda t: t.insert([{**GOOD, "a": None}]), nyala.InvalidValueError, ["null"], "'a'"),
    ("NULL where NOT NULL", lambda t: t.insert([{**GOOD, "must": None}]), nyala.InvalidValueError, ["null"], "'must'"),
    ("a required column left out", lambda t: t.insert([{"a": "y", "n": 2}]), nyala.InvalidValueError, ["missing-column"], "'must'"),
    ("upsert of a new row without it", lambda t: t.upsert([{"a": "y", "n": 2}]), nyala.InvalidValueError, ["missing-column"], "'must'"),
    ("a new row of a list without it", lambda t: t.upsert([{**GOOD, "text": "y"}, {"a": "z", "n": 3}]), nyala.InvalidValueError, ["missing-column"], "'must'"),
    ("an update of a list without a change", lambda t: t.update([{"a": "x", "n": 1, "text": "y"}, {"a": "x", "n": 1}]), nyala.InvalidValueError, ["missing-column"], "changes no column"),
    ("a key column left out", lambda t: t.upsert([{"a": "y", "must": 1}]), nyala.InvalidValueError, ["missing-column"], "'n'"),
    ("a value out of range", lambda t: t.insert([{**GOOD, "must": 300}]), nyala.InvalidValueError, ["out-of-range"], "'must'"),
    ("a cell too large", lambda t: t.insert([{**GOOD, "text": "x" * 65537}]), nyala.InvalidValueError, ["value-too-large"], "65536"),
    ("a key too large", lambda t: t.insert([{**GOOD, "a": "k" * 17000}]), nyala.InvalidValueError, ["key-too-large"], "16384"),
    ("invalid UTF-8", lambda t: t.insert(pa.table({"a": pa.array([b"\xff"]), "n": [2], "must": [1]})), nyala.InvalidValueError, ["invalid-utf8"], "'a'"),
    ("two kinds of mistake", lambda t: t.insert([{"a": "x", "n": 1, "must": 1}, {"a": "y", "n": 200, "must": 1}]), nyala.WriteError, ["already-present", "no-partition"], "2 of 2"),
    ("an unknown column", lambda t: t.insert([{**GOOD, "txt": "?"}]), nyala.ColumnNotFoundError, [], "'txt'"),
    ("types with nothing in common", lambda t: t.insert({"a": ["y"], "n": ["two"], "must": [1]}), nyala.SchemaError, [], "'n'"),
    ("update of the key alone", lambda t: t.update([{"a": "x", "n": 1}]), nyala.InvalidArgumentError, [], "changes no column"),
    ("delete with a value", lambda t: t.delete([{"a": "x", "n": 1, "must": 1}]), nyala.SchemaError, [], "only the key columns"),
    ("update of a key column", lambda t: t.update(set={"n": nyala.expr("n + 1")}, where="n = 1"), nyala.InvalidArgumentError, [], "part of the key"),
    ("an overflow in update where", lambda t: t.update(set={"must": nyala.expr("must + 127")}, where="n = 1"), nyala.InvalidValueError, ["out-of-range"], "'must'"),
    ("delete of nothing said", lambda t: t.delete(), nyala.InvalidArgumentError, [], "where"),
    ("data and set at once", lambda t: t.update([GOOD], set={"must": 1}), nyala.InvalidArgumentError, [], "not both"),
    ("neither data nor set", lambda t: t.update(where="n = 1"), nyala.InvalidArgumentError, [], "got neither"),
    ("neither keys nor where", lambda t: t.delete(), nyala.InvalidArgumentError, [], "got neither"),
    ("columns of a look-up as text", lambda t: t.get({"a": "x", "n": 1}, columns="a"), nyala.InvalidArgumentError, [], "write columns=['a']"),
    ("columns of look-ups as text", lambda t: t.get_many([{"a": "x", "n": 1}], columns="a"), nyala.InvalidArgumentError, [], "write columns=['a']"),
    ("a progress that takes one number", lambda t: t.insert([GOOD], progress=lambda done: None), nyala.InvalidArgumentError, [], "must accept (done, total)"),
    ("not a connection", lambda t: t.scan().to_duckdb("x"), nyala.InvalidArgumentError, [], "duckdb.connect()"),
    ("no data", lambda t: t.insert(17), nyala.InvalidArgumentError, [], "int"),
    ("a path", lambda t: t.insert("x.parquet"), nyala.InvalidArgumentError, [], "pass pyarrow.parquet.read_table('x.parquet'), or load it from the shell"),
    ("a Path", lambda t: t.delete(Path("x.CSV")), nyala.InvalidArgumentError, [], "pass pyarrow.csv.read_csv('x.CSV')"),
    ("a lazy frame", lambda t: t.insert(pl.LazyFrame(GOOD)), nyala.InvalidArgumentError, [], "call collect() first"),
    ("the key as an index", lambda t: t.insert(pd.DataFrame([GOOD]).set_index(["n"])), nyala.InvalidArgumentError, [], "key column 'n' is the DataFrame's index"),
    ("the key as an index, in get", lambda t: t.get_many(pd.DataFrame([GOOD]).set_index(["a", "n"])), nyala.InvalidArgumentError, [], "df.reset_index()"),
    ("a moment as columns", lambda t: t.get({"a": "x", "n": 1}, dt.datetime(2026, 2, 28)), nyala.InvalidArgumentError, [], "for a moment write get(key, at=…)"),
    ("a number as columns", lambda t: t.get_many([("x", 1)], 5), nyala.InvalidArgumentError, [], "takes a list of names, not 5: for a moment write get_many(keys, at=…)"),
    ("a key as two arguments", lambda t: t.get("x", 1), nyala.InvalidArgumentError, [], "get takes the whole key (a, n) as its first argument: write get(('x', 1))"),
    ("several keys in get", lambda t: t.get([("x", 1)]), nyala.InvalidArgumentError, [], "get_many takes a list of keys"),
    ("a condition in get", lambda t: t.get("n = 1"), nyala.InvalidArgumentError, [], "for a condition write scan(where='n = 1')"),
    ("a condition as rows", lambda t: t.update("n = 1"), nyala.InvalidArgumentError, [], "update(set={'column': value}, where='n = 1')"),
    ("a bare tuple", lambda t: t.insert(("y", 2, None)), nyala.InvalidArgumentError, [], "wrap it in a list: [('y', 2, None)]"),
    ("a list of values", lambda t: t.insert([5, "Ada"]), nyala.InvalidArgumentError, [], "item 0 of the data list has the type int"),
    ("a Path as rows", lambda t: t.upsert(Path("x.parquet")), nyala.InvalidArgumentError, [], "Path, not rows; for a file pass pyarrow.parquet.read_table('x.parquet')"),
    ("a data set", lambda t: t.upsert(pyarrow.dataset.dataset(pa.table(GOOD_COLUMNS))), nyala.InvalidArgumentError, [], "call to_table() first"),
    ("a value that does not fit the key", lambda t: t.insert([{**GOOD, "n": 2**70}]), nyala.InvalidValueError, ["out-of-range"], "row 0 (a='y'): column 'n': 1180591620717411303424 does not fit"),
    ("a float as a key", lambda t: t.get(("x", 1.5)), nyala.SchemaError, [], "got double; round and cast fractions first (the first such value is 1.5)"),
    ("an unknown function", lambda t: t.scan(where="qqqq(n) = 1"), nyala.InvalidArgumentError, [], "see 'Conditions and expressions' in the documentation"),
    ("an unknown choice", lambda t: t.insert([GOOD], on_conflict="replace"), nyala.InvalidArgumentError, [], "'replace'"),
    ("a predicate that does not parse", lambda t: t.scan(where="n = = 1"), nyala.InvalidArgumentError, [], "n = = 1"),
    ("a predicate on no column", lambda t: t.scan(where="nn = 1"), nyala.ColumnNotFoundError, [], "'n'"),
    ("a text in double quotes", lambda t: t.scan(where='text = "one"'), nyala.ColumnNotFoundError, [], "if you mean a text, write 'one'"),
    ("one in a list", lambda t: t.scan(where='text IN ("one")'), nyala.InvalidArgumentError, [], "text takes single quotes"),
    ("one in an expression", lambda t: t.update(set={"text": nyala.expr('"it\'s"')}, where="n = 1"), nyala.ColumnNotFoundError, [], "write 'it''s'"),
    ("an overflow in a condition", lambda t: t.count(where=nyala.col("n") * 2**62 * 4 == 4), nyala.InvalidArgumentError, [], "exceeds int64 in at least one row"),
    ("a column that is not there", lambda t: t.scan(columns=["txt"]), nyala.ColumnNotFoundError, [], "'text'"),
    ("columns as text", lambda t: t.scan(columns="a,text"), nyala.InvalidArgumentError, [], "write columns=['a', 'text']"),
    ("a negative limit", lambda t: t.scan(limit=-1), nyala.InvalidArgumentError, [], "-1"),
    ("no moment", lambda t: t.scan(at="yesterday"), nyala.InvalidArgumentError, [], "yesterday"),
    ("a length of time for a moment", lambda t: t.scan(at="7d"), nyala.InvalidArgumentError, [], "timedelta"),
    ("a naive moment in the future", lambda t: t.scan(at=soon()), nyala.InvalidArgumentError, [], "naive and was taken as UTC: use datetime.now(UTC) for the present, or .astimezone() of another local time"),
    ("one as text", lambda t: t.changes(since=0, until=soon().isoformat(" ")), nyala.InvalidArgumentError, [], "has no zone and was taken as UTC"),
    ("a day as a moment", lambda t: t.scan(at=dt.date(2026, 2, 28)), nyala.InvalidArgumentError, [], "at='2026-02-28' is its beginning in UTC, at='2026-03-01' its end"),
    ("a value column in get", lambda t: t.get({"text": "one"}), nyala.SchemaError, [], "get accepts only the key columns (a, n), not 'text'; to find rows by other columns, use scan(where=\"text = …\")"),
    ("one in get_many", lambda t: t.get_many({"text": ["one"]}), nyala.SchemaError, [], "use scan(where=\"text = …\")"),
    ("a condition as keys", lambda t: t.delete("a = 'x'"), nyala.InvalidArgumentError, [], "delete(where=\"a = 'x'\")"),
    ("a condition beside data", lambda t: t.update({"must": 3}, where="a = 'x'"), nyala.InvalidArgumentError, [], "update(set={'column': value}, where=…)"),
    ("a condition as columns", lambda t: t.scan("n > 1"), nyala.InvalidArgumentError, [], "write where='n > 1'"),
    ("a generator", lambda t: t.insert(dict(GOOD) for _ in range(1)), nyala.InvalidArgumentError, [], "pass list(rows)"),
    ("a time that went by", lambda t: t.scan(at=dt.timedelta(hours=1)), nyala.InvalidArgumentError, [], "write at=datetime.now(UTC) - timedelta(…)"),
    ("no time at all", lambda t: t.scan(at=pd.NaT), nyala.InvalidArgumentError, [], "not NaTType"),
    ("half a key in get", lambda t: t.get({"a": "x"}), nyala.InvalidArgumentError, [], "'n' is missing; scan(where=…) finds rows by a part of the key"),
    ("a write to the past", lambda t: t.at(t.scan().timestamp).insert([GOOD]), nyala.ReadOnlyError, [], "cannot be changed"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (None, "folder"),
        (5, "folder"),
        ("", "folder"),
        (":memory:", "mkdtemp"),
        ("s3a:/bucket/x", "is a URL"),
        ("dbfs:/x", "is a URL"),
        ("C:\\stores\\x", "is a Windows path"),
    ],
)
def test_invalid_paths_are_refused(
    path: object, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder is created, such as one named `s3:`."""
    monkeypatch.chdir(tmp_path)
    for open_it in (nyala.connect, nyala.check):
        with pytest.raises(nyala.InvalidArgumentError, match=re.escape(says)):
            open_it(path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder named `~` is created."""
    monkeypatch.setenv("HOME", str(tmp_path))
    nyala.connect("~/s").close()
    assert (tmp_path / "s" / "nyala.json").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"primary_key": 5}, "primary_key takes the names of the key's columns"),
        ({"primary_key": None, "unique": True}, "needs the names of the key columns"),
        ({"partition_by": "k"}, "not 'k'"),
        ({"partition_by": 4}, "nyala.hash_partition"),
    ],
)
def test_invalid_arguments_of_create_table(db: Database, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(nyala.InvalidArgumentError, match=re.escape(says)):
        db.create_table("u", {"k": "int64"}, **{"primary_key": "k", **arguments})  # type: ignore[arg-type]
    assert db.list_tables() == ["t"]


def test_the_class_database_does_not_open_a_path(tmp_path: Path) -> None:
    """The error names `nyala.connect`."""
    with pytest.raises(nyala.InvalidArgumentError, match=r"a store is opened by nyala\.connect\('.*/s'\)"):
        nyala.Database(tmp_path / "s")  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("inside", ["x", "data/x", "wal", "data/deep/er"])
def test_a_store_inside_another_store_is_refused(tmp_path: Path, inside: str) -> None:
    """The outer store removes unknown files in its folder, and a copy of it would include the inner store."""
    with nyala.connect(tmp_path / "s") as db:
        key_value_table(db)
    (tmp_path / "link").symlink_to(tmp_path / "s")
    before = sorted(tmp_path.rglob("*"))
    for outer in ("s", "link"):
        with pytest.raises(nyala.StorageError, match="is inside the folder of another store") as error:
            nyala.connect(tmp_path / outer / inside)
        assert str(tmp_path / "s") in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before
    nyala.connect(tmp_path / "link").close()
    nyala.connect(tmp_path / "beside").close()


def test_an_existing_store_inside_another_one_can_be_opened(tmp_path: Path) -> None:
    """It can be there if its folder was moved."""
    with nyala.connect(tmp_path / "outer" / "inner") as db:
        key_value_table(db).insert({"k": [1], "v": [1]})
    (tmp_path / "other").mkdir()
    nyala.connect(tmp_path / "other").close()
    os.rename(tmp_path / "outer" / "inner", tmp_path / "other" / "inner")
    with nyala.connect(tmp_path / "other" / "inner") as db:
        assert rows(db["t"]) == [(1, 1)]


@pytest.mark.parametrize(
    ("act", "kind", "codes", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_mistakes_raise_an_error_and_change_nothing(
    db: Database, act: Callable[[Any], Any], kind: type[Exception], codes: list[str], says: str
) -> None:
    """The error has the right class, and the codes of its rows. Its message has no memory address and
    no class of Arrow.
    """
    table = db["t"]
    before, now = rows(table), db.now()
    with pytest.raises(kind) as error:
        act(table)
    assert type(error.value) is kind
    text = str(error.value)
    assert says in text and len(text) > 20 and " object at 0x" not in text and "ArrowInvalid" not in text
    if codes:
        assert sorted(error.value.errors.column("code").to_pylist()) == codes  # type: ignore[attr-defined]
        assert error.value.errors.column_names == ["row", "operation", "code", "message", "a", "n"]  # type: ignore[attr-defined]
    assert rows(table) == before and db.now() == now


def test_only_errors_of_moments_without_zone_mention_utc(db: Database) -> None:
    for at in (dt.datetime(2041, 1, 1, tzinfo=dt.UTC), "2041-01-01T00:00Z", db.now() + (1 << 60)):
        with pytest.raises(nyala.InvalidArgumentError, match="is in the future") as error:
            db["t"].scan(at=at)
        assert "taken as UTC" not in str(error.value)


def test_the_error_of_an_expired_moment_without_zone_mentions_utc(db: Database) -> None:
    """West of Greenwich, a local time is hours earlier if it is read as UTC."""
    table = db.create_table("short", {"k": "int64", "v": "int64"}, "k", history=0)
    then = table.insert({"k": [1], "v": [1]}).time - dt.timedelta(days=1)
    table.delete([{"k": 1}])
    reads: list[Callable[[object], object]] = [
        lambda at: table.scan(at=at),
        lambda at: table.get({"k": 1}, at=at),
        lambda at: db.snapshot(at)["short"],
        lambda at: table.changes(since=at),
    ]
    for read in reads:
        for at, note in ((then.replace(tzinfo=None), True), (then.isoformat()[:19], True), (then, False)):
            with pytest.raises(nyala.HistoryExpiredError) as error:
                read(at)
            assert ("was taken as UTC" in str(error.value)) is note


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda db: db["nothing"], nyala.TableNotFoundError, "its tables are: t"),
        (lambda db: db["T"], nyala.TableNotFoundError, "did you mean 't'?"),
        (lambda db: db.drop_table("nothing"), nyala.TableNotFoundError, "nothing"),
        (lambda db: db.create_table("t", {"k": "int8"}, "k"), nyala.TableExistsError, "exist_ok"),
        (lambda db: db.create_table("t", {"k": "int8"}, "k", exist_ok=True), nyala.SchemaError, "other columns"),
        (lambda db: db.create_table("", {"k": "int8"}, "k"), nyala.InvalidArgumentError, "is an empty text; use at least one character"),
        (lambda db: db.create_table("é" * 200, {"k": "int8"}, "k"), nyala.InvalidArgumentError, "256"),
        (lambda db: db.create_table("v", {"k": "double"}, "k"), nyala.SchemaError, "'k'"),
        (lambda db: db.create_table("v", {"k": "int8"}, "q"), nyala.ColumnNotFoundError, "'q'"),
        (lambda db: db.create_table("v", {}, "k"), nyala.SchemaError, "the schema has no columns; name at least one"),
        (lambda db: db.create_table("v", {"k": "int8"}, []), nyala.SchemaError, "key"),
        (lambda db: db.create_table("v", {"k": "int7"}, "k"), nyala.SchemaError, "int7"),
        (lambda db: db.create_table("v", {"k": int}, "k"), nyala.SchemaError, "write 'int64'"),
        (lambda db: db.create_table("v", {"k": dt.date}, "k"), nyala.SchemaError, "write 'date'"),
        (lambda db: db.create_table("v", {"k": "number"}, "k"), nyala.SchemaError, "; the types are bool"),
        (lambda db: db.create_table("v", [("k", "int64")], "k"), nyala.SchemaError, "dict(…)"),
        (lambda db: db.create_table("v", pa.table({"k": [1]}), "k"), nyala.SchemaError, "pass its .schema"),
        (lambda db: db.create_table("v", pd.DataFrame({"k": [1]}), "k"), nyala.SchemaError, "Schema.from_pandas(df, preserve_index=False)"),
        (lambda db: db.create_table("v", {"k": "int8"}, "k", {"k": 4}), nyala.InvalidArgumentError, 'hash_partition("id", buckets=4)'),
        (lambda db: db.create_table("v", {f"c{i}": "int8" for i in range(301)}, "c0"), nyala.SchemaError, "300"),
        (lambda db: db.create_table("v", {"k": "int8", "v": "int8"}, "k", [nyala.hash_partition("v", buckets=2)]), nyala.InvalidArgumentError, "key"),
        (lambda db: db.create_table("v", {"k": "int8"}, "k", [nyala.range_partition("k", splits=[1, 1])]), nyala.InvalidArgumentError, "split"),
        (lambda db: db.create_table("v", {"k": "int8"}, "k", history="soon"), nyala.InvalidArgumentError, "7d"),
        (lambda db: nyala.hash_partition("k", buckets=1), nyala.InvalidArgumentError, "two"),
        (lambda db: db.rename_table("t", "t"), nyala.TableExistsError, "'t'"),
        (lambda db: nyala.connect(db.path, durability="maybe"), nyala.InvalidArgumentError, "maybe"),
        (lambda db: nyala.connect(db.path, memory_limit="lots"), nyala.InvalidArgumentError, "512MB"),
    ],
)  # fmt: skip
def test_mistakes_with_tables_and_stores(
    db: Database, make: Callable[[Database], Any], kind: type[Exception], says: str
) -> None:
    """Invalid names, schemas, partitions and arguments."""
    with pytest.raises(kind) as error:
        make(db)
    assert says in str(error.value)
    assert db.list_tables() == ["t"]


def test_a_condition_as_the_key_of_a_delete(tmp_path: Path) -> None:
    """A key of integers cannot be such a text. A key of text can."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        with pytest.raises(nyala.InvalidArgumentError, match=r"write delete\(where='k = 1'\)"):
            table.delete("k = 1")
        texts = db.create_table("texts", {"k": "string", "v": "int64"}, "k")
        texts.insert([("k = 1", 1)])
        assert texts.delete("k = 1").deleted == 1


def test_a_parquet_file_is_no_data(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"k": [1], "v": [1]}), tmp_path / "x.parquet")
    with open_database(tmp_path / "s") as db, pyarrow.parquet.ParquetFile(tmp_path / "x.parquet") as file:
        table = key_value_table(db)
        with pytest.raises(nyala.InvalidArgumentError, match=r"ParquetFile is .* call read\(\) first"):
            table.insert(file)  # type: ignore[arg-type]
        assert table.insert(file.read()).inserted == 1


def test_empty_batches_and_empty_tables_are_valid(db: Database) -> None:
    """The results have zero counts and the present timestamp."""
    table, now = db["t"], db.now()
    for result in (table.insert([]), table.upsert({}), table.delete([]), table.delete(where="n = 50")):
        assert (result.timestamp, result.inserted, result.updated, result.deleted) == (now, 0, 0, 0)
    empty = key_value_table(db, "empty")
    assert empty.scan().to_arrow().num_rows == empty.count() == empty.num_rows == 0
    assert empty.get({"k": 1}) is None and empty.get_many([]).num_rows == 0
    db.flush()
    assert rows(empty) == []


def test_connect_refuses_a_folder_with_other_files(tmp_path: Path) -> None:
    """A reader refuses a missing folder. Nothing is created or changed."""
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("x")
    with pytest.raises(nyala.StorageError, match=r"a\.txt"):
        nyala.connect(tmp_path / "letters")
    assert os.listdir(tmp_path / "letters") == ["a.txt"]
    with pytest.raises(nyala.StorageError, match="no Nyala store"):
        nyala.connect(tmp_path / "nothing", read_only=True)
    assert not (tmp_path / "nothing").exists()


def write_identity_of_version(path: Path, version: int) -> None:
    fields = {**json.loads(path.read_bytes()), "format_version": version}
    del fields["crc32c"]
    path.write_text(json.dumps({**fields, "crc32c": _crc(fields)}))


def test_a_store_of_a_later_format_version_is_refused(tmp_path: Path) -> None:
    """The error names the version."""
    nyala.connect(tmp_path / "s").close()
    write_identity_of_version(tmp_path / "s" / "nyala.json", FORMAT_VERSION + 1)
    for read_only in (False, True):
        with pytest.raises(nyala.StorageError, match=str(FORMAT_VERSION + 1)):
            nyala.connect(tmp_path / "s", read_only=read_only)


def test_a_second_writer_gets_pid_and_host_of_the_first(tmp_path: Path) -> None:
    """A killed writer leaves no lock."""
    script = "import nyala, sys; db = nyala.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "s")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "open\n"
    with pytest.raises(nyala.LockedError, match=f"process {child.pid} on"):
        nyala.connect(tmp_path / "s", share=False)
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    with nyala.connect(tmp_path / "s") as db:
        reader = nyala.connect(tmp_path / "s", read_only=True)
        with pytest.raises(nyala.ReadOnlyError, match="read_only"):
            reader.create_table("t", {"k": "int8"}, "k")
        reader.close()
        assert db.list_tables() == []


def test_a_full_disk(tmp_path: Path) -> None:
    """Writes and flushes fail with a clear message, reads work, no acknowledged row is lost, and
    writes work again once there is space.
    """
    files = FaultyFiles(system_files(), kind="enospc")
    db = open_database(tmp_path / "s", files=files)
    table = key_value_table(db)
    table.insert({"k": list(range(100)), "v": list(range(100))})
    files.fail_at = len(files.operations) + 1
    with pytest.raises(nyala.StorageError, match=r"(?i)space|disk"):
        db.flush()
    with pytest.raises(nyala.StorageError, match=r"(?i)space|disk") as refused:
        table.insert({"k": [1000], "v": [0]})
    assert refused.value.outcome is None
    assert table.count() == 100
    files.heal()
    files.fail_at = None
    table.insert({"k": [1000], "v": [0]})
    db.flush()
    assert table.count() == 101
    db.close()
    again = open_database(tmp_path / "s")
    assert again["t"].count() == 101
    again.close()


def test_an_error_of_a_stream_counts_the_applied_rows(db: Database) -> None:
    """Each record batch of a RecordBatchReader is atomic by itself; `.applied` counts the rows
    before the one that failed.
    """
    schema = pa.schema({"a": pa.string(), "n": pa.int32(), "must": pa.int8()})
    batches = [
        pa.record_batch({"a": ["y", "z"], "n": [1, 2], "must": [1, 1]}, schema=schema),
        pa.record_batch({"a": ["p", "x"], "n": [1, 1], "must": [1, 1]}, schema=schema),
    ]
    with pytest.raises(nyala.DuplicateKeyError) as error:
        db["t"].insert(pa.RecordBatchReader.from_batches(schema, iter(batches)))
    assert error.value.applied == 2
    assert str(error.value).startswith(
        "a record batch of the stream failed, after 2 rows that stay written: "
    )
    assert [row[0] for row in rows(db["t"])] == ["x", "y", "z"]
    reader = pa.RecordBatchReader.from_batches(schema, iter(batches))
    result = db["t"].upsert(reader)
    assert (result.inserted, result.updated) == (1, 3)


def test_an_error_of_the_streams_source_counts_the_applied_rows(db: Database) -> None:
    """From this number the caller knows where to continue."""
    table = key_value_table(db, "stream")
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])

    def batches(last: BaseException) -> Iterator[pa.RecordBatch]:
        for k in range(2):
            yield pa.record_batch([pa.array([k]), pa.array([k])], schema=schema)
        raise last

    for last in (OSError("the source broke"), nyala.StorageError("the other store is closed")):
        with pytest.raises(type(last), match=str(last)) as raised:
            table.upsert(pa.RecordBatchReader.from_batches(schema, batches(last)))
        assert raised.value.applied == 2  # type: ignore[attr-defined]
    assert rows(table) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lock_timeout": given}, "lock_timeout takes a number of seconds, 0 or more, not ")
        for given in ("abc", None, float("nan"), -1, True, [1], 10**400)
    ]
    + [
        ({"read_only": "no"}, "read_only takes True or False, not 'no'"),
        ({"maintenance": 1}, "maintenance takes True or False, not 1"),
        ({"limits": 5}, r"limits takes nyala.Limits\(max_columns=…\), not 5"),
    ],
    ids=str,
)
def test_invalid_arguments_of_connect(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    """A wait of NaN seconds would never end, and `read_only="no"` would mean True."""
    with pytest.raises(nyala.InvalidArgumentError, match=said):
        nyala.connect(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_errors_name_times_outside_of_datetime_as_numbers(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"at": "timestamp", "n": "int8"}, "at")
        far = pa.array([2**63 - 2, 0], pa.int64()).view(pa.timestamp("us", "UTC"))
        table.insert({"at": far, "n": [1, 2]})
        with pytest.raises(nyala.DuplicateKeyError, match=re.escape("row 0 (at=9223372036854775806):")):
            table.insert({"at": far, "n": [1, 2]})
        with pytest.raises(nyala.DuplicateKeyError, match=re.escape("row 0 (at=1970-01-01T00:00:00Z):")):
            table.insert({"at": far[1:], "n": [2]})
        with pytest.raises(nyala.KeyNotFoundError, match=re.escape("(at=-9223372036854775808)")):
            table.delete({"at": pa.array([-(2**63)], pa.int64()).view(far.type)})


def test_a_message_shortens_a_long_key(db: Database) -> None:
    with pytest.raises(nyala.InvalidValueError) as error:
        db["t"].insert([{**GOOD, "a": "k" * 60_000}])
    assert "(a='kkkk" in str(error.value) and "n=2)" in str(error.value) and len(str(error.value)) < 600
    assert error.value.errors["a"].to_pylist() == ["k" * 60_000]


def test_the_error_for_a_missing_data_file_says_what_to_do(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
        table.insert({"k": range(10), "v": range(10)})
        table.flush()
    (gone,) = (tmp_path / "s").rglob("*.base")
    gone.unlink()
    with nyala.connect(tmp_path / "s", read_only=True) as db:
        for read in (lambda: db["t"].scan().to_arrow(), lambda: db["t"].get({"k": 1})):
            with pytest.raises(
                nyala.StorageError, match=r"1-[0-9a-f]{16}\.base is missing.*backup.*nyala fs check"
            ) as error:
                read()
            assert isinstance(error.value, FileNotFoundError) and error.value.path == str(gone)


@pytest.mark.parametrize(
    ("gone", "kind", "says"),
    [
        ("nyala.json", nyala.StorageError, "nyala.json is missing.*restore it from a backup"),
        ("checkpoints/*", nyala.CorruptionError, "a segment of the log is missing: restore it, or the store"),
    ],
)
def test_reader_and_writer_raise_the_same_for_a_missing_catalogue(
    tmp_path: Path, gone: str, kind: type[Exception], says: str
) -> None:
    for k in range(3):
        with nyala.connect(tmp_path / "s", maintenance=False) as db:
            table = db.create_table("t", {"k": "int64"}, "k", history=0, exist_ok=True)
            table.upsert([(k,)])
            table.compact()
            table.vacuum()
    for path in (tmp_path / "s").glob(gone):
        path.unlink()
    for read_only in (True, False):
        with pytest.raises(kind, match=says):
            nyala.connect(tmp_path / "s", read_only=read_only)


def test_an_error_of_a_batch_names_its_operation(db: Database) -> None:
    """Operations of several tables may have columns of the same names, and the error is raised at
    the end of the block.
    """
    db.create_table("u", {"a": "string", "n": "int32"}, ["a", "n"])
    with pytest.raises(nyala.SchemaError, match=r"^upsert into 'u': column 'n'"), db.batch() as batch:
        batch.upsert("t", [GOOD])
        batch.upsert("u", [{"a": "x", "n": "one"}])
    assert db["t"].count() == 1


def test_objects_of_an_open_store_cannot_be_pickled(db: Database) -> None:
    """The error says what to send to another process, for multiprocessing and joblib."""
    table = db["t"]
    for given in (db, table, table.at(table.scan().timestamp), table.scan(), db.snapshot()):
        with pytest.raises(
            TypeError, match=rf"a {type(given).__name__} belongs to the store .* read_only=True"
        ):
            pickle.dumps(given)
    assert pickle.loads(pickle.dumps(table.scan().tokens()))


def test_a_snapshot_is_a_container_of_table_names(db: Database) -> None:
    db.create_table("later", {"k": "int64"}, ["k"])
    snapshot = db.snapshot()
    db.drop_table("later")
    assert list(snapshot) == ["later", "t"] and "later" in snapshot and "u" not in snapshot
