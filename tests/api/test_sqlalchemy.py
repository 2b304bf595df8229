"""The SQLAlchemy dialect `nyala` over existing tables: connections, statements, keys, reflection and text."""

import itertools

import duckdb
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.schema import CreateIndex, CreateTable

import nyala
from nyala.sqlalchemy import NyalaDialect, insert
from tests.processes import children

registry.register("nyala", "nyala.sqlalchemy.dialect", "NyalaDialect")

ITEMS = sa.Table(
    "items", sa.MetaData(),
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("name", sa.String(20), nullable=False),
    sa.Column("price", sa.Numeric(9, 2)),
    sa.Column("seen", sa.DateTime),
)  # fmt: skip


@pytest.fixture
def db(tmp_path):
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        columns = {
            "id": "int64",
            "name": nyala.column("varchar(20)", nullable=False, default="it's", comment="what it is"),
            "price": "decimal(9,2)",
            "seen": "timestamp",
        }
        db.create_table("items", columns, primary_key="id", comment="things")
        yield db


@pytest.fixture
def engine(db, tmp_path):
    engine = sa.create_engine(f"nyala:///{tmp_path}/store?maintenance=false")
    yield engine
    engine.dispose()


# -------------------------------------------------------------------------------------------------- connections


def test_options_of_the_url(tmp_path, db):
    """Options in the URL are passed to `connect` with their types. Unknown and invalid ones are errors."""
    engine = sa.create_engine(f"nyala:///{tmp_path}/store?read_only=true&memory_limit=64MB")
    with engine.connect() as connection:
        assert connection.connection.driver_connection.database.read_only
        assert connection.execute(sa.select(ITEMS)).all() == []
    engine.dispose()
    numbers = "?maintenance=false&lock_timeout=2&refresh=0.5&not_before=7"
    arguments = NyalaDialect().create_connect_args(sa.make_url(f"nyala:///s{numbers}"))
    assert arguments == (("s",), {"maintenance": False, "lock_timeout": 2, "refresh": 0.5, "not_before": 7})
    wrong = ("nothing=1", "read_only=perhaps", "refresh=soon", "storage_options=x")
    for url in ("nyala:///", "nyala://host/s", *(f"nyala:///s?{each}" for each in wrong)):
        with pytest.raises(sa.exc.ArgumentError, match="URL of a store"):
            sa.create_engine(url).connect()


def test_a_block_commits_or_rolls_back(engine, db):
    with engine.begin() as connection:
        connection.execute(ITEMS.insert(), {"id": 1, "name": "pen"})
    with pytest.raises(ZeroDivisionError), engine.begin() as connection:
        connection.execute(ITEMS.insert(), {"id": 2, "name": "ink"})
        assert connection.scalar(sa.select(sa.func.count()).select_from(ITEMS)) == 2
        1 / 0  # noqa: B018
    assert db["items"].count() == 1
    with engine.connect() as connection:
        assert connection.get_isolation_level() == "SNAPSHOT"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(ITEMS.insert(), {"id": 3, "name": "pad"})
        assert db["items"].count() == 2


def test_the_first_of_two_commits_wins(engine, db):
    db["items"].insert([{"id": 1, "name": "pen"}])
    change = ITEMS.update().where(ITEMS.c.id == 1)
    with engine.connect() as one, engine.connect() as other:
        one.execute(change.values(name="a"))
        other.execute(change.values(name="b"))
        one.commit()
        with pytest.raises(sa.exc.OperationalError):
            other.commit()
    assert db["items"][1]["name"] == "a"


# -------------------------------------------------------------------------------------------------- statements


def test_update_delete_and_returning(engine):
    """Counts and RETURNING rows are those of the statements."""
    with engine.begin() as connection:
        connection.execute(ITEMS.insert(), [{"id": i, "name": f"n{i}"} for i in range(1, 6)])
        changed = connection.execute(ITEMS.update().where(ITEMS.c.id > 3).values(price=2))
        assert changed.rowcount == 2
        gone = connection.execute(ITEMS.delete().where(ITEMS.c.id < 3).returning(ITEMS.c.name))
        assert sorted(gone.scalars()) == ["n1", "n2"]
        made = connection.execute(ITEMS.insert().values(id=9, name="x").returning(ITEMS.c.id, ITEMS.c.name))
        assert made.one() == (9, "x")
        assert connection.execute(
            sa.select(ITEMS.c.id).order_by("id").limit(2).offset(1)
        ).scalars().all() == [4, 5]
        assert connection.execute(sa.select(ITEMS.c.id).where(ITEMS.c.id.in_([]))).all() == []


def test_on_conflict(engine):
    """ON CONFLICT DO NOTHING keeps the existing row, and DO UPDATE changes only the given columns."""
    with engine.begin() as connection:
        connection.execute(ITEMS.insert(), {"id": 1, "name": "pen", "price": 1})
        rows = insert(ITEMS).values(id=1, name="ink", price=2)
        connection.execute(rows.on_conflict_do_nothing(index_elements=["id"]))
        assert connection.scalar(sa.select(ITEMS.c.name)) == "pen"
        connection.execute(
            rows.on_conflict_do_update(index_elements=["id"], set_={"name": rows.excluded.name})
        )
        assert connection.execute(sa.select(ITEMS.c.name, ITEMS.c.price)).one() == ("ink", 1)


# -------------------------------------------------------------------------------------------------- keys


def test_integer_keys_count_up(engine, db):
    with engine.begin() as connection:
        made = connection.execute(ITEMS.insert().values(name="a"))
        assert made.inserted_primary_key == (1,)
        connection.execute(ITEMS.insert(), [{"name": "b"}, {"name": "c"}])
        connection.execute(ITEMS.insert(), {"id": 10, "name": "d"})
        assert connection.execute(ITEMS.insert().values(name="e")).inserted_primary_key == (11,)
        for names in ("fg", "hij", "kl"):
            connection.execute(ITEMS.insert().values([{"name": name} for name in names]))
    assert {row["id"]: row["name"] for row in db["items"].scan().to_arrow().to_pylist()} == {
        1: "a", 2: "b", 3: "c", 10: "d", 11: "e", 12: "f", 13: "g", 14: "h", 15: "i", 16: "j", 17: "k", 18: "l",
    }  # fmt: skip


def test_connections_count_together(engine):
    """Two connections with open transactions never give the same key."""
    with engine.connect() as one, engine.connect() as other:
        keys = [c.execute(ITEMS.insert().values(name="x")).inserted_primary_key[0] for c in (one, other, one)]
        one.commit()
        other.commit()
    assert keys == [1, 2, 3]


def test_counting_continues_after_greater_keys_of_other_writers(engine, db, tmp_path):
    def key():
        with engine.begin() as connection:
            return connection.execute(ITEMS.insert().values(name="x")).inserted_primary_key[0]

    assert key() == 1
    db["items"].insert([{"id": 20, "name": "y"}])
    assert key() == 21
    with children(tmp_path / "store", 1) as (child,):
        child.run("db['items'].insert([{'id': 30, 'name': 'z'}])")
        assert [key(), key()] == [31, 32]
    db["items"].delete(where="id > 1")
    assert key() == 33


# -------------------------------------------------------------------------------------------------- reflection


def test_reflection(engine, db):
    """The inspector returns the tables, schemas, columns and keys of the store."""
    db.create_table("events", {"what": "string", "raw": "binary", "ok": "bool", "day": "date"})
    found = sa.inspect(engine)
    assert found.get_table_names() == ["events", "items"]
    assert found.has_table("items") and not found.has_table("nothing")
    assert found.get_schema_names() == ["main"] and found.default_schema_name == "main"
    assert found.get_table_names("main") == ["events", "items"] and found.get_table_names("other") == []
    assert found.has_table("items", "main") and not found.has_table("items", "other")
    same = sa.Table("items", sa.MetaData(), schema="main", autoload_with=engine)
    with engine.connect() as connection:
        assert connection.execute(sa.select(same.c.id).where(same.c.id > 0)).all() == []
    assert found.get_pk_constraint("items")["constrained_columns"] == ["id"]
    assert found.get_table_comment("items") == {"text": "things"}
    for nothing in (found.get_foreign_keys, found.get_indexes, found.get_unique_constraints):
        assert nothing("items") == []
    columns = {each["name"]: each for each in found.get_columns("items")}
    assert {name: str(each["type"]) for name, each in columns.items()} == {
        "id": "BIGINT", "name": "VARCHAR(20)", "price": "NUMERIC(9, 2)", "seen": "TIMESTAMP",
    }  # fmt: skip
    assert [each["nullable"] for each in columns.values()] == [False, False, True, True]
    assert columns["name"]["default"] == "'it''s'" and columns["name"]["comment"] == "what it is"
    with pytest.raises(sa.exc.NoSuchTableError):
        found.get_columns("nothing")


def test_tables_without_a_key_are_reflected_without_a_key(engine, db):
    db.create_table("events", {"what": "string"})
    db.create_table("visits", {"who": "string"}, primary_key="who", unique=False)
    found = sa.inspect(engine)
    assert [each["name"] for each in found.get_columns("events")] == ["what"]
    assert found.get_pk_constraint("events")["constrained_columns"] == []
    assert [each["name"] for each in found.get_columns("visits")] == ["who", "auto_incrementing_id"]
    table = sa.Table("events", sa.MetaData(), autoload_with=engine)
    with engine.begin() as connection:
        connection.execute(table.insert().values(what="a"))
        connection.execute(table.insert(), [{"what": "b"}, {"what": "c"}])
        assert sorted(connection.scalars(sa.select(table))) == ["a", "b", "c"]
    key = sa.Column("auto_incrementing_id", sa.BigInteger, primary_key=True)
    table = sa.Table("events", sa.MetaData(), key, autoload_with=engine)
    with engine.begin() as connection:
        assert sorted(connection.scalars(sa.select(table.c.auto_incrementing_id))) == [1, 2, 3]


# -------------------------------------------------------------------------------------------------- text


def test_floor_division_of_integers_is_exact(engine):
    table = sa.Table("n", sa.MetaData(), *(sa.Column(name, sa.BigInteger, primary_key=True) for name in "ab"))
    table.create(engine)
    big, lowest = [2**53 + 1, 2**62 + 3, 2**63 - 1], -(2**63)
    pairs = [(a, b) for a in (-8, -7, -1, 0, 7, 8, *big, lowest) for b in (-2, -3, 1, 2, 3, *big, lowest)]
    a, b = table.c.a, table.c.b
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"a": a, "b": b} for a, b in pairs])
        rows = connection.execute(sa.select(a, b, a // b, a // 2, -7 // b)).all()
        assert len(rows) == len(pairs)
        for x, y, quotient, half, of_7 in rows:
            assert (quotient, half, of_7) == (x // y, x // 2, -7 // y) and type(quotient) is int, (x, y)
        literals = [sa.literal(x) // y for x, y in ((-7, 2), (7, -2), (2**62 + 3, 1))]
        assert connection.execute(sa.select(*literals)).one() == (-4, -4, 2**62 + 3)
        more = sa.select((a - 1) // (b + 1) * 2, sa.literal(20) - a // b).where(a == 8, b == 3, a // b == 2)
        assert connection.execute(more).one() == (7 // 4 * 2, 18)
        assert connection.execute(sa.update(table).where(a == 8, b == 2).values(a=a // -3)).rowcount == 1
        assert connection.scalar(sa.select(sa.func.count()).where(a == -3, b == 2)) == 1
        assert connection.scalar(sa.select(sa.null().cast(sa.Integer) // 2)) is None


def test_floor_division_of_other_numbers():
    columns = [sa.column("d", sa.Numeric(9, 2)), sa.column("f", sa.Float), sa.column("i", sa.Integer)]
    for a, b in itertools.permutations(columns, 2):
        assert str((a // b).compile(dialect=NyalaDialect())) == f"FLOOR({a.name} / {b.name})"


def test_text_of_create_table():
    """CREATE TABLE is written as the store reads it, without the foreign keys and indexes that it does not have."""
    table = sa.Table(
        "t", sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(20), nullable=False, server_default="x", comment="c"),
        sa.Column("other", sa.ForeignKey("items.id"), index=True),
        sa.Column("at", sa.Time),
        comment="about",
    )  # fmt: skip
    sa.Table("items", table.metadata, sa.Column("id", sa.BigInteger, primary_key=True))
    text = " ".join(str(CreateTable(table).compile(dialect=NyalaDialect())).split())
    assert text == (
        "CREATE TABLE t ( id INTEGER NOT NULL, name VARCHAR(20) DEFAULT 'x' NOT NULL COMMENT 'c', other BIGINT, "
        "\"at\" VARCHAR, PRIMARY KEY (id) ) COMMENT 'about'"
    )
    assert str(CreateIndex(next(iter(table.indexes))).compile(dialect=NyalaDialect())) == ""


def test_reserved_words_are_quoted():
    words = [
        row[0] for row in duckdb.connect().execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()
    ]
    for word in words:
        table = sa.Table(word, sa.MetaData(), sa.Column(word, sa.Integer, primary_key=True))
        common = sa.select(table.c[word]).where(table.c[word] > 1).cte(word)
        statements = [
            CreateTable(table), table.insert(), table.update(), table.delete(), sa.select(common),
            sa.select(sa.literal_column("1").label(word)),
        ]  # fmt: skip
        for statement in statements:
            duckdb.extract_statements(str(statement.compile(dialect=NyalaDialect())))


@pytest.mark.parametrize("word", ["at", "generated", "identity", "encoding", "comment", "partition", "by"])
def test_reserved_words_can_name_columns(engine, word):
    table = sa.Table(
        word, sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column(word, sa.Integer)
    )
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), [{word: 1}, {word: 2}])
        connection.execute(table.update().where(table.c[word] > 1).values({word: table.c[word] + 1}))
        assert connection.scalars(sa.select(table.c[word]).order_by(table.c[word])).all() == [1, 3]
        gone = table.delete().where(table.c[word] == 1).returning(table.c[word])
        assert connection.scalars(gone).all() == [1]


@pytest.mark.parametrize(
    "given",
    [sa.UniqueConstraint("n"), sa.CheckConstraint("n > 1"), sa.Column("c", sa.Integer, sa.Computed("n"))],
)
def test_constraints_that_a_store_does_not_check_are_refused(given):
    table = sa.Table("t", sa.MetaData(), sa.Column("n", sa.Integer, primary_key=True), given)
    with pytest.raises(sa.exc.CompileError, match="a store has no"):
        CreateTable(table).compile(dialect=NyalaDialect())
