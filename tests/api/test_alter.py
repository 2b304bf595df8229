"""Alterations of columns: their effect on rows in memory, in files, after compactions, after a reopen, and at
earlier moments."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import nyala
from nyala.api.database import Database
from nyala.delta.run import LIVENESS
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MajorPlan
from tests.support import compact_deltas, open_database


def rows(table: Any, **scan: Any) -> list[dict[str, Any]]:
    """Return the rows in key order."""
    found: list[dict[str, Any]] = table.scan(order_by_key=True, **scan).to_arrow().to_pylist()
    return found


def in_memory(db: Database) -> Database:
    return db


def flushed(db: Database) -> Database:
    db.flush()
    return db


def minor(db: Database) -> Database:
    db.flush()
    compact_deltas(db._writer())
    return db


def major(db: Database) -> Database:
    """Merge all REDO of every rowset into its base."""
    db.flush()
    store = db._writer()
    for table, tablet in store.root.tablets():
        for rowset in tablet.rowsets:
            plan = MajorPlan(rowset.id, tuple(sorted(rowset.column_ids - {LIVENESS})), 1.0)
            compact(store, table.id, tablet.id, plan, run_here(store))
    return db


def compacted(db: Database) -> Database:
    for name in db.list_tables():
        db[name].compact()
    return db


def reopened(db: Database) -> Database:
    db.close()
    return open_database(Path(db.path))


def flushed_and_reopened(db: Database) -> Database:
    return reopened(flushed(db))


def compacted_and_reopened(db: Database) -> Database:
    return reopened(compacted(db))


STATES = [in_memory, flushed, minor, major, compacted, reopened, flushed_and_reopened, compacted_and_reopened]
states = pytest.mark.parametrize("move", STATES, ids=lambda move: move.__name__)
Move = Callable[[Database], Database]


# ------------------------------------------------------------------------------------------------ column ids


@states
def test_a_column_added_again_does_not_show_its_old_values(path: Path, move: Move) -> None:
    """The specification's example: drop col_b, then add it again with a default."""
    db = open_database(path)
    x = db.create_table("x", {"col_a": "int32", "col_b": "int32"}, "col_a")
    x.insert({"col_a": [1], "col_b": [1]})
    before = db.now()
    with x.alter() as a:
        a.drop_column("col_b")
    db = move(db)
    with db["x"].alter() as a:
        a.add_column("col_b", "int32", nullable=False, default=999)
    db = move(db)
    assert rows(db["x"]) == [{"col_a": 1, "col_b": 999}]
    assert rows(db["x"], where="col_b = 999") == [{"col_a": 1, "col_b": 999}]
    assert rows(db["x"], where="col_b = 1") == []
    assert db["x"].get({"col_a": 1}) == {"col_a": 1, "col_b": 999}
    assert rows(db["x"], at=before) == [{"col_a": 1, "col_b": 1}]
    db.close()


@states
def test_columns_can_be_renamed(path: Path, move: Move) -> None:
    """Keys, hash buckets, ranges and predicates work with the new names."""
    db = open_database(path)
    t = db.create_table(
        "t", {"host": "string", "time": "int64", "v": "double"}, ["host", "time"],
        [nyala.hash_partition("host", buckets=3), nyala.range_partition("time", splits=[100])],
    )  # fmt: skip
    t.insert({"host": ["a", "b"], "time": [1, 200], "v": [0.5, 1.5]})
    before = db.now()
    with t.alter() as a:
        a.rename_column("host", "machine")
        a.rename_column("v", "host")  # the step before made the name free
        a.rename_column("time", "at")
    db = move(db)
    t = db["t"]
    assert t.primary_key == ["machine", "at"]
    t.upsert({"machine": ["b", "c"], "at": [200, 7], "host": [2.5, 3.5]})
    assert t.get({"machine": "b", "at": 200}) == {"machine": "b", "at": 200, "host": 2.5}
    scan = t.scan(where="machine = 'c' AND at < 100")
    assert scan.to_arrow().to_pylist() == [{"machine": "c", "at": 7, "host": 3.5}]
    assert scan.explain().to_dict()["tablets_read"] == 1
    old = t.scan(where="host = 'a' AND time = 1", at=before)
    assert old.to_arrow().to_pylist() == [{"host": "a", "time": 1, "v": 0.5}]
    assert old.explain().to_dict()["tablets_read"] == 1
    assert t.get({"host": "b", "time": 200}, at=before) == {"host": "b", "time": 200, "v": 1.5}
    assert "HASH (machine)" in t.tablets()[0].partition and "RANGE (at)" in t.tablets()[0].partition
    db.close()


def test_a_renamed_table_keeps_its_history_and_its_object(db: Database) -> None:
    t = db.create_table("t", {"k": "int64"}, "k", comment="first")
    t.insert({"k": [1]})
    before = db.now()
    with t.alter() as a:
        a.rename("u")
        a.set_comment("second")
        a.add_column("c", "int64", default=1)
    assert t.name == "u" and db.list_tables() == ["u"]
    assert rows(t) == [{"k": 1, "c": 1}] and rows(db["u"], at=before) == [{"k": 1}]
    assert db._root().table("u").entry.comment == "second"


# ------------------------------------------------------------------------------------------------ all or nothing


def test_an_alteration_is_executed_at_the_end_of_its_block_unless_it_raises(db: Database) -> None:
    t = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    seen = db._root()
    with pytest.raises(ZeroDivisionError), t.alter() as a:
        a.add_column("c", "int64")
        assert t.schema.names == ["k", "v"]
        1 / 0  # noqa: B018
    with pytest.raises(nyala.ColumnNotFoundError), t.alter() as a:
        a.drop_column("v")
        a.drop_column("v")
    with t.alter() as a:
        pass
    with t.alter() as a:
        a.rename_column("v", "w")
        a.rename_column("w", "v")
    assert db._root() is seen


def test_an_alteration_is_used_once_and_inside_its_block(db: Database) -> None:
    t = db.create_table("t", {"k": "int64"}, "k")
    alteration = t.alter()
    with pytest.raises(nyala.InvalidArgumentError, match="inside its `with` block"):
        alteration.add_column("c", "int64")
    with alteration:
        alteration.add_column("c", "int64")
    with pytest.raises(nyala.InvalidArgumentError, match="used once"), alteration:
        pass


REFUSED: list[tuple[Callable[[nyala.Alteration], object], type[Exception], str]] = [
    (lambda a: a.add_column("v", "int8"), nyala.SchemaError, "column 'v' already exists"),
    (lambda a: a.add_column("n", "int8", nullable=False), nyala.SchemaError, "'n' is NOT NULL and has no default"),
    (lambda a: a.add_column("n", "int8", default=300), nyala.SchemaError, "'n': invalid default"),
    (lambda a: a.add_column("n", "int7"), nyala.SchemaError, "column 'n': unknown column type 'int7'"),
    (lambda a: a.add_column(5, "int8"), nyala.SchemaError, "column name 5 is not text"),  # type: ignore[arg-type]
    (lambda a: a.add_column("n", nyala.column("int8"), default=5), nyala.InvalidArgumentError, "use one of the two"),
    (lambda a: a.add_column("n", "string", default="x" * 65_537), nyala.SchemaError, "65537 bytes, .* limit of 65536"),
    (lambda a: a.add_column("", "int8"), nyala.SchemaError, "column name is an empty text"),
    (lambda a: a.add_column("n" * 257, "int8"), nyala.SchemaError, "257 bytes, more than the limit of 256"),
    (lambda a: a.add_column("n", "int8", encoding="prefix"), nyala.SchemaError, "does not support encoding 'prefix'"),
    (lambda a: a.drop_column("k"), nyala.SchemaError, "'k' is part of the primary key .k. and cannot be dropped"),
    (lambda a: a.drop_column(["v"]), nyala.SchemaError, "column name .'v'. is not text"),  # type: ignore[arg-type]
    (lambda a: a.drop_column("w"), nyala.ColumnNotFoundError, "no column 'w'"),
    (lambda a: a.rename_column("v", "s"), nyala.SchemaError, "column 's' already exists"),
    (lambda a: a.rename_column("v", "v"), nyala.SchemaError, "column 'v' already exists"),
    (lambda a: a.rename_column("w", "x"), nyala.ColumnNotFoundError, "no column 'w'"),
    (lambda a: a.rename_column("v", "é" * 129), nyala.SchemaError, "limit of 256 .max_identifier_bytes"),
    (lambda a: a.rename_column("v", ""), nyala.SchemaError, "column name is an empty text"),
    (lambda a: a.alter_column("v"), nyala.InvalidArgumentError, "got nothing to change"),
    (lambda a: a.alter_column("w", default=1), nyala.ColumnNotFoundError, "no column 'w'"),
    (lambda a: a.alter_column("v", default="x"), nyala.SchemaError, "'v': invalid default"),
    (lambda a: a.alter_column("v", encoding="dictionary"), nyala.SchemaError, "type int16 does not support"),
    (lambda a: a.alter_column("v", compression="rar"), nyala.SchemaError, "unknown compression 'rar'"),
    (lambda a: a.alter_column("v", block_size=-1), nyala.SchemaError, "block_size must be .* got -1"),
    (lambda a: a.alter_column("v", block_size=0), nyala.SchemaError, "block_size must be 512 to 16777216 .* got 0"),
    (lambda a: a.add_column("x", "int8", block_size=511), nyala.SchemaError, "block_size must be .* got 511"),
    (lambda a: a.alter_column("v", comment="x" * 257), nyala.SchemaError, "257 bytes, more than the limit of 256"),
    (lambda a: a.add_column("x", "int8", nullable="no"), nyala.InvalidArgumentError, "True or False"),  # type: ignore[arg-type]
    (lambda a: a.add_column("x", "int8", "rle"), nyala.InvalidArgumentError, 'write encoding="rle"'),  # type: ignore[arg-type]
    (lambda a: a.alter_column("v", nullable=False), nyala.SchemaError, "cannot become NOT NULL"),
    (lambda a: a.alter_column("k", nullable=True), nyala.SchemaError, "cannot become nullable"),
    (lambda a: a.alter_column("v", nullable="yes"), nyala.InvalidArgumentError, "True or False"),  # type: ignore[arg-type]
    (lambda a: a.alter_column("k", type="int64"), nyala.SchemaError, "its type int32 cannot change"),
    (lambda a: a.alter_column("v", type="int8"), nyala.SchemaError, "only become wider .int16 to int32, int64"),
    (lambda a: a.alter_column("v", type="double"), nyala.SchemaError, "int16 cannot become double"),
    (lambda a: a.alter_column("f", type="int64"), nyala.SchemaError, "float to double"),
    (lambda a: a.alter_column("d", type="decimal(12,3)"), nyala.SchemaError, r"at the same scale, decimal\(p,2\)"),
    (lambda a: a.alter_column("d", type="decimal(6,2)"), nyala.SchemaError, "cannot become decimal"),
    (lambda a: a.alter_column("d", type="decimal(39,2)"), nyala.SchemaError, "precision must be 1 to 38, got 39"),
    (lambda a: a.alter_column("s", type="varchar(65536)"), nyala.SchemaError, "length must be 1 to 65535"),
    (lambda a: a.alter_column("s", type="binary"), nyala.SchemaError, r"varchar\(5\) cannot become binary"),
    (lambda a: a.alter_column("s", type="varchar(3)"), nyala.SchemaError, "to a longer varchar, or to string"),
    (lambda a: a.alter_column("b", type="int8"), nyala.SchemaError, "bool has no wider type"),
    (lambda a: a.rename("u"), nyala.TableExistsError, "cannot rename 't' to 'u'"),
    (lambda a: a.rename("t"), nyala.TableExistsError, "cannot rename 't' to 't'"),
    (lambda a: a.rename("x" * 257), nyala.InvalidArgumentError, "limit of 256 .max_identifier_bytes"),
    (lambda a: a.set_history("soon"), nyala.InvalidArgumentError, "invalid history='soon': pass 'forever' or"),
    (lambda a: a.set_primary_key(["v"]), AttributeError, "the primary key cannot change"),
    (lambda a: a.add_hash_partition("k"), AttributeError, "hash levels cannot change; table.repartition"),
    (lambda a: a.split_range(5), AttributeError, "cannot be split; table.repartition"),
    (lambda a: a.rename(""), nyala.InvalidArgumentError, "table name is an empty text"),
    (lambda a: a.set_comment("x" * 257), nyala.SchemaError, "257 bytes, more than the limit of 256"),
    (lambda a: a.add_range(1, 2), nyala.InvalidArgumentError, "has no range level, so no range can be added"),
    (lambda a: a.drop_range(1, 2), nyala.InvalidArgumentError, "has no range level, so no range can be dropped"),
]  # fmt: skip


@pytest.mark.parametrize(("step", "error", "message"), REFUSED, ids=range(len(REFUSED)))
def test_an_invalid_step_raises_the_reason(
    db: Database, step: Callable[[nyala.Alteration], object], error: type[Exception], message: str
) -> None:
    spec = {"k": "int32", "v": "int16", "s": "varchar(5)", "d": "decimal(9,2)", "f": "float", "b": "bool"}
    db.create_table("u", {"k": "int64"}, "k")
    t = db.create_table("t", spec, "k")
    seen = db._root()
    with pytest.raises(error, match=message), t.alter() as a:
        a.add_column("good", "int8")
        step(a)
    assert db._root() is seen


def test_a_column_above_the_limit_is_refused(db: Database) -> None:
    t = db.create_table("t", {f"c{n}": "int8" for n in range(300)}, "c0")
    with pytest.raises(nyala.SchemaError, match="301 columns exceed the limit of 300"), t.alter() as a:
        a.add_column("one", "int8")
    with t.alter() as a:
        a.drop_column("c1")
        a.add_column("one", "int8")


def test_a_reader_cannot_alter(db: Database, path: Path) -> None:
    db.create_table("t", {"k": "int64"}, "k")
    with nyala.connect(path, read_only=True) as reader, pytest.raises(nyala.ReadOnlyError):
        reader["t"].alter()


# ------------------------------------------------------------------------------------------------ widening


def test_a_scan_can_request_wider_types(db: Database) -> None:
    """Larger integers, and nullable for NOT NULL, but not the reverse."""
    spec = {"k": "int32", "v": "int16", "d": "decimal(9,2)", "s": "varchar(3)", "n": "int8"}
    t = db.create_table("t", spec, "k")
    t.insert({"k": [1, 2], "v": [1, None], "d": [Decimal("1.5"), None], "s": ["a", "b"], "n": [1, 2]})
    wanted = pa.schema(
        [("v", pa.int64()), ("k", pa.int64()), ("d", pa.decimal128(20, 2)), ("s", pa.large_string())]
    )
    for _ in range(2):
        found = t.scan(columns=wanted, order_by_key=True, where="n > 0").to_arrow()
        assert found.schema.field("v").type == pa.int64() and found.schema.field("k").nullable
        assert found.schema.field("d").type == pa.decimal128(20, 2)
        assert found.to_pylist()[0] == {"v": 1, "k": 1, "d": Decimal("1.50"), "s": "a"}
        assert t.scan(columns=wanted, where="v = 1 AND d = 1.5").to_arrow().num_rows == 1
        assert pl.from_arrow(found).equals(
            t.scan(columns=wanted, where="n > 0").to_polars_lazy().sort("k").collect()
        )
        t.compact()
    with pytest.raises(nyala.SchemaError, match="'v' is int16 and cannot be read as int8"):
        t.scan(columns=pa.schema([("v", pa.int8())]))
    with pytest.raises(nyala.SchemaError, match="'v' may hold NULL and cannot be read as NOT NULL"):
        t.scan(columns=pa.schema([pa.field("v", pa.int16(), nullable=False)]))
    with pytest.raises(nyala.ColumnNotFoundError, match="no column 'w'"):
        t.scan(columns=pa.schema([("w", pa.int8())]))


# ------------------------------------------------------------------------------------------------ the past


def test_a_scan_or_snapshot_keeps_its_columns(db: Database) -> None:
    """An alteration does not change scans that began before it."""
    t = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    t.insert({"k": [1], "v": [1]})
    scan, snapshot, view = t.scan(), db.snapshot(), t.at(db.now())
    with t.alter() as a:
        a.drop_column("v")
    t.compact()
    t.vacuum()
    assert scan.to_arrow().to_pylist() == [{"k": 1, "v": 1}]
    assert rows(snapshot["t"]) == [{"k": 1, "v": 1}] and rows(view) == [{"k": 1, "v": 1}]
    assert snapshot.sql("SELECT v FROM t").fetchall() == [(1,)]
    assert db.sql("SELECT * FROM t").fetchall() == [(1,)]


# ------------------------------------------------------------------------------------------------ limits


def test_errors_name_the_limit_and_its_value(path: Path) -> None:
    """This holds for Kudu's limits, and for other limits that the store was created with."""
    wide = {f"c{n}": "int8" for n in range(301)}
    small = nyala.Limits(
        max_columns=3, max_cell_bytes=10, max_key_bytes=8, max_identifier_bytes=4, max_comment_bytes=2
    )
    spec = {"a": "string", "b": "int32", "v": "string"}
    long_default = {"a": nyala.column("string", default="x" * 11), "b": "int8"}
    long_split = nyala.range_partition("a", splits=["x" * 9])
    schema_error, value_error = nyala.SchemaError, nyala.InvalidValueError
    refused: list[tuple[Callable[[Database], object], type[Exception], str]] = [
        (
            lambda db: db.create_table("w", {**spec, "x": "int8"}, "a"),
            schema_error,
            "4 columns exceed the limit of 3 .*max_columns",
        ),
        (
            lambda db: db.create_table("name5", spec, "a"),
            ValueError,
            "5 bytes, more than the limit of 4 .*max_identifier_bytes",
        ),
        (
            lambda db: db.create_table("w", {"a": "int8", "ééé": "int8"}, "a"),
            schema_error,
            "6 bytes, more than the limit of 4",
        ),
        (
            lambda db: db.create_table("w", spec, "a", comment="abc"),
            schema_error,
            "3 bytes, more than the limit of 2 .*max_comment",
        ),
        (
            lambda db: db["t"].insert([{"a": "a", "b": 1, "v": "x" * 11}]),
            value_error,
            "11 bytes, .* limit of 10",
        ),
        (
            lambda db: db["t"].update(set={"v": nyala.expr("'abcdefgh' || v")}),
            value_error,
            "limit of 10 per cell .max_cell_bytes",
        ),
        (
            lambda db: db["t"].insert([{"a": "abc", "b": 1}]),
            value_error,
            "9 bytes, but .* at most 8 .*max_key_bytes",
        ),
        (lambda db: db.create_table("w", long_default, "b"), schema_error, "limit of 10"),
        (
            lambda db: db.create_table("w", spec, ["a", "b"], long_split),
            ValueError,
            "9 bytes as a key, at most 8",
        ),
    ]
    db = open_database(path, limits=small)
    db.create_table("t", spec, ["a", "b"]).insert([{"a": "a", "b": 1, "v": "x" * 10}])
    for step, error, message in refused:
        with pytest.raises(error, match=message):
            step(db)
    with pytest.raises(nyala.SchemaError, match="4 columns exceed the limit of 3"), db["t"].alter() as a:
        a.add_column("x", "int8")
    db.close()
    with nyala.connect(path, limits=nyala.Limits(max_columns=301, max_cell_bytes=100_000)) as db:
        db["t"].insert([{"a": "abc", "b": 1, "v": "x" * 100_000}])
        assert len(db.create_table("wide", wide, "c0").schema) == 301
    with nyala.connect(path) as db:
        assert len(db["t"].get({"a": "abc", "b": 1})["v"]) == 100_000  # type: ignore[index]
        assert db["wide"].insert({name: [1] for name in wide}).inserted == 1
    with pytest.raises(nyala.InvalidArgumentError, match="max_cell_bytes=0 must be a whole number from 1"):
        nyala.Limits(max_cell_bytes=0)
