"""Finds conflicts: keys of a write that another write changed after the snapshot.

A transaction, or any other write that was computed from a snapshot, is committed only if no other
write changed its keys after the snapshot. `check_unchanged` runs under the commit lock. It looks up
the keys in all rowsets, and searches for records that are newer than the snapshot. Dead rows count
too, because a delete also is such a record.

Requires: the history after the snapshot was not discarded. `Store.pins` keeps it.
Cost: rowsets without newer records are not searched.
Source: docs/design/transactions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from nyala.errors import ConflictError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.mvcc.timestamp import to_datetime
from nyala.schema.arrow_values import python_value_at
from nyala.tablet.state.locate import equal_ranges
from nyala.tablet.state.root import AnyRowSet, TableState
from nyala.tablet.write.prepare import PreparedOperation
from nyala.tablet.write.resolve_rows import distinct_keys

_KEYS_MAX: Final = 100


def check_unchanged(table: TableState, operations: Sequence[PreparedOperation], since: int) -> None:
    """Raise ConflictError if a key of `operations` has a record newer than `since`.

    Requires the commit lock.
    """
    entry = table.entry
    if max(entry.rewritten_at, entry.history_start, entry.purged_keys) > since:
        raise ConflictError(
            f"table {table.name!r} was rewritten or lost history after {_time(since)}, so this write cannot be "
            "checked for conflicts. Nothing was written: read again and repeat the write",
            table.name,
        )
    keys, tablets, _ = distinct_keys(table, operations)
    changed = np.flatnonzero(changed_after(table, keys, tablets, since))
    if len(changed):
        raise _conflict(table, keys.take(changed), since)


def changed_after(table: TableState, keys: EncodedKeys, tablets: np.ndarray, since: int) -> np.ndarray:
    """Return a mask of the keys that were inserted, changed or deleted after `since`.

    keys:    in (tablet, key) order.
    tablets: the index of each key's tablet in `table.tablets`.
    """
    changed = np.zeros(len(keys), np.bool_)
    if not len(keys):
        return changed
    keys.prepare_search()
    for ordinal, begin, end in equal_ranges(tablets):
        tablet = table.tablets[ordinal]
        part = keys.slice(begin, end - begin)
        part.prepare_slices()
        for memory in (tablet.memory, *tablet.frozen):
            if _has_newer(memory, since):
                _mark(changed, memory, part, begin, since)
        for disk, lower, upper in tablet.tree.candidates(part) if tablet.rowsets else ():
            if _has_newer(disk, since):
                _mark(changed, disk, part.slice(lower, upper - lower), begin + lower, since)
    return changed


def _has_newer(rowset: AnyRowSet, since: int) -> bool:
    newest = rowset.timestamp_max
    return newest is not None and newest > since


def _mark(changed: np.ndarray, rowset: AnyRowSet, keys: EncodedKeys, begin: int, since: int) -> None:
    """Set `changed` to True for each key that has a record after `since` in this rowset.

    begin: the index in `changed` of the first of these keys.
    """
    rowids = rowset.find(keys)
    hit = np.flatnonzero(rowids >= 0)
    if len(hit):
        changed[begin + hit] |= rowset.changed_after(rowids[hit], since)


def _conflict(table: TableState, keys: EncodedKeys, since: int) -> ConflictError:
    names = table.schema.key_names
    shown = pa.table(
        dict(zip(names, table.codec.decode(keys.slice(0, min(len(keys), _KEYS_MAX))), strict=True))
    )
    first = ", ".join(f"{name}={python_value_at(shown.column(name), 0)!r}" for name in names)
    others = {1: "", 2: " and 1 other key"}.get(len(keys), f" and {len(keys) - 1:,} other keys")
    return ConflictError(
        f"another write changed table {table.name!r} at key {first}{others} after {_time(since)}, the moment that "
        "this write was computed from. Nothing was written: read again and repeat the write (db.run() does both)",
        table.name,
        shown,
    )


def _time(timestamp: int) -> str:
    return to_datetime(timestamp).isoformat()
