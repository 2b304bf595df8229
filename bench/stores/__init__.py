"""Nyala and its peers behind one face, so that each benchmark is written once.

Every store is given the same Arrow data, keeps one table with a primary key in a folder of its own, and is set so
that a write which has returned survives a loss of power: `SETTINGS` of each module says how. A peer that is not
installed is named and left out.
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
    """A question put through DuckDB's SQL to every store; the table is called `t`.

    columns, where: what the scan is told where DuckDB cannot push it down by itself (into a plain Arrow stream).
    """

    name: str
    sql: str
    columns: Sequence[str]
    where: str | None = None


class Session(Protocol):
    """Reads, from one thread."""

    def get(self, key: int) -> dict[str, Any] | None:
        """One row by the key column `id`."""

    def total(self, column: str) -> float:
        """The sum over one column of all rows: a full scan of that column."""


class Store(Protocol):
    """One table in one store. Writes come from one thread."""

    # Of the last write, seconds that the bench itself took (to find what it has to sync for the store): not counted.
    overhead_s: float

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        """Make the table and fill it."""

    def upsert(self, rows: pa.Table) -> None:
        """Whole rows."""

    def update(self, rows: pa.Table) -> None:
        """Key columns and some others, of rows that are there."""

    def flush(self) -> None:
        """Bring what waits in memory or in a log to where the table is; nothing more."""

    def settle(self) -> bool:
        """The store's own way to make scans quick again after updates; False when it has none."""

    def maintain(self) -> bool:
        """What a user has to run from time to time; False: nothing, the store does it by itself."""

    def run(self, query: Query) -> list[tuple[Any, ...]]:
        """Rows of the answer."""

    def session(self) -> Session:
        """For one reading thread."""

    def counters(self) -> dict[str, float]:
        """What the store says of itself, for the report; may be empty."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Options:
    """How a store is opened."""

    history: str = "7d"
    maintenance: bool = True


@dataclass(frozen=True)
class Kind:
    """One kind of store: where it is implemented and what it takes part in."""

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
    """The kinds that take part, were asked for and are installed; what is left out is said."""
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
    """One DuckDB connection of this process, for stores whose rows reach it as Arrow."""
    return importlib.import_module("duckdb").connect()
