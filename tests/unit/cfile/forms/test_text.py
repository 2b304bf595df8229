"""Dictionary codes as text: equal to Arrow's own look-up, with a limit before memory is allocated."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.cfile.forms.text import text_of

WORDS = {
    "few": pa.array(["", "a", "ship", "a word of more than thirty-two bytes", "ü"]),
    "many": pa.array([f"{number}" * (number % 7) for number in range(5000)]),
    "bytes": pa.array([b"\0", b"", b"\xff" * 40]),
    "empty": pa.array(["", ""]),
    "a part": pa.array(["before", "a", "b", "behind"])[1:3],
}
OTHERS = {
    "with NULL": pa.array(["a", None, "c"]),
    "large": pa.array(["a", "longer"], pa.large_string()),
    "numbers": pa.array([1, 2, 3]),
}


def codes_of(words: pa.Array, count: int) -> pa.Array:
    return pa.array(np.random.default_rng(count).integers(0, len(words), count, np.int32))


@pytest.mark.parametrize("count", [0, 1, 10_000])
@pytest.mark.parametrize("words", (WORDS | OTHERS).values(), ids=WORDS | OTHERS)
def test_a_dictionary_array_decodes_to_one_value_per_row(words: pa.Array, count: int) -> None:
    """A dictionary array decodes to its values: few and many rows, any index type, NULLs in rows
    and entries.
    """
    codes = codes_of(words, count)
    for indices in (
        codes,
        codes[count // 2 :],
        codes.cast(pa.int64()),
        pc.if_else(pc.equal(codes, 1), None, codes),
    ):
        found = text_of(pa.DictionaryArray.from_arrays(indices, words))
        found.validate(full=True)
        assert found.type == words.type and found.equals(pc.take(words, indices))


def test_too_much_text_is_refused_before_memory_is_allocated() -> None:
    """Some bytes of codes may mean gigabytes of text. They are refused before memory is allocated."""
    words = pa.array(["x" * (1 << 20), "y"])
    codes = pa.array([0] * 5000, pa.int32())
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(pa.ArrowInvalid, match="decode fewer rows at once"):
        text_of(pa.DictionaryArray.from_arrays(codes, words))
    assert pa.default_memory_pool().max_memory() - before < 1 << 26
