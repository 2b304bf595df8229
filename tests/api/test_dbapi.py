"""`nyala.dbapi` as PEP 249 defines it, and pandas and polars with it."""

import datetime as dt
import decimal
import threading
import time

import pandas as pd
import polars as pl
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry

import nyala
from nyala import dbapi

registry.register("nyala", "nyala.sqlalchemy.dialect", "NyalaDialect")


@pytest.fixture
def db(tmp_path):
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        columns = {
            "id": "int64", "name": "string", "price": "decimal(9,2)", "seen": "timestamp", "day": "date",
            "raw": "binary", "ok": "bool",
        }  # fmt: skip
        db.create_table("items", columns, primary_key="id").insert([ROW | {"id": i} for i in range(1, 6)])
        yield db


ROW = {
    "name": "pen",
    "price": decimal.Decimal("1.50"),
    "seen": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC),
    "day": dt.date(2026, 1, 2),
    "raw": b"\0\1",
    "ok": True,
}


@pytest.fixture
def connection(db):
    with dbapi.connect(db) as connection:
        yield connection


@pytest.fixture
def short(monkeypatch):
    """Make transactions end after a short time without a statement."""
    begin = nyala.Database.transaction
    monkeypatch.setattr(nyala.Database, "transaction", lambda db, **_: begin(db, timeout=0.8))


def sleep_longer():
    time.sleep(1.2)


# -------------------------------------------------------------------------------------------------- module


def test_the_module_has_the_names_of_pep_249():
    assert (dbapi.apilevel, dbapi.paramstyle) == ("2.0", "qmark")
    assert dbapi.threadsafety == 2
    assert issubclass(dbapi.Warning, Exception)
    tree = {
        dbapi.Error: (dbapi.InterfaceError, dbapi.DatabaseError),
        dbapi.DatabaseError: (
            dbapi.DataError, dbapi.OperationalError, dbapi.IntegrityError, dbapi.InternalError,
            dbapi.ProgrammingError, dbapi.NotSupportedError,
        ),
    }  # fmt: skip
    assert all(below.__base__ is above for above, listed in tree.items() for below in listed)
    for error in (dbapi.Warning, dbapi.Error, *tree[dbapi.Error], *tree[dbapi.DatabaseError]):
        assert getattr(dbapi.Connection, error.__name__) is error


def test_constructors_of_pep_249():
    assert dbapi.Date(2026, 1, 2) == dt.date(2026, 1, 2)
    assert dbapi.Time(3, 4, 5) == dt.time(3, 4, 5)
    assert dbapi.Timestamp(2026, 1, 2, 3, 4, 5) == dt.datetime(2026, 1, 2, 3, 4, 5)
    assert dbapi.Binary(b"\0") == b"\0"
    ticks = dt.datetime(2026, 1, 2, 3, 4, 5).timestamp()
    assert dbapi.DateFromTicks(ticks) == dt.date(2026, 1, 2)
    assert dbapi.TimeFromTicks(ticks) == dt.time(3, 4, 5)
    assert dbapi.TimestampFromTicks(ticks) == dt.datetime(2026, 1, 2, 3, 4, 5)


# -------------------------------------------------------------------------------------------------- rows


def test_a_write_returns_rows_only_with_returning(connection):
    cursor = connection.execute("INSERT INTO items (id, name) VALUES (7, 'cap')")
    assert cursor.description is None and cursor.rowcount == 1
    with pytest.raises(dbapi.ProgrammingError, match="there are no rows"):
        cursor.fetchall()
    cursor = connection.execute("DELETE FROM items WHERE id = 7 RETURNING id AS Count")
    assert cursor.description[0][0] == "Count" and cursor.fetchall() == [(7,)]


def test_the_description_names_columns_and_types(connection):
    cursor = connection.cursor()
    assert cursor.description is None
    cursor.execute("SELECT * FROM items WHERE id > 1")
    kinds = {
        "id": dbapi.NUMBER, "name": dbapi.STRING, "price": dbapi.NUMBER, "seen": dbapi.DATETIME,
        "day": dbapi.DATETIME, "raw": dbapi.BINARY, "ok": dbapi.NUMBER,
    }  # fmt: skip
    assert [each[0] for each in cursor.description] == list(kinds)
    for (name, code, *rest), kind in zip(cursor.description, kinds.values(), strict=True):
        assert code == kind, name
        others = {dbapi.NUMBER, dbapi.STRING, dbapi.DATETIME, dbapi.BINARY, dbapi.ROWID} - {kind}
        assert all(code != other for other in others)
        assert rest == [None] * 5
    types = "BIGINT VARCHAR DECIMAL(9,2) TIMESTAMP.WITH.TIME.ZONE DATE BLOB BOOLEAN".split()
    assert [each[1] for each in cursor.description] == [each.replace(".", " ") for each in types]
    listed = connection.execute("SELECT [1, 2] AS l").description[0][1]
    assert listed == "INTEGER[]" and listed != dbapi.NUMBER


def test_values_are_python_values(connection):
    row = connection.execute("SELECT * FROM items WHERE id = ?", [1]).fetchone()
    assert row == (1, *ROW.values())


def test_fetch_methods_continue_each_other(connection):
    cursor = connection.execute("SELECT id FROM items ORDER BY id")
    assert cursor.rowcount == -1
    assert cursor.fetchone() == (1,)
    assert cursor.fetchmany() == [(2,)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(3,), (4,)]
    assert cursor.fetchall() == [(5,)]
    assert cursor.fetchone() is None
    assert cursor.fetchmany(3) == cursor.fetchall() == []
    assert list(connection.execute("SELECT id FROM items WHERE id < 3 ORDER BY id")) == [(1,), (2,)]


def test_rows_as_arrow(connection):
    """The rows of a cursor can be fetched once as an Arrow table or reader, instead of by other fetch methods."""
    text = "SELECT id, name FROM items ORDER BY id"
    table = connection.execute(text).fetch_arrow_table()
    assert table.to_pydict() == {"id": [1, 2, 3, 4, 5], "name": ["pen"] * 5}
    assert connection.execute(text).fetch_arrow_reader().read_all() == table
    cursor = connection.execute(text)
    cursor.fetchone()
    with pytest.raises(dbapi.InterfaceError, match="before other fetch methods"):
        cursor.fetch_arrow_table()
    cursor = connection.execute(text)
    assert cursor.fetch_arrow_table().num_rows == 5
    with pytest.raises(dbapi.InterfaceError):
        cursor.fetch_arrow_table()


def test_parameters_by_position_and_by_name(connection):
    text = "SELECT count(*) FROM items WHERE id >= {} AND name = {}"
    assert connection.execute(text.format("?", "?"), (4, "pen")).fetchone() == (2,)
    assert connection.execute(text.format("$low", "$n"), {"low": 2, "n": "pen"}).fetchone() == (4,)
    assert connection.execute("SELECT 1", []).fetchone() == (1,)
    for wrong in ("text", 7, b"x"):
        with pytest.raises(dbapi.ProgrammingError, match="parameters are a sequence"):
            connection.execute("SELECT ?", wrong)
    for wrong in ([], [1, 2], {"x": 1}):
        with pytest.raises(dbapi.ProgrammingError):
            connection.execute("SELECT ?", wrong)


def test_fetching_without_rows_is_an_error(connection):
    cursor = connection.cursor()
    for fetch in (cursor.fetchone, cursor.fetchmany, cursor.fetchall, cursor.fetch_arrow_table):
        with pytest.raises(dbapi.ProgrammingError, match="no rows"):
            fetch()


def test_rows_can_be_fetched_after_the_transaction(connection):
    cursor = connection.execute("SELECT id FROM items ORDER BY id")
    assert cursor.fetchone() == (1,)
    connection.rollback()
    assert cursor.fetchall() == [(2,), (3,), (4,), (5,)]


def test_methods_that_do_nothing_exist(connection):
    cursor = connection.cursor()
    cursor.setinputsizes([10])
    cursor.setoutputsize(10, 1)
    assert cursor.lastrowid is None and cursor.rownumber is None
    assert cursor.connection is connection
    with pytest.raises(dbapi.NotSupportedError):
        cursor.callproc("p")


# -------------------------------------------------------------------------------------------------- transactions


def test_a_transaction_begins_at_the_first_read(db, connection):
    assert not connection.in_transaction
    assert connection.execute("SELECT count(*) FROM items").fetchone() == (5,)
    assert connection.in_transaction
    db["items"].insert([{"id": 9}])
    assert connection.execute("SELECT count(*) FROM items").fetchone() == (5,)
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM items").fetchone() == (6,)
    connection.commit()
    connection.commit()  # nothing to do


def test_autocommit_reads_the_present(db):
    with dbapi.connect(db, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM items").fetchone() == (5,)
        db["items"].insert([{"id": 9}])
        assert connection.execute("SELECT count(*) FROM items").fetchone() == (6,)
        assert not connection.in_transaction
        connection.autocommit = False
        connection.execute("SELECT 1 FROM items")
        with pytest.raises(dbapi.ProgrammingError, match="commit or roll back first"):
            connection.autocommit = True


def test_connections_have_transactions_of_their_own(db):
    with dbapi.connect(db) as one, dbapi.connect(db) as other:
        one.execute("SELECT 1 FROM items")
        assert not other.in_transaction
        db["items"].delete(where="id > 0")
        assert one.execute("SELECT count(*) FROM items").fetchone() == (5,)
        assert other.execute("SELECT count(*) FROM items").fetchone() == (0,)


def test_writes_are_committed_together(db, connection):
    cursor = connection.executemany("INSERT INTO items (id, name) VALUES (?, ?)", [(7, "a"), (8, "b")])
    assert cursor.rowcount == 2
    assert connection.execute("UPDATE items SET name = 'c' WHERE id > 6").rowcount == 2
    assert db["items"].count() == 5
    connection.commit()
    assert db["items"].count() == 7
    connection.execute("DELETE FROM items")
    connection.rollback()
    assert db["items"].count() == 7


def test_executemany_with_autocommit_writes_all_or_nothing(db):
    with dbapi.connect(db, autocommit=True) as connection:
        with pytest.raises(dbapi.IntegrityError):
            connection.executemany("INSERT INTO items (id) VALUES (?)", [(7,), (1,)])
        assert db["items"].count() == 5
        before = db.now()
        connection.executemany("INSERT INTO items (id) VALUES ($id)", [{"id": 7}, {"id": 8}])
        assert len(db["items"].commits(since=before)) == 1
        assert connection.autocommit and not connection.in_transaction


def test_executemany_is_tried_again_after_a_conflict(db, monkeypatch):
    """With autocommit, executemany repeats a statement that had a conflict. In a transaction it could not."""
    import nyala.sql.change.statement as changes

    plan_of = changes.plan_of

    def planned(*given):
        word, plan, checked = plan_of(*given)

        def plan_and_conflict(source):
            change = plan(source)
            if others:
                db["items"].update([others.pop()])
            return change

        return word, plan_and_conflict, checked

    monkeypatch.setattr(changes, "plan_of", planned)
    with dbapi.connect(db, autocommit=True) as connection:
        others = [{"id": 1, "name": "ink"}]
        text = "UPDATE items SET name = name || ? WHERE id = ?"
        assert connection.executemany(text, [("!", 1), ("?", 2)]).rowcount == 2
        assert others == [] and not connection.in_transaction
        assert db["items"].get(1)["name"] == "ink!"
        others = [{"id": 1, "name": "cap"}]
        with pytest.raises(dbapi.OperationalError):  # row by row
            connection.executemany(text, [("!", 1), ("?", 1)])
    assert db.sql("SELECT name FROM items WHERE id < 3 ORDER BY id").fetchall() == [("cap",), ("pen?",)]


def test_a_change_of_tables_is_refused_after_writes(db, connection):
    connection.execute("SELECT 1 FROM items")
    connection.execute("INSERT INTO items (id) VALUES (7)")
    with pytest.raises(dbapi.NotSupportedError, match="commit or roll back first"):
        connection.execute("DROP TABLE items")
    connection.commit()
    assert db["items"].count() == 6


def test_a_failed_statement_leaves_the_transaction_open(db, connection):
    connection.execute("INSERT INTO items (id) VALUES (7)")
    with pytest.raises(dbapi.IntegrityError) as caught:
        connection.execute("INSERT INTO items (id) VALUES (1)")
    assert isinstance(caught.value.__cause__, nyala.DuplicateKeyError)
    connection.commit()
    assert db["items"].count() == 6


def test_nothing_is_executed_after_an_idle_transaction_until_rollback(db, connection, short):
    connection.execute("INSERT INTO items (id) VALUES (7)")
    sleep_longer()
    refused = [
        lambda: connection.execute("INSERT INTO items (id) VALUES (8)"),
        lambda: connection.execute("SELECT 1"),
        lambda: connection.executemany("INSERT INTO items (id) VALUES (?)", [(8,), (9,)]),
        lambda: connection.execute("CREATE TABLE z (id INT PRIMARY KEY)"),
        connection.commit,
        lambda: connection.execute("SELECT 1"),
    ]
    for call in refused:
        with pytest.raises(dbapi.OperationalError, match=r"idle .* rolled back: .* rollback\(\)") as caught:
            call()
        assert "db.transaction" not in str(caught.value)
    connection.rollback()
    connection.execute("INSERT INTO items (id) VALUES (9)")
    connection.commit()
    assert db.sql("SELECT id FROM items WHERE id > 5").fetchall() == [(9,)]


def test_a_commit_of_an_idle_transaction_is_refused_until_rollback(db, short):
    with pytest.raises(dbapi.OperationalError, match="rollback"), dbapi.connect(db) as connection:
        connection.execute("INSERT INTO items (id) VALUES (7)")
        sleep_longer()
        for _ in range(2):
            with pytest.raises(dbapi.OperationalError, match="rollback"):
                connection.commit()
        with pytest.raises(dbapi.OperationalError, match="rollback"):
            connection.execute("INSERT INTO items (id) VALUES (8)")
    assert db["items"].count() == 5


def test_sqlalchemy_executes_nothing_after_an_idle_transaction_until_rollback(db, short):
    engine = sa.create_engine("nyala:///unused", creator=lambda: dbapi.connect(db))
    with engine.connect() as connection:
        connection.execute(sa.text("INSERT INTO items (id) VALUES (7)"))
        sleep_longer()
        for _ in range(2):
            with pytest.raises(sa.exc.OperationalError, match="rollback"):
                connection.execute(sa.text("INSERT INTO items (id) VALUES (8)"))
        connection.rollback()
        connection.execute(sa.text("INSERT INTO items (id) VALUES (9)"))
        connection.commit()
    assert db.sql("SELECT id FROM items WHERE id > 5").fetchall() == [(9,)]
    with engine.connect() as connection:
        connection.execute(sa.text("INSERT INTO items (id) VALUES (10)"))
        sleep_longer()
        with pytest.raises(sa.exc.OperationalError, match="rollback"):
            connection.commit()
        with pytest.raises(sa.exc.PendingRollbackError):
            connection.execute(sa.text("SELECT 1"))
    with engine.begin() as connection:  # the same connection, from the pool
        connection.execute(sa.text("INSERT INTO items (id) VALUES (11)"))
    assert db.sql("SELECT id FROM items WHERE id > 5 ORDER BY id").fetchall() == [(9,), (11,)]


def test_the_first_of_two_commits_wins(db, connection):
    connection.execute("UPDATE items SET name = 'a' WHERE id = 1")
    db["items"].update([{"id": 1, "name": "b"}])
    with pytest.raises(dbapi.OperationalError) as caught:
        connection.commit()
    assert isinstance(caught.value.__cause__, nyala.ConflictError)
    assert not connection.in_transaction


# -------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "kind", "cause"),
    [
        ("SELEC 1", dbapi.ProgrammingError, nyala.InvalidArgumentError),
        ("SELECT 1 +", dbapi.ProgrammingError, nyala.InvalidArgumentError),
        ("", dbapi.ProgrammingError, nyala.InvalidArgumentError),
        ("SELECT * FROM nothing", dbapi.ProgrammingError, nyala.TableNotFoundError),
        ("SELECT nothing FROM items", dbapi.ProgrammingError, nyala.ColumnNotFoundError),
        ("SELECT cast(name AS INT) FROM items", dbapi.DataError, nyala.InvalidArgumentError),
    ],
)
def test_errors_are_those_of_pep_249(connection, text, kind, cause):
    with pytest.raises(kind) as caught:
        connection.execute(text).fetchall()
    assert isinstance(caught.value.__cause__, cause)
    assert str(caught.value) == str(caught.value.__cause__)


def test_a_statement_must_be_a_text(connection):
    with pytest.raises(dbapi.ProgrammingError, match="text of a statement"):
        connection.execute(7)


def test_a_store_that_cannot_be_opened(tmp_path):
    with pytest.raises(dbapi.OperationalError):
        dbapi.connect(tmp_path / "nothing", read_only=True)
    with pytest.raises(dbapi.ProgrammingError):
        dbapi.connect(tmp_path / "store", memory_limit="1KB")


# -------------------------------------------------------------------------------------------------- life


def test_a_connection_to_a_path_closes_the_store(tmp_path):
    with dbapi.connect(tmp_path / "store", maintenance=False) as connection:
        db = connection.database
        db.create_table("t", {"id": "int64"}, primary_key="id")
        cursor = connection.execute("SELECT * FROM t")
    connection.close()
    with pytest.raises(dbapi.InterfaceError, match="connection is closed"):
        connection.execute("SELECT 1")
    for use in (connection.cursor, connection.commit, connection.rollback, cursor.fetchone):
        with pytest.raises(dbapi.InterfaceError):
            use()
    with pytest.raises(nyala.StorageError, match="is closed"):
        db.list_tables()


def test_a_connection_to_an_open_database_leaves_it_open(db):
    dbapi.connect(db).close()
    assert db["items"].count() == 5
    with pytest.raises(dbapi.ProgrammingError, match="are for a path"):
        dbapi.connect(db, read_only=True)


def test_a_closed_cursor(connection):
    """Each method of a closed cursor raises InterfaceError."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    cursor.close()
    for use in (cursor.fetchall, lambda: cursor.execute("SELECT 1"), lambda: cursor.executemany("", [])):
        with pytest.raises(dbapi.InterfaceError, match="cursor is closed"):
            use()


def test_a_read_only_connection(db, tmp_path):
    with dbapi.connect(tmp_path / "store", read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM items").fetchone() == (5,)


def test_threads_share_a_connection(connection):
    found = []

    def read(i):
        found.append(connection.execute("SELECT name FROM items WHERE id = ?", [i]).fetchone())

    threads = [threading.Thread(target=read, args=(i,)) for i in range(1, 6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [("pen",)] * 5


# -------------------------------------------------------------------------------------------------- callers


@pytest.mark.filterwarnings("ignore:pandas only supports SQLAlchemy")
def test_pandas_reads(connection):
    frame = pd.read_sql("SELECT id, name FROM items WHERE id > ? ORDER BY id", connection, params=[3])
    assert frame.to_dict("list") == {"id": [4, 5], "name": ["pen", "pen"]}
    chunks = pd.read_sql("SELECT id FROM items ORDER BY id", connection, chunksize=2)
    assert [chunk.id.tolist() for chunk in chunks] == [[1, 2], [3, 4], [5]]


def test_polars_reads(connection):
    frame = pl.read_database("SELECT * FROM items WHERE id < 3 ORDER BY id", connection)
    assert frame.rows() == [(1, *ROW.values()), (2, *ROW.values())]
    assert frame.schema["price"] == pl.Decimal(9, 2)
    table = pl.from_arrow(connection.execute("SELECT id FROM items").fetch_arrow_table())
    assert table["id"].sum() == 15


def test_executemany_of_an_insert_is_one_commit(db: nyala.Database) -> None:
    """This holds even if the values have no common type."""
    db.sql("CREATE TABLE many (id BIGINT PRIMARY KEY, x DOUBLE, s VARCHAR, d TIMESTAMP)")
    with dbapi.connect(db) as connection:
        cursor = connection.cursor()
        rows = [(i, i / 2 if i % 3 else None, str(i), dt.datetime(2024, 1, 2)) for i in range(5000)]
        assert cursor.executemany("INSERT INTO many VALUES (?, ?, ?, ?)", rows).rowcount == 5000
        assert (
            cursor.executemany("UPSERT INTO many (id, s) VALUES (?, ?);", [(1, "a"), (1, "b")]).rowcount == 2
        )
        mixed = [(-1, "1.5"), (-2, 2), (-3, None)]
        assert cursor.executemany("INSERT INTO many (id, x) VALUES (?, ?)", mixed).rowcount == 3
        with pytest.raises(dbapi.IntegrityError):
            cursor.executemany("INSERT INTO many (id) VALUES (?)", [(9000,), (1,)])
        with pytest.raises(dbapi.ProgrammingError):
            cursor.executemany("INSERT INTO many (id) VALUES (?)", [(9001,), (9002, 1)])
        cursor.executemany(
            "INSERT INTO many (id, s) VALUES (?, ?) ON CONFLICT DO UPDATE SET s = many.s || excluded.s",
            [(2, "x"), (2, "y")],
        )
    # 5,000 single commits would be 5,000 versions; this is one commit.
    assert len(db["many"].commits()) == 1
    assert db.sql("SELECT s, x FROM many WHERE id IN (1, 2, -1, -2) ORDER BY id").fetchall() == [
        (None, 2.0), (None, 1.5), ("b", 0.5), ("2xy", 1.0),
    ]  # fmt: skip


def test_a_write_with_a_with_clause_begins_a_transaction(db: nyala.Database) -> None:
    db.sql("CREATE TABLE w (id BIGINT PRIMARY KEY)")
    with dbapi.connect(db) as connection:
        connection.execute("WITH x AS (SELECT 1 AS id) INSERT INTO w SELECT * FROM x")
        with pytest.raises(dbapi.NotSupportedError, match="commit or roll back"):
            connection.execute("CREATE TABLE z (id INT PRIMARY KEY)")
    assert db["w"].count() == 1


def test_a_rollback_discards_all_statements_of_a_text(db: nyala.Database) -> None:
    """A change of tables cannot be rolled back, so a text that also writes rows must not contain one."""
    db.sql("CREATE TABLE w (id BIGINT PRIMARY KEY)")
    connection = dbapi.connect(db)
    for text in (
        "INSERT INTO w VALUES (1); CREATE TABLE z (id INT PRIMARY KEY)",
        "DELETE FROM w; DROP TABLE w",
    ):
        with pytest.raises(dbapi.NotSupportedError, match="execute it by itself"):
            connection.execute(text)
    connection.execute("CREATE TABLE z (id INT PRIMARY KEY); ALTER TABLE z ADD COLUMN v INT")
    connection.execute("INSERT INTO w VALUES (2); TRUNCATE w; INSERT INTO w VALUES (3)")
    connection.rollback()
    assert db["w"].count() == 0
    connection.close()


def test_commit_and_rollback_as_statements(db: nyala.Database) -> None:
    db.sql("CREATE TABLE w (id BIGINT PRIMARY KEY)")
    with dbapi.connect(db) as connection:
        connection.execute("INSERT INTO w VALUES (1)")
        connection.execute("COMMIT")
        connection.execute("SELECT 1")
        connection.execute("CREATE TABLE z (id INT PRIMARY KEY)")
        connection.execute("INSERT INTO w VALUES (2)")
        connection.execute("ROLLBACK")
        connection.execute("ALTER TABLE z ADD COLUMN v INT")
    assert db["w"].count() == 1
