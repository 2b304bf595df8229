"""Ordinals are cut at block borders once, and the values come in the order that was asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nyala.cfile.gathering import Cut, Ordinals, Words, gathered, joined_picks, picked_words
from nyala.cfile.physical import word_dtype

VALUES = {
    "fixed": pa.array(np.arange(40)),
    "with NULL": pa.array([None if n % 7 == 0 else n for n in range(40)], pa.int32()),
    "decimal": pa.array(range(40)).cast(pa.decimal128(19, 0)),
    "bits": pa.array([n % 3 == 0 for n in range(40)]),
    "text": pa.array([f"text {n}" for n in range(40)]),
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("places", [[5], [3, 4, 4, 9, 39], [39, 0, 17, 0, 8], list(range(39, -1, -1))])
def test_values_come_in_the_order_asked_for(values: pa.Array, places: list[int]) -> None:
    """`get_many` would give another row's values."""
    ordinals = Ordinals(np.array(places))
    for log2 in (0, 3, 6):
        cut = ordinals.cut(log2)
        blocks = [values.slice(block << log2, 1 << log2) for block in cut.blocks]
        assert cut.blocks == sorted(set(cut.blocks))
        assert picked(blocks, cut, values.type).to_pylist() == [values[place].as_py() for place in places]


def picked(blocks: list[pa.Array], cut: Cut, type: pa.DataType) -> pa.Array:
    """As words where values are of fixed width and none is NULL, and else as arrays."""
    words = picked_words(blocks, cut, word_dtype(type))
    assert (words is None) == (type in (pa.string(), pa.bool_()) or any(block.null_count for block in blocks))
    if words is None:
        return gathered(blocks, cut)
    return pa.Array.from_buffers(type, len(words), [None, pa.py_buffer(words)], 0)


def test_a_cut_is_made_once_for_all_columns_with_blocks_of_one_size() -> None:
    """A look-up of sixteen columns would sort its rows sixteen times."""
    ordinals = Ordinals(np.array([9, 1, 9]))
    assert ordinals.cut(3) is ordinals.cut(3)
    assert ordinals.cut(3) is not ordinals.cut(2)
    assert (ordinals.least, ordinals.greatest, ordinals.count) == (1, 9, 3)


def codewords(words: list[str], codes: list[int]) -> Words:
    return Words("codes", np.array(codes, np.int32), pa.array(words), pa.array)


def numbers(*values: int) -> Words:
    return Words("plain", np.array(values), None, pa.array)


@pytest.mark.parametrize("entries", [2, 5000], ids=["small dictionaries", "large ones"])
def test_words_of_files_with_dictionaries_of_their_own(entries: int) -> None:
    """A codeword of one file stands for another word in the next."""
    first = codewords([f"a{n}" for n in range(entries)], [1, 0])
    second = codewords([f"b{n}" for n in range(entries)], [0, entries - 1, 1])
    assert joined_picks([first, second]).to_pylist() == ["a1", "a0", "b0", f"b{entries - 1}", "b1"]
    assert joined_picks([second]).to_pylist() == ["b0", f"b{entries - 1}", "b1"]


def test_what_was_picked_in_several_forms_is_joined_in_its_order() -> None:
    """A rowset with a change or a NULL gives an array, its neighbours words of one kind or another."""
    text = pa.array([None, "x"])
    assert joined_picks([codewords(["a", "b"], [1]), text, codewords(["c"], [0])]).to_pylist() == [
        "b",
        None,
        "x",
        "c",
    ]
    assert joined_picks([numbers(3, 1), numbers(2)]).to_pylist() == [3, 1, 2]
    halves = Words("narrow", np.array([4, 6]), None, lambda words: pa.array(words // 2))
    assert joined_picks([numbers(7), halves]).to_pylist() == [7, 2, 3]
