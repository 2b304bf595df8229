"""The bounds of key columns exclude keys outside of them, and no key that exists."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import open_database

from nyala.cfile.index.zone_map import Zone, ZoneMap
from nyala.cfile.physical import physical
from nyala.cfile.reader import CFileReader
from nyala.errors import DuplicateKeyError
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.key_lookup.key_bounds import KeyBounds
from nyala.rowset.key_lookup.key_index import KeyIndex
from nyala.schema.schema import column
from nyala.schema.types import parse_type

# Keys of every layout; columns of every width, at every distance from the end, some after texts.
KEYS = [
    ["int32", "int16"],
    ["int8", "int8", "int8", "int32"],
    ["int32", "timestamp"],
    ["int64", "int64", "int16"],
    ["decimal(38,0)", "date", "decimal(38,0)", "int8"],
    ["string", "int64"],
    ["int64", "string", "int32", "timestamp"],
    ["int64", "string"],
    ["string"],
    ["int64"],
]


def edges(type: str) -> st.SearchStrategy[Any]:
    """Return few values of a type, with the least and the greatest one.

    So random probes are inside and outside of the bounds.
    """
    if type == "string":
        return st.sampled_from(["", "a", "a\0", "b" * 9])
    bits = {"int8": 8, "int16": 16, "int32": 32, "date": 32, "decimal(38,0)": 120}.get(type, 64)
    least = -(2 ** (bits - 1))
    return st.sampled_from([least, least + 1, -2, -1, 0, 1, 2, -least - 2, -least - 1])


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    types = draw(st.sampled_from(KEYS))
    row = st.tuples(*map(edges, types))
    return types, draw(st.lists(row, min_size=1, max_size=4)), draw(st.lists(row, max_size=8))


def encoded(codec: KeyCodec, rows: list[tuple[Any, ...]]) -> EncodedKeys:
    return codec.from_binary(pa.array(map(codec.encode_row, rows), pa.large_binary()))


@given(rows())
def test_a_key_is_excluded_if_a_column_is_out_of_bounds(
    drawn: tuple[list[str], list[tuple[Any, ...]], list[tuple[Any, ...]]],
) -> None:
    """The usable columns are those before the first text and after the last, of up to 8 bytes."""
    types, there, probed = drawn
    codec = KeyCodec([parse_type(type) for type in types])
    spans = [(min(values), max(values)) for values in zip(*there, strict=True)]
    known = {place: span for place, span in enumerate(spans) if place and types[place] != "string"}
    bounds = KeyBounds(codec, known)
    last_text = max((place for place, type in enumerate(types) if type == "string"), default=-1)

    def outside(row: tuple[Any, ...]) -> bool:
        return any(
            place > max(0, last_text) and types[place] != "decimal(38,0)" and not least <= value <= greatest
            for place, (value, (least, greatest)) in enumerate(zip(row, spans, strict=True))
        )

    probes = [*there, *probed]
    expected = [outside(row) for row in probes]
    keys = encoded(codec, probes)
    for vector in (keys, encoded(codec, [probes[0], *probes]).slice(1)):  # also as a slice
        vector.prepare_search()
        found = bounds.excluded(vector)
        assert (found is None) == (not any(expected))
        assert found is None or found.tolist() == expected
    assert [bounds.excludes_one(keys.at(place)) for place in range(len(keys))] == expected


@pytest.mark.parametrize(
    ("type", "zones", "known"),
    [
        ("int32", [Zone(3, 9, 0, 10), Zone(-5, 4, 0, 10)], (-5, 9)),
        ("timestamp", [Zone(-(2**63), 2**63 - 1, 0, 10)], (-(2**63), 2**63 - 1)),
        ("decimal(18,2)", [Zone(-1, 1, 0, 10)], (-1, 1)),
        ("int32", [Zone(3, 9, 0, 10), Zone(None, None, 10, 10)], None),
        ("int32", [Zone(3, 9, 0, 10), Zone(3, None, 0, 10)], None),
        ("int32", [Zone(3, 9, 0, 10), Zone(9, 3, 0, 10)], None),  # damage
        ("int32", [], None),
        ("decimal(38,0)", [Zone(3, 9, 0, 10)], None),
        ("double", [Zone(3.0, 9.0, 0, 10)], None),
        ("string", [Zone("a", "b", 0, 10)], None),
        ("bool", [Zone(False, True, 0, 10)], None),
    ],
)
def test_a_column_has_bounds_only_if_every_block_has_them(
    type: str, zones: list[Zone], known: tuple[int, int] | None
) -> None:
    """A block without bounds, or with impossible ones, may have any value."""
    form = physical(parse_type(type))
    counts = np.array([zone.row_count for zone in zones], np.int64)
    zone_map = ZoneMap.decode(form, ZoneMap.encode(form, zones), counts)
    assert zone_map.number_bounds() == known


def test_a_key_that_is_too_short_does_not_crash() -> None:
    """Keys from a damaged file may have any length."""
    codec = KeyCodec([parse_type("string"), parse_type("int64")])
    bounds = KeyBounds(codec, {1: (0, 10)})
    for keys in ([b""], [b"a"], [b"a", b"a\0\0" + bytes(8)], [bytes(11), b""]):
        bounds.excluded(codec.from_binary(pa.array(keys, pa.large_binary())))
        bounds.excludes_one(keys[0])


COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "int8": ("int8", [-128, -1, 0, 127]),
    "int64": ("int64", [-(2**63), -1, 0, 2**63 - 1]),
    "date": ("date", [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "timestamp": (
        "timestamp",
        [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 11, 25, 20, 15, 1, 999_999, dt.UTC)],
    ),
    "decimal(9,2)": ("decimal(9,2)", [Decimal("-9999999.99"), Decimal("0.01"), Decimal("9999999.99")]),
    "decimal(38,2)": ("decimal(38,2)", [Decimal("-1e35"), Decimal("0.01"), Decimal("1e35")]),
    "string": ("string", ["", "a", "\U0010ffff" * 20]),
    "plain int32": (column("int32", encoding="plain"), [-(2**31), 0, 2**31 - 1]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_key_is_found_with_any_type_of_the_last_column(kind: str, tmp_path: Path) -> None:
    """`get` finds each key, an insert refuses it, and a key with another last value is a new one."""
    spec, values = COLUMNS[kind]
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"a": "int32", "b": spec, "v": "int64"}, ["a", "b"])
        given = [{"a": number, "b": value, "v": 1} for number in (1, 3) for value in values]
        table.insert(given)
        table.flush()
        for row in given:
            key = {"a": row["a"], "b": row["b"]}
            assert table.get(key) == row
            assert table.get({"a": 2, "b": row["b"]}) is None
            with pytest.raises(DuplicateKeyError):
                table.insert([row])
        with pytest.raises(DuplicateKeyError):
            table.insert(given)
        table.upsert([{"a": 2, "b": value, "v": 2} for value in values] + [{**row, "v": 3} for row in given])
        assert [row["v"] for row in table.to_arrow().to_pylist()] == [
            3 if row["a"] != 2 else 2 for row in table.to_arrow().to_pylist()
        ]
        assert table.count() == 3 * len(values)


def test_a_key_of_another_time_reads_no_filter_and_no_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rowsets appended by time have the same sensors, but the bounds of the time exclude other keys."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"sensor": "int32", "at": "int64", "v": "double"}, ["sensor", "at"])
        for hour in range(3):
            sensors, minutes = np.repeat(np.arange(20), 60), np.tile(np.arange(60), 20)
            table.insert({"sensor": sensors, "at": 60 * hour + minutes, "v": minutes / 10})
            table.flush()
        (tablet,) = db._writer().root.table("t").tablets
        assert len(tablet.rowsets) == 3, "the test needs rowsets with overlapping key ranges"
        monkeypatch.delattr(KeyIndex, "_stored")
        monkeypatch.delattr(CFileReader, "bloom")
        late = {"sensor": np.arange(20), "at": np.full(20, 180)}
        table.insert({**late, "v": np.zeros(20)})
        table.insert([{"sensor": 7, "at": 181, "v": 1.0}])
        assert table.get({"sensor": 7, "at": 240}) is None
        assert len(table.get_many({"sensor": np.arange(20), "at": np.full(20, 500)})) == 0
