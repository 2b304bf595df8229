"""Alembic over a store: migrations up and down, and `--autogenerate`."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import orm
from sqlalchemy.dialects import registry

import nyala

registry.register("nyala", "nyala.sqlalchemy.dialect", "NyalaDialect")

ENVIRONMENT = """
    from alembic import context
    from sqlalchemy import create_engine

    if context.is_offline_mode():
        context.configure(url=context.config.get_main_option("sqlalchemy.url"), literal_binds=True)
        with context.begin_transaction():
            context.run_migrations()
    else:
        engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
        with engine.connect() as connection:
            context.configure(connection=connection)
            with context.begin_transaction():
                context.run_migrations()
        engine.dispose()
"""

MIGRATIONS = {
    "create": """
        def upgrade():
            items = op.create_table(
                "items",
                sa.Column("id", sa.Integer, primary_key=True),
                sa.Column("name", sa.String(20), nullable=False, comment="what it is"),
                sa.Column("price", sa.Numeric(9, 2)),
                comment="things",
            )
            op.bulk_insert(items, [{"id": 1, "name": "pen"}, {"id": 2, "name": "ink"}])
            op.create_table(
                "sales",
                sa.Column("id", sa.BigInteger, primary_key=True),
                sa.Column("item", sa.Integer, sa.ForeignKey("items.id"), index=True),
            )
            op.create_index("by_name", "items", ["name"])

        def downgrade():
            op.drop_index("by_name", "items")
            op.drop_table("sales")
            op.drop_table("items")
    """,
    "columns": """
        def upgrade():
            op.add_column("items", sa.Column("colour", sa.String(10), nullable=False, server_default="red"))
            op.execute("UPDATE items SET price = 5 WHERE id = 1")
            op.alter_column("items", "name", type_=sa.String(40), existing_type=sa.String(20))
            op.alter_column("items", "price", type_=sa.Numeric(12, 2), server_default="1.50", comment="in euros")
            op.alter_column("items", "colour", nullable=True, new_column_name="color")

        def downgrade():
            op.drop_column("items", "color")
            op.alter_column("items", "price", server_default=None, comment=None)
    """,
    "names": """
        def upgrade():
            op.get_bind().execute(sa.text("INSERT INTO items (id, name) VALUES (3, 'pad')"))
            op.drop_table("sales")
            op.rename_table("items", "things")
            with op.batch_alter_table("things") as batch:
                batch.add_column(sa.Column("seen", sa.DateTime))
                batch.drop_column("color")

        def downgrade():
            op.drop_column("things", "seen")
            op.add_column("things", sa.Column("color", sa.String(10)))
            op.rename_table("things", "items")
            op.create_table("sales", sa.Column("id", sa.BigInteger, primary_key=True))
    """,
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"nyala:///{tmp_path}/store?maintenance=false"


@pytest.fixture
def config(tmp_path: Path, url: str) -> Config:
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(textwrap.dedent(ENVIRONMENT))
    previous = None
    for name, text in MIGRATIONS.items():
        head = f"from alembic import op\nimport sqlalchemy as sa\nrevision = {name!r}\ndown_revision = {previous!r}\n"
        (folder / "versions" / f"{name}.py").write_text(head + textwrap.dedent(text))
        previous = name
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    config.set_main_option("sqlalchemy.url", url)
    return config


def tables(tmp_path: Path) -> dict[str, Any]:
    """Return {table: {column: (type, nullable, default, comment)}}."""
    with nyala.connect(tmp_path / "store", read_only=True) as db:
        return {
            name: {c.name: (c.type, c.nullable, c.default, c.comment) for c in db[name].description.columns}
            for name in db.list_tables()
            if name != "alembic_version"
        }


def test_migrations_up_and_down(config: Config, tmp_path: Path) -> None:
    command.upgrade(config, "create")
    created = tables(tmp_path)
    assert created == {
        "items": {
            "id": ("int32", False, None, ""),
            "name": ("varchar(20)", False, None, "what it is"),
            "price": ("decimal(9,2)", True, None, ""),
        },
        "sales": {"id": ("int64", False, None, ""), "item": ("int32", True, None, "")},
    }
    command.upgrade(config, "columns")
    items = tables(tmp_path)["items"]
    assert items["name"] == ("varchar(40)", False, None, "what it is")
    assert items["color"] == ("varchar(10)", True, "red", "")
    assert items["price"][0] == "decimal(12,2)" and str(items["price"][2]) == "1.50"
    assert items["price"][3] == "in euros"
    command.upgrade(config, "head")
    assert list(tables(tmp_path)) == ["things"]
    assert list(tables(tmp_path)["things"]) == ["id", "name", "price", "seen"]
    with nyala.connect(tmp_path / "store", read_only=True) as db:
        rows = db.sql("SELECT id, name, CAST(price AS VARCHAR) FROM things ORDER BY id").fetchall()
        assert rows == [(1, "pen", "5.00"), (2, "ink", None), (3, "pad", "1.50")]
        assert db.sql("SELECT version_num FROM alembic_version").fetchall() == [("names",)]
    command.downgrade(config, "columns")
    assert list(tables(tmp_path)) == ["items", "sales"]
    command.downgrade(config, "create")
    items = tables(tmp_path)["items"]
    assert list(items) == ["id", "name", "price"] and items["price"][2:] == (None, "")
    command.downgrade(config, "base")
    assert tables(tmp_path) == {}


def test_a_migration_that_fails_keeps_its_first_operations(config: Config, tmp_path: Path) -> None:
    """The stored version does not change, so the corrected migration can run again."""
    script = tmp_path / "migrations" / "versions" / "columns.py"
    text = script.read_text()
    assert 'op.alter_column("items", "colour", nullable=True, new_column_name="color")' in text
    script.write_text(
        text.replace('"colour", nullable=True, new_column_name="color"', '"price", nullable=False')
    )
    with pytest.raises(sa.exc.ProgrammingError, match="NOT NULL"):
        command.upgrade(config, "columns")
    assert "colour" in tables(tmp_path)["items"]
    with nyala.connect(tmp_path / "store", read_only=True) as db:
        assert db.sql("SELECT version_num FROM alembic_version").fetchall() == [("create",)]


def test_a_migration_as_text(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--sql` prints statements that the store executes."""
    command.upgrade(config, "head", sql=True)
    text = capsys.readouterr().out
    with nyala.connect(tmp_path / "store") as db:
        db.sql(text)
        assert db.list_tables() == ["alembic_version", "things"]
        assert db["things"].count() == 3


def test_the_dialect_works_without_alembic(url: str) -> None:
    code = f"""
import sys
sys.modules["alembic"] = None
import sqlalchemy as sa
from sqlalchemy.dialects import registry
registry.register("nyala", "nyala.sqlalchemy.dialect", "NyalaDialect")
print(sa.inspect(sa.create_engine({url!r})).get_table_names())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# -------------------------------------------------------------------------------------------------- autogenerate

Base = orm.declarative_base()


class Item(Base):
    __tablename__ = "items"
    id = sa.Column(sa.Integer, primary_key=True)
    name = sa.Column(sa.String(20), nullable=False, server_default="it's", comment="what it is")
    kind = sa.Column(sa.Enum("a", "bcd", name="kinds"), index=True)
    ok = sa.Column(sa.Boolean, server_default=sa.true())
    size = sa.Column(sa.Float, server_default="1.0")
    small = sa.Column(sa.REAL)
    price = sa.Column(sa.Numeric(9, 2), server_default="1.5")
    day = sa.Column(sa.Date, server_default="2026-01-02")
    at = sa.Column(sa.DateTime)
    noon = sa.Column(sa.Time)
    raw = sa.Column(sa.LargeBinary)
    more = sa.Column(sa.JSON)
    mark = sa.Column(sa.Uuid)
    wait = sa.Column(sa.Interval)
    __table_args__ = {"comment": "things"}  # noqa: RUF012


class Event(Base):
    __tablename__ = "events"
    auto_incrementing_id = sa.Column(sa.BigInteger, primary_key=True)
    item = sa.Column(sa.ForeignKey("items.id"))


sa.Table("notes", Base.metadata, sa.Column("text", sa.Text))


@pytest.fixture
def connection(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url)
    Base.metadata.create_all(engine)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def differences(connection: sa.Connection, metadata: sa.MetaData) -> list[Any]:
    options = {"compare_type": True, "compare_server_default": True, "target_metadata": metadata}
    return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


def test_created_tables_have_no_differences(connection: sa.Connection) -> None:
    assert differences(connection, Base.metadata) == []


def test_differences_are_found(connection: sa.Connection) -> None:
    metadata = sa.MetaData()
    for table in Base.metadata.tables.values():
        table.to_metadata(metadata)
    items = metadata.tables["items"]
    items.append_column(sa.Column("colour", sa.String(10)))
    items.c.name.type = sa.String(40)
    items.c.price.server_default = sa.DefaultClause("2.5")
    items.c.ok.comment = "is it?"
    sa.Table("more", metadata, sa.Column("id", sa.Integer, primary_key=True))
    metadata.remove(metadata.tables["notes"])
    found = differences(connection, metadata)
    assert sorted(each[0] if isinstance(each, tuple) else each[0][0] for each in found) == [
        "add_column", "add_table", "modify_comment", "modify_default", "modify_type", "remove_table",
    ]  # fmt: skip
    (added,) = [each for each in found if each[0] == "add_column"]
    assert (added[2], added[3].name) == ("items", "colour")
