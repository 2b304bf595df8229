"""What must be known of a DiskRowSet to open it: a row of the catalogue, without the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NewType

from nyala.cfile.column import ColumnKey, ColumnPlace
from nyala.lazy_values import LazyValues, lazy_value

__all__ = ["NO_ROWID", "RowSetId", "RowSetMeta"]

RowSetId = NewType("RowSetId", int)

NO_ROWID: Final = -1
"""Stands for "no such row" wherever rowids come back from a look-up."""


@dataclass(frozen=True)
class RowSetMeta(LazyValues):
    """A rowset's base file and bounds.

    key_min, key_max: canonical bytes of the least and greatest key, both inclusive; dead rows count too.
    deltas_durable:   every change of its rows up to this timestamp is on disk (rule R2).
    path:             relative to the store's folder in the catalogue; as it was opened or written elsewhere.
    file_id:          of the base file (see `nyala.cfile.format.FILE_ID_BYTES`).
    columns:          where the footers lie; a column added later has none here.
    size_bytes:       of the base file, without deltas.
    schema_version:   of the table's schema with which it was written.
    """

    id: int
    tablet_id: int
    row_count: int
    key_min: bytes
    key_max: bytes
    deltas_durable: int
    path: str
    file_id: str
    columns: tuple[ColumnPlace, ...]
    size_bytes: int
    schema_version: int = 0

    @lazy_value
    def places(self) -> Mapping[ColumnKey, ColumnPlace]:
        return {place.key: place for place in self.columns}
