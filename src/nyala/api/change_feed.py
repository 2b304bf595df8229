"""The change feed: the rows of one table that changed between two moments.

feed = table.changes(since=last)          the rows that changed in (since, until]
for batch in feed.to_reader(): ...        reads them in bounded memory
last = feed.until                         the next feed begins where this one ended
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from nyala.api.pinned_rows import PinnedRows, ScannedStore
from nyala.mvcc.timestamp import to_datetime
from nyala.partition.describe import describe_range
from nyala.presentation.previews import html_preview
from nyala.tablet.changes.feed import change_batches
from nyala.tablet.changes.spec import ChangeSpec, Versions
from nyala.tablet.state.history import has_rows
from nyala.tablet.state.root import Root, TableState

# Keys in the metadata of a feed's Arrow schema, for range partitions that were dropped or brought back.
DROPPED_RANGES: Final = b"nyala.dropped_ranges"
RESTORED_RANGES: Final = b"nyala.restored_ranges"


@dataclass(frozen=True)
class RangeChange:
    """A range partition that was dropped or brought back, and when."""

    range: str
    """The range, for instance `RANGE (time) [2014-01-01, 2015-01-01)`."""
    timestamp: int
    """The moment of the drop, or of the return."""


class ChangeFeed(PinnedRows):
    """The rows of one table that changed between two moments, from `Table.changes`.

    The feed has the key columns, the other columns, `_change_type` ("insert", "update" or
    "delete"), `_commit_version` (int64, a timestamp of Nyala) and `_commit_timestamp` (its time in
    UTC). For a deleted row, all columns except the key are NULL.

    With `before=True` an update is two rows, "update_preimage" and directly after it
    "update_postimage", and a deleted row has its values.

    Thread-safe. Nothing is read before a method asks for rows, and every read gives the same rows.
    """

    _what = "change feed"

    def __init__(self, store: ScannedStore, root: Root, table: TableState, spec: ChangeSpec) -> None:
        super().__init__(store, root, table)
        self._spec = spec
        self._purged = table.entry.purged_keys
        dropped = {
            ((gone.lower, gone.upper), gone.dropped)
            for gone in table.entry.purged
            if gone.created <= spec.until and gone.dropped > spec.since
        }
        restored = set()
        for tablet in (root.any_table(table.id) or table).every_tablet:
            entry, place = tablet.entry, (tablet.partition.range_lower, tablet.partition.range_upper)
            moment = max((moment for moment in entry.drops if moment <= spec.until), default=0)
            if moment > spec.since and has_rows(tablet):
                if not entry.existed_at(spec.until):
                    dropped.add((place, moment))
                elif not entry.existed_at(spec.since):
                    restored.add((place, moment))

        def described(
            ranges: Iterable[tuple[tuple[bytes | None, bytes | None], int]],
        ) -> tuple[RangeChange, ...]:
            levels, schema = table.entry.partition_schema, table.schema
            in_order = sorted(ranges, key=lambda each: (each[1], each[0][0] or b""))
            return tuple(
                RangeChange(describe_range(bounds, levels, schema), moment) for bounds, moment in in_order
            )

        self._ranges = {DROPPED_RANGES: described(dropped), RESTORED_RANGES: described(restored)}

    @property
    def since(self) -> int:
        """The exclusive lower bound, a timestamp."""
        return self._spec.since

    @property
    def until(self) -> int:
        """The inclusive upper bound, a timestamp. If the next feed has it as `since`, no change is missed."""
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
    def dropped_ranges(self) -> tuple[RangeChange, ...]:
        """The range partitions that were dropped in the interval or later, ordered by the drop's timestamp.

        The feed contains no changes of their rows.
        """
        return self._ranges[DROPPED_RANGES]

    @property
    def restored_ranges(self) -> tuple[RangeChange, ...]:
        """The range partitions that `undrop_range` brought back in the interval, ordered by timestamp.

        The feed does not show their rows as inserted: read the range at `until` instead.
        """
        return self._ranges[RESTORED_RANGES]

    @property
    def purged(self) -> int | None:
        """The timestamp of the last `Table.purge` after `since`; None if no purge happened since.

        The feed contains no changes of the purged rows up to this moment, and does not show their deletion.
        """
        return self._purged if self._purged > self.since else None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema. Its metadata has `dropped_ranges` and `restored_ranges` as JSON, if there are any."""
        found = {
            key: json.dumps([asdict(each) for each in ranges])
            for key, ranges in self._ranges.items()
            if ranges
        }
        return self._spec.arrow_schema.with_metadata(found) if found else self._spec.arrow_schema

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
