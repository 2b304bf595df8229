"""The watermarks `applied` and `published`: readers see only batches that are in memory (M1)."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.mvcc.watermarks import Watermarks


def test_watermarks_begin_at_the_stores_last_timestamp() -> None:
    """A reopened store publishes everything that it recovered."""
    marks = Watermarks(77)
    assert (marks.applied, marks.published) == (77, 77)


def test_m1_published_never_exceeds_applied() -> None:
    """A log that is synced further does not publish a batch that is not applied."""
    marks = Watermarks()
    marks.advance_applied(10)
    marks.advance_published(25)
    assert marks.published == 10
    marks.advance_applied(30)
    assert marks.published == 10
    marks.advance_published(25)
    assert (marks.applied, marks.published) == (30, 25)


def test_applying_out_of_order_is_a_bug() -> None:
    """Batches that are applied out of order fail an assertion."""
    marks = Watermarks(5)
    marks.advance_applied(5)
    with pytest.raises(AssertionError, match="M1"):
        marks.advance_applied(4)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=40))
def test_m1_holds_for_any_sequence(steps: list[tuple[bool, int]]) -> None:
    """`published` is at most `applied`, and neither decreases."""
    marks = Watermarks()
    for applies, timestamp in steps:
        before = (marks.applied, marks.published)
        if applies:
            marks.advance_applied(max(timestamp, marks.applied))
        else:
            marks.advance_published(timestamp)
            assert marks.published == max(before[1], min(timestamp, marks.applied))
        assert marks.published <= marks.applied
        assert before[0] <= marks.applied and before[1] <= marks.published


def test_threads_publish_concurrently() -> None:
    """After two threads publish at once, the greater timestamp remains."""
    marks = Watermarks()
    marks.advance_applied(10_000)

    def publish(first: int) -> None:
        for timestamp in range(first, 10_001, 4):
            marks.advance_published(timestamp)

    threads = [threading.Thread(target=publish, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert marks.published == 10_000
