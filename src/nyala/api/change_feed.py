"""The change feed: what changed in one table between two moments, and the forms in which it is handed over.

    feed = table.changes(since=last)          rows changed in (since, until]
    for batch in feed.to_reader(): ...        in bounded memory
    last = feed.until                         the next call begins where this one ended

Source: docs/how-to/change-feed.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from nyala.api.scan import PinnedRows, ScannedStore
from nyala.mvcc.timestamp import to_datetime
from nyala.partition.describe import describe_range
from nyala.presentation.previews import ROWS_COUNTED, preview, row_count_text, told
from nyala.tablet.changes.feed import change_batches
from nyala.tablet.changes.spec import ChangeSpec, Versions
from nyala.tablet.state.root import Root, TableState

__all__ = ["DROPPED_RANGES", "ChangeFeed"]

# The key under which the metadata of a feed's schema name range partitions that were dropped.
DROPPED_RANGES: Final = b"nyala.dropped_ranges"
_SHOWN = 10


class ChangeFeed(PinnedRows):
    """What changed in a table between two moments. Made by `Table.changes`; thread-safe; nothing is read before it is
    asked for, and it may be read many times with one answer.

    Columns: the key's, then the others, then `_change_type` ("insert", "update" or "delete") and `_commit_timestamp`
    (int64, a timestamp of ours). Of a deleted row the key is there, all else is NULL.
    """

    _what = "change feed"

    def __init__(self, store: ScannedStore, root: Root, table: TableState, spec: ChangeSpec) -> None:
        super().__init__(store, root, table)
        self._spec = spec
        self._dropped = [
            {
                "range": describe_range((gone.lower, gone.upper), table.entry.partition_schema, table.schema),
                "timestamp": gone.dropped,
            }
            for gone in table.entry.dropped
            if gone.created <= spec.until and gone.dropped > spec.since
        ]

    @property
    def since(self) -> int:
        """The moment after which the changes begin: those of batches up to it are not in."""
        return self._spec.since

    @property
    def until(self) -> int:
        """The moment of the last changes: every batch up to it is in. As the next feed's `since` it leaves no gap."""
        return self._spec.until

    @property
    def versions(self) -> Versions:
        """ "net": one row per key; "all": every version of every row."""
        return self._spec.versions

    @property
    def dropped_ranges(self) -> list[dict[str, Any]]:
        """Range partitions that the interval reaches back to and that were dropped since, each a dict of `range`, as
        text, and `timestamp`. The feed goes on without them: neither their rows' changes are in it, nor deletes."""
        return list(self._dropped)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result; with dropped ranges, those as JSON in its metadata `nyala.dropped_ranges`."""
        if not self._dropped:
            return self._spec.arrow_schema
        return self._spec.arrow_schema.with_metadata({DROPPED_RANGES: json.dumps(self._dropped)})

    def _read(self, table: TableState) -> Iterator[pa.RecordBatch]:
        return change_batches(table, self._spec)

    def _again(self) -> str:
        return f"ask again, with since={self.since}, until={self.until} for the same changes"

    @told
    def __repr__(self) -> str:
        shown: list[pa.RecordBatch] = []
        count = 0
        for batch in self._batches():
            shown.append(batch.slice(0, max(0, _SHOWN - count)))
            count += batch.num_rows
            if count > ROWS_COUNTED:
                break
        head = pa.Table.from_batches(shown, schema=self.schema)
        kind = "net changes" if self.versions == "net" else "all versions"
        since, until = (to_datetime(moment).isoformat() for moment in (self.since, self.until))
        rows = row_count_text(count)
        return f"ChangeFeed of {self._name}, {kind} after {since} up to {until}, {rows}\n{preview(head)}"
