"""Copying dictionary entries by code: both kernels give Python's result and touch no other memory."""

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

GUARD = b"\xa5" * 40

# Empty entries, and lengths around one and two copy steps of 16 bytes.
entries_of_any_length = st.lists(
    st.binary(max_size=3) | st.binary(min_size=14, max_size=50), min_size=1, max_size=9
)


def starts_of(entries: list[bytes]) -> npt.NDArray[np.int32]:
    return np.array(list(accumulate(map(len, entries), initial=0)), np.int32)


@given(entries=entries_of_any_length, data=st.data(), padding=st.sampled_from([0, 7, 32]))
def test_entries_are_copied_back_to_back(
    kernels: ModuleType, entries: list[bytes], data: st.DataObject, padding: int
) -> None:
    """The entries of the codes are copied one after another."""
    codes = np.array(data.draw(st.lists(st.integers(0, len(entries) - 1), max_size=60)), np.int32)
    starts = starts_of(entries)
    ends = np.full(len(codes) + 3, -7, np.int32)
    size = kernels.entry_ends(codes, starts, ends[: len(codes) + 1])
    expected = [entries[code] for code in codes.tolist()]
    assert size == len(b"".join(expected))
    assert ends.tolist() == [*accumulate(map(len, expected), initial=0), -7, -7]
    memory = np.frombuffer(bytearray(size) + GUARD, np.uint8)
    entry_bytes = pa.py_buffer(b"".join(entries) + bytes(padding))
    kernels.copy_entries(codes, starts, entry_bytes, ends[: len(codes) + 1], memory[:size])
    assert memory.tobytes() == b"".join(expected) + GUARD


def test_a_size_beyond_32_bits_is_returned(kernels: ModuleType) -> None:
    """The caller gets the real size. A size cut to 32 bits would allocate too little memory."""
    codes, starts = np.zeros(5000, np.int32), np.array([0, 1 << 20], np.int32)
    assert kernels.entry_ends(codes, starts, np.empty(5001, np.int32)) == 5000 << 20


@pytest.mark.parametrize("code", [2, -1, 1 << 30, -(1 << 31)])
def test_a_code_without_an_entry_is_an_error(kernels: ModuleType, code: int) -> None:
    """A code without an entry raises an error, because its length would come from other memory."""
    with pytest.raises(ValueError, match="expected codes below 0"):
        kernels.entry_ends(np.zeros(1, np.int32), starts_of([]), np.empty(2, np.int32))
    codes = np.array([0, code, 1], np.int32)
    with pytest.raises(ValueError, match="expected codes below 2"):
        kernels.entry_ends(codes, starts_of([b"a", b"bc"]), np.empty(4, np.int32))


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
        {"entries": b"ab"},
        {"room": 7},
    ],
    ids=str,
)
def test_inconsistent_arguments_reach_no_other_memory(
    compiled_kernels: ModuleType, change: dict[str, Any]
) -> None:
    """Inconsistent arguments raise an error instead of reading or writing other memory."""
    given: dict[str, Any] = {
        "codes": [0, 1, 1], "starts": [0, 2, 5], "ends": [0, 2, 5, 8], "entries": b"abcde", "room": 8,
    } | change  # fmt: skip
    numbers = [np.array(given[name], np.int32) for name in ("codes", "starts", "ends")]
    memory = np.frombuffer(bytearray(8) + GUARD, np.uint8)
    with pytest.raises(ValueError, match="expected (codes below 2|entries, and 4 ends)"):
        compiled_kernels.copy_entries(
            numbers[0], numbers[1], pa.py_buffer(given["entries"]), numbers[2], memory[: given["room"]]
        )
    assert memory.tobytes().endswith(GUARD)
