"""Rowsets that running compactions have reserved, and rowsets that they must leave out for jobs.

    take      reserves rowsets for one compaction. If the compaction changes rowids, flushes leave
              the DeltaMemStores of these rowsets in memory (R3).
    revoke    ends a reservation for more urgent work: the commit of a batch as files, or writers
              that need memory. The compaction then stops.
    release   ends a reservation

    hold      prevents new compactions of rowsets while a job of other processes needs them
              (`jobs.held_rowsets`). Running compactions continue.
    end_hold    ends a hold

Invariants
    V1  A rowset belongs to at most one reservation.
    V2  A revoked reservation stays revoked, and its compaction installs nothing.
    V3  Several jobs may hold a rowset. Holds cannot be revoked. Compactions may take the rowset
        after its last hold has ended.

Thread-safe. Installing a compaction and revoking a reservation both need the commit lock. So a
reservation that is valid when an install begins is valid until its end.
Source: docs/design/rules.md, R3 and R4. Kudu has a lock on each rowset instead.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable


class Reservation:
    """The rowsets that one compaction has reserved.

    revoked: set when more urgent work took the rowsets back.
    """

    def __init__(self, rowset_ids: frozenset[int], holds_deltas: bool) -> None:
        self.rowset_ids = rowset_ids
        self.holds_deltas = holds_deltas
        """Whether the DeltaMemStores of the rowsets must not be flushed. They may grow."""
        self.revoked = threading.Event()


class Reservations:
    """The rowsets that compactions have reserved, and the rowsets that jobs need.

    No compaction may reserve a rowset of either kind. A job is work of other processes, such as a
    load, that refers to rowsets of its plan.

    Each open store has one such object.
    """

    def __init__(self) -> None:
        self._by_rowset: dict[int, Reservation] = {}
        self._holds: Counter[int] = Counter()
        # All code uses `with self._lock`, not `with self._changed`: after Ctrl-C the condition
        # could stay locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def take(self, rowset_ids: Collection[int], *, holds_deltas: bool) -> Reservation | None:
        """Reserve these rowsets for a compaction. Return the reservation.

        Returns None if another compaction has reserved one of them, or if a job needs one of them.
        holds_deltas: True if the compaction changes rowids: flushes then leave the DeltaMemStores
                      of these rowsets in memory until the reservation ends.
        """
        with self._lock:
            if any(self.taken(number) for number in rowset_ids):
                return None
            reservation = Reservation(frozenset(rowset_ids), holds_deltas)
            self._by_rowset.update(dict.fromkeys(rowset_ids, reservation))
            return reservation

    def release(self, reservation: Reservation) -> None:
        """End the reservation of a compaction, so that others can reserve its rowsets.

        Does nothing if the reservation has already ended, or was revoked.
        """
        with self._lock:
            for number in reservation.rowset_ids:
                if self._by_rowset.get(number) is reservation:
                    del self._by_rowset[number]
            self._changed.notify_all()

    def hold(self, rowset_ids: Collection[int]) -> None:
        """Keep new compactions from reserving these rowsets, because a job needs them.

        `end_hold` ends this.
        """
        with self._lock:
            self._holds.update(rowset_ids)

    def end_hold(self, rowset_ids: Collection[int]) -> None:
        """Say that a job does not need these rowsets any more. Call this once for each `hold`.

        Compactions can reserve a rowset again when no job needs it.
        """
        with self._lock:
            self._holds.subtract(rowset_ids)
            assert all(self._holds[number] >= 0 for number in rowset_ids), (
                "V3: more calls of end_hold than of hold"
            )
            self._holds += Counter()  # removes zero counts

    def revoke(self, rowset_ids: Iterable[int]) -> int:
        """End the compactions that have reserved these rowsets. Return the number of compactions.

        They stop, and install nothing. Requires the commit lock.
        """
        with self._lock:
            found = {id(taken): taken for number in rowset_ids if (taken := self._by_rowset.get(number))}
            for reservation in found.values():
                reservation.revoked.set()
                for number in reservation.rowset_ids:
                    del self._by_rowset[number]
            self._changed.notify_all()
            return len(found)

    def revoke_delta_holders(self) -> int:
        """End the compactions that keep flushes from writing DeltaMemStores. Return their number.

        They stop, and install nothing. Requires the commit lock.
        """
        with self._lock:
            return self.revoke(
                number for number, taken in list(self._by_rowset.items()) if taken.holds_deltas
            )

    def taken(self, rowset_id: int) -> bool:
        """Whether the rowset is not free: a compaction has reserved it, or a job needs it."""
        return rowset_id in self._by_rowset or rowset_id in self._holds

    def holds_deltas(self, rowset_id: int) -> bool:
        """Whether flushes must leave this rowset's DeltaMemStore in memory now."""
        reservation = self._by_rowset.get(rowset_id)
        return reservation is not None and reservation.holds_deltas

    def any_holds_deltas(self) -> bool:
        """Whether flushes must leave the DeltaMemStore of at least one rowset in memory now."""
        with self._lock:
            return any(taken.holds_deltas for taken in self._by_rowset.values())

    def wait_free(self, rowset_ids: Collection[int], timeout_s: float) -> bool:
        """Wait until no compaction has reserved any of these rowsets.

        Returns False if this takes longer than `timeout_s` seconds.
        """
        with self._lock:
            return self._changed.wait_for(
                lambda: not any(number in self._by_rowset for number in rowset_ids), timeout_s
            )
