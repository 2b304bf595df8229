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
    H5  Rows of a range partition that was dropped go at once, with their past. A moment at which they were there is
        readable but for them: who needs them is refused.
    H4  A table that is younger than its history can be read at any T since its creation. Before that there was no
        table, which is an error and never an empty answer. A feed may begin before: nothing had changed then.
    H6  A table's history may be altered. A shorter one holds at once, and bytes go later; a longer one brings back
        nothing that was thrown away, which `history_start` tells.

Source: docs/design/kudu.md, "History and its mark". Departure: Kudu refuses by the mark alone; the clock of a machine
may go back.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from nyala.catalog.model import CatalogChange, DroppedRange, TableEntry
from nyala.errors import HistoryExpiredError, InvalidArgumentError, TableNotFoundError
from nyala.mvcc.timestamp import from_physical, to_datetime
from nyala.partition.model import Partition, PartitionSchema
from nyala.tablet.state.root import Root, TableState

if TYPE_CHECKING:
    from nyala.schema.predicates.constraint import Constraint

DEFAULT_HISTORY: Final = dt.timedelta(days=7)
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def oldest_readable(entry: TableEntry, published: int, now_us: int) -> int:
    """The oldest timestamp at which the table can be read now (H1); 0 when its whole life can be (H4)."""
    mark = 0
    if entry.history_us is not None:
        mark = min(from_physical(max(now_us - entry.history_us, 0)), published)
    oldest = max(mark, entry.history_start)
    return max(oldest if oldest > entry.created else 0, entry.rewritten)


def check_created(entry: TableEntry, timestamp: int, published: int, note: str = "") -> None:
    """Check that the table existed at `timestamp` (H4).

    published: the newest timestamp that can be read; a reader process may see a table before the moment of its creation
               is published, and may read it then.
    note:      the end of the sentence, about how the moment was given.
    Raises: TableNotFoundError with the first moment that can be read.
    """
    if timestamp >= min(entry.created, published):
        return
    raise TableNotFoundError(
        f"table {entry.name!r} did not exist at {to_datetime(timestamp).isoformat()} (timestamp "
        f"{timestamp}): it was created at "
        f"{to_datetime(entry.created).isoformat()} (timestamp {entry.created}), the first moment that can be read{note}"
    )


def check_readable(entry: TableEntry, timestamp: int, published: int, now_us: int, note: str = "") -> None:
    """note: the end of the sentence, about how the moment was given.

    Raises: HistoryExpiredError when the table cannot be read at `timestamp` any more.
    """
    oldest = oldest_readable(entry, published, now_us)
    if timestamp < entry.rewritten and entry.rewritten >= oldest:
        raise HistoryExpiredError(
            f"table {entry.name!r} was written anew at {to_datetime(entry.rewritten).isoformat()} (timestamp "
            f"{entry.rewritten}), by repartition() or copy_table(), which keep no history: it cannot be read at "
            f"{to_datetime(timestamp).isoformat()}{note}"
        )
    if timestamp < oldest:
        thrown_away = oldest_readable(dataclasses.replace(entry, history_start=0), published, now_us) < oldest
        raise HistoryExpiredError(
            f"table {entry.name!r} can be read back to {to_datetime(oldest).isoformat()} (timestamp {oldest}), not to "
            f"{to_datetime(timestamp).isoformat()}: its history is {describe_history(entry.history_us)}, as "
            "create_table(history=…) or set_history(…) said"
            + (", and what is older was thrown away while it was shorter" if thrown_away else "")
            + note
        )


def check_dropped(
    table: TableState, timestamp: int, constraints: Mapping[str, Constraint] = MappingProxyType({})
) -> None:
    """Raises: HistoryExpiredError when rows that satisfy the constraints may have lain in a range partition that was
    there at `timestamp` and was dropped since: they are gone with their past, and are never left out silently."""
    entry = table.entry
    missing = [gone for gone in entry.dropped if gone.missing_at(timestamp)]
    if not missing:
        return
    from nyala.partition.pruning import prune

    # Of the buckets some can hold rows in any case, so only the ranges are looked at.
    ranges = PartitionSchema((), entry.partition_schema.range_column_ids)
    needed = prune(
        constraints, ranges, [Partition((), gone.lower, gone.upper) for gone in missing], table.schema
    )
    for gone, is_needed in zip(missing, needed.tolist(), strict=True):
        if is_needed:
            raise _dropped_error(table, gone, timestamp)


def check_dropped_keys(table: TableState, keys: Mapping[str, pa.Array], count: int, timestamp: int) -> None:
    """The same for rows that are looked up by key. keys: of `count` rows, the key columns by name."""
    from nyala.partition.router import Router

    for gone in table.entry.dropped:
        if gone.missing_at(timestamp):
            ranges = PartitionSchema((), table.entry.partition_schema.range_column_ids)
            router = Router(ranges, [Partition((), gone.lower, gone.upper)], table.schema)
            if (router.route(keys, count) >= 0).any():
                raise _dropped_error(table, gone, timestamp)


def _dropped_error(table: TableState, gone: DroppedRange, timestamp: int) -> HistoryExpiredError:
    from nyala.partition.describe import describe_range

    entry = table.entry
    named = describe_range((gone.lower, gone.upper), entry.partition_schema, table.schema)
    return HistoryExpiredError(
        f"table {entry.name!r} cannot be read at {to_datetime(timestamp).isoformat()} where it needs the partition "
        f"{named}: that was dropped, with its history, at {to_datetime(gone.dropped).isoformat()} (timestamp "
        f"{gone.dropped}); read from then on, or leave its range out with where="
    )


def note_cut(change: CatalogChange, root: Root, table_id: int, cut: int) -> Root:
    """`root` and `change` with the table's `history_start` at `cut`, if that is later: something goes that
    is older. Schema versions and dropped ranges that only older snapshots need go with it."""
    table = root.tables[table_id]
    if cut <= table.entry.history_start:
        return root
    entry = dataclasses.replace(table.entry.without_past(cut), history_start=cut)
    change.put_tables = [put for put in change.put_tables if put.id != table_id] + [entry]
    return root.with_table(dataclasses.replace(table, entry=entry))


def parse_history(given: dt.timedelta | str | float | None) -> int | None:
    """Microseconds of history to keep, of what a user gave; None for ever. Raises: InvalidArgumentError."""
    history: object = given
    if history is None:
        history = DEFAULT_HISTORY
    if isinstance(history, str):
        text = history.strip().lower()
        if text == "forever":
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text)
        if match is None:
            raise InvalidArgumentError(
                f"history={history!r} is neither 'forever' nor a time such as '7d', '2w', '12h', '30m' or '90s'"
            )
        history = float(match[1]) * _UNITS_S[match[2]]
    if isinstance(history, dt.timedelta):
        history = history.total_seconds()
    if isinstance(history, bool) or not isinstance(history, int | float) or not 0 <= history < 1e11:
        raise InvalidArgumentError(
            f"history takes a timedelta, text such as '7d', seconds, 'forever' or None, not {history!r}"
        )
    return round(history * 1e6)


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
