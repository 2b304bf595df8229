"""The pages docs/format/catalog.md and lease-and-lock.md agree with the code, to the byte."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import google_crc32c
import hypothesis.strategies as st
import pytest
from hypothesis import given

from nyala.catalog import format, leases
from nyala.catalog.format import SHAPES, TableShape, serialise
from nyala.handover import channel as handover_channel

DOCS = Path(__file__).parents[3] / "docs" / "format"
CATALOG_PAGE = (DOCS / "catalog.md").read_text()
LEASE_PAGE = (DOCS / "lease-and-lock.md").read_text()


def hex_of(page: str, first: str, last: str) -> list[bytes]:
    """The bytes of each line of a hex listing between these two labels."""
    begin, end = page.index(first), page.index(last)
    lines = page[page.rindex("```", 0, begin) : page.index("```", end)].splitlines()[1:]
    rows = [re.match(r"\s*(\d+)    ((?:[0-9a-f]{2} {1,2})+)", line) for line in lines]
    found = []
    offset = 0
    for row in rows:
        assert row is not None and int(row[1]) == offset, "offsets on the page add up"
        found.append(bytes.fromhex(row[2]))
        offset += len(found[-1])
    return found


def test_the_page_lists_every_table_and_column_in_order() -> None:
    """Other tools may rely on the page."""
    sections = re.split(r"^### `(\w+)`$", CATALOG_PAGE.split("## Worked example")[0], flags=re.MULTILINE)[1:]
    page = {
        name: re.findall(r"^\| `(\w+)` \| ([A-Z ]+) \|", text, flags=re.MULTILINE)
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }
    assert list(page) == [shape.name for shape in SHAPES]
    assert page == {shape.name: list(shape.columns) for shape in SHAPES}
    for shape, text in zip(SHAPES, sections[1::2], strict=True):
        keys = re.search(r"Key: (.*)\.$", text, flags=re.MULTILINE)
        assert keys is not None
        assert tuple(re.findall(r"`(\w+)`", keys[1])) == shape.column_names[: shape.key_count]


def test_the_pages_numbers_are_the_codes() -> None:
    assert f"{format.APPLICATION_ID} ({format.APPLICATION_ID:#x}, " in CATALOG_PAGE
    assert f"| `PRAGMA user_version` | {format.FORMAT_VERSION} |" in CATALOG_PAGE
    for name, value in (("NULL", 0), ("INTEGER", 1), ("TEXT", 2), ("BLOB", 3)):
        assert f"| {name} | {value} |" in CATALOG_PAGE
        assert getattr(format, f"_{name}") == value
    for number in (
        handover_channel.JSON_MAX_BYTES, handover_channel.ATTACHMENT_COUNT_MAX, handover_channel.REQUEST_MAX_BYTES,
        handover_channel.REQUESTS_MAX_BYTES, handover_channel.JSON_VALUES_MAX,
    ):  # fmt: skip
        assert f"at most {number}" in LEASE_PAGE
    assert f"{handover_channel.ANSWER_MAX_BYTES} in an answer" in LEASE_PAGE
    assert f"serves {handover_channel.CONNECTIONS_MAX} connections" in LEASE_PAGE
    assert f"after {handover_channel.REQUEST_TIMEOUT_S:g} seconds" in LEASE_PAGE
    assert "1 accepted; 2 closing, 3 unreadable, 4 busy (nothing was done)" in LEASE_PAGE
    statuses = (
        handover_channel.ACCEPTED,
        handover_channel.CLOSING,
        handover_channel.UNREADABLE,
        handover_channel.BUSY,
    )
    assert statuses == (1, 2, 3, 4)
    assert handover_channel.MAGIC == b"NYH1"


def test_the_worked_example_of_a_row() -> None:
    """A checksum can be computed by hand from the page."""
    row = (2, 1, "[1,0]", None, b"\x80\x00", 0, 0)
    listing = hex_of(CATALOG_PAGE, "7 letters of name", "  created = 0")
    assert b"".join(listing) == serialise(format.TABLETS, row)
    (crc,) = format.TABLETS.crcs([row])
    assert f"{crc} ({crc:#x})" in CATALOG_PAGE
    assert google_crc32c.value(b"".join(listing)) == crc


def test_the_worked_example_of_a_frame() -> None:
    left, right = socket.socketpair()
    with left, right:
        handover_channel._Wire(left, lambda: 5.0).send_frame({"a": 1}, [b"xy"])
        assert right.recv(1000) == b"".join(hex_of(LEASE_PAGE, "7 bytes of JSON", "3c 03 e9 06"))


def test_the_examples_of_leases() -> None:
    lines = re.findall(r"^[0-9a-f]{8} \{.*\}$", LEASE_PAGE, flags=re.MULTILINE)
    plain, remote = (leases._decode(line.encode() + b"\n") for line in lines)
    assert plain == leases._Content(17, 4242, "alpha", None)
    assert remote == leases._Content(17, 4242, "alpha", 1_700_000_000_000_000)


values = st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=4) | st.binary(max_size=4)
rows = st.lists(values, min_size=3, max_size=3).map(tuple)
ANY = TableShape("any", (("a", "TEXT"), ("b", "TEXT"), ("c", "TEXT")))
OTHER = TableShape("anyx", (("a", "TEXT"), ("b", "TEXT"), ("c", "TEXT")))


@given(st.tuples(st.sampled_from([ANY, OTHER]), rows), st.tuples(st.sampled_from([ANY, OTHER]), rows))
def test_C1_different_rows_have_different_bytes(
    left: tuple[TableShape, format.Row], right: tuple[TableShape, format.Row]
) -> None:
    """No two rows, of one table or of two, can be taken for each other by having the same bytes summed."""
    same = (left[0].name, left[1]) == (right[0].name, right[1])
    assert (serialise(*left) == serialise(*right)) == same


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 8), max_size=5))
def test_C1_the_quick_way_of_places_is_the_plain_one(many: list[format.Row]) -> None:
    """The table with most rows is summed by other code: it must not be another sum."""
    assert format.PLACES.crcs(many) == [google_crc32c.value(serialise(format.PLACES, row)) for row in many]


@pytest.mark.parametrize("bad", [1.5, "7", None, b"x", 2**63])
def test_C1_what_cannot_be_summed_is_a_type_error(bad: object) -> None:
    row = (0, 1, 2, 3, 4, 5, 6, bad)
    with pytest.raises(TypeError):
        format.PLACES.crcs([row])  # type: ignore[list-item]
