"""Lance with its MemWAL: an LSM write path over a Lance table, as the released Python package reaches it.

Writes go to a shard's log and MemTable, full MemTables become SSTables; merging those into the base table is the
user's work (`merge_insert(…).mark_sstables_as_compacted`), after which each shard is left for a fresh one. No call of
the Python package removes merged SSTables or log entries, so the folder grows; that is shown, not mended.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.stores import Options
from bench.stores.lance_store import LanceStore

SETTINGS = (
    "durable_write (the default), max_wal_flush_interval_ms 1 instead of 100, because a durable put waits for it; "
    "every so often in a steady load the SSTables are merged into the base table, and compact_files, optimize_indices, "
    "cleanup_old_versions follow; it does not sync on a local disk either (seen with strace), so new files are synced "
    "after each put, and that time counts"
)


class LanceMemWalStore(LanceStore):
    def __init__(self, folder: str, options: Options) -> None:
        super().__init__(folder, options)
        self._lock = Lock()  # readers take their scanner from the writer of the moment
        self._shard = ""
        self._writer: Any = None

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        super().load(table, key)
        self._ds.initialize_mem_wal(unsharded=True)
        self._ds = self._lance.dataset(self._folder)
        self._open_shard()

    def _open_shard(self) -> None:
        self._shard = str(uuid.uuid4())
        self._writer = self._ds.mem_wal_writer(self._shard, durable_write=True, max_wal_flush_interval_ms=1)

    def upsert(self, rows: pa.Table) -> None:
        schema = self._ds.schema
        self._writer.put(pa.Table.from_arrays([rows.column(f.name) for f in schema], schema=schema))
        self._sync()

    def update(self, rows: pa.Table) -> None:
        """Whole rows only: a put has all columns."""
        self.upsert(rows)

    def settle(self) -> bool:
        compacted = self._lance.mem_wal.CompactedSsTable
        names = self._ds.schema.names
        with self._lock:
            self._writer.close()  # also writes the MemTable as an SSTable
            shard = os.path.join(self._folder, "_mem_wal", self._shard)
            found = [re.fullmatch(r".*_gen_(\d+)", name) for name in os.listdir(shard)]
            for number, name in sorted((int(match[1]), match[0]) for match in found if match):
                rows = self._lance.dataset(os.path.join(shard, name)).to_table(columns=names)
                merge = self._lance.dataset(self._folder).merge_insert(self._key)
                merge.when_matched_update_all().when_not_matched_insert_all()
                merge.mark_sstables_as_compacted([compacted(self._shard, number)]).execute(rows)
            self._ds = self._lance.dataset(self._folder)
            super().settle()
            self._open_shard()
        return True

    def session(self) -> LanceMemWalStore:  # type: ignore[override]
        return self

    def get(self, key: int) -> dict[str, Any] | None:
        with self._lock:
            scanner = self._writer.lsm_scanner()
        rows = scanner.filter(f"id = {key}").to_table().to_pylist()
        return rows[0] if rows else None

    def total(self, column: str) -> float:
        with self._lock:
            scanner = self._writer.lsm_scanner()
        return float(pc.sum(scanner.project([column]).to_table().column(0)).as_py())

    def close(self) -> None:
        self._writer.close()
        super().close()


def open_store(folder: str, options: Options) -> LanceMemWalStore:
    return LanceMemWalStore(folder, options)
