"""Key ranges contain every row that satisfies the predicates of a scan."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.keys.codec import KeyCodec
from nyala.keys.key_range import KeyRange, is_key_range, key_range_of, successor
from nyala.schema.predicates.constraint import ANY, EMPTY, NULL_ONLY, Constraint
from nyala.schema.schema import Schema, build_schema
from nyala.schema.types import ColumnType, parse_type

TYPES = ["int8", "string", "binary", "decimal(3,1)", "date"]


def schema_of(types: list[str]) -> Schema:
    columns = {f"k{i}": type for i, type in enumerate(types)} | {"v": "double"}
    return build_schema(columns, primary_key=[f"k{i}" for i in range(len(types))])


def scalars(type: ColumnType) -> st.SearchStrategy[Any]:
    if type.is_text:
        return st.text(st.sampled_from("\0\1b"), max_size=2)
    if type.is_variable:
        return st.lists(st.sampled_from(b"\0\1\xff"), max_size=2).map(bytes)
    least, most = type.value_min, type.value_max
    assert least is not None and most is not None
    return st.integers(-2, 2) | st.sampled_from([least, least + 1, most - 1, most])


@st.composite
def any_constraint(draw: st.DrawFn, type: ColumnType) -> Constraint:
    kind = draw(st.sampled_from(["any", "values", "range", "range", "both"]))
    result = ANY
    if kind in ("values", "both"):
        result = Constraint.one_of(draw(st.lists(scalars(type), min_size=1, max_size=3)))
    if kind in ("range", "both"):
        lower, upper = draw(st.none() | scalars(type)), draw(st.none() | scalars(type))
        result = result.intersect(
            Constraint.between(
                type, lower, upper, lower_inclusive=draw(st.booleans()), upper_inclusive=draw(st.booleans())
            )
        )
    return result


@given(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3), st.data())
def test_a_key_range_contains_every_row_that_satisfies_the_predicates(
    names: list[str], data: st.DataObject
) -> None:
    """A row outside of the range is not read, so it would be missing from the scan."""
    schema = schema_of(names)
    types = [column.type for column in schema.key_columns]
    codec = KeyCodec(types)
    constraints = {f"k{i}": data.draw(any_constraint(type)) for i, type in enumerate(types)}
    rows = data.draw(st.lists(st.tuples(*map(scalars, types)), max_size=30))
    allowed = key_range_of(constraints, schema)
    ascending = sorted(codec.encode_row(row) for row in rows)
    lower, upper = allowed.positions(codec.from_binary(pa.array(ascending, pa.large_binary())))
    assert [key in allowed for key in ascending] == [lower <= i < upper for i in range(len(rows))]
    for row in rows:
        if all(constraints[f"k{i}"].admits(value) for i, value in enumerate(row)):
            key = codec.encode_row(row)
            assert key in allowed and allowed.overlaps(key, key), row
    if len(types) == 1 and constraints["k0"].values is None:
        # One column and no list: the range is exactly equivalent to the predicates.
        for row in rows:
            assert (codec.encode_row(row) in allowed) == constraints["k0"].admits(row[0]), row
    if is_key_range(constraints, schema):
        # Then the rows between the bounds need no further test.
        for row in rows:
            admitted = all(constraints[f"k{i}"].admits(value) for i, value in enumerate(row))
            assert (codec.encode_row(row) in allowed) == admitted, row


@pytest.mark.parametrize(
    ("constraints", "is_equivalent"),
    [
        ({"k0": Constraint.one_of(["a"])}, True),
        ({"k0": Constraint.between(parse_type("string"), "a", None)}, True),
        ({"k0": Constraint.one_of(["a"]), "k1": Constraint.between(parse_type("int8"), 1, 4)}, True),
        ({"k0": Constraint.one_of(["a", "c"])}, False),
        ({"k0": Constraint.between(parse_type("string"), "a", "c"), "k1": Constraint.one_of([5])}, False),
        ({"k1": Constraint.one_of([5])}, False),
        ({"k0": Constraint.one_of(["a"]), "v": Constraint.one_of([5])}, False),
        ({"k0": NULL_ONLY}, False),
    ],
)
def test_predicates_that_are_equivalent_to_a_key_range(
    constraints: dict[str, Constraint], is_equivalent: bool
) -> None:
    """Predicates that are equivalent to a key range are known. Only others are tested on the rows."""
    assert is_key_range(constraints, schema_of(["string", "int8"])) is is_equivalent


STRING, INT8 = parse_type("string"), parse_type("int8")


@pytest.mark.parametrize(
    ("constraints", "lower", "upper"),
    [
        ({}, None, None),
        ({"k0": Constraint.one_of(["a"])}, b"a\0\0", b"a\0\1"),
        ({"k0": Constraint.one_of(["a"]), "k1": Constraint.one_of([5])}, b"a\0\0\x85", b"a\0\0\x86"),
        ({"k0": Constraint.one_of(["a"]), "k1": Constraint.one_of([127])}, b"a\0\0\xff", b"a\0\1"),
        ({"k0": Constraint.one_of(["a", "c"]), "k1": Constraint.one_of([5])}, b"a\0\0\x85", b"c\0\0\x86"),
        ({"k0": Constraint.between(STRING, "a", None)}, b"a\0\0", None),
        ({"k0": Constraint.between(STRING, "a", None, lower_inclusive=False)}, b"a\0\1\0\0", None),
        ({"k0": Constraint.between(STRING, None, "b")}, None, b"b\0\1"),
        ({"k0": Constraint.between(STRING, None, "b", upper_inclusive=False)}, None, b"b\0\0"),
        # There is no greatest string below "b", so the next column's bound cannot be used.
        (
            {
                "k0": Constraint.between(STRING, None, "b", upper_inclusive=False),
                "k1": Constraint.between(INT8, None, 3),
            },
            None,
            b"b\0\0",
        ),
        # The greatest string below "b\0" is "b", so the next column still counts.
        (
            {
                "k0": Constraint.between(STRING, None, "b\0", upper_inclusive=False),
                "k1": Constraint.between(INT8, None, 3),
            },
            None,
            b"b\0\0\x84",
        ),
        # The first column has no bound, so the second cannot bound the key.
        ({"k1": Constraint.one_of([5])}, None, None),
        (
            {"k0": Constraint.between(STRING, "a", "c"), "k1": Constraint.one_of([5])},
            b"a\0\0\x85",
            b"c\0\0\x86",
        ),
    ],
)
def test_bounds_of_a_string_and_int8_key(
    constraints: dict[str, Constraint], lower: bytes | None, upper: bytes | None
) -> None:
    """The range is as narrow as possible."""
    assert key_range_of(constraints, schema_of(["string", "int8"])) == KeyRange(lower, upper)


def test_the_upper_bound_of_a_text_key_includes_only_that_key() -> None:
    """`key <= 'a'` does not read 'ab'."""
    schema = schema_of(["string"])
    assert key_range_of({"k0": Constraint.one_of(["a"])}, schema) == KeyRange(b"a", b"a\0")


@pytest.mark.parametrize("column", ["k0", "v"])
def test_contradictions_give_an_empty_range(column: str) -> None:
    """A scan with predicates that contradict each other reads nothing."""
    assert key_range_of({column: EMPTY}, schema_of(["int8"])).is_empty


def test_is_null_on_a_key_column_gives_an_empty_range() -> None:
    """Key columns are NOT NULL."""
    assert key_range_of({"k0": NULL_ONLY}, schema_of(["int8"])).is_empty
    assert key_range_of({"v": NULL_ONLY}, schema_of(["int8"])).is_all


def test_positions_of_a_contradictory_range() -> None:
    """A contradiction gives no rows, and no negative length."""
    keys = KeyCodec([STRING]).encode([pa.array(["a", "b", "c", "d"])])
    assert KeyRange(b"c", b"a").positions(keys) == (2, 2)
    assert KeyRange(b"b", b"d").positions(keys) == (1, 3)
    assert KeyRange.ALL.positions(keys) == (0, 4)


def test_successor() -> None:
    """The successor of a prefix ends its range exactly."""
    assert successor(b"a") == b"b"
    assert successor(b"a\xff\xff") == b"b"
    assert successor(b"\xff") is None
    assert successor(b"") is None


@given(st.lists(st.none() | st.binary(max_size=2), min_size=4, max_size=4), st.binary(max_size=3))
def test_intersection(bounds: list[bytes | None], key: bytes) -> None:
    """A key is in the intersection exactly if it is in both ranges."""
    a, b = KeyRange(bounds[0], bounds[1]), KeyRange(bounds[2], bounds[3])
    assert (key in a and key in b) == (key in a.intersect(b))
    if a.is_empty:
        assert key not in a and not a.overlaps(key, key)
    assert KeyRange.ALL.intersect(a) == a and KeyRange.ALL.is_all and KeyRange.NONE.is_empty
    assert a.overlaps(key, key) == (key in a)
