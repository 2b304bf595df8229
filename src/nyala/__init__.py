"""Nyala: Apache Kudu's storage design as a Python library.

import nyala

db = nyala.connect("./store")
orders = db.create_table("orders", {"id": "int64", "status": "string"}, primary_key="id")
before = orders.upsert([{"id": 1, "status": "new"}])
orders.update(set={"status": "paid"}, where="id = 1")
orders.scan(at=before).to_arrow()        # as it was
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nyala.api.alter import Alteration
    from nyala.api.backups import clean_backups, list_backups, restore_backup
    from nyala.api.batch import Batch
    from nyala.api.change_feed import ChangeFeed
    from nyala.api.database import Database, Snapshot, check, connect
    from nyala.api.description import ColumnDescription, TableDescription
    from nyala.api.readable import TableView
    from nyala.api.results import (
        BackupResult,
        ColumnStats,
        Commit,
        CommitList,
        CompactionResult,
        DroppedTable,
        FlushResult,
        PurgeResult,
        PurgeStatus,
        RestoredTable,
        StoreStats,
        TableBackup,
        TableStats,
        TabletStats,
        Tag,
        VacuumResult,
    )
    from nyala.api.scan import Scan
    from nyala.api.table import Table
    from nyala.api.transaction import Transaction, TransactionTable
    from nyala.api.types import DataLike, KeyLike, Moment, PredicateLike
    from nyala.errors import (
        ColumnNotFoundError,
        ConflictError,
        CorruptionError,
        DuplicateKeyError,
        Error,
        FencedError,
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
        TransactionEndedError,
        WriteError,
    )
    from nyala.mvcc.timestamp import to_datetime
    from nyala.partition.levels import hash_partition, range_partition
    from nyala.partition.ranges import RangeBound
    from nyala.schema.limits import Limits
    from nyala.schema.predicates.predicate import col, expr
    from nyala.schema.schema import column
    from nyala.tablet.check import CheckReport, Problem
    from nyala.tablet.maintenance import MaintenanceStatus
    from nyala.tablet.state.result import WriteResult

__version__ = "0.1.0"

__all__ = [
    "Alteration",
    "BackupResult",
    "Batch",
    "ChangeFeed",
    "CheckReport",
    "ColumnDescription",
    "ColumnNotFoundError",
    "ColumnStats",
    "Commit",
    "CommitList",
    "CompactionResult",
    "ConflictError",
    "CorruptionError",
    "DataLike",
    "Database",
    "DroppedTable",
    "DuplicateKeyError",
    "Error",
    "FencedError",
    "FlushResult",
    "HistoryExpiredError",
    "InvalidArgumentError",
    "InvalidValueError",
    "KeyLike",
    "KeyNotFoundError",
    "Limits",
    "LockedError",
    "MaintenanceStatus",
    "Moment",
    "NoPartitionError",
    "PredicateLike",
    "Problem",
    "PurgeResult",
    "PurgeStatus",
    "RangeBound",
    "ReadOnlyError",
    "RestoredTable",
    "Scan",
    "SchemaError",
    "Snapshot",
    "StorageError",
    "StoreStats",
    "Table",
    "TableBackup",
    "TableDescription",
    "TableExistsError",
    "TableNotFoundError",
    "TableStats",
    "TableView",
    "TabletStats",
    "Tag",
    "Transaction",
    "TransactionEndedError",
    "TransactionTable",
    "VacuumResult",
    "WriteError",
    "WriteResult",
    "__version__",
    "check",
    "clean_backups",
    "col",
    "column",
    "connect",
    "expr",
    "hash_partition",
    "list_backups",
    "range_partition",
    "restore_backup",
    "to_datetime",
]

# Where each name is loaded from when it is first used: `nyala --help` needs no pyarrow, and a script pays for what it
# uses. A test holds this, `__all__` and the imports above to one another.
_HOMES = {
    "ColumnDescription": "nyala.api.description",
    "TableDescription": "nyala.api.description",
    "BackupResult": "nyala.api.results",
    "PurgeResult": "nyala.api.results",
    "PurgeStatus": "nyala.api.results",
    "RestoredTable": "nyala.api.results",
    "TableBackup": "nyala.api.results",
    "clean_backups": "nyala.api.backups",
    "list_backups": "nyala.api.backups",
    "restore_backup": "nyala.api.backups",
    "ColumnStats": "nyala.api.results",
    "CompactionResult": "nyala.api.results",
    "DroppedTable": "nyala.api.results",
    "FlushResult": "nyala.api.results",
    "StoreStats": "nyala.api.results",
    "TableStats": "nyala.api.results",
    "TabletStats": "nyala.api.results",
    "Tag": "nyala.api.results",
    "VacuumResult": "nyala.api.results",
    "DataLike": "nyala.api.types",
    "KeyLike": "nyala.api.types",
    "Moment": "nyala.api.types",
    "PredicateLike": "nyala.api.types",
    "MaintenanceStatus": "nyala.tablet.maintenance",
    "Alteration": "nyala.api.alter",
    "Batch": "nyala.api.batch",
    "ChangeFeed": "nyala.api.change_feed",
    "CheckReport": "nyala.tablet.check",
    "Commit": "nyala.api.results",
    "CommitList": "nyala.api.results",
    "ColumnNotFoundError": "nyala.errors",
    "ConflictError": "nyala.errors",
    "CorruptionError": "nyala.errors",
    "TransactionEndedError": "nyala.errors",
    "Transaction": "nyala.api.transaction",
    "TransactionTable": "nyala.api.transaction",
    "Database": "nyala.api.database",
    "DuplicateKeyError": "nyala.errors",
    "Error": "nyala.errors",
    "FencedError": "nyala.errors",
    "HistoryExpiredError": "nyala.errors",
    "InvalidArgumentError": "nyala.errors",
    "InvalidValueError": "nyala.errors",
    "KeyNotFoundError": "nyala.errors",
    "Limits": "nyala.schema.limits",
    "LockedError": "nyala.errors",
    "NoPartitionError": "nyala.errors",
    "RangeBound": "nyala.partition.ranges",
    "ReadOnlyError": "nyala.errors",
    "Scan": "nyala.api.scan",
    "SchemaError": "nyala.errors",
    "Snapshot": "nyala.api.database",
    "StorageError": "nyala.errors",
    "Table": "nyala.api.table",
    "TableExistsError": "nyala.errors",
    "TableNotFoundError": "nyala.errors",
    "TableView": "nyala.api.readable",
    "WriteError": "nyala.errors",
    "Problem": "nyala.tablet.check",
    "WriteResult": "nyala.tablet.state.result",
    "check": "nyala.api.database",
    "col": "nyala.schema.predicates.predicate",
    "column": "nyala.schema.schema",
    "connect": "nyala.api.database",
    "expr": "nyala.schema.predicates.predicate",
    "hash_partition": "nyala.partition.levels",
    "range_partition": "nyala.partition.levels",
    "to_datetime": "nyala.mvcc.timestamp",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
