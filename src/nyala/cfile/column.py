"""Values that describe a column of a file: its key, how to write it, and where its footer is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from nyala.cfile import format
from nyala.schema.types import ColumnType

BASE: Final = format.ROLE_BASE
KEY: Final = format.ROLE_KEY
BLOOM: Final = format.ROLE_BLOOM
DELTA_ROWID: Final = format.ROLE_DELTA_ROWID
DELTA_TIMESTAMP: Final = format.ROLE_DELTA_TIMESTAMP
DELTA_VALUE: Final = format.ROLE_DELTA_VALUE


class ColumnKey(NamedTuple):
    """Identifies a column within its file, by role, group and column id.

    The role says what the column contains: values of a user's column, encoded keys, a bloom filter,
    or the rowids, timestamps and values of changes (`format.ROLES`). In a delta file, the value
    columns of one group share one column of rowids and one of timestamps.

    It is a tuple and not a dataclass, because every access to a column hashes and compares the key,
    and tuples do this faster.
    """

    role: int
    # Encoded keys: the file has the key of every 2^group-th row.
    group: int = 0
    column_id: int = 0  # the schema's id; negative for LIVENESS; 0 for keys, bloom, rowids and timestamps

    def __str__(self) -> str:
        return f"{format.ROLES.get(self.role, self.role)}/{self.group}/{self.column_id}"

    @property
    def in_words(self) -> str:
        """The column in words for error messages, for example "column 10 of the base data"."""
        column = "the LIVENESS column" if self.column_id == -1 else f"column {self.column_id}"
        match self:
            case (format.ROLE_BASE, 0, _):
                return f"{column} of the base data"
            case (format.ROLE_KEY, 0, 0):
                return "the column of encoded keys"
            case (format.ROLE_KEY, group, 0):
                return f"the column with the encoded key of every 2^{group}-th row"
            case (format.ROLE_BLOOM, 0, 0):
                return "the column of the bloom filter"
            case (format.ROLE_DELTA_ROWID, group, 0):
                return f"the rowids of the changes in column group {group}"
            case (format.ROLE_DELTA_TIMESTAMP, group, 0):
                return f"the timestamps of the changes in column group {group}"
            case (format.ROLE_DELTA_VALUE, group, _):
                return f"the changed values of {column} in column group {group}"
        role = format.ROLES.get(self.role, f"number {self.role}")
        return f"a column of role {role}, column group {self.group} and column id {self.column_id}"


@dataclass(frozen=True)
class ColumnWriteSpec:
    """How to store a column. If its type or values do not allow `encoding`, another one is used."""

    key: ColumnKey
    type: ColumnType
    encoding: str = "auto"
    compression: str = "default"
    block_size_bytes: int | None = None
    single_values: bool = False
    """Whether readers gather single values of this column, as in composite keys and delta files.

    Then 'auto' chooses an encoding that gathers a value without decoding its block, if the type has
    such an encoding.
    """


@dataclass(frozen=True)
class ColumnPlace:
    """The place of a column's footer in the file.

    The catalogue stores the places of all footers, so readers need not read the file's directory.
    """

    key: ColumnKey
    offset: int
    length: int


@dataclass(frozen=True)
class WrittenFile:
    """What the catalogue stores about a finished file.

    file_id: a random id, as hexadecimal text.
    columns: the places of all footers, in file order.
    """

    path: str
    file_id: str
    size_bytes: int
    columns: tuple[ColumnPlace, ...]
