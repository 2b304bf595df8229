"""Which rowsets jobs of other processes have taken, so that no merge takes away the rows that their changes are for.

A job is known by the name of its lease, which its tasks renew: while it lives, so do its reservations. When the lock's
holder ends, they are gone; then what was merged is settled anew at the job's commit (J2 of `load_job`).

Threads: under the commit lock, but for `reserved`. Source: design §6 R4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nyala.catalog.leases import open_remote_lease
from nyala.errors import HistoryExpiredError, StorageError
from nyala.tablet.reservations import Reservation

if TYPE_CHECKING:
    from nyala.tablet.store import Store

__all__ = ["JobReservations"]


class JobReservations:
    """Reservations by the name of a job's lease (see the module)."""

    def __init__(self) -> None:
        self._by_lease: dict[str, list[Reservation]] = {}

    def take(self, store: Store, lease: str, rowset_ids: Sequence[int]) -> int:
        """Reserve those of the rowsets that nobody has taken; returns how many."""
        taken = [
            found
            for number in rowset_ids
            if (found := store.reservations.take([number], holds_deltas=False)) is not None
        ]
        self._by_lease.setdefault(lease, []).extend(taken)
        return len(taken)

    def reserved(self) -> set[int]:
        """The rowsets that jobs have. Any thread: of one that comes or goes meanwhile either may be said."""
        return {
            number
            for reservations in list(self._by_lease.values())
            for reservation in list(reservations)
            for number in reservation.rowset_ids
        }

    def release(self, store: Store, lease: str) -> None:
        """Give back what a job has reserved. May be called twice."""
        for reservation in self._by_lease.pop(lease, ()):
            store.reservations.release(reservation)

    def release_expired(self, store: Store) -> None:
        """Give back what jobs have reserved whose lease is over (J2)."""
        for lease in list(self._by_lease):
            try:
                open_remote_lease(store.env, store.root_path, lease)
            except HistoryExpiredError:
                self.release(store, lease)
            except StorageError:
                continue  # another time
