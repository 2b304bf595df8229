"""Reservations: a rowset belongs to at most one compaction, and a reservation can be revoked."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from nyala.tablet.state.reservations import Reservations


def test_v2_a_revoked_reservation_stays_revoked() -> None:
    """V2: a late release of a revoked reservation does not free rowsets of the next reservation."""
    reservations = Reservations()
    first = reservations.take([1, 2, 3], holds_deltas=True)
    assert first is not None and not first.revoked.is_set()
    assert reservations.revoke([3, 4]) == 1
    assert first.revoked.is_set()
    assert not any(reservations.taken(number) for number in range(5)), "revoking one rowset frees all"
    second = reservations.take([2], holds_deltas=True)
    reservations.release(first)
    reservations.release(first)
    assert reservations.taken(2) and reservations.holds_deltas(2)
    assert second is not None and not second.revoked.is_set()
    assert first.revoked.is_set()


def test_revoke_held_revokes_only_reservations_that_keep_memory() -> None:
    """Delta compactions do not keep memory, so they continue."""
    reservations = Reservations()
    merge = reservations.take([1, 2], holds_deltas=True)
    major = reservations.take([3], holds_deltas=False)
    assert reservations.revoke_delta_holders() == 1
    assert merge is not None and merge.revoked.is_set() and not reservations.taken(1)
    assert major is not None and not major.revoked.is_set() and reservations.taken(3)
    assert reservations.revoke_delta_holders() == 0


def test_wait_free_returns_when_the_last_reservation_ends() -> None:
    reservations = Reservations()
    first = reservations.take([1], holds_deltas=True)
    second = reservations.take([2], holds_deltas=True)
    assert first is not None and second is not None
    assert reservations.wait_free([3], 0)
    assert not reservations.wait_free([1, 2], 0.01)
    done = threading.Event()

    def wait() -> None:
        assert reservations.wait_free([1, 2], 20)
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    reservations.release(first)
    assert not done.wait(0.02)
    reservations.revoke([2])
    thread.join(20)
    assert done.is_set()


IDS = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)


@given(
    st.lists(st.tuples(st.sampled_from(["take", "take", "release", "revoke", "held"]), IDS, st.booleans()))
)
def test_any_order_of_calls_keeps_v1(steps: list[tuple[str, list[int], bool]]) -> None:
    """Compared with a plain list of the valid reservations."""
    reservations, good, made = Reservations(), [], []
    for step, ids, holds in steps:
        if step == "take":
            found = reservations.take(ids, holds_deltas=holds)
            assert (found is None) == any(set(ids) & other.rowset_ids for other in good)
            if found is not None:
                good.append(found)
                made.append(found)
        elif step == "release" and made:
            reservation = made[ids[0] % len(made)]
            reservations.release(reservation)
            good = [other for other in good if other is not reservation]
        elif step in ("revoke", "held"):
            hit = [
                other
                for other in good
                if (other.holds_deltas if step == "held" else set(ids) & other.rowset_ids)
            ]
            assert (
                reservations.revoke_delta_holders() if step == "held" else reservations.revoke(ids)
            ) == len(hit)
            assert all(other.revoked.is_set() for other in hit)
            good = [other for other in good if other not in hit]
        for number in range(6):
            holder = [other for other in good if number in other.rowset_ids]
            assert reservations.taken(number) == bool(holder)
            assert reservations.holds_deltas(number) == any(other.holds_deltas for other in holder)
    assert not any(other.revoked.is_set() for other in good)
