"""Rowsets that jobs of other processes hold: no merge may move the rows that a job changes.

A job is identified by the name of its lease, which its tasks renew. Its holds end with the lease.
They also end when the writer process ends; then the job's commit settles rows of merged rowsets
again (J2 of `load_job`).

Several jobs may hold one rowset: each only needs that the rowset is not merged away. A delta
compaction that runs when a job begins goes on, because it keeps rowids.

Threads: call under the commit lock, except `holders`. Source: docs/design/rules.md, R4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nyala.catalog.job_leases import is_living
from nyala.errors import StorageError

if TYPE_CHECKING:
    from nyala.tablet.store import Store

__all__ = ["Holder", "JobHold", "JobReservations"]


@dataclass(frozen=True)
class JobHold:
    """One hold of a job: its rowsets, the job in words (its work and process), and its start."""

    rowset_ids: frozenset[int]
    holder: str
    since_us: int


@dataclass(frozen=True)
class Holder:
    """A job that holds rowsets: its lease, the job in words, its start, and these rowsets."""

    lease: str
    holder: str
    since_us: int
    rowset_ids: frozenset[int]


class JobReservations:
    """The rowsets that jobs hold, by the names of their leases; see the module."""

    def __init__(self) -> None:
        self._by_lease: dict[str, list[JobHold]] = {}

    def take(self, store: Store, lease: str, rowset_ids: Collection[int], holder: str) -> None:
        """Keep these rowsets from later compactions. None of them may be in a running merge."""
        hold = JobHold(frozenset(rowset_ids), holder, store.env.clock.now_us())
        store.reservations.hold(hold.rowset_ids)
        self._by_lease.setdefault(lease, []).append(hold)

    def holders(self, rowset_ids: Collection[int]) -> list[Holder]:
        """The jobs that hold one of these rowsets. Any thread; concurrent changes may be missed."""
        found = []
        for lease, given in list(self._by_lease.items()):
            holds = list(given)
            held = frozenset(number for hold in holds for number in hold.rowset_ids).intersection(rowset_ids)
            if held:
                found.append(Holder(lease, holds[0].holder, holds[0].since_us, held))
        return found

    def release(self, store: Store, lease: str) -> None:
        """End the holds of a job. May be called twice."""
        for hold in self._by_lease.pop(lease, ()):
            store.reservations.let_go(hold.rowset_ids)

    def release_expired(self, store: Store) -> None:
        """End the holds of jobs whose lease has expired or whose process has ended (J2)."""
        for lease in list(self._by_lease):
            with contextlib.suppress(StorageError):  # try again the next time
                if not is_living(store.env, store.root_path, lease):
                    self.release(store, lease)
