"""CREATE, ALTER, DROP and UNDROP TABLE by SQL."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nyala
from nyala.partition.ranges import RangeBound
from nyala.sql.tokens import quoted


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "store", maintenance=False) as database:
        yield database


def types(table: nyala.Table) -> dict[str, str]:
    return {each.name: each.type for each in table.description.columns}


def test_create_table_in_standard_sql(db: nyala.Database) -> None:
    db.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, a BIGINT NOT NULL DEFAULT 5, b VARCHAR(10) DEFAULT 'x''y', "
        "c DECIMAL(10,2), d DATE DEFAULT '2024-01-02', e TIMESTAMP, f DOUBLE, g REAL, h BOOLEAN DEFAULT true, i BLOB, "
        "j TEXT, k INT64, "
        "l STRING, m TIMESTAMPTZ, n SMALLINT, o TINYINT)"
    )
    described = db["t"].description
    assert described.primary_key == ("id",)
    assert types(db["t"]) == {
        "id": "int32", "a": "int64", "b": "varchar(10)", "c": "decimal(10,2)", "d": "date", "e": "timestamp",
        "f": "double", "g": "float", "h": "bool", "i": "binary", "j": "string", "k": "int64", "l": "string",
        "m": "timestamp", "n": "int16", "o": "int8",
    }  # fmt: skip
    columns = {each.name: each for each in described.columns}
    assert not columns["id"].nullable and not columns["a"].nullable and columns["c"].nullable
    assert columns["a"].default == 5 and columns["b"].default == "x'y"
    assert columns["d"].default == dt.date(2024, 1, 2) and columns["h"].default is True


def test_words_of_kudu_and_impala(db: nyala.Database) -> None:
    """CREATE TABLE accepts the encodings, partitions and options of Kudu and Impala."""
    db.sql(
        """CREATE TABLE IF NOT EXISTS m (
            host STRING ENCODING DICT_ENCODING COMPRESSION LZ4 COMMENT 'which, machine',
            time BIGINT ENCODING BIT_SHUFFLE BLOCK_SIZE 65536,
            value DOUBLE NULL DEFAULT 1.5,
            PRIMARY KEY (host, time)
        )
        PARTITION BY HASH (host) PARTITIONS 4,
            RANGE (time) (PARTITION VALUES < 0, PARTITION 0 <= VALUES < 10, PARTITION VALUE = 10)
        COMMENT 'all of it'
        STORED AS KUDU
        TBLPROPERTIES ('nyala.history' = '2d')"""
    )
    described = db["m"].description
    host, time, value = described.columns
    assert (host.encoding, host.compression, host.comment) == ("dictionary", "lz4", "which, machine")
    assert (time.encoding, time.block_size, value.default) == ("bitshuffle", 65536, 1.5)
    assert described.tablets == 12 and described.comment == "all of it"
    assert described.history == dt.timedelta(days=2)
    db.sql("INSERT INTO m VALUES ('a', 10, DEFAULT)")
    with pytest.raises(nyala.NoPartitionError):
        db.sql("INSERT INTO m VALUES ('a', 11, 1)")
    db.sql("ALTER TABLE m ADD RANGE PARTITION 11 <= VALUES < 20, ADD RANGE PARTITION VALUE = 20")
    db.sql("INSERT INTO m VALUES ('a', 11, 1), ('a', 20, 1)")
    db.sql("ALTER TABLE m DROP RANGE PARTITION VALUE = 20")
    db.sql("ALTER TABLE m DROP IF EXISTS RANGE PARTITION VALUE = 20")
    assert db["m"].count() == 2
    db.sql("ALTER TABLE m UNDROP RANGE PARTITION VALUE = 20")
    assert db["m"].count() == 3


def test_create_or_replace_as_select(db: nyala.Database) -> None:
    """CREATE TABLE AS takes a key and partitions. A failed CREATE OR REPLACE keeps the earlier table."""
    db.sql("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    made = db.sql(
        "CREATE TABLE u PRIMARY KEY (k) PARTITION BY HASH (k) PARTITIONS 2 AS SELECT id AS k FROM t"
    )
    assert (made.rowcount, db["u"].description.tablets) == (2, 2)
    with pytest.raises(nyala.DuplicateKeyError):
        db.sql("CREATE OR REPLACE TABLE u PRIMARY KEY (k) AS SELECT 1 AS k FROM t")
    assert db["u"].count() == 2
    assert db.sql("CREATE OR REPLACE TABLE u AS SELECT * FROM u WHERE k = $1", [1]).rowcount == 1
    assert sorted(db.list_tables()) == ["t", "u"] and db["u"].count() == 1


def test_alter_table(db: nyala.Database) -> None:
    """Each form of ALTER TABLE changes the table. A failed statement changes nothing."""
    db.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT NOT NULL DEFAULT 1); INSERT INTO t VALUES (1, 2, 3)"
    )
    db.sql("ALTER TABLE t ADD COLUMN c STRING DEFAULT 'n', RENAME COLUMN a TO z, ALTER COLUMN z TYPE BIGINT")
    db.sql("ALTER TABLE t ADD COLUMNS (d DATE, e DOUBLE ENCODING plain)")
    db.sql("ALTER TABLE t ADD COLUMN IF NOT EXISTS d INT, DROP COLUMN IF EXISTS nothing, DROP COLUMN e")
    db.sql(
        "ALTER TABLE t ALTER b DROP NOT NULL, ALTER b SET DEFAULT 2 + 5, ALTER c SET ENCODING prefix COMMENT 'x'"
    )
    db.sql(
        "ALTER TABLE t CHANGE z y BIGINT, RENAME TO u; COMMENT ON TABLE u IS 'why'; COMMENT ON COLUMN u.y IS 'w'"
    )
    columns = {each.name: each for each in db["u"].description.columns}
    assert types(db["u"]) == {"id": "int32", "y": "int64", "b": "int32", "c": "string", "d": "date"}
    assert columns["b"].nullable and columns["b"].default == 7 and columns["c"].encoding == "prefix"
    assert (
        columns["c"].comment == "x" and columns["y"].comment == "w" and db["u"].description.comment == "why"
    )
    with pytest.raises(nyala.Error):
        db.sql("ALTER TABLE u ADD COLUMN f INT, DROP COLUMN nothing")
    assert "f" not in db["u"].columns


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE VIEW v AS SELECT 1", "VIEW is not supported"),
        ("CREATE INDEX i ON t (a)", "INDEX is not supported"),
        ("CREATE SCHEMA s", "SCHEMA is not supported"),
        ("CREATE TEMP TABLE x (a INT)", "only CREATE TABLE"),
        ("CREATE TABLE x (a INT UNIQUE)", "UNIQUE is not supported"),
        ("CREATE TABLE x (a INT PRIMARY KEY, CHECK (a > 1))", "CHECK is not supported"),
        ("CREATE TABLE x (a INT PRIMARY KEY, b INT REFERENCES t (id))", "foreign keys"),
        ("CREATE TABLE x (a INT PRIMARY KEY, b UUID)", "column 'b': type UUID .* VARCHAR"),
        ("CREATE TABLE x (a INT PRIMARY KEY, b TIMESTAMP DEFAULT now())", "defaults are constants"),
        ("CREATE TABLE x (a INT PRIMARY KEY, b INT AS (a + 1))", "generated columns"),
        ("CREATE TABLE x (a NOTHING PRIMARY KEY)", "column 'a': there is no type NOTHING"),
        (
            "CREATE TABLE x (a INT PRIMARY KEY, b BIGNT)",
            "column 'b': there is no type BIGNT: did you mean BIGINT",
        ),
        ("CREATE TABLE x (a INT PRIMARY KEY, b NUMBER)", "column 'b': there is no type NUMBER: use DECIMAL"),
        ("CREATE TABLE x (a SERIAL PRIMARY KEY)", "leave out this column"),
        ("CREATE TABLE x (a INT PRIMARY KEY AUTOINCREMENT)", "leave out this column"),
        ("CREATE TABLE x (a INT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY)", "leave out this column"),
        ("CREATE TABLE x (a INT PRIMARY KEY, b TEXT BLOCK_SIZE big)", "BLOCK_SIZE takes a number"),
        ("ALTER TABLE t ADD PRIMARY KEY (a)", "the key of a table cannot change"),
        ("ALTER TABLE t DROP CONSTRAINT c", "the only constraints"),
        ("ALTER TABLE t ALTER a TYPE BIGINT USING a::BIGINT", "takes no USING"),
        ("CREATE TABLE x (a INT, PRIMARY KEY (b))", "b"),
        ("CREATE TABLE x (a INT PRIMARY KEY ENCODING zip)", "encoding"),
        ("CREATE TABLE t (a INT PRIMARY KEY)", "already"),
        ("CREATE TABLE x", "needs columns"),
        ("CREATE TABLE x (a INT PRIMARY KEY) ENGINE = InnoDB", "expected PRIMARY KEY"),
        ("CREATE TABLE x (a INT PRIMARY KEY) WITH ('other' = 1)", "unknown option"),
        ("CREATE TABLE x (a INT PRIMARY KEY) PARTITION BY HASH (a) PARTITIONS 1", "at least two"),
        ("ALTER TABLE t ADD COLUMN q INT NOT NULL", "q"),
        ("ALTER TABLE t ALTER COLUMN id TYPE BIGINT", "id"),
        ("ALTER TABLE t OWNER TO ada", "expected ADD"),
        ("DROP VIEW v", "VIEW is not supported"),
    ],
)
def test_statements_that_are_refused(db: nyala.Database, statement: str, words: str) -> None:
    """The error says why, and no table is created."""
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    with pytest.raises(nyala.Error, match=words):
        db.sql(statement)
    assert db.list_tables() == ["t"]


def test_a_key_can_have_a_name_and_defaults_can_have_any_text(db: nyala.Database) -> None:
    db.sql(
        "CREATE TABLE t (id INT, a TEXT DEFAULT 'call now()', CONSTRAINT pk PRIMARY KEY (id)); "
        "INSERT INTO t (id) VALUES (1)"
    )
    assert db.sql("SELECT * FROM t").fetchall() == [(1, "call now()")]
    db.sql("CREATE TABLE u (id INT PRIMARY KEY, serial INT, identity TEXT, generated DATE, collate_ INT)")
    assert db["u"].columns == ["id", "serial", "identity", "generated", "collate_"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE l (o INT, part INT, line INT, PRIMARY KEY (o, line))",
        "CREATE TABLE l (line INT, o INT, part INT, PRIMARY KEY (o, line))",
        "CREATE TABLE l PRIMARY KEY (o, line) AS SELECT 1 AS o, 2 AS part, 3 AS line",
    ],
)
def test_the_key_columns_must_come_first(db: nyala.Database, statement: str) -> None:
    """Otherwise an INSERT by position would put values into other columns than CREATE TABLE shows."""
    with pytest.raises(nyala.SchemaError, match="write the columns in the order o, line, part"):
        db.sql(statement)


def test_undrop_at_a_moment(db: nyala.Database) -> None:
    """UNDROP restores the newest dropped table of this name, or the one that existed at a moment."""
    moments = []
    for number in (1, 2, 3):
        db.sql(f"CREATE TABLE t AS SELECT {number} AS n")
        moments.append(db.now())
        db.sql("DROP TABLE t")
    db.sql("UNDROP TABLE t AT (VERSION => ?) AS second", [moments[1]])
    db.sql("UNDROP TABLE t")
    assert db.sql("SELECT t.n, second.n FROM t, second").fetchall() == [(3, 2)]
    with pytest.raises(nyala.Error, match="expected TIMESTAMP"):
        db.sql("UNDROP TABLE t AT (3)")


def test_changes_of_tables_are_refused_inside_a_transaction(db: nyala.Database) -> None:
    db.sql("BEGIN")
    with pytest.raises(nyala.InvalidArgumentError, match="inside a transaction"):
        db.sql("CREATE TABLE t (id INT PRIMARY KEY)")
    db.sql("ROLLBACK; CREATE TABLE t (id INT PRIMARY KEY)")


TEXTS = [
    "",
    "it's",
    'a "name"',
    "two\nlines; -- no comment",
    "$1 ? %s {x}",
    "ÄÖ 漢 🐟",
    "\\x00",
    "E'x'",
    "/* */",
]
DEFAULTS: dict[str, list[Any]] = {
    "int8": [-128, 127], "int16": [-32768], "int32": [-(2**31), 7], "int64": [-(2**63), 2**63 - 1],
    "float": [0.1, math.nan, -math.inf, 1e-45], "double": [0.1, math.nan, math.inf, -0.0, 1e300, 5e-324],
    "bool": [True, False], "string": TEXTS, "varchar(40)": TEXTS, "binary": [b"", b"\x00'a\xff"],
    "date": [dt.date(2020, 2, 3), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [dt.datetime(2020, 1, 2, 3, 4, 5, 678, dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC)],
    "decimal(9,3)": [decimal.Decimal("-1.250")], "decimal(38,0)": [decimal.Decimal("9" * 38)],
}  # fmt: skip
ENCODINGS = {
    "string": ["plain", "dictionary", "prefix"],
    "int32": ["plain", "bitshuffle", "rle"],
    "bool": ["rle"],
}
BOUNDS: dict[str, list[Any]] = {
    "int8": [-127, -1, 0, 127], "int64": [1 - 2**63, -5, 0, 10], "string": ["A", "it's", "z\x00", "漢"],
    "date": [dt.date(2020, 1, 1), dt.date(2020, 2, 1), dt.date(2021, 1, 1)], "binary": [b"a", b"b'", b"\xff"],
    "timestamp": [dt.datetime(2020, 1, 1, 0, 0, n, n, dt.UTC) for n in range(4)],
    "decimal(9,3)": [decimal.Decimal(text) for text in ("-1.5", "0", "2.125")],
}  # fmt: skip


def random_table(db: nyala.Database, chance: random.Random, name: str) -> nyala.Table:
    """Create a table with random columns, partitions, comments and options."""
    keys = [chance.choice(list(BOUNDS)) for _ in range(chance.randrange(1, 4))]
    columns: dict[str, Any] = {}
    for place, kind in enumerate(keys):
        columns[f"Key {place}"] = nyala.column(kind, False, comment=chance.choice(TEXTS))
    for place in range(chance.randrange(5)):
        kind = chance.choice(list(DEFAULTS))
        columns[f'c"{place}'] = nyala.column(
            kind,
            default=chance.choice([None, *DEFAULTS[kind]]),
            nullable=chance.random() < 0.5,
            encoding=chance.choice(["auto", *ENCODINGS.get(kind, [])]),
            compression=chance.choice(["default", "none", "zstd", "lz4"]),
            block_size=chance.choice([None, 65536, "1MiB"]),
            comment=chance.choice(TEXTS),
            immutable=chance.random() < 0.2,
        )
    levels: list[Any] = []
    left = [name for name in columns if name.startswith("Key")]
    if chance.random() < 0.5:
        levels.append(nyala.hash_partition(left.pop(), buckets=3, seed=chance.choice([42, 0, -(2**31)])))
    if left and chance.random() < 0.3:
        levels.append(nyala.hash_partition(left.pop(), buckets=2))
    if chance.random() < 0.6:
        ranged = [name for name in columns if name.startswith("Key")][: chance.randrange(1, 3)]
        ends = [*itertools.product(*(BOUNDS[kind] for kind in keys[: len(ranged)]))]
        cuts = sorted(chance.sample(range(len(ends)), 3))
        first, second, third = (ends[cut][0] if len(ranged) == 1 else ends[cut] for cut in cuts)
        ends_of: list[Any] = [(None, first), (first, second), RangeBound(third, third, True, True)]
        some = chance.sample(ends_of, 2) if first != second else []
        bounds = chance.choice([some, some, [(second, None)], [(None, None)], []])
        levels.append(nyala.range_partition(*ranged, bounds=bounds))
    key: list[str] | None = [name for name in columns if name.startswith("Key")]
    unique = chance.random() < 0.8
    if not levels and chance.random() < 0.2:
        key, unique = None, True
        columns = {name: spec for name, spec in columns.items() if not name.startswith("Key")} or {
            "v": "int8"
        }
    history = ["7d", "forever", "3h", "90m", "2w", dt.timedelta(0), dt.timedelta(microseconds=1_234_567)]
    return db.create_table(
        name, columns, key, levels or None, unique=unique if key else None,
        comment=chance.choice(TEXTS), history=chance.choice(history),
    )  # fmt: skip


def test_show_create_table_creates_an_equal_table(db: nyala.Database, tmp_path: Path) -> None:
    """The text of random tables is executed in a new store."""
    chance = random.Random(5)
    with nyala.connect(tmp_path / "other", maintenance=False) as other:
        for number in range(40):
            table = random_table(db, chance, f"t \"{number}'")
            ((text,),) = db.sql("SHOW CREATE TABLE " + quoted(table.name)).fetchall()
            other.sql(text)
            assert repr(other[table.name].description) == repr(table.description), text
            assert other.sql("SHOW CREATE TABLE " + quoted(table.name)).fetchall() == [(text,)]


def test_parameters_in_definitions_of_tables(db: nyala.Database) -> None:
    """Defaults, comments, bounds of partitions and options can be parameters, and so can values in AS SELECT."""
    first, second = dt.datetime(2026, 1, 1), dt.datetime(2026, 2, 1, tzinfo=dt.UTC)
    db.sql(
        "CREATE TABLE t (day TIMESTAMP PRIMARY KEY COMMENT ?, n INT DEFAULT ?) "
        "PARTITION BY RANGE (day) (PARTITION ? <= VALUES < ?) COMMENT ? WITH ('nyala.history' = ?)",
        ["it's ? a $1", 7, first, second, "c", "3d"],
    )
    db.sql("ALTER TABLE t ADD RANGE PARTITION $from <= VALUES < $to", {"from": second, "to": "2026-03-01"})
    db.sql(
        "ALTER TABLE t ADD COLUMN a DOUBLE DEFAULT ?, ADD COLUMN b BLOB DEFAULT ?, "
        "ADD COLUMN c DECIMAL(9,2) DEFAULT ?, ADD COLUMN d DATE DEFAULT ?, ADD COLUMN e BOOLEAN DEFAULT ?, "
        "ALTER COLUMN n SET DEFAULT ?",
        [math.inf, b"\x00'", decimal.Decimal("1.20"), dt.date(2026, 1, 2), True, np.int64(8)],
    )
    described = db["t"].description
    assert described.columns[0].comment == "it's ? a $1"
    assert [each.default for each in described.columns[1:]] == [
        8, math.inf, b"\x00'", decimal.Decimal("1.20"), dt.date(2026, 1, 2), True,
    ]  # fmt: skip
    assert [row[0] for row in db.sql("SHOW RANGE PARTITIONS t").fetchall()] == [
        "RANGE (day) [2026-01-01, 2026-02-01)", "RANGE (day) [2026-02-01, 2026-03-01)",
    ]  # fmt: skip
    assert (described.comment, described.history) == ("c", dt.timedelta(days=3))
    db.sql("COMMENT ON COLUMN t.n IS ?; COMMENT ON TABLE t IS ?", ["one", None])
    assert (db["t"].description.columns[1].comment, db["t"].description.comment) == ("one", "")
    made = db.sql(
        "CREATE TABLE u PRIMARY KEY (k) COMMENT $c AS SELECT unnest($k) AS k", {"c": "x", "k": [1, 2]}
    )
    assert (made.rowcount, db["u"].description.comment) == (2, "x")
    with pytest.raises(nyala.InvalidArgumentError, match=r"not \[1\]"):
        db.sql("ALTER TABLE u ADD COLUMN a INT DEFAULT ?", [[1]])
    with pytest.raises(nyala.InvalidArgumentError, match="expected a name"):
        db.sql("DROP TABLE ?", ["u"])
