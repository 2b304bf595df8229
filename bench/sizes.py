"""Measures the size on disk of typical tables (`user_tables`): in Nyala, in Parquet with two
codecs, and in DuckDB.

All stores get the same rows, in no order. Parquet has them in key order, as Nyala does, with
pyarrow's size of row groups. DuckDB's table has a primary key. Nyala's table was loaded at once.
All bytes of its files count, also indexes and bloom filters, which are shown separately.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.parts import Say, ratio
from bench.report import Report, Table, at_most, megabytes, times
from bench.stores import SIZES, choose
from bench.user_tables import TABLES, UserTable

NYALA, SNAPPY, ZSTD, DUCKDB = "nyala", "Parquet, Snappy", "Parquet, Zstandard", "DuckDB"


@dataclass(frozen=True)
class Scale:
    name: str
    rows: int


FULL = Scale("full", 1_000_000)
QUICK = Scale("quick", 20_000)


@dataclass
class Sizes:
    """The bytes of one table by store, and for Nyala also those of its columns alone."""

    table: str
    rows: int
    columns: int
    stores: dict[str, int]


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Write every table to every store, and return the report."""
    chosen = {kind.name for kind in choose(SIZES, stores, say)}
    found = []
    for table in TABLES:
        found.append(_measured(table, scale.rows, os.path.join(folder, table.name), chosen))
        sizes = found[-1].stores.items()
        say(f"{table.name}: {', '.join(f'{name} {size / 1e6:.2f} MB' for name, size in sizes)}")
    return _report(found, scale)


def _measured(table: UserTable, rows: int, path: str, stores: set[str]) -> Sizes:
    given = table.rows(rows)
    ordered = given.sort_by([(column, "ascending") for column in table.key])
    sizes = Sizes(table.name, len(given), 0, {})
    if NYALA in stores:
        shuffled = given.take(pa.array(np.random.default_rng(0).permutation(len(given))))
        sizes.stores[NYALA], sizes.columns = _nyala(path, table, shuffled, ordered)
    writers: dict[str, Callable[[], object]] = {}
    if "parquet" in stores:
        writers[SNAPPY] = lambda: pq.write_table(ordered, path, compression="snappy")
        writers[ZSTD] = lambda: pq.write_table(ordered, path, compression="zstd")
    if "duckdb" in stores:
        writers[DUCKDB] = lambda: _duckdb(path, table, ordered)
    for store, write in writers.items():
        write()
        sizes.stores[store] = os.path.getsize(path)
        os.unlink(path)
    return sizes


def _nyala(folder: str, table: UserTable, rows: pa.Table, ordered: pa.Table) -> tuple[int, int]:
    """Return (bytes of the table's files, bytes of its columns). Raises if other rows are read than
    were written.
    """
    import nyala

    with nyala.connect(folder) as db:
        made = db.create_table("t", rows.schema, primary_key=list(table.key))
        made.insert(rows)
        made.flush()
        if not made.to_arrow().select(ordered.column_names).cast(ordered.schema).equals(ordered):
            raise AssertionError(f"{table.name}: other rows were read than were given")
        columns = sum(column.bytes for column in made.column_stats())
        whole = int(made.stats().base_bytes)
    shutil.rmtree(folder)
    return whole, columns


def _duckdb(path: str, table: UserTable, rows: pa.Table) -> None:
    import duckdb

    key = ", ".join(f'"{column}"' for column in table.key)
    with duckdb.connect(path) as connection:
        connection.register("given", rows)
        connection.execute("CREATE TABLE t AS SELECT * FROM given")
        connection.execute(f"ALTER TABLE t ADD PRIMARY KEY ({key})")
        connection.execute("CHECKPOINT")


def _report(found: list[Sizes], scale: Scale) -> Report:
    peers = [name for name in (SNAPPY, ZSTD, DUCKDB) if name in found[0].stores]
    table = Table(["table", "Nyala", "bytes a row", "of them finding rows", *(f"÷ {name}" for name in peers)])
    for sizes in found:
        ours = sizes.stores.get(NYALA)
        cells = ["–"] * 3
        if ours is not None:
            each = [f"{size / sizes.rows:.2f}" for size in (ours, ours - sizes.columns)]
            cells = [megabytes(ours), *each]
        ratios = [times(ratio(ours, sizes.stores[name])) for name in peers]
        table.rows.append([sizes.table, *cells, *ratios])
    report = Report(
        SIZES,
        f"Tables on disk (about {scale.rows:,} rows each)",
        f"{len(found)} tables, Nyala's bytes ÷ others'; pyarrow writes Parquet in the order of the key; DuckDB's table "
        "has a primary key",
        table,
    )
    if NYALA in found[0].stores and SNAPPY in peers:
        larger = [sizes.table for sizes in found if sizes.stores[NYALA] > sizes.stores[SNAPPY]]
        whole = ratio(*(sum(sizes.stores[name] for sizes in found) for name in (NYALA, SNAPPY)))
        shown = f"{times(whole)}; larger in Nyala: {', '.join(larger) or 'none'}"
        report.aims.append(at_most("all tables together at most 0.80 × Snappy Parquet", whole, 0.80, shown))
    return report


if __name__ == "__main__":
    from bench.__main__ import main

    main([SIZES])
