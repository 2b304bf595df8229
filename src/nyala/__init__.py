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
    from nyala.api.change_feed import ChangeFeed, RangeChange
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
    from nyala.sql.result import Result
    from nyala.tablet.check import CheckReport, Problem
    from nyala.tablet.compaction.reports import FinishedCompaction, RunningCompaction
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
    "FinishedCompaction",
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
    "RangeChange",
    "ReadOnlyError",
    "RestoredTable",
    "Result",
    "RunningCompaction",
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

# The module that defines each name. A name is imported when it is first used, so that a program loads only what it
# needs: `nyala --help` needs no pyarrow. A test compares this table with `__all__` and with the imports above.
_HOMES = {
    name: module
    for module, names in {
        "nyala.api.alter": "Alteration",
        "nyala.api.backups": "clean_backups list_backups restore_backup",
        "nyala.api.batch": "Batch",
        "nyala.api.change_feed": "ChangeFeed RangeChange",
        "nyala.api.database": "Database Snapshot check connect",
        "nyala.api.description": "ColumnDescription TableDescription",
        "nyala.api.readable": "TableView",
        "nyala.api.results": (
            "BackupResult ColumnStats Commit CommitList CompactionResult DroppedTable FlushResult "
            "PurgeResult PurgeStatus RestoredTable StoreStats TableBackup TableStats TabletStats Tag "
            "VacuumResult"
        ),
        "nyala.api.scan": "Scan",
        "nyala.api.table": "Table",
        "nyala.api.transaction": "Transaction TransactionTable",
        "nyala.api.types": "DataLike KeyLike Moment PredicateLike",
        "nyala.errors": (
            "ColumnNotFoundError ConflictError CorruptionError DuplicateKeyError Error FencedError "
            "HistoryExpiredError InvalidArgumentError InvalidValueError KeyNotFoundError LockedError "
            "NoPartitionError ReadOnlyError SchemaError StorageError TableExistsError TableNotFoundError "
            "TransactionEndedError WriteError"
        ),
        "nyala.mvcc.timestamp": "to_datetime",
        "nyala.partition.levels": "hash_partition range_partition",
        "nyala.partition.ranges": "RangeBound",
        "nyala.schema.limits": "Limits",
        "nyala.schema.predicates.predicate": "col expr",
        "nyala.schema.schema": "column",
        "nyala.sql.result": "Result",
        "nyala.tablet.check": "CheckReport Problem",
        "nyala.tablet.compaction.reports": "FinishedCompaction RunningCompaction",
        "nyala.tablet.maintenance": "MaintenanceStatus",
        "nyala.tablet.state.result": "WriteResult",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
