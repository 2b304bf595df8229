"""The change feed: net changes per key between two moments, or all versions of all rows in between.

    (since, until]                           rowset A   k: live, val=1 at 3, val=2 at 6, dead 8
      net    one row per key                 rowset B   k: born 12 with val=5
      all    one row per version
                                             net of (5, 20]    k  5     update  12
                                             all of (5, 20]    k  2     update   6
                                                               k  NULL  delete   8
                                                               k  5     insert  12

    spec            the definition of a feed
    records         finds *touched* rows, and when, from rowids and timestamps alone
    batches         values, change types and keys of such rows
    net             net changes: one row per key; merges keys that moved between rowsets
    versions        all versions: a timeline per column, filled forward over the versions

net    The change type depends on whether the key existed at `since` and at `until`: delete + insert
       is an update, insert + delete is nothing. Values are those at `until`, read as by any scan.
       An update to an equal value is included. `_commit_version` is the key's newest record in the
       interval.
all    Every (row, t) with a record is a version, with the row's values from t on.
both   With `values_at="both"` an update is two rows, its preimage and its postimage, and a deleted
       row has its values. The row before a net change is that of `since`; the row before a version
       is the previous version.

Invariants
    N1  Net: a key comes once. The snapshot at `since` plus the net changes is the snapshot at
        `until`.
    N2  All: ordered by timestamp, then key; a key has at most one version per timestamp (design
        W4).
    N3  Keys are exact in every row. Every other column of a deleted row is NULL, unless the values
        before are part of the feed.
    N4  The result depends only on (root, since, until) (V1 of `read_path`).
    N5  A preimage directly precedes its postimage, with the same key and timestamp.

Memory: a split per rowset that is being merged, and for "all" the versions of one slice of time. A
slice has at most `slice_versions`, unless a single batch has more; such a batch is merged by key.
In addition, rowids and timestamps of the current rowset's records, and for "all" a count per
distinct timestamp.
Cost: net reads the records of the rowsets that meet the interval and looks up the touched rows.
"all" reads the records again for each slice. Net changes with the values before look up the rows
at two moments.
Source: docs/design/kudu.md, "Change-history queries". Departures: `since` is exclusive and `until`
inclusive, as for our snapshots. Values of deleted rows are NULL or those before the delete (Kudu
returns some old value). There are change types, named as in Delta's change data feed (Kudu has
IS_DELETED).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from nyala.tablet.changes.net import net_changes
from nyala.tablet.changes.spec import ChangeSpec
from nyala.tablet.changes.versions import all_versions
from nyala.tablet.state.root import TableState


def change_batches(table: TableState, spec: ChangeSpec) -> Iterator[pa.RecordBatch]:
    """The changes as batches of `spec.arrow_schema`. Net: unordered; all: timestamp, key (N2)."""
    if spec.since >= spec.until:
        return iter(())
    return net_changes(table, spec) if spec.versions == "net" else all_versions(table, spec)
