"""Which rowsets jobs of other processes hold, so that no merge takes away the rows that their changes are for.

A job is known by the name of its lease, which its tasks renew: while it lives, so does what it holds. When the lock's
holder ends, that is gone; then what was merged is settled anew at the job's commit (J2 of `load_job`).

Several jobs may hold one rowset: each needs only that it is not merged away, and none of them does that. A delta
compaction that runs when a job begins goes on beside it, since it leaves the rows their places.

Threads: under the commit lock, but for `holders`. Source: docs/design/rules.md, R4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nyala.catalog.leases import is_living
from nyala.errors import StorageError

if TYPE_CHECKING:
    from nyala.tablet.store import Store

__all__ = ["Holder", "JobHold", "JobReservations"]


@dataclass(frozen=True)
class JobHold:
    """What a job holds, whose it is in words (what it does, in which process), and since when."""

    rowset_ids: frozenset[int]
    holder: str
    since_us: int


@dataclass(frozen=True)
class Holder:
    """A job that holds rowsets: the name of its lease, whose it is, since when, and which of those asked for."""

    lease: str
    holder: str
    since_us: int
    rowset_ids: frozenset[int]


class JobReservations:
    """What jobs hold, by the names of their leases (see the module)."""

    def __init__(self) -> None:
        self._by_lease: dict[str, list[JobHold]] = {}

    def take(self, store: Store, lease: str, rowset_ids: Collection[int], holder: str) -> None:
        """Keep these rowsets, of which no merge may have one, from compactions that are yet to begin."""
        hold = JobHold(frozenset(rowset_ids), holder, store.env.clock.now_us())
        store.reservations.hold(hold.rowset_ids)
        self._by_lease.setdefault(lease, []).append(hold)

    def holders(self, rowset_ids: Collection[int]) -> list[Holder]:
        """The jobs that hold one of these rowsets, and which. Any thread: of a job that comes or goes meanwhile either
        may be said."""
        found = []
        for lease, given in list(self._by_lease.items()):
            holds = list(given)
            held = frozenset(number for hold in holds for number in hold.rowset_ids).intersection(rowset_ids)
            if held:
                found.append(Holder(lease, holds[0].holder, holds[0].since_us, held))
        return found

    def release(self, store: Store, lease: str) -> None:
        """Let go of what a job holds. May be called twice."""
        for hold in self._by_lease.pop(lease, ()):
            store.reservations.let_go(hold.rowset_ids)

    def release_expired(self, store: Store) -> None:
        """Let go of what jobs hold whose lease is over, or whose process has certainly ended (J2)."""
        for lease in list(self._by_lease):
            with contextlib.suppress(StorageError):  # another time
                if not is_living(store.env, store.root_path, lease):
                    self.release(store, lease)
