"""Codewords as the words that they name: what Arrow's own look-up says, and a limit before memory is taken."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.cfile.encoding.dictionary import text_of, words_of

WORDS = {
    "few": pa.array(["", "a", "ship", "a word of more than sixteen bytes", "ü"]),
    "many": pa.array([f"{number}" * (number % 7) for number in range(5000)]),
    "bytes": pa.array([b"\0", b"", b"\xff" * 40]),
    "empty": pa.array(["", ""]),
    "a part": pa.array(["before", "a", "b", "behind"])[1:3],
    "with NULL": pa.array(["a", None, "c"]),
    "large": pa.array(["a", "longer"], pa.large_string()),
}
LIMIT = 1 << 20


def codes_of(words: pa.Array, count: int, *, nulls: bool) -> pa.Array:
    rng = np.random.default_rng(count)
    codes = rng.integers(0, len(words), count, np.int32)
    return pa.array(codes, mask=rng.random(count) < 0.3 if nulls else None)


@pytest.mark.parametrize("nulls", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_words_are_what_arrow_takes(words: pa.Array, nulls: bool) -> None:
    """Of parts of arrays too, whose first code and word lie somewhere in their buffers."""
    for count in (0, 1, 3000):
        whole = codes_of(words, count, nulls=nulls)
        for codes in (whole, whole[count // 3 : count // 2]):
            found = words_of(codes, words, LIMIT)
            assert found is not None
            found.validate(full=True)
            assert found.type == words.type and found.equals(pc.take(words, codes))
            assert text_of(pa.DictionaryArray.from_arrays(codes, words)).equals(found)


def test_codes_of_other_widths_are_words_too() -> None:
    """As Arrow makes them of text, and as look-ups keep them."""
    narrow = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), ["a", "b"])
    assert text_of(narrow).to_pylist() == ["b", "a", None]


@pytest.mark.parametrize("nulls", [False, True], ids=["all", "some"])
def test_what_is_too_much_is_told_before_it_is_made(nulls: bool) -> None:
    """Codewords of a few bytes name a megabyte each time: 5 GB."""
    words = pa.array(["x" * (1 << 20), "y"])
    codes = pa.array([0] * 5000 + [None] * nulls, pa.int32())
    before = pa.default_memory_pool().max_memory()
    assert words_of(codes, words, 1 << 26) is None
    with pytest.raises(pa.ArrowInvalid, match="ask for fewer rows at once"):
        text_of(pa.DictionaryArray.from_arrays(codes, words))
    assert pa.default_memory_pool().max_memory() - before < 1 << 26
    few = words_of(codes[:3], words, 3 << 20)
    assert few is not None and few.to_pylist() == [words[0].as_py()] * 3
    assert words_of(codes[:3], words, (3 << 20) - 1) is None
