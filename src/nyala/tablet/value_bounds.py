"""Between which whole numbers the values of a scan lie: for who carries them in as few bytes as they need.

    a rowset on disk   zone maps of base, parts and relevant delta files, as their footers have them; changes in memory
    rows in memory     the rows themselves, read

No row on disk is read. Bounds may be wider than the values, never narrower: a file's zone map covers every value that
it has (cfile Z1), whichever of them the snapshot shows.

Source: design §6 (Z1).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import pyarrow as pa

from nyala import compute as pc
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.arrow_values import is_narrow
from nyala.schema.schema import NO_DEFAULT, ColumnSchema
from nyala.schema.types import ColumnType, to_canonical
from nyala.tablet import read_path
from nyala.tablet.read_path import ScanCounters, ScanSpec
from nyala.tablet.root import TableState

__all__ = ["ROWSETS_MAX", "value_bounds"]

# Each rowset's footers are opened; of more it is not worth while to wait for them.
ROWSETS_MAX: Final = 256


def value_bounds(table: TableState, spec: ScanSpec) -> dict[str, tuple[int, int]]:
    """(least, greatest) of the scan's columns of integers, and of decimals of up to 18 digits without their point.

    Columns of which it cannot be told, or which have no value at all, are left out.
    Cost: a footer for each such column and file, kept by the open rowsets; what the scan reads of memory.
    """
    units = read_path.plan(table, spec, ScanCounters(), guess=True)
    on_disk = [unit.rowset for unit in units if isinstance(unit.rowset, DiskRowSet)]
    memory = [unit for unit in units if not isinstance(unit.rowset, DiskRowSet)]
    columns = [column for column in spec.columns if _is_whole(column)]
    if not columns or len(on_disk) > ROWSETS_MAX:
        return {}
    rows = None
    if memory:
        plain = dataclasses.replace(spec, columns=tuple(columns), order_by_key=False, limit=None, types={})
        rows = pa.Table.from_batches(read_path.run(memory, plain, ScanCounters()), plain.arrow_schema)
    found: dict[str, tuple[int, int]] = {}
    for column in columns:
        values: list[int] | None = [] if rows is None else _of_array(rows.column(column.name), column.type)
        for rowset in on_disk:
            more = _of_rowset(rowset, column, spec.snapshot)
            values = None if more is None or values is None else values + more
        if values:
            found[column.name] = min(values), max(values)
    return found


def _is_whole(column: ColumnSchema) -> bool:
    return pa.types.is_integer(column.type.arrow) or is_narrow(column.type)


def _of_rowset(rowset: DiskRowSet, column: ColumnSchema, snapshot: int) -> list[int] | None:
    """Numbers between which the column's values lie, none if it has none; None: it cannot be told."""
    found: list[int] = []
    zones = [rowset.zone(column.id)]
    if zones[0] is None and column.read_default is not NO_DEFAULT and column.read_default is not None:
        found.append(to_canonical(column.type, column.read_default))
    for file in (*rowset.undo, *rowset.redo):
        if column.id in file.column_ids and file.relevant(snapshot):
            zones.append(file.column_zone(column.id))
    for zone in zones:
        if zone is None or zone.null_count == zone.row_count:
            continue
        if zone.min is None or zone.max is None:
            return None
        found += [zone.min, zone.max]
    for store in (*rowset.frozen, rowset.deltas):
        for run in store.levels(column.id):
            found += _of_array(run.between(0, snapshot).values, column.type)
    return found


def _of_array(values: Any, type: ColumnType) -> list[int]:
    both = pc.min_max(values)
    found = (to_canonical(type, both[which].as_py()) for which in ("min", "max"))
    return [bound for bound in found if bound is not None]
