"""The words that codewords name: each of the twins lays out what Python would, and touches nothing else."""

from __future__ import annotations

from itertools import accumulate
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

AFTER = b"\xa5" * 40

# None at all, shorter than what is copied at once, as long, longer, and longer than twice as much.
words_of_any_length = st.lists(
    st.binary(max_size=3) | st.binary(min_size=14, max_size=50), min_size=1, max_size=9
)


def starts_of(words: list[bytes]) -> npt.NDArray[np.int32]:
    return np.array(list(accumulate(map(len, words), initial=0)), np.int32)


@given(words=words_of_any_length, data=st.data(), behind=st.sampled_from([0, 7, 32]))
def test_words_lie_one_behind_the_other(
    kernels: ModuleType, words: list[bytes], data: st.DataObject, behind: int
) -> None:
    """A text would be another, or what lies behind the room be overwritten by a word that is copied in one piece."""
    codes = np.array(data.draw(st.lists(st.integers(0, len(words) - 1), max_size=60)), np.int32)
    starts = starts_of(words)
    ends = np.full(len(codes) + 3, -7, np.int32)
    size = kernels.word_ends(codes, starts, ends[: len(codes) + 1])
    expected = [words[code] for code in codes.tolist()]
    assert size == len(b"".join(expected))
    assert ends.tolist() == [*accumulate(map(len, expected), initial=0), -7, -7]
    memory = np.frombuffer(bytearray(size) + AFTER, np.uint8)
    bytes_of_words = pa.py_buffer(b"".join(words) + bytes(behind))
    kernels.lay_words(codes, starts, bytes_of_words, ends[: len(codes) + 1], memory[:size])
    assert memory.tobytes() == b"".join(expected) + AFTER


def test_more_bytes_than_offsets_have_are_counted(kernels: ModuleType) -> None:
    """The caller refuses them: as 32 bits the number would be a small one, and so would the room."""
    codes, starts = np.zeros(5000, np.int32), np.array([0, 1 << 20], np.int32)
    assert kernels.word_ends(codes, starts, np.empty(5001, np.int32)) == 5000 << 20


@pytest.mark.parametrize("code", [2, -1, 1 << 30, -(1 << 31)])
def test_a_code_of_no_word_is_refused(kernels: ModuleType, code: int) -> None:
    """Memory of somebody else would be taken for its length; of no words there is not even the first."""
    with pytest.raises(ValueError, match="expected codewords below 0"):
        kernels.word_ends(np.zeros(1, np.int32), starts_of([]), np.empty(2, np.int32))
    codes = np.array([0, code, 1], np.int32)
    with pytest.raises(ValueError, match="expected codewords below 2"):
        kernels.word_ends(codes, starts_of([b"a", b"bc"]), np.empty(4, np.int32))


@pytest.mark.parametrize(
    "change",
    [
        {"codes": [0, 2, 1]},
        {"codes": [0, -1, 1]},
        {"starts": [0, 90, 93]},
        {"starts": [0, -1, 3]},
        {"ends": [0, 3, 90, 92]},
        {"ends": [0, 5, 3, 8]},
        {"ends": [-4, 1, 3, 8]},
        {"ends": [0, 1, 4]},
        {"words": b"ab"},
        {"room": 7},
    ],
    ids=str,
)
def test_nothing_is_touched_but_words_and_room(compiled_kernels: ModuleType, change: dict[str, Any]) -> None:
    """Codes, ends and words that do not belong together."""
    given: dict[str, Any] = {
        "codes": [0, 1, 1], "starts": [0, 2, 5], "ends": [0, 2, 5, 8], "words": b"abcde", "room": 8,
    } | change  # fmt: skip
    numbers = [np.array(given[name], np.int32) for name in ("codes", "starts", "ends")]
    memory = np.frombuffer(bytearray(8) + AFTER, np.uint8)
    with pytest.raises(ValueError, match="expected (codewords of 2 words|words, and 4 ends)"):
        compiled_kernels.lay_words(
            numbers[0], numbers[1], pa.py_buffer(given["words"]), numbers[2], memory[: given["room"]]
        )
    assert memory.tobytes().endswith(AFTER)
