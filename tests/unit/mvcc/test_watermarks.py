"""Applied and published: what readers see is never more than what is there (M1)."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.mvcc.watermarks import Watermarks


def test_they_begin_where_the_store_was_left() -> None:
    """A reopened store shows everything that it recovered."""
    marks = Watermarks(77)
    assert (marks.applied, marks.published) == (77, 77)


def test_m1_what_is_not_applied_is_not_published() -> None:
    """A log that is synced ahead must not show readers a batch that memory does not have yet."""
    marks = Watermarks()
    marks.advance_applied(10)
    marks.advance_published(25)
    assert marks.published == 10
    marks.advance_applied(30)
    assert marks.published == 10
    marks.advance_published(25)
    assert (marks.applied, marks.published) == (30, 25)


def test_published_never_goes_back() -> None:
    """A thread that comes late with an older sync takes nothing away from readers."""
    marks = Watermarks()
    marks.advance_applied(10)
    marks.advance_published(10)
    marks.advance_published(4)
    assert marks.published == 10


def test_applying_out_of_order_is_our_own_mistake() -> None:
    """Batches applied out of order would make a snapshot that moves."""
    marks = Watermarks(5)
    marks.advance_applied(5)
    with pytest.raises(AssertionError, match="M1"):
        marks.advance_applied(4)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=40))
def test_m1_holds_whatever_comes(steps: list[tuple[bool, int]]) -> None:
    """published <= applied, and both only rise."""
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


def test_threads_that_publish_at_once() -> None:
    """Two writers that come back from their syncs together leave the higher mark."""
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
