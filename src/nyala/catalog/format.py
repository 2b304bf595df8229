"""All numbers and columns of `catalog.sqlite`. On disk: never renumber, never reorder.

The database has twelve tables, each described once, here, as a `TableShape`. Its CREATE, SELECT,
INSERT and DELETE statements and the bytes under its checksums follow from that.

Checksums (SQLite does not detect a flipped bit in its pages):

    C1  The last column of every row, `crc`, is the CRC-32C of `serialise(shape, values)`: the
        table's name and all other values, each with its type and length, so that different rows
        have different bytes.
    C2  `sums` has one row for each other table: its row count and the sum of its `crc` modulo
        2**64. So a lost or duplicated row is detected too.
    C3  Every row of `sums` has the catalogue's version, and every transaction writes them. So a
        page that SQLite wrote and the disk lost is detected too.

Source: docs/format/catalog.md; docs/design/log-and-recovery.md, "The catalogue is a SQLite
database".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import google_crc32c

from nyala.lazy_values import LazyValues, lazy_value

__all__ = [
    "APPLICATION_ID",
    "BASE_OWNER",
    "CATALOG_NAME",
    "COMMITTED_KEYS",
    "DELTAS",
    "DELTA_OWNER",
    "DROPPED_RANGES",
    "FORMAT_VERSION",
    "GARBAGE",
    "LEASES_NAME",
    "LOCK_NAME",
    "PARTS",
    "PART_OWNER",
    "PLACES",
    "ROWSETS",
    "SCHEMAS",
    "SHAPES",
    "SOCKET_NAME",
    "STORE",
    "SUMS",
    "SUM_MODULUS",
    "TABLES",
    "TABLETS",
    "Row",
    "TableShape",
    "serialise",
]

CATALOG_NAME: Final = "catalog.sqlite"
LOCK_NAME: Final = "lock"
LEASES_NAME: Final = "leases"
SOCKET_NAME: Final = "writer.sock"

APPLICATION_ID: Final = 0x4E79616C  # "Nyal", in the file's bytes 68 to 71
FORMAT_VERSION: Final = 4  # PRAGMA user_version, and store.format_version

BASE_OWNER: Final = 0  # places.owner_kind: the base file of rowset `owner_id`
DELTA_OWNER: Final = 1  # places.owner_kind: the delta file `owner_id`
PART_OWNER: Final = 2  # places.owner_kind: the part `owner_id`

SUM_MODULUS: Final = 2**64

Value: TypeAlias = "int | str | bytes | None"
Row: TypeAlias = "tuple[Value, ...]"

_NULL, _INTEGER, _TEXT, _BLOB = 0, 1, 2, 3
_TAGGED_INTEGER = struct.Struct("<Bq")
_TAGGED_LENGTH = struct.Struct("<BI")
_TAGGED_NULL = bytes([_NULL])


_INT, _INT_OR_NULL = "INTEGER NOT NULL", "INTEGER"
_STR, _BYTES, _BYTES_OR_NULL = "TEXT NOT NULL", "BLOB NOT NULL", "BLOB"


@dataclass(frozen=True)
class TableShape(LazyValues):
    """One table: its columns without `crc` as (name, SQLite type), the key columns first."""

    name: str
    columns: tuple[tuple[str, str], ...]
    key_count: int = 1

    @lazy_value
    def column_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @lazy_value
    def create_sql(self) -> str:
        """The statement as SQLite stores it; every open compares it exactly."""
        columns = ", ".join(f'"{name}" {kind}' for name, kind in self.columns)
        key = ", ".join(f'"{name}"' for name in self.column_names[: self.key_count])
        return (
            f'CREATE TABLE "{self.name}" ({columns}, "crc" INTEGER NOT NULL, PRIMARY KEY ({key})) '
            "WITHOUT ROWID"
        )

    @lazy_value
    def select_sql(self) -> str:
        """Selects all rows, `crc` last, in key order, which is the stored order: no sort."""
        columns = ", ".join(f'"{name}"' for name in (*self.column_names, "crc"))
        key = ", ".join(f'"{name}"' for name in self.column_names[: self.key_count])
        return f'SELECT {columns} FROM "{self.name}" ORDER BY {key}'

    @lazy_value
    def insert_sql(self) -> str:
        return f'INSERT INTO "{self.name}" VALUES ({", ".join("?" * (len(self.columns) + 1))})'

    @lazy_value
    def delete_sql(self) -> str:
        key = " AND ".join(f'"{name}" = ?' for name in self.column_names[: self.key_count])
        return f'DELETE FROM "{self.name}" WHERE {key}'

    @lazy_value
    def prefix(self) -> bytes:
        """The bytes before the values in `serialise`."""
        name = self.name.encode()
        return struct.pack("<II", len(name), len(self.columns)) + name

    def crcs(self, rows: Sequence[Row]) -> list[int]:
        """The CRC-32C of each row, given without its `crc`. Raises: TypeError, as `serialise`."""
        value = google_crc32c.value
        if self._eight_integers is None:
            return [value(serialise(self, row)) for row in rows]
        # The shape of `places`, which has by far the most rows: one C call packs a row.
        pack, prefix, i = self._eight_integers.pack, self.prefix, _INTEGER
        try:
            return [
                value(pack(prefix, i, a, i, b, i, c, i, d, i, e, i, f, i, g, i, h))
                for a, b, c, d, e, f, g, h in rows
            ]
        except struct.error as error:
            raise TypeError(str(error)) from None

    @lazy_value
    def _eight_integers(self) -> struct.Struct | None:
        if [kind for _, kind in self.columns] != [_INT] * 8:
            return None
        return struct.Struct(f"<{len(self.prefix)}s" + "Bq" * 8)


def serialise(shape: TableShape, values: Row) -> bytes:
    """The bytes under a row's CRC (C1), little-endian.

        u32 length of the table's name | u32 number of values | the name | the values, in column
        order

    A value is one byte for its type, followed by: NULL (0) nothing; integer (1) eight bytes,
    signed; text (2) and blob (3) a u32 length and the bytes (text as UTF-8).

    Raises: TypeError for any other type: a damaged row may have a float.
    """
    parts = [shape.prefix]
    for value in values:
        if type(value) is int:
            parts.append(_TAGGED_INTEGER.pack(_INTEGER, value))
        elif value is None:
            parts.append(_TAGGED_NULL)
        elif type(value) is str:
            encoded = value.encode()
            parts.append(_TAGGED_LENGTH.pack(_TEXT, len(encoded)))
            parts.append(encoded)
        elif type(value) is bytes:
            parts.append(_TAGGED_LENGTH.pack(_BLOB, len(value)))
            parts.append(value)
        else:
            raise TypeError(f"a value has type {type(value).__name__}")
    return b"".join(parts)


STORE: Final = TableShape(
    "store",  # one row, id 0
    (
        ("id", _INT),
        ("format_version", _INT),
        ("store_id", _STR),
        ("created_us", _INT),
        ("version", _INT),
        ("timestamp_max", _INT),
        ("wal_start", _INT),
        ("next_table_id", _INT),
        ("next_tablet_id", _INT),
        ("next_rowset_id", _INT),
        ("next_delta_id", _INT),
    ),
)
TABLES: Final = TableShape(
    "tables",
    (
        ("id", _INT),
        ("name", _STR),
        ("comment", _STR),
        ("history_us", _INT_OR_NULL),
        ("schema_version", _INT),
        ("partition_schema", _STR),
        ("history_start", _INT),
        ("created", _INT),
        ("rewritten", _INT),
    ),
)
SCHEMAS: Final = TableShape(
    "schemas",
    (("table_id", _INT), ("version", _INT), ("schema", _STR), ("since", _INT)),
    key_count=2,
)
DROPPED_RANGES: Final = TableShape(
    "dropped_ranges",  # those whose rows readable snapshots would need
    (
        ("table_id", _INT),
        ("position", _INT),
        ("range_lower", _BYTES_OR_NULL),
        ("range_upper", _BYTES_OR_NULL),
        ("created", _INT),
        ("dropped", _INT),
    ),
    key_count=2,
)
TABLETS: Final = TableShape(
    "tablets",
    (
        ("id", _INT),
        ("table_id", _INT),
        ("hash_buckets", _STR),
        ("range_lower", _BYTES_OR_NULL),
        ("range_upper", _BYTES_OR_NULL),
        ("inserts_durable", _INT),
        ("created", _INT),
    ),
)
ROWSETS: Final = TableShape(
    "rowsets",
    (
        ("id", _INT),
        ("tablet_id", _INT),
        ("row_count", _INT),
        ("key_min", _BYTES),
        ("key_max", _BYTES),
        ("deltas_durable", _INT),
        ("path", _STR),
        ("file_id", _STR),
        ("size_bytes", _INT),
        ("schema_version", _INT),
    ),
)
DELTAS: Final = TableShape(
    "deltas",
    (
        ("id", _INT),
        ("rowset_id", _INT),
        ("kind", _STR),
        ("timestamp_min", _INT),
        ("timestamp_max", _INT),
        ("record_count", _INT),
        ("column_ids", _STR),
        ("path", _STR),
        ("file_id", _STR),
        ("size_bytes", _INT),
    ),
)
PARTS: Final = TableShape(
    "parts",  # files with rewritten columns of a rowset's base
    (("id", _INT), ("rowset_id", _INT), ("path", _STR), ("file_id", _STR), ("size_bytes", _INT)),
)
PLACES: Final = TableShape(
    "places",  # the location of each column's footer in the file of a base, a part or a delta
    (
        ("owner_kind", _INT),
        ("owner_id", _INT),
        ("position", _INT),
        ("role", _INT),
        ("delta_group", _INT),
        ("column_id", _INT),
        ("offset", _INT),
        ("length", _INT),
    ),
    key_count=3,
)
GARBAGE: Final = TableShape("garbage", (("path", _STR), ("version", _INT)))
COMMITTED_KEYS: Final = TableShape(
    "committed_keys",
    (("key", _STR), ("timestamp", _INT), ("version", _INT), ("result", _STR)),
)
SUMS: Final = TableShape(
    "sums",
    (("name", _STR), ("version", _INT), ("row_count", _INT), ("crc_sum", _INT)),
)

SHAPES: Final = (
    STORE, TABLES, SCHEMAS, DROPPED_RANGES, TABLETS, ROWSETS, PARTS, DELTAS, PLACES, GARBAGE, COMMITTED_KEYS, SUMS,
)  # fmt: skip
