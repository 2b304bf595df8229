"""Prefix: groups with a common prefix, and lists that a reader refuses."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import back, decoded, encoded

from nyala.cfile import format
from nyala.cfile.encoding.plain import encode_binary
from nyala.cfile.encoding.prefix import group_prefix_lengths

GROUP = 1 << format.PREFIX_GROUP_ROWS_LOG2


def block(prefixes: list[bytes], suffixes: list[bytes], log2: int = format.PREFIX_GROUP_ROWS_LOG2) -> bytes:
    first = encode_binary(pa.array(prefixes, pa.binary())).to_pybytes()
    return (
        format.PREFIX_HEADER.pack(len(first), log2, bytes(3))
        + first
        + encode_binary(pa.array(suffixes, pa.binary())).to_pybytes()
    )


def test_a_restart_point_every_sixteen_rows() -> None:
    """Names with a common beginning store it once per 16 rows."""
    names = pa.array([f"name-{number:03}" for number in range(18)])
    data = back("prefix", "string", names)
    suffixes = [f"{number:02}".encode() for number in range(16)] + [b"6", b"7"]
    assert data.to_pybytes() == block([b"name-0", b"name-01"], suffixes)


def test_a_prefix_may_end_inside_a_character() -> None:
    """é and ê share their first byte, so a prefix may end between the bytes of a character."""
    assert back("prefix", "string", pa.array(["é", "ê"])).to_pybytes() == block([b"\xc3"], [b"\xa9", b"\xaa"])


@given(
    st.lists(
        st.tuples(st.integers(0, 30) | st.sampled_from([56, 57, 120, 121, 255, 300]), st.integers(0, 999)),
        min_size=1,
        max_size=60,
    ),
    st.booleans(),
)
def test_prefixes_are_those_of_the_definition(parts: list[tuple[int, int]], is_sorted: bool) -> None:
    """The prefix of a group is the longest that all of its values share."""
    values = [(b"abcdefgh" * 40)[:length] + end.to_bytes(2, "big") for length, end in parts]
    values = sorted(values) if is_sorted else values
    offsets = np.cumsum([0, *map(len, values)])
    found = group_prefix_lengths(np.frombuffer(b"".join(values), np.uint8), offsets, 4)
    groups = [values[start : start + 4] for start in range(0, len(values), 4)]
    for length, group in zip(found.tolist(), groups, strict=True):
        assert len({value[:length] for value in group}) == 1
        assert len({value[: length + 1] for value in group}) > 1 or length == min(map(len, group))


def test_other_group_sizes_are_read() -> None:
    """Files of a later version with groups of another size can be read."""
    rows = pa.array(["ax", "ay", "bz"])
    assert decoded("prefix", "string", block([b"a", b"b"], [b"x", b"y", b"z"], 1), rows).equals(rows)
    assert decoded("prefix", "string", block([b""], [b"ax", b"ay", b"bz"], 20), rows).equals(rows)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (block([b"a", b"bc"], [b"x", b"y", b"z"]), "for 1 values"),
        (block([b"a"], [b"x", b"y"]), "expected 3 "),
        (block([b"a"], [b"x", b"y", b"z"], 21), "groups of 2\\^21"),
        (block([b"a"], [b"x", b"y", b"z"], 255), "groups of 2\\^255"),
        (b"\xff\xff\xff\x7f" + block([b"a"], [b"x", b"y", b"z"])[4:], "2147483647 bytes of prefixes"),
        (block([b"a"], [b"x", b"y", b"z"])[:-1], "expected"),
        (block([b"a"], [b"x", b"y", b"z"]) + b"!", "expected"),
        (bytes(7), "a header of 8 bytes"),
        (b"", "a header of 8 bytes"),
    ],
)
def test_impossible_lists_are_refused(content: bytes, reason: str) -> None:
    """Lengths and offsets that exceed the block are refused."""
    with pytest.raises(ValueError, match=reason):
        decoded("prefix", "string", content, pa.array(["a", "b", "c"]))


def test_a_small_block_that_claims_huge_values_is_refused() -> None:
    """A megabyte that claims a thousand gigabytes of values is refused."""
    rows = pa.array([""] * (1 << 20))
    content = block([b"x" * 65_536], [b""] * len(rows), 20)
    with pytest.raises(ValueError, match="bytes of values, found 68719476736"):
        decoded("prefix", "string", content, rows)


def test_long_values_that_are_all_the_same() -> None:
    """The prefix of a group may be a whole value of 64 KiB."""
    array = pa.array(["x" * 65_536] * 40)
    assert encoded("prefix", "string", array).size < 4 * 65_536
    back("prefix", "string", array)
