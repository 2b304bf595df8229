"""How far back a table can be read, and which history may be discarded.

                  history_start      mark                       published
    ──────────────────┼───────────────┼────────────────────────────┼──────► time
      may have been   │ not discarded,│      every snapshot        │
      discarded       │ not readable  │      can be read           │

`mark` (Kudu: the ancient history mark) is the current time minus the table's history. It is at most
`published`, so the present can always be read. Nothing newer than the mark is discarded.
`history_start` is the largest mark at which anything was discarded. The catalogue stores
`history_start` together with the files, so it is right in each process, even if the clock goes
back.

Invariants
    H1  A snapshot at T can be taken if T >= mark and T >= history_start.
    H2  A reader can read at any T that was readable when it took its root. Discarding history
        creates new files and a new root, and the files of old roots stay while they are in use.
    H3  Nothing is discarded at a timestamp that reader processes cannot yet see as published.
    H4  A table that was created after the mark can be read at any T since its creation. A read at
        an earlier moment is an error, never an empty result. But a change feed may begin earlier,
        because nothing had changed then.
    H5  A dropped table or range partition can be read at the moments at which it existed, and can
        be brought back, as long as the last of these moments is readable. After that it is purged.
        A read that needs a purged partition raises an error.
    H6  The length of a table's history can be changed. A shorter history is valid at once, and the
        files that it does not need are removed later. A longer history brings back nothing that was
        discarded.
    H7  A tag keeps the tables readable that existed at the tag's moment (`tags`). So the mark of a
        table is not later than the moment of the oldest such tag.

Source: docs/design/kudu.md, "History and its mark". Unlike Nyala, Kudu checks only the mark.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from nyala.catalog.model import CatalogChange, PurgedRange, TableEntry
from nyala.errors import HistoryExpiredError, InvalidArgumentError, TableNotFoundError
from nyala.mvcc.timestamp import from_physical, to_datetime
from nyala.partition.model import Partition, PartitionSchema
from nyala.tablet.state.root import Root, TableState, TabletState

if TYPE_CHECKING:
    from nyala.schema.predicates.constraint import Constraint

DEFAULT_HISTORY: Final = dt.timedelta(days=7)
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def oldest_readable(entry: TableEntry, published: int, now_us: int) -> int:
    """Return the oldest timestamp at which the table can be read.

    Returns 0 if every moment since the table's creation can be read. Otherwise the result is the
    present minus the table's history, or the oldest tag if it is older. If history was discarded
    up to a later moment, the result is that moment.

    published: the newest timestamp that readers may see.
    now_us:    the present, in microseconds since 1970.
    """
    mark = 0
    if entry.history_us is not None:
        mark = min(from_physical(max(now_us - entry.history_us, 0)), published)
        mark = min((mark, *entry.tagged))  # H7
    oldest = max(mark, entry.history_start)
    return max(oldest if oldest > entry.created else 0, entry.rewritten_at)


def check_created(entry: TableEntry, timestamp: int, published: int, note: str = "") -> None:
    """Check that the table existed at `timestamp`.

    published: the newest timestamp that readers may see. A reader process may know a table that was
               created after `published`. Then the check also passes from `published` to the
               creation, so that a read of the newest moment does not fail.
    note:      appended to the message; see `mvcc.timestamp.naive_note`.
    Raises: TableNotFoundError, which names the first readable moment.
    """
    if timestamp >= min(entry.created, published):
        if timestamp < entry.created or entry.existed_at(timestamp):
            return
        dropped = max(moment for moment in entry.drops if moment <= timestamp)
        back = next((moment for moment in entry.drops if moment > timestamp), None)
        later = ""
        if back is not None:
            later = f", and brought back at {to_datetime(back).isoformat()} (timestamp {back})"
        raise TableNotFoundError(
            f"table {entry.name!r} did not exist at {to_datetime(timestamp).isoformat()} (timestamp {timestamp}): it "
            f"was dropped at {to_datetime(dropped).isoformat()} (timestamp {dropped}){later}{note}"
        )
    raise TableNotFoundError(
        f"table {entry.name!r} did not exist at {to_datetime(timestamp).isoformat()} (timestamp {timestamp}): the "
        f"first moment that can be read is its creation at {to_datetime(entry.created).isoformat()} (timestamp "
        f"{entry.created}){note}"
    )


def check_readable(entry: TableEntry, timestamp: int, published: int, now_us: int, note: str = "") -> None:
    """Check that the table can still be read at `timestamp`. `note` is appended to the message.

    Raises: HistoryExpiredError.
    """
    oldest = oldest_readable(entry, published, now_us)
    if timestamp < entry.rewritten_at and entry.rewritten_at >= oldest:
        raise HistoryExpiredError(
            f"table {entry.name!r} cannot be read at {to_datetime(timestamp).isoformat()}: repartition(), "
            f"clone_table() or copy_table() rewrote it at {to_datetime(entry.rewritten_at).isoformat()} (timestamp "
            f"{entry.rewritten_at}), and these calls keep no history{note}"
        )
    if timestamp < oldest:
        discarded = oldest_readable(dataclasses.replace(entry, history_start=0), published, now_us) < oldest
        raise HistoryExpiredError(
            f"table {entry.name!r} cannot be read at {to_datetime(timestamp).isoformat()}: its history is "
            f"{describe_history(entry.history_us)} (set by create_table(history=…) or set_history(…)), and the oldest "
            f"moment that can be read is {to_datetime(oldest).isoformat()} (timestamp {oldest})"
            + ("; older rows were discarded while the history was shorter" if discarded else "")
            + note
        )


def check_purged(
    table: TableState, timestamp: int, constraints: Mapping[str, Constraint] = MappingProxyType({})
) -> None:
    """Check that a read needs no rows of a purged range partition.

    timestamp:   the moment of the read.
    constraints: conditions on columns, by name, that all rows of the read satisfy.
    Raises: HistoryExpiredError if a range partition that existed at `timestamp` and was purged
            later may have had rows that satisfy the constraints.
    """
    entry = table.entry
    missing = [gone for gone in entry.purged if gone.missing_at(timestamp)]
    if not missing:
        return
    from nyala.partition.pruning import prune

    # Rows may be in each hash bucket, so only the ranges are compared.
    ranges = PartitionSchema((), entry.partition_schema.range_column_ids)
    needed = prune(
        constraints, ranges, [Partition((), gone.lower, gone.upper) for gone in missing], table.schema
    )
    for gone, is_needed in zip(missing, needed.tolist(), strict=True):
        if is_needed:
            raise _purged_error(table, gone, timestamp)


def check_purged_keys(table: TableState, keys: Mapping[str, pa.Array], count: int, timestamp: int) -> None:
    """Check that no key of a look-up was in a range partition that was purged.

    keys:      the key columns by name, with `count` rows.
    timestamp: the moment of the look-up.
    Raises: HistoryExpiredError, as `check_purged`.
    """
    from nyala.partition.router import Router

    for gone in table.entry.purged:
        if gone.missing_at(timestamp):
            ranges = PartitionSchema((), table.entry.partition_schema.range_column_ids)
            router = Router(ranges, [Partition((), gone.lower, gone.upper)], table.schema)
            if (router.route(keys, count) >= 0).any():
                raise _purged_error(table, gone, timestamp)


def _purged_error(table: TableState, gone: PurgedRange, timestamp: int) -> HistoryExpiredError:
    from nyala.partition.describe import describe_range

    entry = table.entry
    named = describe_range((gone.lower, gone.upper), entry.partition_schema, table.schema)
    return HistoryExpiredError(
        f"table {entry.name!r} cannot be read at {to_datetime(timestamp).isoformat()}: the read needs the partition "
        f"{named}, which was dropped and purged at {to_datetime(gone.dropped).isoformat()} (timestamp "
        f"{gone.dropped}). Read at that moment or later, or exclude the range with where="
    )


def check_same_ranges(table: TableState, to: int) -> None:
    """Check that no range partition with rows was dropped or brought back after the moment `to`.

    Raises: InvalidArgumentError, which names such a partition.
    """
    for tablet in table.every_tablet:
        entry = tablet.entry
        if entry.drops and entry.existed_at(to) != (not entry.dropped) and has_rows(tablet):
            from nyala.partition.describe import describe_range

            bounds = entry.partition.range_lower, entry.partition.range_upper
            named = describe_range(bounds, table.entry.partition_schema, table.schema)
            what, step = ("dropped", "undrop_range()") if entry.dropped else ("brought back", "drop_range()")
            since = f"was {what} at {to_datetime(entry.drops[-1]).isoformat()}"
            raise InvalidArgumentError(
                f"table {table.name!r} cannot be restored to {to_datetime(to).isoformat()}: the partition {named} "
                f"{since}. Call {step} in table.alter() first, or restore to a later moment"
            )


def has_rows(tablet: TabletState) -> bool:
    """Whether the tablet has rows, live or dead."""
    return any(rowset.row_count for rowset in tablet.all_rowsets())


def purged_ranges(tablets: Sequence[TabletState]) -> list[PurgedRange]:
    """Return the key ranges of those `tablets` that have rows, before the tablets are purged.

    The catalogue entry of the table remembers these ranges.

    tablets: dropped tablets.
    """
    found: dict[tuple[bytes | None, bytes | None, tuple[int, ...]], int] = {}
    for tablet in tablets:
        if has_rows(tablet):
            place = tablet.partition.range_lower, tablet.partition.range_upper, tablet.entry.drops
            found[place] = min(found.get(place, tablet.entry.created), tablet.entry.created)
    return [PurgedRange(lower, upper, created, drops) for (lower, upper, drops), created in found.items()]


def note_cut(change: CatalogChange, root: Root, table_id: int, cut: int) -> Root:
    """Record in `change` that the table's history before `cut` is discarded; return the new root.

    The table's entry gets `cut` as its `history_start`. Its schema versions and purged ranges that
    only older snapshots need are removed.
    """
    table = root.any_table(table_id)
    assert table is not None, "the caller has found the table in this root"
    if cut <= table.entry.history_start:
        return root
    entry = dataclasses.replace(table.entry.without_past(cut), history_start=cut)
    change.put_tables = [put for put in change.put_tables if put.id != table_id] + [entry]
    return root.with_table(dataclasses.replace(table, entry=entry))


def parse_history(given: dt.timedelta | str | float | None) -> int | None:
    """Convert a history setting to microseconds; None: forever. Raises: InvalidArgumentError."""
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
                f"invalid history={history!r}: pass 'forever' or a time such as '7d', '2w', '12h', '30m' or '90s'"
            )
        history = float(match[1]) * _UNITS_S[match[2]]
    if isinstance(history, dt.timedelta):
        history = history.total_seconds()
    if isinstance(history, bool) or not isinstance(history, int | float) or not 0 <= history < 1e11:
        raise InvalidArgumentError(
            f"invalid history={history!r}: pass a timedelta, text such as '7d', seconds, 'forever' or None"
        )
    return round(history * 1e6)


def describe_history(history_us: int | None) -> str:
    """Return the text of a history: "7 days", "90 seconds", "forever"."""
    if history_us is None:
        return "forever"
    if history_us == 0:
        return "the present only"
    for unit, size in (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000)):
        if history_us % size == 0:
            count = history_us // size
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return "1 second" if history_us == 1_000_000 else f"{history_us / 1e6:g} seconds"
