"""The change feed of a table: what changed after the moment `since`, up to and including `until`.

A feed has net changes (one row per key) or all versions (one row per change). An example, in which
the key k was deleted in one rowset and inserted again in another:

    rowset A   k: inserted at 3 with val=1, updated at 6 to val=2, deleted at 8
    rowset B   k: inserted at 12 with val=5

    feed of (5, 20]          k   val    _change_type   _commit_version
      versions="net"         k   5      update         12
      versions="all"         k   2      update          6
                             k   NULL   delete          8
                             k   5      insert         12

    spec            the definition of a feed
    records         finds *touched* rows (rows with a change in the interval); reads no values
    batches         values, change types and keys of touched rows
    net             net changes
    versions        all versions
    commits         counts the changes of each commit
    change_token    writes a part of a feed as bytes for another process, and reads it

net    The change type depends on whether the key existed at `since` and at `until`. So a delete
       followed by an insert is an update, and an insert followed by a delete is left out. Values
       are those at `until`. An update to an equal value is included. `_commit_version` is the
       timestamp of the key's newest change in the interval.
all    Each (row, timestamp) with a change is a version. It has the row's values after the change.
both   With `values_at="both"` an update gives two rows, preimage and postimage. A deleted row has
       its old values. The preimage of a net change is the row at `since`. The preimage of a version
       is the previous version.

Invariants
    N1  Net: each key comes once. The snapshot at `since` plus the net changes is the snapshot at
        `until`.
    N2  All: versions are ordered by timestamp, then key. A key has at most one version per
        timestamp.
    N3  Keys are exact in every row. All other columns of a deleted row are NULL, unless the feed
        includes values before the change.
    N4  The result depends only on the root, `since` and `until`.
    N5  A preimage directly precedes its postimage, with the same key and timestamp.

Memory: the rowids and timestamps of one rowset's changes, and a few of its splits. If several
rowsets have overlapping keys, the feed merges their rows by key. Then one split of each is in
memory. "all" also needs the versions of one slice of time (`versions`).
Cost: net changes read rowids and timestamps of the changes, and read the touched rows at one or two
moments. "all" reads the changes again for each slice of time.
Source: docs/design/kudu.md, "Change-history queries". In Kudu `since` is inclusive, `until` is
exclusive, and deleted rows have some old value. Kudu has a column IS_DELETED. Nyala has change
types instead, with the names of Delta's change data feed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from nyala.tablet.changes.net import net_changes
from nyala.tablet.changes.spec import ChangeSpec
from nyala.tablet.changes.versions import all_versions
from nyala.tablet.state.root import TableState


def change_batches(table: TableState, spec: ChangeSpec) -> Iterator[pa.RecordBatch]:
    """Yield the changes of the table as batches of `spec.arrow_schema`.

    If `spec.versions` is "net", each changed key has one row, in no particular order. Otherwise
    each change has a row. These rows are sorted by timestamp, then by key.
    """
    if spec.since >= spec.until:
        return iter(())
    return net_changes(table, spec) if spec.versions == "net" else all_versions(table, spec)
