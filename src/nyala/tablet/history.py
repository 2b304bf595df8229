"""How far back a table can be read, and what may be thrown away.

                  history_start      mark                       published
    ──────────────────┼───────────────┼────────────────────────────┼──────► time
      may be gone     │  still there, │      every snapshot        │
                      │  not promised │      can be read           │

`mark` (Kudu: the ancient history mark) moves with the clock: now less the table's history, but never past what is
published, so that the present can always be read. Nothing newer than the mark is ever thrown away.
`history_start` is the greatest mark that anything was thrown away at; it stands in the catalogue with the
files that it was done to, so it holds for every root, every process, and whatever the clock does.

Invariants
    H1  A snapshot T may be taken of a root iff T >= mark and T >= the root's history_start.
    H2  Whoever has a root reads any T that he could take at the time: cutting makes new files and a new
        root, and the files of old roots stay as long as somebody has one (P2).
    H3  Nothing is thrown away at a timestamp that reader processes cannot yet see as published.
    H4  Of a table that is younger than its history everything is there: it can be read at any T, also before its
        creation, when it was empty.

Source: Kudu facts 4.6. Departure: Kudu refuses by the mark alone; the clock of a machine may go back.
"""

from __future__ import annotations

import dataclasses

from nyala.catalog.model import CatalogChange, TableEntry
from nyala.errors import HistoryExpiredError
from nyala.mvcc.timestamp import from_physical, to_datetime
from nyala.tablet.root import Root


def oldest_readable(entry: TableEntry, published: int, now_us: int) -> int:
    """The oldest timestamp at which the table can be read now (H1); 0 when its whole life can be (H4)."""
    mark = 0
    if entry.history_us is not None:
        mark = min(from_physical(max(now_us - entry.history_us, 0)), published)
    oldest = max(mark, entry.history_start)
    return oldest if oldest > entry.created else 0


def check_readable(entry: TableEntry, timestamp: int, published: int, now_us: int) -> None:
    """Raises: HistoryExpiredError when the table cannot be read at `timestamp` any more."""
    oldest = oldest_readable(entry, published, now_us)
    if timestamp < oldest:
        raise HistoryExpiredError(
            f"table {entry.name!r} can be read back to {to_datetime(oldest).isoformat()} (timestamp {oldest}), not to "
            f"{to_datetime(timestamp).isoformat()}: its history is {describe_history(entry.history_us)}, as "
            "create_table(history=…) said"
        )


def note_cut(change: CatalogChange, root: Root, table_id: int, cut: int) -> Root:
    """`root` and `change` with the table's `history_start` at `cut`, if that is later: something goes that
    is older."""
    table = root.tables[table_id]
    if cut <= table.entry.history_start:
        return root
    entry = dataclasses.replace(table.entry, history_start=cut)
    change.put_tables = [put for put in change.put_tables if put.id != table_id] + [entry]
    return root.with_table(dataclasses.replace(table, entry=entry))


def describe_history(history_us: int | None) -> str:
    """As a person writes it: "7 days", "90 seconds", "forever"."""
    if history_us is None:
        return "forever"
    if history_us == 0:
        return "the present only"
    for unit, size in (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000)):
        if history_us % size == 0:
            count = history_us // size
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return "1 second" if history_us == 1_000_000 else f"{history_us / 1e6:g} seconds"
