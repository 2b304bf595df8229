"""Messages and `repr` have a bounded length for any input, and still say what, where and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nyala
from nyala.errors import MESSAGE_MAX_CHARS, CorruptionError, Error, StorageError, WriteError, bounded
from tests.support import cli_runner, open_database

LONG = 300_000
NAME = "n" * LONG
MANY = [f"name_{number}" for number in range(20_000)]
IN_LIST = "k IN (" + ", ".join(f"'{number}'" for number in range(20_000)) + ")"
QUOTES = "'a 'b \"c " * 40_000


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_database(tmp_path_factory.mktemp("long") / "s") as db:
        table = db.create_table("t", {"k": "int64", "v": "string"}, "k")
        table.insert({"k": [1], "v": ["a"]})
        yield db


# (the call, the text that its message must have)
CALLS: list[tuple[str, Callable[[Any], Any], tuple[str, ...]]] = [
    ("table", lambda db: db[NAME], ("no table", "nnn")),
    ("table of quotes", lambda db: db[QUOTES], ("no table",)),
    ("create", lambda db: db.create_table(NAME, {"k": "int64"}, "k"), ()),
    ("column name", lambda db: db.create_table("x", {NAME: "int64"}, NAME), ("nnn",)),
    ("column type", lambda db: db.create_table("x", {"k": NAME}, "k"), ("type", "'k'")),
    ("key", lambda db: db.create_table("x", {"k": "int64"}, NAME), ("nnn",)),
    ("keys", lambda db: db.create_table("x", {"k": "int64"}, MANY), ("name_0",)),
    ("columns", lambda db: db["t"].scan([NAME]), ("no column", "nnn")),
    ("many columns", lambda db: db["t"].scan(MANY), ("no column", "name_0")),
    ("where: name", lambda db: db["t"].scan(where=f"{NAME} = 1"), ()),
    ("where: not closed", lambda db: db["t"].scan(where="v = '" + NAME), ()),
    ("where: IN", lambda db: db["t"].scan(where=IN_LIST + " AND"), ()),
    ("where: wrong type", lambda db: db["t"].scan(where=IN_LIST), ("'k'",)),
    ("where: quotes", lambda db: db["t"].scan(where=QUOTES), ()),
    ("where: value", lambda db: db["t"].scan(where=f"k = '{NAME}'"), ("'k'",)),
    ("where: tuple", lambda db: db["t"].scan(where=[("k", "=", NAME)]), ("'k'",)),
    ("where: operator", lambda db: db["t"].scan(where=[("k", NAME, 1)]), ()),
    ("where: list", lambda db: db["t"].scan(where=[("k", "in", MANY)]), ("'k'",)),
    ("at", lambda db: db["t"].scan(at=NAME), ()),
    ("limit", lambda db: db["t"].scan(limit=NAME), ()),
    ("get", lambda db: db["t"].get(NAME), ("'k'",)),
    ("get: names", lambda db: db["t"].get(dict.fromkeys(MANY, 1)), ()),
    ("insert: column", lambda db: db["t"].insert({"k": [2], NAME: [1]}), ("nnn",)),
    ("insert: columns", lambda db: db["t"].insert({"k": [2], **{name: [1] for name in MANY}}), ("name_0",)),
    ("insert: value", lambda db: db["t"].insert({"k": [NAME], "v": ["a"]}), ("k",)),
    ("insert: cell", lambda db: db["t"].insert({"k": [2], "v": [NAME]}), ("v", "65536")),
    ("insert: conflict", lambda db: db["t"].insert({"k": [2], "v": ["a"]}, on_conflict=NAME), ()),
    ("insert: taken", lambda db: db["t"].insert({"k": [1], "v": ["a"]}), ("upsert",)),
    ("update: set", lambda db: db["t"].update(where="k = 1", set={NAME: 1}), ("nnn",)),
    ("update: value", lambda db: db["t"].update(where="k = 1", set={"k": NAME}), ()),
    ("update: expression", lambda db: db["t"].update(where="k = 1", set={"v": nyala.expr(NAME + " +")}), ()),
    ("delete", lambda db: db["t"].delete(where=NAME), ()),
    ("changes", lambda db: db["t"].changes(since=NAME), ()),
    ("history", lambda db: db["t"].history(NAME), ()),
    ("sql: name", lambda db: db.sql(f"SELECT {NAME} FROM t"), ()),
    ("sql: table", lambda db: db.sql(f"SELECT * FROM {NAME}"), ()),
    ("sql: text", lambda db: db.sql("SELECT '" + NAME), ()),
    ("sql: cast", lambda db: db.sql(f"SELECT CAST('{NAME}' AS INT) FROM t").to_arrow(), ()),
    ("sql: statement", lambda db: db.sql("VACUUM FROM t WHERE " + IN_LIST), ("VACUUM",)),
    ("rename", lambda db: db.rename_table(NAME, "x"), ("no table",)),
    ("drop", lambda db: db.drop_table(NAME), ("no table",)),
    ("alter", lambda db: _alter(db, lambda a: a.drop_column(NAME)), ("nnn",)),
    ("alter: add", lambda db: _alter(db, lambda a: a.add_column(NAME, NAME)), ()),
    ("alter: default", lambda db: _alter(db, lambda a: a.add_column("d", "int32", default=NAME)), ("'d'",)),
    ("hash", lambda db: _make(db, nyala.hash_partition(NAME, buckets=2)), ()),
    ("range", lambda db: db["t"].scan(where=nyala.col("k") == NAME), ()),
    ("path", lambda db: nyala.connect("/" + "/".join(["d" * 100] * 3000)), ()),
    ("no store", lambda db: nyala.connect("/nowhere/" + "/".join(["d" * 100] * 30), read_only=True), ()),
    ("check", lambda db: nyala.check("/" + "/".join(["d" * 100] * 3000)), ()),
    ("token", lambda db: list(nyala.api.scan.read_token(NAME.encode())), ("token",)),
]  # fmt: skip


def _make(db: Any, *levels: Any) -> None:
    db.create_table("x", {"k": "int64"}, "k", partition_by=list(levels))


def _alter(db: Any, step: Callable[[Any], Any]) -> None:
    with db["t"].alter() as a:
        step(a)


@pytest.mark.parametrize(("call", "says"), [(c, s) for _, c, s in CALLS], ids=[name for name, _, _ in CALLS])
def test_messages_are_short_and_name_the_mistake(
    db: Any, call: Callable[[Any], Any], says: tuple[str, ...]
) -> None:
    with pytest.raises(Error) as caught:
        call(db)
    message = str(caught.value)
    assert 10 < len(message) <= MESSAGE_MAX_CHARS
    assert len(repr(caught.value)) < 2 * MESSAGE_MAX_CHARS
    for words in says:
        assert words in message, message


def test_messages_of_row_errors_are_short(db: Any) -> None:
    result = db["t"].upsert({"k": [7, 8], "v": [NAME, "b"]}, errors="collect")
    assert len(result.errors) == 1
    assert max(map(len, result.errors["message"].to_pylist())) <= MESSAGE_MAX_CHARS


def test_text_between_long_parts_is_kept() -> None:
    many = ", ".join(MANY)
    for text in (
        f"table {NAME!r} has no column {NAME!r}: table.schema has the names",
        f"column {QUOTES!r} has no column {NAME!r}: table.schema has the names",
        f"it has no column {NAME!r}; the table's columns are {many}: table.schema has the names",
    ):
        short = bounded(text)
        assert len(short) <= MESSAGE_MAX_CHARS
        assert "no column" in short and "table.schema has the names" in short
    assert bounded("x" * 10_000_000, 300).count("x") > 200
    assert len(bounded(QUOTES * 20)) <= MESSAGE_MAX_CHARS
    assert bounded("it's short") == "it's short"


def test_every_class_of_errors_shortens_its_message() -> None:
    """The message is also short after the error was pickled."""
    import pickle

    for error in (
        Error(NAME),
        StorageError(NAME, path="p"),
        CorruptionError(NAME, "p", 5),
        CorruptionError("it is cut", NAME, 5),
        WriteError(NAME, pa.table({"row": [1]})),
        nyala.TableNotFoundError(NAME),
    ):
        for given in (error, pickle.loads(pickle.dumps(error))):
            assert len(str(given)) <= MESSAGE_MAX_CHARS, type(error)
    assert str(CorruptionError("it is cut", NAME, 5)).endswith("it is cut")


def test_reprs_and_explanations_are_short(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        names = [f"column_{number}" for number in range(300)]
        wide = db.create_table("w", dict.fromkeys(names, "int64"), names[:5])
        wide.insert({name: [1] for name in names})
        for number in range(60):
            db.create_table(f"table_{number:0>50}", {"k": "int64"}, "k")
        where = "column_0 IN (" + ", ".join(map(str, range(20_000))) + ")"
        scan = wide.scan(where=where)
        scan.to_arrow()
        for shown in (
            db, wide, scan, db.sql("SELECT * FROM w"), wide.changes(since=0), wide.upsert({n: [1] for n in names}),
            nyala.expr(where), db.snapshot(),
        ):  # fmt: skip
            assert len(repr(shown)) < 10_000, type(shown)
        assert len(str(scan.explain())) < 5 * MESSAGE_MAX_CHARS


def test_a_repr_says_how_many_rows_it_shows(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64"}, "k")
        assert "inserted=1234" in repr(table.insert({"k": list(range(1234))}))
        assert ", 0 rows\n" in repr(db.sql("SELECT k FROM t WHERE k < 0"))
        assert ", 1 row\n" in repr(db.sql("SELECT k FROM t WHERE k = 5"))
        assert ", 1,234 rows\n" in repr(db.sql("SELECT k FROM t ORDER BY k;"))
        assert ", 3 rows\n" in repr(db.sql("SELECT k FROM t WHERE k < ?", [3]))
        table.insert({"k": pa.array(range(2000, 150_000))})
        assert "more than 100,000 rows" in repr(db.sql("SELECT k FROM t"))


def test_messages_of_the_command_line_are_short(tmp_path: Path) -> None:
    from nyala.cli.app import app

    nyala.connect(tmp_path / "s").close()
    for arguments in (
        ["table", "scan", str(tmp_path / "s"), NAME],
        ["table", "alter", str(tmp_path / "s"), "t", f"frobnicate {NAME}"],
        ["table", "scan", str(tmp_path / "s"), "t", "--where", IN_LIST],
        [NAME],
        ["fs", "check", "/" + NAME],
    ):
        result = cli_runner().invoke(app, arguments)
        assert result.exit_code != 0
        assert len(result.output) + len(result.stderr) < 4 * MESSAGE_MAX_CHARS, arguments[:2]
