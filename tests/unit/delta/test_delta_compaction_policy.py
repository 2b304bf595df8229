"""A year of daily flushes leaves few files, and rewrites no record more than about log2(days) times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.delta.file_selection import FILES_MIN, first_file_to_merge


def simulate(flushes: list[int], files_min: int) -> tuple[list[int], int]:
    """Return the files after the flushes, and how often the most rewritten record was rewritten."""
    files: list[tuple[int, int]] = []  # size, most rewrites of any record inside
    most = 0
    for size in flushes:
        files.append((size, 0))
        while (first := first_file_to_merge([s for s, _ in files], files_min)) is not None:
            merged = files[first:]
            assert len(merged) >= files_min
            files[first:] = [(sum(s for s, _ in merged), 1 + max(n for _, n in merged))]
        most = max(most, *(n for _, n in files))
        # C1: each file beyond the newest is larger than all that follow it
        sizes = [s for s, _ in files]
        for index in range(len(sizes) - files_min + 1):
            assert sizes[index] > sum(sizes[index + 1 :])
    return [s for s, _ in files], most


@pytest.mark.parametrize("files_min", [2, FILES_MIN])
def test_a_year_of_daily_flushes_leaves_few_files(files_min):
    """365 small files would slow each scan; a daily merge of all would write each record 182 times."""
    files, rewrites = simulate([100] * 365, files_min)
    assert sum(files) == 36_500, "all bytes are still there"
    assert len(files) <= files_min - 1 + math.log2(365)
    assert rewrites <= 1 + math.log2(365)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=200), st.integers(2, 6))
@settings(max_examples=settings().max_examples, deadline=None)
def test_c1_and_c2_hold_for_flushes_of_any_size(flushes, files_min):
    """The bounds depend on the logarithm of the bytes, also for a small flush before a large one."""
    files, rewrites = simulate(flushes, files_min)
    assert sum(files) == sum(flushes)
    assert len(files) <= files_min + math.log2(sum(flushes) / min(flushes) + 1)
    assert rewrites <= 2 + math.log2(sum(flushes) / min(flushes) + 1)


@pytest.mark.parametrize(
    ("sizes", "first"),
    [
        ([], None),
        ([5], None),
        ([1, 1, 1], None),
        ([1, 1, 1, 1], 0),
        ([8, 4, 1, 1, 1], None),
        ([8, 4, 1, 1, 1, 1], 0),
        ([9, 4, 1, 1, 1, 1], 1),
        ([1, 100, 1, 1], 0),
    ],
)
def test_the_oldest_file_that_pays_is_chosen(sizes, first):
    """Among others, the sizes of the module's docstring."""
    assert first_file_to_merge(sizes) == first
