"""Sizes such as '64KB', and whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.schema.sizes import SIZE_MAX_BYTES, size_in_bytes, whole_number


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("64KB", 64_000),
        ("64KiB", 65_536),
        (" 64 kib\n", 65_536),
        ("64K", 64_000),
        ("64Ki", 65_536),
        ("1.5 GiB", 3 << 29),
        ("0.1GB", 100_000_000),
        ("0.0009765625KiB", 1),
        ("0.0015KB", 1),
        ("2TB", 2 * 10**12),
        ("000000000000000000000064KB", 64_000),
        ("1.50000000000000000000000000000000000000000000000000KB", 1500),
        ("9007199254740993", 9007199254740993),  # no float is equal to it
    ],
)
def test_a_size_is_parsed_to_bytes(text: str, size_bytes: int) -> None:
    assert size_in_bytes(text) == size_bytes


@given(st.integers(0, SIZE_MAX_BYTES))
def test_random_sizes_without_unit_are_exact(size: int) -> None:
    assert size_in_bytes(str(size)) == size_in_bytes(f"{size}B") == size
    assert size_in_bytes(f"{size >> 40}.{10**40 * (size % 2**40) >> 40:040}TiB") == size


@pytest.mark.parametrize(
    "text",
    [
        *("", "KB", "-1", "+1", "1e6", "1_000", "1,000", ".5KB", "1.KB", "0x10", "inf", "nan", "1 block"),
        *("64\nKB", "64\u00a0KB", "64 K B", "64KBs", "64IB", "1 2"),
        *("\u0661\u0662KB", "\u00b2", "64\u212ab", "64K\u0131B"),  # digits and letters of other scripts
        *("9" * 400, "9" * 5000, "9" * 19 + "TB", str(SIZE_MAX_BYTES + 1)),
    ],
)
def test_other_texts_are_no_size(text: str) -> None:
    assert size_in_bytes(text) is None


@pytest.mark.parametrize("given", [65_536, np.int64(65_536), np.uint16(7), 10**30], ids=repr)
def test_numpy_integers_are_whole_numbers(given: Any) -> None:
    found = whole_number(given)
    assert found == given and type(found) is int


@pytest.mark.parametrize("given", [True, np.True_, 4096.0, np.float64(1), "4096", None, [4096]], ids=repr)
def test_bools_and_fractions_are_no_whole_numbers(given: Any) -> None:
    assert whole_number(given) is None
