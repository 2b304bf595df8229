"""Text as numbers and back: each of the twins gives what Python's own integers say, and touches nothing else."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.cfile.kernels import Ranks, Spellings

AFTER = b"\xa5" * 16


def spelling(alphabets: list[bytes]) -> tuple[Spellings, list[bytes]]:
    """(a group of these places, all that it may say, in order)."""
    said = [b""]
    for alphabet in alphabets:
        said = [text + bytes([letter]) for text in said for letter in alphabet]
    words = np.array([int.from_bytes(text.ljust(8, b"\0"), "little") for text in said], np.uint64)
    return Spellings(len(said), len(alphabets), words), said


letters = st.sampled_from([b"a", b"01", b"xyz", b"0123456789", b"0123456789abcdef"])
groups = st.lists(st.lists(letters, min_size=1, max_size=8), min_size=1, max_size=5).map(
    lambda lists: [[alphabet if place < 3 else b"-" for place, alphabet in enumerate(of)] for of in lists]
)


@given(st.lists(groups, min_size=1, max_size=3), st.integers(0, 40), st.integers(0, 2**32))
def test_numbers_are_spelled_and_read_again(
    kernels: ModuleType, words: list[list[list[bytes]]], rows: int, seed: int
) -> None:
    """Groups of one byte to eight, of one spelling to 4,096, powers of two and others; several words a text."""
    rng = np.random.default_rng(seed)
    expected = [b""] * rows
    spelled, alphabets = [], []
    for of_word in words:
        made = [spelling(group) for group in of_word]
        limit = math.prod(group.entries for group, _ in made)
        numbers = rng.integers(0, limit, rows, np.int64)
        if rows:
            numbers[rng.integers(rows)] = limit - 1
        for row, number in enumerate(numbers.tolist()):
            text = b""
            for group, said in reversed(made):
                number, rank = divmod(number, group.entries)
                text = said[rank] + text
            expected[row] += text
        spelled.append((numbers, [group for group, _ in made]))
        alphabets.append([alphabet for group in of_word for alphabet in group])
    length = sum(map(len, alphabets))
    out = pa.py_buffer(bytearray(rows * length) + AFTER)
    kernels.spell(spelled, rows, out, length)
    assert out.to_pybytes() == b"".join(expected) + AFTER

    texts, begin = pa.py_buffer(b"".join(expected)), 0
    for of_word, (numbers, _) in zip(alphabets, spelled, strict=True):
        ranks = []
        for alphabet in of_word:
            of = np.zeros(256, np.uint8)
            of[list(alphabet)] = range(len(alphabet))
            ranks.append(Ranks(len(alphabet), of))
        read = np.full(rows, 77, np.int64)
        kernels.unspell(texts, length, begin, ranks, read)
        assert read.tolist() == numbers.tolist()
        begin += len(of_word)

    seen = np.zeros((length, 256), np.uint8)
    kernels.letters(texts, length, seen)
    for place in range(length):
        assert {*np.flatnonzero(seen[place]).tolist()} == {text[place] for text in expected}


@pytest.mark.parametrize("number", [6, 7, 2**48, 2**63 - 1, -1, -(2**63)])
def test_a_number_that_no_text_was_written_as_is_refused(kernels: ModuleType, number: int) -> None:
    """It would look up what lies behind the table."""
    (first, _), (second, _) = spelling([b"ab"]), spelling([b"xyz"])
    out = pa.py_buffer(bytearray(3 * 2))
    with pytest.raises(ValueError, match="that the places can say"):
        kernels.spell([(np.array([0, number, 5]), [first, second])], 3, out, 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": 4},
        {"rows": -1},
        {"length": 1},
        {"length": 3},
        {"out": 5},
        {"entries": 7},
        {"entries": 0},
        {"width": 9},
        {"width": 0},
        {"groups": 0},
        {"groups": 129},
        {"numbers": np.array([0, 1], np.int64)},
    ],
)
def test_what_does_not_fit_together_is_refused(compiled_kernels: ModuleType, changed: dict[str, Any]) -> None:
    """Of the compiled twin: it proves what it touches, whoever calls."""
    group, _ = spelling([b"ab", b"xyz"])
    group = group._replace(**{key: changed[key] for key in ("entries", "width") if key in changed})
    numbers = changed.get("numbers", np.arange(3))
    out = pa.py_buffer(bytearray(changed.get("out", 6)))
    with pytest.raises(ValueError, match="expected"):
        compiled_kernels.spell(
            [(numbers, [group] * changed.get("groups", 1))],
            changed.get("rows", 3),
            out,
            changed.get("length", 2),
        )


@pytest.mark.parametrize(
    ("size", "length", "begin", "count", "table", "rows"),
    [
        (6, 2, 1, 2, 256, 3), (6, 2, -1, 1, 256, 3), (6, 2, 0, 0, 256, 3), (6, 2, 0, 2, 255, 3), (6, 2, 0, 2, 256, 4),
        (258, 129, 0, 129, 256, 2),
    ],
)  # fmt: skip
def test_places_that_no_text_has_are_not_read(
    compiled_kernels: ModuleType, size: int, length: int, begin: int, count: int, table: int, rows: int
) -> None:
    """Of the compiled twin."""
    ranks = [Ranks(2, np.zeros(table, np.uint8))] * count
    with pytest.raises(ValueError, match="expected"):
        compiled_kernels.unspell(pa.py_buffer(bytes(size)), length, begin, ranks, np.zeros(rows, np.int64))


def test_letters_are_marked_where_there_is_room(compiled_kernels: ModuleType) -> None:
    """Of the compiled twin."""
    for data, length, shape in (
        (b"abc", 2, (2, 256)),
        (b"ab", 2, (1, 256)),
        (b"ab", 2, (2, 255)),
        (b"", 0, (0, 256)),
    ):
        with pytest.raises(ValueError, match="expected texts"):
            compiled_kernels.letters(pa.py_buffer(data), length, np.zeros(shape, np.uint8))
