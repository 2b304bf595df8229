"""What names a column of a file, what is asked of its writer, and where it went: values that cross seams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from nyala.cfile import format
from nyala.schema.types import ColumnType

__all__ = ["BASE", "BLOOM", "DELTA_ROWID", "DELTA_TIMESTAMP", "DELTA_VALUE", "KEY"]
__all__ += ["ColumnKey", "ColumnPlace", "ColumnWriteSpec", "WrittenFile"]

BASE: Final = format.ROLE_BASE
KEY: Final = format.ROLE_KEY
BLOOM: Final = format.ROLE_BLOOM
DELTA_ROWID: Final = format.ROLE_DELTA_ROWID
DELTA_TIMESTAMP: Final = format.ROLE_DELTA_TIMESTAMP
DELTA_VALUE: Final = format.ROLE_DELTA_VALUE


class ColumnKey(NamedTuple):
    """The name of a column inside one file; unique there. A tuple, as all columns of a file are looked up by it: a
    dataclass is hashed and compared in Python."""

    role: int
    group: int = 0  # delta files: columns of one group share rowids and timestamps
    column_id: int = 0  # the schema's id; negative for liveness, 0 for keys, bloom, rowids and timestamps

    def __str__(self) -> str:
        return f"{format.ROLES.get(self.role, self.role)}/{self.group}/{self.column_id}"


@dataclass(frozen=True)
class ColumnWriteSpec:
    """How a column is to be stored. What its type or its values do not allow falls back to what 'auto' takes."""

    key: ColumnKey
    type: ColumnType
    encoding: str = "auto"
    compression: str = "default"
    block_size_bytes: int | None = None
    single_values: bool = (
        False  # of a composite key or a delta file: 'auto' takes frames and runs, where it can
    )


@dataclass(frozen=True)
class ColumnPlace:
    """Where a column's footer lies: what the catalogue keeps, so that no directory need be read."""

    key: ColumnKey
    offset: int
    length: int


@dataclass(frozen=True)
class WrittenFile:
    """A finished file. `columns` in the order in which they were appended; `file_id`: see `format.FILE_ID_BYTES`."""

    path: str
    file_id: str
    size_bytes: int
    columns: tuple[ColumnPlace, ...]
