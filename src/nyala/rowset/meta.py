"""What a reader must know about a DiskRowSet before it opens the files; the catalogue stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NewType

from nyala.cfile.column import ColumnKey, ColumnPlace
from nyala.lazy_values import LazyValues, lazy_value

__all__ = ["NO_ROWID", "RowSetId", "RowSetMeta"]

RowSetId = NewType("RowSetId", int)

NO_ROWID: Final = -1
"""The rowid that look-ups return for a key that does not exist."""


@dataclass(frozen=True)
class RowSetMeta(LazyValues):
    """A rowset's base file and bounds.

    key_min, key_max: canonical bytes of the least and greatest key, both inclusive; dead rows count
    too.
    deltas_durable:   every change of its rows up to this timestamp is on disk (rule R2).
    path:             relative to the store's folder if it comes from the catalogue.
    file_id:          of the base file (see `nyala.cfile.format.FILE_ID_BYTES`).
    columns:          where the footers are; a column that was added later is not in it.
    size_bytes:       of the base file, without deltas.
    schema_version:   of the table's schema when the rowset was written.
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
