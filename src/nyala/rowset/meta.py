"""The description of a DiskRowSet in the catalogue.

It has what a reader needs to open the rowset. It also has the least and greatest key, so that a
search for other keys can skip the rowset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NewType

from nyala.cfile.column import ColumnKey, ColumnPlace
from nyala.lazy_values import LazyValues, lazy_value

RowSetId = NewType("RowSetId", int)

NO_ROWID: Final = -1
"""The rowid that look-ups return for a key that does not exist."""


@dataclass(frozen=True)
class RowSetMeta(LazyValues):
    """The description of a rowset's base file, and the bounds of its keys.

    key_min, key_max: the least and greatest encoded key, both inclusive, also of dead rows.
    deltas_durable:   every change of the rows up to this timestamp is on disk.
    path:             the base file, relative to the store's folder.
    file_id:          the random id in the base file (see `nyala.cfile.format.FILE_ID_BYTES`).
    columns:          where each column's footer is in the file. Columns that were added to the
                      table later are missing.
    size_bytes:       the size of the base file, without delta files.
    schema_version:   the version of the table's schema with which the rowset was written.
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
