"""Tables that SQLAlchemy, pandas and polars create, replace and drop."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import polars as pl
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import registry

import nyala
from nyala.testing.s3_server import S3Server

registry.register("nyala", "nyala.sqlalchemy.dialect", "NyalaDialect")

Base = orm.declarative_base()


class Author(Base):
    __tablename__ = "authors"
    id = sa.Column(sa.Integer, primary_key=True)
    name = sa.Column(sa.String(40), nullable=False)
    books = orm.relationship("Book", back_populates="author", cascade="all, delete-orphan")


class Book(Base):
    __tablename__ = "books"
    isbn = sa.Column(sa.String(13), primary_key=True)
    title = sa.Column(sa.Text, server_default="untitled")
    author_id = sa.Column(sa.ForeignKey("authors.id"), index=True)
    author = orm.relationship("Author", back_populates="books")


class Sale(Base):
    __tablename__ = "sales"
    shop = sa.Column(sa.Integer, primary_key=True, autoincrement=False)
    day = sa.Column(sa.Date, primary_key=True)
    sum = sa.Column(sa.Numeric(12, 2))


class Visit(Base):
    """A table without a key: the store gives the keys."""

    __tablename__ = "visits"
    auto_incrementing_id = sa.Column(sa.BigInteger, primary_key=True)
    who = sa.Column(sa.String(20))


class Everything(Base):
    __tablename__ = "everything"
    id = sa.Column(sa.Uuid, primary_key=True, default=uuid.uuid4)
    kind = sa.Column(sa.Enum("a", "b", name="kinds"))
    more = sa.Column(sa.JSON)
    at = sa.Column(sa.DateTime(timezone=True))
    noon = sa.Column(sa.Time)
    wait = sa.Column(sa.Interval)
    raw = sa.Column(sa.LargeBinary)
    small = sa.Column(sa.REAL)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        yield db


@pytest.fixture
def engine(db: nyala.Database, tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"nyala:///{tmp_path}/store?maintenance=false")
    yield engine
    engine.dispose()


# -------------------------------------------------------------------------------------------------- metadata


def test_create_all_and_drop_all(engine: sa.Engine, db: nyala.Database) -> None:
    """`create_all` creates each table once, and `drop_all` drops them."""
    Base.metadata.create_all(engine)
    assert db.list_tables() == ["authors", "books", "everything", "sales", "visits"]
    Base.metadata.create_all(engine)  # which finds them
    columns = {each.name: (each.type, each.nullable) for each in db["sales"].description.columns}
    assert columns == {
        "shop": ("int32", False),
        "day": ("date", False),
        "sum": ("decimal(12,2)", True),
    }
    assert db["sales"].description.primary_key == ("shop", "day")
    Base.metadata.drop_all(engine)
    assert db.list_tables() == []


def test_reflected_tables_are_those_that_were_created(engine: sa.Engine, db: nyala.Database) -> None:
    Base.metadata.create_all(engine)
    before = {name: db[name].description.columns for name in db.list_tables()}
    reflected = sa.MetaData()
    reflected.reflect(engine)
    reflected.drop_all(engine)
    reflected.create_all(engine)
    assert {name: db[name].description.columns for name in db.list_tables()} == before


def test_partitions_and_storage(engine: sa.Engine, db: nyala.Database) -> None:
    """Options of the dialect set partitions, history and storage, and reflection returns them."""
    levels = "HASH (id) PARTITIONS 3, RANGE (day) (PARTITION DATE '2026-01-01' <= VALUES < DATE '2027-01-01')"
    metadata = sa.MetaData()
    sa.Table(
        "parted", metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False, nyala_encoding="bitshuffle"),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("at", sa.DateTime, nyala_immutable=True),
        sa.Column("text", sa.Text, nyala_compression="zstd", nyala_block_size=65536),
        nyala_partition_by=levels, nyala_history="30d", comment="about",
    )  # fmt: skip
    metadata.create_all(engine)
    made = db["parted"].description
    assert made.tablets == 3 and made.history == dt.timedelta(days=30) and made.comment == "about"
    columns = {each.name: each for each in made.columns}
    assert columns["id"].encoding == "bitshuffle" and columns["at"].immutable
    assert (columns["text"].compression, columns["text"].block_size) == ("zstd", 65536)
    reflected = sa.MetaData()
    reflected.reflect(engine)
    assert reflected.tables["parted"].dialect_options["nyala"]["history"] == "30d"
    reflected.drop_all(engine)
    reflected.create_all(engine)
    again = db["parted"].description
    assert (again.partition_text, again.columns) == (made.partition_text, made.columns)


def test_automap(engine: sa.Engine) -> None:
    """Automap makes classes for the tables of a store."""
    from sqlalchemy.ext.automap import automap_base

    Base.metadata.create_all(engine)
    mapped = automap_base()
    mapped.prepare(autoload_with=engine)
    with orm.Session(engine) as session:
        session.add(mapped.classes.authors(name="Ada"))
        session.commit()
        assert session.scalars(sa.select(mapped.classes.authors.id)).all() == [1]


def test_rows_of_a_create_table_as(engine: sa.Engine) -> None:
    """A table that SQL created can be reflected and read in the same connection."""
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(Author), [{"name": "Ada"}, {"name": "Bob"}])
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE copy PRIMARY KEY (id) AS SELECT id, name FROM authors"))
        copy = sa.Table("copy", sa.MetaData(), autoload_with=engine)
        assert connection.execute(sa.select(copy).order_by(copy.c.id)).all() == [(1, "Ada"), (2, "Bob")]


# -------------------------------------------------------------------------------------------------- the ORM


def test_objects_with_counted_keys_and_their_relations(engine: sa.Engine, db: nyala.Database) -> None:
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        ada = Author(name="Ada", books=[Book(isbn="1", title="Notes"), Book(isbn="2")])
        session.add_all([ada, Author(name="Bob")])
        session.flush()
        assert ada.id == 1
        session.commit()
    with orm.Session(engine) as session:
        ada = session.scalars(sa.select(Author).options(orm.selectinload(Author.books))).first()
        assert sorted((each.isbn, each.title) for each in ada.books) == [("1", "Notes"), ("2", "untitled")]
        joined = sa.select(Author.name, sa.func.count(Book.isbn)).outerjoin(Book).group_by(Author.name)
        assert dict(session.execute(joined).all()) == {"Ada": 2, "Bob": 0}
        session.delete(ada)
        session.commit()
    assert (db["authors"].count(), db["books"].count()) == (1, 0)


def test_many_objects_at_once(engine: sa.Engine, db: nyala.Database) -> None:
    """Each of many new objects gets its own key."""
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        made = [Author(name=str(number)) for number in range(500)]
        session.add_all(made)
        session.commit()
        assert {each.id: each.name for each in made} == {n + 1: str(n) for n in range(500)}
        ids = session.scalars(sa.insert(Author).returning(Author.id), [{"name": "x"}, {"name": "y"}]).all()
        assert sorted(ids) == [501, 502]
        several = sa.insert(Author).values([{"name": "x"}, {"name": "y"}, {"name": "z"}])
        assert sorted(session.scalars(several.returning(Author.id))) == [503, 504, 505]
        session.commit()
    assert db["authors"].count() == 505


def test_objects_whose_keys_the_store_gives(engine: sa.Engine, db: nyala.Database) -> None:
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        one = Visit(who="a")
        session.add(one)
        session.flush()
        assert one.auto_incrementing_id == 1
        session.add_all([Visit(who=str(number)) for number in range(100)])
        session.commit()
        pairs = session.execute(sa.select(Visit.auto_incrementing_id, Visit.who)).all()
        assert dict(pairs) == {1: "a"} | {number + 2: str(number) for number in range(100)}
        one.who = "b"
        session.delete(session.get(Visit, 2))
        session.commit()
        rows = sa.insert(Visit).returning(Visit.auto_incrementing_id, Visit.who)
        made = session.execute(rows, [{"who": "x"}, {"who": "y"}]).all()
        assert sorted(made) == [(102, "x"), (103, "y")]
        assert session.execute(sa.insert(Visit).values([{"who": "z"}, {"who": "z"}])).rowcount == 2
        session.commit()
    assert db["visits"].count() == 104
    with engine.begin() as connection:
        assert connection.execute(sa.insert(Visit), {"who": "w"}).inserted_primary_key == (106,)


def test_objects_whose_keys_the_program_gives(engine: sa.Engine) -> None:
    Base.metadata.create_all(engine)
    day = dt.date(2026, 1, 2)
    with orm.Session(engine) as session:
        session.add(Sale(shop=1, day=day, sum=decimal.Decimal("2.50")))
        session.commit()
        session.merge(Sale(shop=1, day=day, sum=decimal.Decimal("3.50")))
        session.commit()
        assert session.get(Sale, (1, day)).sum == decimal.Decimal("3.50")
        session.get(Sale, (1, day)).shop = 2
        session.commit()
        assert session.scalars(sa.select(Sale.shop)).all() == [2]
        session.add(Sale(day=day))
        with pytest.warns(sa.exc.SAWarning, match="no Python-side"), pytest.raises(sa.exc.IntegrityError):
            session.commit()


def test_values_of_all_types_are_returned_unchanged(engine: sa.Engine) -> None:
    Base.metadata.create_all(engine)
    values = {
        "kind": "b",
        "more": {"a": [1, None, "x"]},
        "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC),
        "noon": dt.time(12, 0, 1),
        "wait": dt.timedelta(days=2, seconds=3),
        "raw": b"\0\xff",
        "small": 0.5,
    }
    with orm.Session(engine) as session:
        session.add(Everything(**values))
        session.add(Everything())
        session.commit()
        found = session.scalars(sa.select(Everything).where(Everything.kind == "b")).one()
        assert {name: getattr(found, name) for name in values} == values
        assert isinstance(found.id, uuid.UUID) and session.get(Everything, found.id) is found
        assert session.scalars(sa.select(Everything.more["a"][0].as_integer())).all().count(1) == 1
        soon = sa.select(Everything.id).where(Everything.wait < dt.timedelta(days=3))
        assert session.scalars(soon).all() == [found.id]


def test_an_enum_can_have_longer_names_later(engine: sa.Engine, db: nyala.Database) -> None:
    """An enum is stored as VARCHAR without a length, because VARCHAR(n) would cut a longer name."""

    def with_names(*names: str) -> sa.Table:
        return sa.Table(
            "orders",
            sa.MetaData(),
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("state", sa.Enum(*names, name="states")),
        )

    with_names("new", "paid").create(engine)
    assert db["orders"].description.columns[1].type == "string"
    later = with_names("new", "paid", "cancelled")
    with engine.begin() as connection:
        connection.execute(later.insert(), [{"id": 1, "state": "cancelled"}])
        assert connection.execute(sa.select(later)).all() == [(1, "cancelled")]


# -------------------------------------------------------------------------------------------------- frames


def test_pandas_creates_appends_and_replaces(engine: sa.Engine, db: nyala.Database) -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 2],
            "name": ["a", None],
            "size": [1.5, None],
            "ok": [True, False],
            "at": pd.to_datetime(["2026-01-02", None]),
            "day": [dt.date(2026, 1, 2), None],
        }
    )
    assert frame.to_sql("frames", engine, index=False) == 2
    with pytest.raises(ValueError, match="already exists"):
        frame.to_sql("frames", engine, index=False)
    assert frame.to_sql("frames", engine, index=False, if_exists="append") == 2
    assert db["frames"].count() == 4
    assert frame.to_sql("frames", engine, index=False, if_exists="replace", method="multi") == 2
    back = pd.read_sql_table("frames", engine).sort_values("id").reset_index(drop=True)
    assert list(back.columns) == list(frame.columns)
    assert back["at"].tolist()[0] == pd.Timestamp("2026-01-02", tz="UTC") and pd.isna(back["at"][1])
    assert back["name"].tolist() == ["a", None] and back["ok"].tolist() == [True, False]
    assert [each.type for each in db["frames"].description.columns][1:] == [
        "int64", "string", "double", "bool", "timestamp", "date",
    ]  # fmt: skip


def test_pandas_with_an_index_and_types(engine: sa.Engine, db: nyala.Database) -> None:
    frame = pd.DataFrame({"v": [1.5, 2.5]}, index=pd.Index(["x", "y"], name="k"))
    frame.to_sql("frames", engine, dtype={"v": sa.Numeric(5, 2), "k": sa.String(9)})
    frame.to_sql("frames", engine, dtype={"v": sa.Numeric(5, 2), "k": sa.String(9)}, if_exists="append")
    types = {each.name: each.type for each in db["frames"].description.columns}
    assert (types["k"], types["v"]) == ("varchar(9)", "decimal(5,2)")
    assert pd.read_sql("SELECT k, sum(v) AS v FROM frames GROUP BY k ORDER BY k", engine)["v"].tolist() == [
        3,
        5,
    ]


def test_pandas_in_a_transaction(engine: sa.Engine, db: nyala.Database) -> None:
    """Creating a table commits at once. Its rows belong to the transaction."""
    frame = pd.DataFrame({"a": [1]})
    with pytest.raises(ZeroDivisionError), engine.begin() as connection:
        frame.to_sql("frames", connection, index=False)
        1 / 0  # noqa: B018
    assert db["frames"].count() == 0


def test_polars_creates_appends_and_replaces(engine: sa.Engine, db: nyala.Database) -> None:
    frame = pl.DataFrame(
        {"id": [1, 2], "name": ["a", None], "day": [dt.date(2026, 1, 2), None], "v": [1.5, 2.5]}
    )
    frame.write_database("frames", engine)
    with pytest.raises(ValueError, match="already exists"):
        frame.write_database("frames", engine)
    frame.write_database("frames", engine, if_table_exists="append")
    assert db["frames"].count() == 4
    frame.write_database("frames", engine, if_table_exists="replace")
    back = pl.read_database("SELECT id, name, day, v FROM frames ORDER BY id", engine)
    assert back.equals(frame)


# -------------------------------------------------------------------------------------------------- buckets


def test_a_store_in_a_bucket(tmp_path: Path) -> None:
    """The ORM and pandas work over a store in a bucket."""
    with S3Server() as server:
        options = {"storage_options": server.options, "cache_dir": tmp_path / "cache"}
        url = "nyala:///s3://bucket/store?group_interval=0&maintenance=false"
        engine = sa.create_engine(url, connect_args=options)
        Base.metadata.create_all(engine)
        with orm.Session(engine) as session:
            session.add_all([Author(name="Ada"), Visit(who="b")])
            session.commit()
        pd.DataFrame({"a": [1, 2]}).to_sql("frames", engine, index=False)
        assert sa.inspect(engine).get_table_names() == [
            "authors", "books", "everything", "frames", "sales", "visits",
        ]  # fmt: skip
        with engine.connect() as connection:
            assert connection.execute(sa.select(Author.id, Author.name)).all() == [(1, "Ada")]
            assert connection.scalar(sa.text("SELECT sum(a) FROM frames")) == 3
        engine.dispose()
