"""The change feed: the rows of one table that changed between two moments.

feed = table.changes(since=last)          rows changed in (since, until]
for batch in feed.to_reader(): ...        in bounded memory
last = feed.until                         the next call begins where this one ended
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from nyala.api.pinned_rows import PinnedRows, ScannedStore
from nyala.mvcc.timestamp import to_datetime
from nyala.partition.describe import describe_range
from nyala.presentation.previews import html_preview
from nyala.tablet.changes.feed import change_batches
from nyala.tablet.changes.spec import ChangeSpec, Versions
from nyala.tablet.state.root import Root, TableState

__all__ = ["DROPPED_RANGES", "ChangeFeed"]

# Key in the metadata of a feed's schema: the range partitions that were dropped.
DROPPED_RANGES: Final = b"nyala.dropped_ranges"


class ChangeFeed(PinnedRows):
    """The rows of one table that changed between two moments. Made by `Table.changes`.

    Columns: those of the key, the others, `_change_type` ("insert", "update" or "delete"),
    `_commit_version` (int64, a timestamp of Nyala) and `_commit_timestamp` (its time, in UTC). A deleted
    row has its key, and NULL in all other columns.

    With `before=True` an update is two rows, "update_preimage" and directly after it
    "update_postimage", and a deleted row has its values.

    Thread-safe. Nothing is read before a method asks for rows, and every read gives the same rows.
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
        """The exclusive lower bound, a timestamp."""
        return self._spec.since

    @property
    def until(self) -> int:
        """The inclusive upper bound, a timestamp. As the next feed's `since` it leaves no gap."""
        return self._spec.until

    @property
    def versions(self) -> Versions:
        """`"net"`: one row per key. `"all"`: every version of every row."""
        return self._spec.versions

    @property
    def before(self) -> bool:
        """Whether the feed has the values before each change."""
        return self._spec.values_at == "both"

    @property
    def dropped_ranges(self) -> list[dict[str, Any]]:
        """Range partitions of the interval that were dropped since: dicts of `range` (text) and `timestamp`.

        The feed contains neither their rows' changes nor deletes of their rows.
        """
        return list(self._dropped)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema. Dropped ranges are JSON in its metadata `nyala.dropped_ranges`."""
        if not self._dropped:
            return self._spec.arrow_schema
        return self._spec.arrow_schema.with_metadata({DROPPED_RANGES: json.dumps(self._dropped)})

    def _read(self, table: TableState) -> Iterator[pa.RecordBatch]:
        return change_batches(table, self._spec)

    def _how_to_repeat(self) -> str:
        return f"call changes again, with since={self.since}, until={self.until} for the same rows"

    def _head(self, n: int) -> pa.Table:
        shown: list[pa.RecordBatch] = []
        for batch in self._batches():
            shown.append(batch.slice(0, n))
            n -= shown[-1].num_rows
            if n <= 0:
                break
        return pa.Table.from_batches(shown, schema=self.schema)

    def __repr__(self) -> str:
        kind = "net changes" if self.versions == "net" else "all versions"
        since, until = (to_datetime(moment).isoformat() for moment in (self.since, self.until))
        return f"ChangeFeed of {self._name}, {kind} after {since} up to {until}"

    def _repr_html_(self) -> str:
        return html_preview(repr(self), self._head)
