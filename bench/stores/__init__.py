"""Nyala and other stores behind one interface, so that each benchmark is written once.

Every store gets the same Arrow data, and has one table with a primary key in its own folder. Its
settings make a write durable when it returns: see `SETTINGS` of each module. A store that is not
installed is reported and left out.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa


@dataclass(frozen=True)
class Query:
    """A SQL query in DuckDB's dialect. The table is called `t`.

    columns, where: what the scan gets, for stores to which DuckDB cannot push them down (a plain
    Arrow stream).
    """

    name: str
    sql: str
    columns: Sequence[str]
    where: str | None = None


class Session(Protocol):
    """Reads of one thread."""

    def get(self, key: int) -> dict[str, Any] | None:
        """Return one row by the key column `id`."""

    def total(self, column: str) -> float:
        """Return the sum of one column over all rows, by a full scan."""


class Store(Protocol):
    """One table in one store. One thread writes."""

    # Seconds of the last write that are not counted: the benchmark searched for files that it must sync.
    overhead_s: float

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        """Create the table, and load rows."""

    def upsert(self, rows: pa.Table) -> None:
        """Upsert whole rows."""

    def update(self, rows: pa.Table) -> None:
        """Update some columns of existing rows, by key."""

    def flush(self) -> None:
        """Move data from memory and log to the files of the table, and do nothing else."""

    def compact(self) -> bool:
        """Compact the table so that scans are fast after updates. Return False if the store cannot
        do this.
        """

    def maintain(self) -> bool:
        """Run the maintenance that a user must run from time to time. Return False if none is
        needed.
        """

    def run(self, query: Query) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""

    def session(self) -> Session:
        """Return a session for one reading thread."""

    def counters(self) -> dict[str, float]:
        """Return counters of the store for the report; may be empty."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Options:
    """The settings with which a store is opened."""

    history: str = "7d"
    maintenance: bool = True


@dataclass(frozen=True)
class Kind:
    """One kind of store: its module, and the benchmarks that it takes part in."""

    name: str
    module: str
    package: str
    parts: frozenset[str]

    def open(self, folder: str, options: Options) -> Store:
        make: Callable[[str, Options], Store] = importlib.import_module(
            f"bench.stores.{self.module}"
        ).open_store
        return make(folder, options)


SCAN, NARROW, MIXED, HOT = "scan_after_updates", "narrow_update", "mixed_load", "hot_rows"
INGEST, TPCH, SIZES, BUCKET = "ingest_lookup", "tpch", "sizes", "bucket"
BUCKET_READS, BUCKET_COSTS = "bucket_reads", "bucket_costs"
TRANSACTIONS = "transactions"

KINDS: Final = (
    Kind(
        "nyala",
        "nyala_store",
        "nyala",
        frozenset({SCAN, NARROW, MIXED, HOT, INGEST, TRANSACTIONS, TPCH, SIZES}),
    ),
    Kind("sqlite", "sqlite_store", "sqlite3", frozenset({NARROW, MIXED, HOT, INGEST, TRANSACTIONS})),
    Kind("duckdb", "duckdb_store", "duckdb", frozenset({SCAN, NARROW, MIXED, HOT, INGEST, SIZES})),
    Kind("deltalake", "delta_store", "deltalake", frozenset({SCAN, NARROW, MIXED, HOT, INGEST})),
    Kind("parquet", "parquet_store", "pyarrow", frozenset({NARROW, INGEST, TPCH, SIZES})),
)


def choose(part: str, names: Sequence[str] | None, say: Callable[[str], None]) -> list[Kind]:
    """Return the requested kinds that are installed. Print which are left out."""
    chosen = []
    for kind in KINDS:
        if part not in kind.parts or (names is not None and kind.name not in names):
            continue
        if importlib.util.find_spec(kind.package) is None:
            say(f"{kind.name} is left out: {kind.package} is not installed (`make bench` installs it)")
            continue
        chosen.append(kind)
    return chosen


@functools.cache
def sql_engine() -> Any:
    """Return a DuckDB connection of this process, for stores that return Arrow."""
    return importlib.import_module("duckdb").connect()
