"""Nyala: Apache Kudu's storage design as a Python library.

import nyala

db = nyala.connect("./store")
orders = db.create_table("orders", {"id": "int64", "status": "string"}, primary_key="id")
before = orders.upsert([{"id": 1, "status": "new"}])
orders.update(set={"status": "'paid'"}, where="id = 1")
orders.scan(at=before).to_arrow()        # as it was
"""

from __future__ import annotations

from nyala.batch import Batch
from nyala.database import Database, Snapshot, connect
from nyala.errors import (
    ColumnNotFoundError,
    CorruptionError,
    DuplicateKeyError,
    Error,
    HistoryExpiredError,
    InvalidArgumentError,
    InvalidValueError,
    KeyNotFoundError,
    LockedError,
    NoPartitionError,
    ReadOnlyError,
    SchemaError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    WriteError,
)
from nyala.mvcc.timestamp import to_datetime
from nyala.partition.levels import hash_partition, range_partition
from nyala.scan import Scan
from nyala.schema.predicate import col
from nyala.schema.schema import column
from nyala.table import Table, TableView
from nyala.tablet.result import WriteResult

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ColumnNotFoundError",
    "CorruptionError",
    "Database",
    "DuplicateKeyError",
    "Error",
    "HistoryExpiredError",
    "InvalidArgumentError",
    "InvalidValueError",
    "KeyNotFoundError",
    "LockedError",
    "NoPartitionError",
    "ReadOnlyError",
    "Scan",
    "SchemaError",
    "Snapshot",
    "StorageError",
    "Table",
    "TableExistsError",
    "TableNotFoundError",
    "TableView",
    "WriteError",
    "WriteResult",
    "__version__",
    "col",
    "column",
    "connect",
    "hash_partition",
    "range_partition",
    "to_datetime",
]
