"""Schemas: columns, ids and defaults, and the errors of invalid schemas."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import ColumnNotFoundError, InvalidArgumentError, SchemaError
from nyala.schema.limits import DEFAULT_LIMITS
from nyala.schema.schema import (
    FIRST_COLUMN_ID,
    NO_DEFAULT,
    Schema,
    allowed_encodings,
    build_column,
    build_schema,
    check_identifier,
    column,
)
from nyala.schema.types import TYPE_NAMES, parse_type

SPEC = {"value": column("double", default=0.5), "host": "string", "n": pa.int32(), "time": "timestamp"}


def test_the_key_comes_first_in_its_own_order_and_is_not_null() -> None:
    """Columns of the key are first, in the order of the key, and NOT NULL (S1)."""
    schema = build_schema(SPEC, ["time", "host"])
    assert schema.names == ("time", "host", "value", "n")
    assert [c.nullable for c in schema.columns] == [False, False, True, True]
    assert [c.name for c in schema.key_columns] == list(schema.key_names) == ["time", "host"]
    assert [c.name for c in schema.value_columns] == ["value", "n"]
    assert schema.is_key("host") and not schema.is_key("value") and "n" in schema and "x" not in schema
    assert len(schema) == 4


def test_ids_begin_at_ten_and_grow() -> None:
    """Column ids begin at 10 and are never used twice (S2, S3)."""
    schema = build_schema(SPEC, "host")
    assert [c.id for c in schema.columns] == [10, 11, 12, 13]
    assert schema.next_column_id == 14 and FIRST_COLUMN_ID == 10 and schema.version == 0
    assert schema.by_id(11).name == "value" and not schema.has_id(14)
    with pytest.raises(KeyError):
        schema.by_id(14)


def test_an_arrow_schema_keeps_types_and_not_null() -> None:
    """A nullable field of the key becomes NOT NULL."""
    arrow = pa.schema(
        [pa.field("k", pa.int64()), pa.field("a", pa.large_string(), nullable=False), ("b", pa.date64())]
    )
    schema = build_schema(arrow, ["k"])
    assert schema.arrow_schema() == pa.schema(
        [pa.field("k", pa.int64(), False), pa.field("a", pa.string(), False), pa.field("b", pa.date32())]
    )
    assert schema.arrow_schema(["b", "k"]).names == ["b", "k"]
    assert [c.required for c in schema.columns] == [True, True, False]


def test_an_unknown_name_gets_a_suggestion() -> None:
    schema = build_schema(SPEC, "host")
    with pytest.raises(ColumnNotFoundError, match="no column 'hots'; did you mean 'host'"):
        schema.by_name("hots")
    with pytest.raises(KeyError, match="did you mean 'host'"):
        schema.by_name("HOST")
    with pytest.raises(ColumnNotFoundError, match="the columns are 'host', 'value', 'n', 'time'"):
        schema.project(["zzzzz"])
    with pytest.raises(SchemaError, match="duplicate column 'n'"):
        schema.project(["n", "host", "n"])
    assert [c.name for c in schema.project(["n", "host"])] == ["n", "host"]


@pytest.mark.parametrize(
    ("spec", "key", "error", "says"),
    [
        (SPEC, [], SchemaError, "primary key is empty"),
        (SPEC, ["hostt"], ColumnNotFoundError, "did you mean 'host'"),
        (SPEC, ["host", "host"], SchemaError, "duplicate primary key column"),
        (SPEC, ["value"], SchemaError, "column 'value': type double is not allowed in a primary key"),
        ({"k": "bool"}, ["k"], SchemaError, "type bool is not allowed"),
        ({"k": "float"}, ["k"], SchemaError, "type float is not allowed"),
        ({"k": "int64", "v": "int"}, ["k"], SchemaError, "column 'v': column type 'int' is not supported"),
        ({"k": "int64", "": "int8"}, ["k"], SchemaError, "empty"),
        ({"k": "int64", "a\0": "int8"}, ["k"], SchemaError, "NUL"),
        ({"k": "int64", "ä" * 129: "int8"}, ["k"], SchemaError, "258 bytes, more than the limit of 256"),
        ({"k": "int64", "\ud800": "int8"}, ["k"], SchemaError, "surrogate"),
        ({"k": "int64", 5: "int8"}, ["k"], SchemaError, "not text"),
        ([("k", "int64")], ["k"], SchemaError, "dict of column name to type"),
        (pa.schema([("k", pa.int8()), ("k", pa.int8())]), ["k"], SchemaError, "duplicate column"),
        ({f"c{i}": "int8" for i in range(301)}, ["c0"], SchemaError, "301 columns exceed the limit of 300"),
        (
            {"k": column("int64", encoding="dictionary")},
            ["k"],
            SchemaError,
            "type int64 does not support encoding 'dictionary'",
        ),
        (
            {"k": column("int64", compression="gzip")},
            ["k"],
            SchemaError,
            "unknown compression 'gzip'; did you mean 'zlib'",
        ),
        (
            {"k": column("int64", compression=False)},
            ["k"],
            SchemaError,
            "unknown compression False; did you mean 'none'",
        ),
        ({"k": column("int64", block_size=-1)}, ["k"], SchemaError, "block_size must be .* got -1"),
        (
            {"k": column("int64", block_size=0)},
            ["k"],
            SchemaError,
            "block_size must be 512 to 16777216 bytes.* got 0",
        ),
        (
            {"k": column("int64", block_size=511)},
            ["k"],
            SchemaError,
            "column 'k': block_size must be .* None for the default; got 511",
        ),
        (
            {"k": column("int64", block_size="1 block")},
            ["k"],
            SchemaError,
            "block_size must be .* or '64KiB', .* got '1 block'",
        ),
        (
            {"k": column("int64", block_size="17MiB")},
            ["k"],
            SchemaError,
            "block_size must be .* to 16777216 .* got '17MiB'",
        ),
        ({"k": column("int64", block_size=4096.0)}, ["k"], SchemaError, "block_size must be .* got 4096.0"),
        (
            {"k": column("int64", block_size="9" * 400)},
            ["k"],
            SchemaError,
            "block_size must be .* to 16777216 .* got '999",
        ),
        ({"k": column("int64", block_size=2**24 + 1)}, ["k"], SchemaError, "16777216"),
        ({"k": column("int64", block_size=True)}, ["k"], SchemaError, "block_size must be .* got True"),
        ({"k": column("int64", comment="x" * 257)}, ["k"], SchemaError, "comment"),
        ({"k": column("int64", comment=5)}, ["k"], SchemaError, "comment"),  # type: ignore[arg-type]
        (
            {"k": "int64", "v": column("int8", default=128)},
            ["k"],
            SchemaError,
            "column 'v': .*128 .*-128..127",
        ),
        ({"k": "int64", "v": column("int8", default="1")}, ["k"], SchemaError, "column 'v': .*got string"),
        (
            {"k": "int64", "v": column("string", default="x" * 65537)},
            ["k"],
            SchemaError,
            "65537 bytes.*65536",
        ),
        (
            {"k": "int64", "v": column("binary", default=b"x" * 65537)},
            ["k"],
            SchemaError,
            "65537 bytes.*65536",
        ),
        (
            {"k": "int64", "v": column("decimal(5,2)", default=Decimal("1.234"))},
            ["k"],
            SchemaError,
            "2 digits",
        ),
        ({"k": "int64", "v": column("timestamp", default="soon")}, ["k"], SchemaError, "ISO"),
        ({"k": "int64", "v": column("bool", default=1)}, ["k"], SchemaError, "default"),
    ],
)
def test_an_invalid_schema_is_refused(spec: Any, key: list[str], error: type[Exception], says: str) -> None:
    """The message has the column, the value and the limit."""
    with pytest.raises(error, match=says):
        build_schema(spec, key)


def test_a_value_at_the_limit_is_allowed() -> None:
    schema = build_schema({f"c{i}": "int8" for i in range(DEFAULT_LIMITS.max_columns)}, "c0")
    assert len(schema) == 300
    check_identifier("ä" * 128, "column name")
    build_schema({"k": column("string", default="x" * 65536, comment="x" * 256, block_size=2**24)}, "k")


@pytest.mark.parametrize("block_size", [None, 512, 4096, np.int64(65_536)])
def test_a_block_size_is_kept_as_given(block_size: Any) -> None:
    schema = build_schema({"k": column("int64", block_size=block_size)}, "k")
    assert schema.columns[0].block_size_bytes == block_size
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize("nullable", ["false", "no", "", None, 0, 1, np.False_])
def test_nullable_must_be_a_bool(nullable: Any) -> None:
    """`nullable="false"` would be true."""
    with pytest.raises(InvalidArgumentError, match=f"^nullable must be True or False, got {nullable!r}$"):
        column("double", nullable=nullable)


def test_an_encoding_as_second_argument_of_column_is_an_error() -> None:
    """`column("double", "alp")` gives it as `nullable`."""
    message = """^nullable must be True or False, got 'alp'; to set the encoding, write encoding="alp"$"""
    with pytest.raises(InvalidArgumentError, match=message):
        column("double", "alp")  # type: ignore[arg-type]


@pytest.mark.parametrize("block_size", [0, 1, 511])
def test_a_stored_block_size_below_the_minimum_is_read(block_size: int) -> None:
    """Earlier versions allowed it."""
    text = build_schema({"k": column("int64", block_size=512)}, "k").to_json()
    stored = text.replace('"block_size_bytes":512', f'"block_size_bytes":{block_size}')
    assert stored != text
    schema = Schema.from_json(stored)
    assert schema.columns[0].block_size_bytes == block_size
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize(
    ("names", "encodings"),
    [
        (["int8", "int16", "int32", "int64", "date", "timestamp"], {"plain", "bitshuffle", "rle", "for"}),
        (["decimal(9,2)", "decimal(38,0)"], {"plain", "bitshuffle", "for"}),
        (["float", "double"], {"plain", "bitshuffle", "alp"}),
        (["bool"], {"plain", "rle"}),
        (["string", "varchar(5)", "binary"], {"plain", "prefix", "dictionary"}),
    ],
)
def test_encodings_are_those_of_the_specification(names: list[str], encodings: set[str]) -> None:
    """Table 1 of the schema design; frame of reference for integers, dates, times and decimals;
    ALP for floats.
    """
    for name in names:
        assert set(allowed_encodings(parse_type(name))) == {"auto", *encodings}
    assert {parse_type(n).name for n in names} <= set(TYPE_NAMES)


DEFAULTS = [
    ("bool", False),
    ("int8", -128),
    ("int64", 2**63 - 1),
    ("date", dt.date(1, 1, 1)),
    ("string", 'é\n"\\'),
    ("string", ""),
    ("timestamp", dt.datetime(2020, 2, 29, 1, 2, 3, 4, tzinfo=dt.UTC)),
    ("timestamp", pa.scalar(-(2**63), pa.timestamp("us"))),
    ("float", -0.0),
    ("double", math.nan),
    ("double", math.inf),
    ("float", -math.inf),
    ("double", 5e-324),
    ("decimal(38,38)", Decimal("-0." + "9" * 38)),
    ("decimal(5,2)", Decimal("1.50")),
    ("decimal(38,0)", Decimal(10**37)),
    ("binary", b"\0\xff"),
    ("binary", b""),
    ("varchar(3)", "日本語"),
]


@pytest.mark.parametrize(("name", "default"), DEFAULTS)
def test_every_default_is_equal_after_json_and_pickle(name: str, default: Any) -> None:
    schema = build_schema({"k": "int64", "v": column(name, default=default)}, "k")
    stored = schema.by_name("v").write_default
    if isinstance(default, pa.Scalar):
        default = default.value  # outside the years of a datetime
    assert stored == default or math.isnan(default)
    assert type(stored) is type(default)
    assert schema.by_name("v").read_default is stored
    assert not schema.by_name("v").required
    for back in (Schema.from_json(schema.to_json()), pickle.loads(pickle.dumps(schema))):
        assert back == schema
        assert repr(back.by_name("v").write_default) == repr(stored)  # -0.0, and the digits of a Decimal


def test_a_default_is_cast_to_the_type_of_its_column() -> None:
    """By the same rules as a value of an insert."""
    schema = build_schema(
        {
            "k": "int64",
            "t": column("timestamp", default="2020-01-01T02:00:00+02:00"),
            "naive": column("timestamp", default=dt.datetime(2020, 1, 1)),
            "d": column("date", default="2020-01-01"),
            "v": column("varchar(2)", default="äöü"),
            "n": column("decimal(9,3)", default=5),
            "none": "int8",
        },
        "k",
    )
    defaults = {c.name: c.write_default for c in schema.columns}
    moment = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    assert defaults == {
        "k": NO_DEFAULT,
        "t": moment,
        "naive": moment,
        "d": dt.date(2020, 1, 1),
        "v": "äö",
        "n": Decimal("5.000"),
        "none": NO_DEFAULT,
    }
    assert str(defaults["n"]) == "5.000"
    assert pickle.loads(pickle.dumps(NO_DEFAULT)) is NO_DEFAULT


def test_a_not_null_column_with_a_default_is_not_required() -> None:
    schema = build_schema(
        {"k": "int8", "a": column("int8", nullable=False), "b": column("int8", False, 1)}, "k"
    )
    assert [c.required for c in schema.columns] == [True, True, False]
    assert str(schema.by_name("a")) == "a int8 NOT NULL" and str(schema.by_name("b").type) == "int8"


def test_an_added_column_is_checked_as_a_new_one() -> None:
    assert build_column(99, "x", column("int8", nullable=True), in_key=False).nullable
    with pytest.raises(SchemaError, match="column 'x'"):
        build_column(99, "x", column("int8", encoding="prefix"), in_key=False)


@given(st.data())
def test_random_schemas_are_equal_after_json(data: st.DataObject) -> None:
    letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    names = data.draw(st.lists(st.text(letters, min_size=1, max_size=9), min_size=2, max_size=6, unique=True))
    types = st.sampled_from(["int8", "string", "decimal(10,4)", "varchar(7)", "timestamp", "binary", "date"])
    specs = st.builds(column, types, st.booleans(), comment=st.text("ab'\"", max_size=5))
    spec = {name: data.draw(specs) for name in names}
    schema = build_schema(spec, names[: data.draw(st.integers(1, len(names)))])
    assert Schema.from_json(schema.to_json()) == schema
