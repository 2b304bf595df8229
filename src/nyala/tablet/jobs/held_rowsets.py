"""Rowsets that jobs of other processes hold, so that compactions do not merge them meanwhile.

A job is identified by the name of its lease, which its tasks renew. The job holds its rowsets until
the lease ends, or the writer process ends. If a held rowset was merged nevertheless, the job's
commit resolves the rows again.

Several jobs may hold the same rowset. A delta compaction that runs when a job begins may continue,
because it keeps rowids.

Threads: call under the commit lock, except `holders`. Source: docs/design/rules.md, R4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nyala.catalog.job_leases import is_living
from nyala.errors import StorageError

if TYPE_CHECKING:
    from nyala.tablet.store import Store


@dataclass(frozen=True)
class Holder:
    """A job whose rowsets must not be compacted while it runs.

    holder:   describes the job's work and its process, for messages.
    since_us: when the job began, in microseconds since 1970.
    """

    lease: str
    holder: str
    since_us: int
    rowset_ids: frozenset[int]


class JobReservations:
    """The rowsets that must not be compacted, because jobs use them.

    Each job is known by the name of its lease.
    """

    def __init__(self) -> None:
        self._by_lease: dict[str, list[Holder]] = {}

    def take(self, store: Store, lease: str, rowset_ids: Collection[int], holder: str) -> None:
        """Prevent new compactions of these rowsets until the job's lease ends.

        The caller checks that none of these rowsets is in a running merge.
        holder: describes the job and its process, for messages.
        """
        hold = Holder(lease, holder, store.env.clock.now_us(), frozenset(rowset_ids))
        store.reservations.hold(hold.rowset_ids)
        self._by_lease.setdefault(lease, []).append(hold)

    def holders(self, rowset_ids: Collection[int]) -> list[Holder]:
        """Return the jobs that prevent compactions of any of these rowsets.

        The field `rowset_ids` of a result has only rowsets of the argument. Any thread may call
        this; the result may miss concurrent changes.
        """
        found = []
        for holds in list(self._by_lease.values()):
            held = frozenset(number for hold in list(holds) for number in hold.rowset_ids)
            if held := held.intersection(rowset_ids):
                found.append(replace(holds[0], rowset_ids=held))
        return found

    def release(self, store: Store, lease: str) -> None:
        """Allow compactions of the rowsets of the job with this lease. May be called twice."""
        for hold in self._by_lease.pop(lease, ()):
            store.reservations.end_hold(hold.rowset_ids)

    def release_expired(self, store: Store) -> None:
        """Allow compactions of the rowsets of all jobs whose lease or process has ended."""
        for lease in list(self._by_lease):
            with contextlib.suppress(StorageError):  # try again the next time
                if not is_living(store.env, store.root_path, lease):
                    self.release(store, lease)
