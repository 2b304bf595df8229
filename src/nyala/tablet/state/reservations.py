"""Which rowsets a running compaction has taken, and which jobs keep from compactions.

    take      no other compaction takes them; if row ids will change, no flush takes their DeltaMemStores (R3)
    revoke    somebody who cannot wait (a direct commit, writers without memory) takes them back: the
              compaction gives up
    release   at its end

    hold      a job of other processes (`jobs.held_rowsets`) needs that they are not merged away: no compaction takes
              them from now on; one that runs goes on
    let_go    at the job's end

Invariants
    V1  A rowset is of at most one reservation.
    V2  A reservation that was revoked stays so: its holder installs nothing.
    V3  Holds are shared, and nobody takes them back: a rowset is free for compactions when the last is let go.

Threads: any. Whoever installs a compaction, and whoever revokes one, holds the commit lock, so that a
reservation that is good at the beginning of an install is good until its end.
Source: docs/design/rules.md, R3 and R4. Departure from Kudu's `compact_flush_lock` on each rowset: one place, and it
can be revoked.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable


class Reservation:
    """Rowsets that one compaction has taken."""

    def __init__(self, rowset_ids: frozenset[int], holds_deltas: bool) -> None:
        self.rowset_ids = rowset_ids
        self.holds_deltas = holds_deltas
        """Whether their DeltaMemStores must stay as they are until the end, but for growing."""
        self.revoked = threading.Event()


class Reservations:
    """All reservations of an open store (see the module)."""

    def __init__(self) -> None:
        self._by_rowset: dict[int, Reservation] = {}
        self._holds: Counter[int] = Counter()
        # Entered through the lock, never through the condition: Ctrl-C cannot come in between and leave it taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def take(self, rowset_ids: Collection[int], *, holds_deltas: bool) -> Reservation | None:
        """Take all of these rowsets; None when one of them is taken (V1), or held (V3)."""
        with self._lock:
            if any(self.taken(number) for number in rowset_ids):
                return None
            reservation = Reservation(frozenset(rowset_ids), holds_deltas)
            self._by_rowset.update(dict.fromkeys(rowset_ids, reservation))
            return reservation

    def release(self, reservation: Reservation) -> None:
        """Give the rowsets back. May be called twice, and after a revocation."""
        with self._lock:
            for number in reservation.rowset_ids:
                if self._by_rowset.get(number) is reservation:
                    del self._by_rowset[number]
            self._changed.notify_all()

    def hold(self, rowset_ids: Collection[int]) -> None:
        """Keep these rowsets from compactions that are yet to begin (V3)."""
        with self._lock:
            self._holds.update(rowset_ids)

    def let_go(self, rowset_ids: Collection[int]) -> None:
        """Take one hold of each of these rowsets away. Once for each `hold`."""
        with self._lock:
            self._holds.subtract(rowset_ids)
            assert all(self._holds[number] >= 0 for number in rowset_ids), "V3: let go once too often"
            self._holds += Counter()  # without those that nobody holds

    def revoke(self, rowset_ids: Iterable[int]) -> int:
        """Take these rowsets back from whoever has them; returns how many compactions this ends. Under the
        commit lock."""
        with self._lock:
            found = {id(taken): taken for number in rowset_ids if (taken := self._by_rowset.get(number))}
            for reservation in found.values():
                reservation.revoked.set()
                for number in reservation.rowset_ids:
                    del self._by_rowset[number]
            self._changed.notify_all()
            return len(found)

    def revoke_held(self) -> int:
        """Take back all rowsets whose DeltaMemStores are kept from being flushed. Under the commit lock."""
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
        """Wait until no compaction has one of these; whether that came about in time. Holds are not waited for."""
        with self._lock:
            return self._changed.wait_for(
                lambda: not any(number in self._by_rowset for number in rowset_ids), timeout_s
            )
