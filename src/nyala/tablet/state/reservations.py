"""Rowsets that running compactions have reserved, and rowsets that jobs keep from compactions.

    take      reserves rowsets for one compaction; if it changes rowids, no flush takes their
              DeltaMemStores (R3)
    revoke    takes rowsets back for work that cannot wait (a direct commit, writers without
              memory); the compaction gives up
    release   ends a reservation

    hold      keeps rowsets from being merged away while a job of other processes needs them
              (`jobs.held_rowsets`); a compaction that already runs goes on
    let_go    ends a hold

Invariants
    V1  A rowset belongs to at most one reservation.
    V2  A revoked reservation stays revoked, and its holder installs nothing.
    V3  Holds are shared and cannot be revoked: a rowset is free for compactions after its last hold
        ends.

Thread-safety: every method may be called from any thread. Installing a compaction and revoking one
both need the commit lock, so a reservation that is valid when an install begins is valid until it
ends.
Source: docs/design/rules.md, R3 and R4. Departure from Kudu's `compact_flush_lock` on each rowset:
all reservations are in one place and can be revoked.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable


class Reservation:
    """The rowsets that one compaction has reserved."""

    def __init__(self, rowset_ids: frozenset[int], holds_deltas: bool) -> None:
        self.rowset_ids = rowset_ids
        self.holds_deltas = holds_deltas
        """Whether their DeltaMemStores must not be flushed until the end. They may grow."""
        self.revoked = threading.Event()


class Reservations:
    """All reservations of an open store; see the module."""

    def __init__(self) -> None:
        self._by_rowset: dict[int, Reservation] = {}
        self._holds: Counter[int] = Counter()
        # Always entered through the lock, not the condition: Ctrl-C cannot leave it taken in
        # between.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def take(self, rowset_ids: Collection[int], *, holds_deltas: bool) -> Reservation | None:
        """Reserve these rowsets; None if one of them is reserved (V1) or held (V3)."""
        with self._lock:
            if any(self.taken(number) for number in rowset_ids):
                return None
            reservation = Reservation(frozenset(rowset_ids), holds_deltas)
            self._by_rowset.update(dict.fromkeys(rowset_ids, reservation))
            return reservation

    def release(self, reservation: Reservation) -> None:
        """End a reservation. May be called twice, and after a revocation."""
        with self._lock:
            for number in reservation.rowset_ids:
                if self._by_rowset.get(number) is reservation:
                    del self._by_rowset[number]
            self._changed.notify_all()

    def hold(self, rowset_ids: Collection[int]) -> None:
        """Keep compactions that have not begun from taking these rowsets (V3)."""
        with self._lock:
            self._holds.update(rowset_ids)

    def let_go(self, rowset_ids: Collection[int]) -> None:
        """End one hold of each of these rowsets; call once per `hold`."""
        with self._lock:
            self._holds.subtract(rowset_ids)
            assert all(self._holds[number] >= 0 for number in rowset_ids), (
                "V3: more calls of let_go than of hold"
            )
            self._holds += Counter()  # removes zero counts

    def revoke(self, rowset_ids: Iterable[int]) -> int:
        """Revoke the reservations of these rowsets; returns their number. Under the commit lock."""
        with self._lock:
            found = {id(taken): taken for number in rowset_ids if (taken := self._by_rowset.get(number))}
            for reservation in found.values():
                reservation.revoked.set()
                for number in reservation.rowset_ids:
                    del self._by_rowset[number]
            self._changed.notify_all()
            return len(found)

    def revoke_held(self) -> int:
        """Revoke the reservations that keep DeltaMemStores unflushed. Under the commit lock."""
        with self._lock:
            return self.revoke(
                number for number, taken in list(self._by_rowset.items()) if taken.holds_deltas
            )

    def taken(self, rowset_id: int) -> bool:
        """Whether a compaction must leave the rowset alone."""
        return rowset_id in self._by_rowset or rowset_id in self._holds

    def holds_deltas(self, rowset_id: int) -> bool:
        """Whether the rowset's DeltaMemStore must not be flushed now."""
        reservation = self._by_rowset.get(rowset_id)
        return reservation is not None and reservation.holds_deltas

    def hold_deltas(self) -> bool:
        """Whether a compaction keeps the DeltaMemStore of any rowset from being flushed."""
        with self._lock:
            return any(taken.holds_deltas for taken in self._by_rowset.values())

    def wait_free(self, rowset_ids: Collection[int], timeout_s: float) -> bool:
        """Wait until none of these rowsets is reserved; False after the timeout. Ignores holds."""
        with self._lock:
            return self._changed.wait_for(
                lambda: not any(number in self._by_rowset for number in rowset_ids), timeout_s
            )
