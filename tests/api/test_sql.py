"""`db.sql` with SELECT: results, errors, closing, and the garbage collector."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import nyala
from nyala.cfile.format import HEAD
from nyala.sql.select import result as result_module
from nyala.sql.select import source as source_module
from nyala.sql.select.closing import UnusedCursors
from nyala.tablet.scan import read_path
from tests.support import open_database

ROWS = 300_000


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A store that tests only read: `t` has 300,000 rows on disk, sorted by k; `small` has two rows in memory."""
    database = open_database(tmp_path_factory.mktemp("sql") / "s")
    table = database.create_table("t", {"k": "int64", "s": "string", "v": "double", "n": "int32"}, "k")
    k = np.arange(ROWS)
    table.insert(
        pa.table(
            {"k": k, "s": np.array(["a", "b", "c"])[k % 3], "v": k / 2, "n": pa.array(k % 1000, pa.int32())}
        )
    )
    database.flush()
    small = database.create_table("small", {"k": "int64", "name": "string"}, "k")
    small.insert({"k": [1, 2], "name": ["one", None]})
    yield database
    database.close()


def explained(result: Any) -> list[dict[str, Any]]:
    """Return the explanation of each scan of one run of the statement."""
    return [scan.to_dict() for scan in result.explain().scans]


def test_a_result_returns_its_rows_in_every_form_and_repeatedly(db: Any) -> None:
    result = db.sql("SELECT k, name FROM small ORDER BY k")
    expected = [(1, "one"), (2, None)]
    assert result.fetchall() == expected == result.fetchall() == list(result)
    assert result.columns == ["k", "name"] and result.schema == pa.schema(
        {"k": pa.int64(), "name": pa.string()}
    )
    as_lists = {"k": [1, 2], "name": ["one", None]}
    for arrow in (result.to_arrow(), result.arrow(), pa.table(result), result.to_reader().read_all()):
        assert arrow.to_pydict() == as_lists
    assert (
        result.to_polars().to_dict(as_series=False)
        == pl.DataFrame(result).to_dict(as_series=False)
        == as_lists
    )
    assert result.to_pandas()["k"].tolist() == result.df()["k"].tolist() == [1, 2]
    assert "one" in repr(result) and "NULL" in repr(result)


def test_fetch_methods_continue_one_run(db: Any) -> None:
    """After `fetchall` or the last row, the next fetch method begins with the first row again."""
    result = db.sql("SELECT k FROM t WHERE k < 5 ORDER BY k")
    assert (result.fetchone(), result.fetchmany(2), result.fetchall()) == ((0,), [(1,), (2,)], [(3,), (4,)])
    assert len(result.fetchmany(9)) == 5
    assert result.fetchone() is None and result.fetchmany(3) == []


def test_parameters_of_both_kinds(db: Any) -> None:
    """Parameters are given by position or by name. A missing or invalid parameter is an error."""
    assert db.sql("SELECT name FROM small WHERE k = ?", [1]).fetchall() == [("one",)]
    assert db.sql("SELECT name FROM small WHERE k = $k", {"k": 1}).to_arrow()["name"].to_pylist() == ["one"]
    with pytest.raises(nyala.InvalidArgumentError, match="parameters"):
        db.sql("SELECT 1", 5)
    for text in ("SELECT name FROM small WHERE k = ?", "SELECT name FROM small WHERE k = $k"):
        with pytest.raises(nyala.InvalidArgumentError, match="parameter"):
            db.sql(text)


def test_duckdb_has_the_private_class_for_sources() -> None:
    """`duckdb._sources` may change in any version. Without it DuckDB would read whole tables."""
    assert source_module._source_class()


def test_a_result_does_not_see_later_writes(tmp_path: Path) -> None:
    """The result of a snapshot has the snapshot's moment, also after the snapshot was closed."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64"}, "k")
        first = table.insert({"k": [1]})
        result = db.sql("SELECT count(*) FROM t")
        snapshot = db.snapshot()
        table.insert({"k": [2]})
        db.drop_table("t")
        assert result.fetchall() == [(1,)]
        assert snapshot.sql("SELECT count(*) FROM t").fetchall() == [(1,)]
        assert result.timestamp == snapshot.timestamp == first.timestamp
        kept = snapshot.sql("SELECT k FROM t")
        snapshot.close()
        assert kept.fetchall() == [(1,)]
        with pytest.raises(nyala.InvalidArgumentError, match="closed"):
            snapshot.sql("SELECT 1")


def test_a_statement_at_a_past_moment(tmp_path: Path) -> None:
    """`at=` chooses the moment of all tables. A moment in the future is refused."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64"}, "k")
        first = table.insert({"k": [1]})
        table.insert({"k": [2]})
        assert db.sql("SELECT count(*) FROM t", at=first).fetchall() == [(1,)]
        assert db.sql("SELECT count(*) FROM t WHERE k > ?", [0]).fetchall() == [(2,)]
        with pytest.raises(nyala.InvalidArgumentError, match="is in the future"):
            db.sql("SELECT 1", at=first.timestamp + (1 << 60))


def test_names_of_tables_that_differ_only_in_case(tmp_path: Path) -> None:
    """Each table is read by its exact spelling. One statement cannot read both."""
    with open_database(tmp_path / "s") as db:
        for name, value in (("Alike", 1), ("alike", 2), ('odd "name"', 3), ("a.b", 4), ("select", 5)):
            db.create_table(name, {"K": "int64"}, "K").insert({"K": [value]})
        assert db.sql("SELECT k FROM Alike").fetchall() == [(1,)]
        assert db.sql("SELECT k FROM alike").fetchall() == [(2,)]
        odd = 'SELECT a.k, b.k, c.K FROM "odd ""name""" a, "a.b" b, "select" c'
        assert db.sql(odd).fetchall() == [(3, 4, 5)]
        with pytest.raises(nyala.InvalidArgumentError, match="is ambiguous"):
            db.sql("SELECT * FROM alike, Alike")
        db.rename_table("Alike", "other")
        assert db.sql("SHOW TABLES").fetchall() == [
            ("a.b",),
            ("alike",),
            ('odd "name"',),
            ("other",),
            ("select",),
        ]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("SET threads = 1", "SET is not a statement"), ("INSTALL httpfs", "INSTALL is not a statement"),
        ("CALL pragma_version()", "CALL is not a statement"), ("VACUUM", "SQL reference"),
        ("PIVOT t ON s", "PIVOT"), ("", "no statement"), (5, "text"), ("SELEC 1", "SELEC is not"),
        ("SELECT sum(s) FROM t", "sum"), ("SELECT k FROM t GROUP BY s", "GROUP BY"),
    ],
    ids=str,
)  # fmt: skip
def test_statements_that_nyala_does_not_have_are_refused(db: Any, text: Any, word: str) -> None:
    """A statement that changes only DuckDB must not appear to work: its effect would be lost."""
    with pytest.raises(nyala.InvalidArgumentError, match=word):
        db.sql(text)


def test_errors_for_unknown_names_have_a_suggestion_and_the_place(db: Any) -> None:
    with pytest.raises(nyala.TableNotFoundError, match=r"did you mean 'small'(?s:.*)LINE 2"):
        db.sql("SELECT *\nFROM smal")
    for text in (
        "SELECT nam FROM small",
        "SELECT s.nam FROM small s",
        "SELECT * FROM small JOIN t USING (nam)",
    ):
        with pytest.raises(nyala.ColumnNotFoundError, match="did you mean 'name'"):
            db.sql(text)


def test_errors_of_duckdb_and_of_scans_are_raised_as_errors_of_nyala(tmp_path: Path, db: Any) -> None:
    """Errors of DuckDB become InvalidArgumentError. A damaged file raises CorruptionError, as a scan does."""
    with pytest.raises(nyala.InvalidArgumentError, match="Could not convert"):
        db.sql("SELECT s::INT FROM t").fetchall()
    for read in (lambda result: result.fetchall(), lambda result: result.fetchone()):
        with pytest.raises(nyala.InvalidArgumentError, match=r"(?s)Could not convert.*LINE 2:  s::INT"):
            read(db.sql("SELECT k,\n s::INT FROM t"))
    with pytest.raises(nyala.InvalidArgumentError, match="boo"):
        db.sql("SELECT error('boo') FROM t").fetchall()
    with open_database(tmp_path / "s") as other:
        text = nyala.column("string", encoding="plain", compression="none")
        table = other.create_table("t", {"k": "int64", "s": text}, "k")
        table.insert({"k": list(range(1000)), "s": [f"text {i}" for i in range(1000)]})
        other.flush()
    (file,) = [
        p for p in (tmp_path / "s" / "data").rglob("*") if p.is_file() and b"text 500" in p.read_bytes()
    ]
    data = bytearray(file.read_bytes())
    data[data.find(b"text 500")] ^= 1
    file.write_bytes(data)
    with open_database(tmp_path / "s") as other, pytest.raises(nyala.CorruptionError, match="offset"):
        other.sql("SELECT max(s) FROM t").fetchall()


def test_damage_found_while_a_statement_is_planned_raises_corruption_error(tmp_path: Path) -> None:
    """DuckDB calls the scan for an estimate of its rows, and returns only the text of an error."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "a": "int32"}, "k")
        table.insert(pa.table({"k": np.arange(ROWS), "a": pa.array(np.arange(ROWS) % 1000, pa.int32())}))
        table.flush()
        table.update({"k": [5], "a": [-1]})
        table.flush()
    (redo,) = (tmp_path / "s").glob("data/*/*.redo")
    data = bytearray(redo.read_bytes())
    data[HEAD.size] ^= 1
    redo.write_bytes(data)
    with nyala.connect(tmp_path / "s", read_only=True) as db, pytest.raises(nyala.CorruptionError):
        db.sql("SELECT count(*) FROM t WHERE a = 7").fetchall()


def test_reading_a_result_after_close_raises_an_error(tmp_path: Path) -> None:
    db = open_database(tmp_path / "s")
    db.create_table("t", {"k": "int64"}, "k").insert({"k": list(range(10))})
    fresh, begun = db.sql("SELECT k FROM t"), db.sql("SELECT k FROM t")
    begun.fetchone()
    db.close()
    for act in (
        fresh.fetchall,
        begun.fetchall,
        fresh.to_arrow,
        lambda: db.sql("SELECT 1"),
    ):
        with pytest.raises(nyala.StorageError, match="closed"):
            act()
    assert re.fullmatch(r"SelectResult \(.*the store '.*' is closed.*\)", repr(fresh)), "repr raises no error"


def test_close_while_a_statement_runs(tmp_path: Path) -> None:
    """`close` raises nothing, and the statement finishes or fails with an error of Nyala."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64"}, "k")
        table.insert({"k": range(100_000)})
        begun, ends = threading.Event(), []

        def run() -> None:
            begun.set()
            try:
                ends.append(db.sql("SELECT count(*) FROM t a JOIN t b ON a.k % 50 = b.k % 500").fetchall())
            except nyala.Error as error:
                ends.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        begun.wait()
        time.sleep(0.1)
        db.close()
        thread.join()
        assert len(ends) == 1
        with pytest.raises(nyala.Error):
            db.sql("SELECT 1")


@pytest.mark.parametrize("has_connection", [False, True], ids=["before its connection", "before its tables"])
def test_close_while_a_statement_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_connection: bool
) -> None:
    """Another thread closes the store after the statement has checked that it is open."""
    with open_database(tmp_path / "s") as db:
        db.create_table("t", {"k": "int64"}, "k").insert({"k": range(10)})
        register, begin = result_module.duckdb_table, result_module._Run.__init__

        def register_closed(source: Any) -> Any:
            db.close()
            return register(source)

        def begin_closed(run: Any, bound: Any) -> None:
            is_open = bound.check_open

            def close() -> None:
                is_open()
                bound.check_open = is_open
                db.close()

            bound.check_open = close
            begin(run, bound)

        if has_connection:
            monkeypatch.setattr(result_module, "duckdb_table", register_closed)
        else:
            monkeypatch.setattr(result_module._Run, "__init__", begin_closed)
        with pytest.raises(nyala.StorageError, match="is closed: connect"):
            db.sql("SELECT count(*) FROM t").fetchall()


def test_threads_beside_a_writer_see_whole_batches(tmp_path: Path) -> None:
    """No batch changes the sum. A statement that saw a part of a batch would see another sum."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
        table.insert({"k": list(range(1000)), "v": [1] * 1000})
        db.flush()
        stop = threading.Event()
        wrong: list[Any] = []

        def write() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                table.update({"k": [turn % 1000, (turn + 1) % 1000], "v": [turn, -turn]})
                table.update({"k": [turn % 1000, (turn + 1) % 1000], "v": [1, 1]})

        def read() -> None:
            try:
                for _ in range(10):
                    text = "SELECT sum(a.v), sum(b.v), count(*) FROM t a JOIN t b USING (k)"
                    one, other, count = db.sql(text).fetchone()
                    if one != other or count != 1000:
                        wrong.append((one, other, count))
            except BaseException as error:
                wrong.append(error)

        writer = threading.Thread(target=write)
        readers = [threading.Thread(target=read) for _ in range(3)]
        for thread in (writer, *readers):
            thread.start()
        for thread in readers:
            thread.join()
        stop.set()
        writer.join()
        assert wrong == []


def test_a_reader_process_sees_rows_that_are_only_in_the_writers_memory(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        db.create_table("t", {"k": "int64"}, "k").insert({"k": [1, 2, 3]})
        code = (
            f"import nyala\nwith nyala.connect({str(tmp_path / 's')!r}, read_only=True) as db:"
            "\n    print(db.sql('SELECT sum(k) FROM t').fetchall())"
        )
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert found.stdout == "[(Decimal('6'),)]\n" or found.stdout == "[(6,)]\n", found.stderr


def test_the_store_stays_usable_after_a_stream_was_not_read_to_its_end(db: Any) -> None:
    reader = db.sql("SELECT k FROM t").to_reader()
    assert reader.read_next_batch().num_rows > 0
    del reader
    gc.collect()
    assert db.sql("SELECT count(*) FROM t").fetchone() == (ROWS,)


def test_a_result_without_references_is_freed_at_once(db: Any) -> None:
    """Its cursor and scans are freed without the garbage collector, which may not run for a long time."""
    gc.disable()
    try:
        for read in (
            lambda result: None,
            lambda result: result.fetchone(),
            lambda result: next(iter(result)),
        ):
            result = db.sql("SELECT k FROM t")
            runs = [result._bound, result._rows]
            read(result)
            gone = [weakref.ref(run) for run in (*runs, result._rows) if run is not None]
            del result, runs
            assert [run() for run in gone] == [None] * len(gone)
    finally:
        gc.enable()


def test_a_cursor_found_by_the_garbage_collector_is_closed_by_the_next_statement(db: Any) -> None:
    """The collector may run in a thread that executes the cursor's statement. Closing there would be a deadlock."""
    gc.collect()  # closes the cursors of earlier tests
    assert db.sql("SELECT 1").fetchall() == [(1,)]
    result = db.sql("SELECT k FROM t")
    assert result.fetchone() == (0,)
    cursor, unused = result._rows.session.cursor, result._statement.connection.unused
    ring = [result]
    ring.append(ring)  # type: ignore[arg-type]
    del result, ring
    gc.collect()
    assert len(unused) == 1
    assert db.sql("SELECT 1").fetchall() == [(1,)]
    assert len(unused) == 0
    with pytest.raises(duckdb.ConnectionException):
        cursor.execute("SELECT 1")


def test_a_stream_collected_inside_its_own_statement_is_closed_later(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB reads ahead for the stream, and the collector runs in the reading thread."""
    gc.collect()  # closes the cursors of earlier tests
    assert db.sql("SELECT 1").fetchall() == [(1,)]
    result = db.sql("SELECT k, v FROM t")
    reader = result.to_reader()
    unused, real = result._statement.connection.unused, read_path.read_split
    dropped, collected = threading.Event(), threading.Event()

    def read(*arguments: Any) -> Any:
        if dropped.wait(0.3) and not collected.is_set():
            gc.collect()
            collected.set()
        return real(*arguments)

    monkeypatch.setattr(read_path, "read_split", read)
    reader.read_next_batch()
    ring: list[Any] = [result, reader]
    ring.append(ring)
    del result, reader, ring
    dropped.set()
    if not collected.wait(2):  # DuckDB had read everything before
        gc.collect()
    assert len(unused) == 1
    assert db.sql("SELECT count(*) FROM t").fetchall() == [(ROWS,)]
    assert len(unused) == 0


def test_cursors_are_not_closed_while_the_garbage_collector_runs() -> None:
    """`close` closes them later, and tries again if DuckDB refuses."""

    class Cursor:
        closed, refuses = 0, False

        def close(self) -> None:
            if self.refuses:
                raise duckdb.OperationalError("in use")
            self.closed += 1

    class User:
        """An object that has a cursor."""

    unused, cursors = UnusedCursors(), [Cursor(), Cursor(), Cursor()]
    users = [User() for _ in cursors]
    for user, cursor in zip(users, cursors, strict=True):
        unused.close_with(user, cursor)
    cursors[2].refuses = True
    ring: list[Any] = [users.pop(0)]
    ring.append(ring)
    del ring, user
    users.clear()
    assert [cursor.closed for cursor in cursors] == [0, 1, 0] and len(unused) == 1
    gc.collect()
    assert [cursor.closed for cursor in cursors] == [0, 1, 0] and len(unused) == 2
    unused.close()
    assert [cursor.closed for cursor in cursors] == [1, 1, 0] and len(unused) == 1
    cursors[2].refuses = False
    unused.close()
    assert [cursor.closed for cursor in cursors] == [1, 1, 1] and len(unused) == 0


def test_a_scan_as_a_relation_of_the_users_connection(db: Any) -> None:
    """DuckDB pushes columns and predicates into the scan, but not below a limit of the scan."""
    with duckdb.connect() as con:
        relation = db["t"].scan(columns=["k", "s"], where="k < 100").to_duckdb(con)
        assert relation.filter("k >= 98").order("k").fetchall() == [(98, "c"), (99, "a")]
        both = db["t"].scan(columns=["k"], where="s = 'a'").to_duckdb(con).filter("k BETWEEN 0 AND 5")
        assert both.order("k").fetchall() == [(0,), (3,)]
        limited = db["t"].scan(limit=10, order_by_key=True).to_duckdb(con)
        assert limited.filter("k >= 5").aggregate("count(*)").fetchall() == [(5,)]
        scan = db["t"].scan(where="k < 7")
        assert con.sql("SELECT count(*) FROM scan").fetchall() == [(7,)]
        assert scan.count() == 7


def test_without_duckdb_the_error_says_what_to_install(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ImportError, match=r"pip install 'nyala\[sql\]'"):
        db.sql("SELECT 1")


def test_columns_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    """DuckDB would return the values of the first column for the name of the second."""
    with nyala.connect(tmp_path / "s") as db:
        table = db.create_table("u", {"id": "int64", "Price": "int64"}, "id")
        table.insert([{"id": 1, "Price": 5}])
        assert db.sql("SELECT PRICE FROM U").fetchone() == (5,)
        with table.alter() as altered:
            altered.add_column("price", "int64", default=99)
        with db.snapshot() as snapshot:
            for ask in (
                lambda: db.sql('SELECT "price" FROM u'),
                lambda: snapshot.sql("SELECT * FROM u"),
                lambda: table.scan().to_duckdb(),
            ):
                with pytest.raises(
                    nyala.InvalidArgumentError, match="columns 'Price' and 'price'.*rename one"
                ):
                    ask()
        assert table.scan(columns=["price"]).to_duckdb().fetchall() == [(99,)]
