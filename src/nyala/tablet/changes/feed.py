"""What changed between two moments: the net change per key, or every version of every row in between.

    (since, until]                           rowset A   k: live, val=1 at 3, val=2 at 6, dead 8
      net    one row per key                 rowset B   k: born 12 with val=5
      all    one row per version
                                             net of (5, 20]    k  5     update  12
                                             all of (5, 20]    k  2     update   6
                                                               k  NULL  delete   8
                                                               k  5     insert  12

    spec            what is asked
    records    which rows were *touched*, and when: from rowids and timestamps alone
    batches         values, types of change and keys of such rows
    net             net: one row per key; keys that moved between rowsets are merged
    versions        all: a timeline for each column, filled forward over the versions

net    A key's type follows from whether it was there at `since` and at `until`: delete + insert is an update, insert +
       delete nothing. Values are those at `until`, read as any scan reads them; an update to the same value is there.
       `_commit_timestamp` is the key's newest record in the interval.
all    Every (row, t) that has a record is a version, with the row's values from then on.

Invariants
    N1  Net: a key comes once. The snapshot at `since` with the net changes applied is the snapshot at `until`.
    N2  All: ordered by timestamp, then key; a key has at most one version at a timestamp (rule W4).
    N3  Keys are exact in every row. Of a deleted row every other column is NULL.
    N4  What comes depends on (root, since, until) only (V1 of `read_path`).

Memory: a window per rowset that is merged at the moment, and in "all" the versions of one slice of time. A slice has
at most `slice_versions`, unless one batch alone has more: that one is merged by key as well. Besides, rowids and
timestamps of the records of the rowset being read, and in "all" one count per distinct timestamp.
Cost: net, the records of the rowsets that meet the interval and a look-up of the touched rows; "all" reads
them once more for each slice.
Source: docs/design/kudu.md, "Change-history queries". Departures: `since` is exclusive and `until` inclusive, as our
snapshots are; values of deleted rows are NULL, where Kudu gives some historical value; types are three, where Kudu
has IS_DELETED.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from nyala.tablet.changes.net import net_changes
from nyala.tablet.changes.spec import ChangeSpec
from nyala.tablet.changes.versions import all_versions
from nyala.tablet.state.root import TableState


def change_batches(table: TableState, spec: ChangeSpec) -> Iterator[pa.RecordBatch]:
    """The changes as record batches of `spec.arrow_schema`. Net: in no order; all: by timestamp, then key (N2)."""
    if spec.since >= spec.until:
        return iter(())
    return net_changes(table, spec) if spec.versions == "net" else all_versions(table, spec)
