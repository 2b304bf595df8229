"""Stores with operations by key, for `ingest_lookup`.

Each class adds operations to the store of its module. An operation that the store does not have
raises NotImplementedError, and the report has a dash. A read ends when its rows are there, as
tuples or as Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import nyala
from bench.stores.delta_store import DeltaStore
from bench.stores.duckdb_store import DuckdbStore
from bench.stores.parquet_store import ParquetStore
from bench.stores.sqlite_store import SqliteStore

Row = dict[str, Any]


class Keyed(Protocol):
    """A table with operations by key. `update` gets the key and some columns; `delete` and
    `get_many` get the key columns.
    """

    overhead_s: float

    def load(self, table: pa.Table, key: Sequence[str]) -> None: ...
    def insert(self, rows: pa.Table) -> None: ...
    def upsert(self, rows: pa.Table) -> None: ...
    def update(self, rows: pa.Table) -> None: ...
    def delete(self, keys: pa.Table) -> None: ...
    def get(self, key: Row) -> bool:
        """Read all columns of a row. Return whether it exists."""

    def get_many(self, keys: pa.Table) -> int:
        """Read all columns of rows by key. Return how many exist."""

    def key_range(self, column: str, lower: int, upper: int) -> int:
        """Read all columns of rows with lower <= column <= upper."""

    def count(self) -> int: ...
    def close(self) -> None: ...


class KeyedNyala:
    overhead_s = 0.0

    def __init__(self, folder: str, buckets: int = 0) -> None:
        self._buckets = buckets
        self.db = nyala.connect(folder, memory_limit="4GB")
        self.table: Any = None

    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        by = [nyala.hash_partition(key[0], buckets=self._buckets)] if self._buckets else []
        self.table = self.db.create_table("t", table.schema, list(key), by)
        self.table.insert(table)
        self.table.flush()

    def insert(self, rows: pa.Table) -> None:
        self.table.insert(rows)

    def upsert(self, rows: pa.Table) -> None:
        self.table.upsert(rows)

    def update(self, rows: pa.Table) -> None:
        self.table.update(rows)

    def delete(self, keys: pa.Table) -> None:
        self.table.delete(keys)

    def get(self, key: Row) -> bool:
        return self.table.get(key) is not None

    def get_many(self, keys: pa.Table) -> int:
        found: pa.Table = self.table.get_many(keys)
        return found.num_rows

    def key_range(self, column: str, lower: int, upper: int) -> int:
        rows: pa.Table = self.table.scan(where=f"{column} BETWEEN {lower} AND {upper}").to_arrow()
        return rows.num_rows

    def count(self) -> int:
        return self.table.count()

    def close(self) -> None:
        self.db.close()


class KeyedSqlite(SqliteStore):
    def load(self, table: pa.Table, key: Sequence[str]) -> None:
        """Load in parts. A converted copy of the whole table, without decimals and dates, would be
        the peak of memory.
        """
        step = 500_000
        super().load(_plain(table.slice(0, step)), key)
        for start in range(step, table.num_rows, step):
            self.insert(table.slice(start, step))
        self.flush()

    def insert(self, rows: pa.Table) -> None:
        self._many(f"INSERT INTO t VALUES ({', '.join('?' * rows.num_columns)})", _plain(rows))

    def upsert(self, rows: pa.Table) -> None:
        super().upsert(_plain(rows))

    def update(self, rows: pa.Table) -> None:
        super().update(_plain(rows))

    def delete(self, keys: pa.Table) -> None:
        self._many(f"DELETE FROM t WHERE {_equal(keys.column_names)}", keys)

    def get(self, key: Row) -> bool:
        done = self._con.execute(f"SELECT * FROM t WHERE {_equal(key)}", tuple(key.values()))
        return done.fetchone() is not None

    def get_many(self, keys: pa.Table) -> int:
        text = f"SELECT * FROM t WHERE {_equal(keys.column_names)}"
        rows = zip(*(column.to_pylist() for column in keys.columns), strict=True)
        return sum(self._con.execute(text, row).fetchone() is not None for row in rows)

    def key_range(self, column: str, lower: int, upper: int) -> int:
        return len(
            self._con.execute(f"SELECT * FROM t WHERE {column} BETWEEN ? AND ?", (lower, upper)).fetchall()
        )

    def count(self) -> int:
        return int(self._con.execute("SELECT count(*) FROM t").fetchone()[0])


class KeyedDuckdb(DuckdbStore):
    def insert(self, rows: pa.Table) -> None:
        values = [column.to_pylist() for column in rows.columns]
        for row in zip(*values, strict=True):
            self._con.execute(f"INSERT INTO t VALUES ({', '.join('?' * len(row))})", row)

    def delete(self, keys: pa.Table) -> None:
        self._con.register("given", keys)
        self._con.execute(f"DELETE FROM t USING given WHERE {_same(keys.column_names)}")
        self._con.unregister("given")

    def get(self, key: Row) -> bool:
        return bool(self._con.execute(f"SELECT * FROM t WHERE {_equal(key)}", list(key.values())).fetchall())

    def get_many(self, keys: pa.Table) -> int:
        self._con.register("given", keys)
        text = f"SELECT t.* FROM t, given WHERE {_same(keys.column_names)}"
        found = len(self._con.execute(text).fetchall())
        self._con.unregister("given")
        return found

    def key_range(self, column: str, lower: int, upper: int) -> int:
        return len(
            self._con.execute(f"SELECT * FROM t WHERE {column} BETWEEN ? AND ?", [lower, upper]).fetchall()
        )

    def count(self) -> int:
        return int(self._con.execute("SELECT count(*) FROM t").fetchone()[0])


class KeyedDelta(DeltaStore):
    def insert(self, rows: pa.Table) -> None:
        """Insert by merge, because only merge checks whether the key exists."""
        self._merge(rows).when_not_matched_insert_all().execute()
        self._sync()

    def delete(self, keys: pa.Table) -> None:
        self._merge(keys).when_matched_delete().execute()
        self._sync()

    def _rows(self, filter: pc.Expression) -> pa.Table:
        rows: pa.Table = self._table.to_pyarrow_dataset().to_table(filter=filter)
        return rows

    def get(self, key: Row) -> bool:
        filter = pc.scalar(True)
        for name, value in key.items():
            filter = filter & (pc.field(name) == value)
        return self._rows(filter).num_rows > 0

    def get_many(self, keys: pa.Table) -> int:
        first = keys.column_names[0]
        return _those(self._rows(pc.field(first).isin(keys.column(0).combine_chunks())), keys)

    def key_range(self, column: str, lower: int, upper: int) -> int:
        return self._rows((pc.field(column) >= lower) & (pc.field(column) <= upper)).num_rows

    def count(self) -> int:
        return int(self._table.to_pyarrow_dataset().count_rows())


class KeyedParquet(ParquetStore):
    """Parquet takes part in the load only."""

    def _cannot(self, *arguments: Any) -> Any:
        raise NotImplementedError

    insert = delete = update = upsert = get = get_many = key_range = _cannot

    def count(self) -> int:
        return int(pq.read_metadata(self._path).num_rows)


def open_keyed(name: str, folder: str) -> Keyed:
    """Return a store by its name in `KINDS`. `nyala-hash4` is Nyala with four hash partitions."""
    if name.startswith("nyala"):
        return KeyedNyala(folder, 4 if name == "nyala-hash4" else 0)
    if name == "sqlite":
        return KeyedSqlite(folder)
    if name == "duckdb":
        return KeyedDuckdb(folder)
    if name == "deltalake":
        return KeyedDelta(folder)
    assert name == "parquet"
    return KeyedParquet(folder)


def _plain(table: pa.Table) -> pa.Table:
    """Convert to types that SQLite has: decimals to doubles, dates to text."""

    def of(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_decimal(kind):
            return pa.float64()
        return pa.string() if pa.types.is_date(kind) else kind

    return table.cast(pa.schema([pa.field(f.name, of(f.type)) for f in table.schema]))


def _equal(names: Any) -> str:
    return " AND ".join(f"{name} = ?" for name in names)


def _same(names: Sequence[str]) -> str:
    return " AND ".join(f't."{name}" = given."{name}"' for name in names)


def _those(rows: pa.Table, keys: pa.Table) -> int:
    """Return how many of the keys are among rows that were found by the first key column."""
    wanted = set(zip(*(column.to_pylist() for column in keys.columns), strict=True))
    there = zip(*(rows.column(name).to_pylist() for name in keys.column_names), strict=True)
    return sum(key in wanted for key in there)
