"""What a scan read and what it skipped, as text and as numbers: docs/how-to/explain.md."""

from __future__ import annotations

from typing import Any

from nyala.errors import bounded, counted
from nyala.mvcc.timestamp import to_datetime
from nyala.tablet.scan import read_path
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec
from nyala.tablet.state.root import TableState

__all__ = ["Explanation"]


class Explanation:
    """What a scan read and what it skipped: `str()` for people, `to_dict()` for programs."""

    def __init__(self, table: TableState, spec: ScanSpec, counters: ScanCounters | None) -> None:
        """counters: the counters of a scan of `table` that runs or has ended; None before it begins."""
        self._table = table.name
        self._spec = spec
        self._has_run = counters is not None
        self._counters = ScanCounters() if counters is None else counters
        # What a scan without a predicate would read.
        self._blocks_total = read_path.block_count(table, spec)
        held = [rowset.row_count for tablet in table.tablets for rowset in tablet.all_rowsets()]
        self._rows_total = sum(held)
        self._splits_total = sum(-(-rows // read_path.SPLIT_ROWS) for rows in held)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict with the contents of `str()`: the columns, the predicate, and the counts by name.

        Counts that end in `_total` are of the whole table. `rows_in_range` counts the rows in
        partitions and key ranges that the predicate allows. `blocks_total` and `blocks_skipped`
        count each block of a column once. `blocks_decoded` and `cache_hits` count every access to a
        block, also to blocks of keys and changes. `bytes_read` counts bytes that were read from
        files. `operations` says how each column was read.
        """
        counters = self._counters
        return {
            "table": self._table,
            "timestamp": self._spec.snapshot,
            "columns": [column.name for column in self._spec.columns],
            "where": None if self._spec.predicate is None else str(self._spec.predicate),
            "prunes": self._spec.predicate is not None and self._spec.predicate.prunes,
            "tablets_total": counters.tablets_total,
            "tablets_read": counters.tablets_read,
            "rowsets_total": counters.rowsets_total,
            "rowsets_read": counters.rowsets_read,
            "splits_total": self._splits_total,
            "splits_skipped": self._splits_total - counters.splits_read,
            "rows_total": self._rows_total,
            "rows_in_range": counters.rows_in_range,
            "rows_skipped": self._rows_total - counters.rows_read,
            "blocks_total": self._blocks_total,
            "blocks_skipped": self._blocks_total - len(counters.stats.base_blocks),
            "blocks_decoded": counters.stats.blocks_read,
            "bytes_read": counters.stats.bytes_read,
            "cache_hits": counters.stats.cache_hits,
            "deltas_applied": counters.stats.deltas_applied,
            "operations": self._operations(),
        }

    def _operations(self) -> dict[str, list[str]]:
        """Return the columns that were read by each of the operations "filter", "decode" and "gather"."""
        names = [column.name for column in self._spec.schema.columns]
        used = self._counters.stats.operations
        found = {of: [name for name in names if (of, name) in used] for of in ("filter", "decode", "gather")}
        return {operation: columns for operation, columns in found.items() if columns}

    def __str__(self) -> str:
        facts = self.to_dict()
        lines = [
            f"scan of {facts['table']} at {to_datetime(facts['timestamp']).isoformat()}",
            f"  columns   {bounded(', '.join(facts['columns'])) or '(none)'}",
        ]
        if facts["where"] is not None:
            lines.append(f"  where     {bounded(facts['where'])}")
            if not facts["prunes"]:
                lines.append(
                    "            (a pyarrow expression, or OR over several columns: it prunes nothing)"
                )
            if self._spec.predicate is not None and self._spec.predicate.null_note:
                lines.append(f"            ({bounded(self._spec.predicate.null_note)})")
        if not self._has_run:
            return "\n".join([*lines, "  nothing was read yet"])
        rows = f"{facts['rows_total'] - facts['rows_skipped']:,} of {facts['rows_total']:,}"
        if facts["rows_in_range"] < facts["rows_total"]:
            rows += f", {facts['rows_in_range']:,} in matching partitions and key ranges"
        lines += [
            f"  tablets   {facts['tablets_read']} of {facts['tablets_total']}",
            f"  rowsets   {facts['rowsets_read']} of {facts['rowsets_total']}",
            f"  splits    {facts['splits_total'] - facts['splits_skipped']} of {facts['splits_total']}",
            f"  rows      {rows}",
        ]
        for operation, columns in facts["operations"].items():
            lines.append(f"  {operation:<9} {bounded(', '.join(columns))}")
        hits = counted(facts["cache_hits"], "look-up")
        lines += [
            f"  blocks    {facts['blocks_total'] - facts['blocks_skipped']} of {facts['blocks_total']}, "
            f"{facts['bytes_read']:,} bytes read, {hits} found in the cache",
            f"  deltas    {facts['deltas_applied']} applied",
        ]
        return "\n".join(lines)

    __repr__ = __str__
