"""Measures reads of a store in a bucket, of the same store in a folder, and of Parquet in the
bucket by DuckDB.

All run the same SQL in DuckDB, and every result is checked. Cold: a reader that was just opened,
with an empty cache; opening is not part of the time. Warm: after four runs of the same query.
DuckDB reads the Parquet file (Snappy, row groups of 122,880 rows) by its extension httpfs, or by
pyarrow's S3 file system if the extension cannot be installed. The note of the report says which.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

import nyala
from bench.bucket import Server, server
from bench.parts import Say
from bench.report import Report, Table, seconds
from bench.stores import BUCKET_READS
from nyala.objects.open import open_objects

DELAY_S = 0.040
_FILE = "parquet/l.parquet"
_ROW_GROUP = 122_880
_WARM_RUNS = 3


@dataclass(frozen=True)
class Scale:
    """rows: the rows of the table, which has five columns."""

    name: str
    rows: int


FULL = Scale("full", 3_000_000)
QUICK = Scale("quick", 300_000)

Ask = Callable[[str], Any]


def queries(rows: int) -> dict[str, str]:
    return {
        "sum of a column": "SELECT sum(price) FROM l",
        "all columns": "SELECT max(k), sum(price), sum(tax), max(day), max(note) FROM l",
        "two columns, 1 % of the rows": "SELECT sum(price) FROM l WHERE tax < 10000",
        "1,000 keys in a row": f"SELECT sum(price) FROM l WHERE k >= {rows // 2} AND k < {rows // 2 + 1000}",
        "one key": f"SELECT price FROM l WHERE k = {rows // 3}",
    }


def make_rows(count: int) -> pa.Table:
    """Return rows with numbers that compress a little, dates, and text with few values."""
    chance = np.random.default_rng(7)
    return pa.table(
        {
            "k": np.arange(count),
            "price": chance.integers(0, 10**7, count) / 100,
            "tax": chance.integers(0, 10**6, count).astype(np.int32),
            "day": pa.array(chance.integers(8000, 12000, count).astype(np.int32)).cast(pa.date32()),
            "note": np.array(["none", "return", "collect"])[chance.integers(0, 3, count)],
        }
    )


def load(path: str, rows: pa.Table, **options: Any) -> None:
    with nyala.connect(path, maintenance=False, **options) as db:
        table = db.create_table("l", rows.schema, "k")
        table.insert(rows)
        table.compact()


def sql_runner(db: nyala.Database) -> Callable[[str], Any]:
    return lambda sql: db.sql(sql).fetchall()


def parquet(at: Server) -> tuple[Ask, str]:
    """Return a connection of DuckDB to the Parquet file, and how it reads the file."""
    import duckdb

    connection = duckdb.connect()
    host = at.options["endpoint"].removeprefix("http://")
    try:
        connection.execute("INSTALL httpfs; LOAD httpfs")
    except duckdb.Error:
        files = pafs.S3FileSystem(
            access_key="test-key",
            secret_key="test-secret",
            endpoint_override=host,
            scheme="http",
            region=at.options["region"],
        )
        connection.register("l", ds.dataset(f"bucket/{_FILE}", filesystem=files, format="parquet"))
        return lambda sql: connection.sql(sql).fetchall(), "pyarrow's S3 file system (httpfs was not there)"
    connection.execute(
        f"SET s3_endpoint = '{host}'; SET s3_use_ssl = false; SET s3_url_style = 'path'; SET s3_region = 'x'; "
        "SET s3_access_key_id = 'test-key'; SET s3_secret_access_key = 'test-secret'"
    )
    connection.execute(f"CREATE VIEW l AS FROM 's3://bucket/{_FILE}'")
    return lambda sql: connection.sql(sql).fetchall(), "httpfs"


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and return the report."""
    rows = make_rows(scale.rows)
    local, url = os.path.join(folder, "store"), "s3://bucket/store"
    table = Table(["query", "folder, cold", "warm", "bucket, cold", "warm", "Parquet, cold", "warm"])
    with server() as at:
        remote = {"storage_options": at.options, "cache_dir": os.path.join(folder, "cache")}
        load(local, rows)
        load(url, rows, **remote)
        pq.write_table(rows, os.path.join(folder, "l.parquet"), row_group_size=_ROW_GROUP)
        objects = open_objects("s3://bucket", at.options)
        with open(os.path.join(folder, "l.parquet"), "rb") as file:
            objects.upload(_FILE, iter(lambda: file.read(8 << 20), b""))
        objects.close()
        with nyala.connect(local, read_only=True) as db:
            db.sql("SELECT count(*) FROM l").fetchall()  # the first query imports DuckDB
        at.traffic(DELAY_S)
        how = ""
        for name, sql in queries(scale.rows).items():
            say(name)
            cells, answers = [name], []
            for kind in ("folder", "bucket", "parquet"):
                opened: nyala.Database | None = None
                if kind == "parquet":
                    run_sql, how = parquet(at)
                else:
                    options = {**remote, "refresh": 3600} if kind == "bucket" else {}
                    opened = nyala.connect(url if kind == "bucket" else local, read_only=True, **options)
                    run_sql = sql_runner(opened)
                for runs_before in (0, _WARM_RUNS):  # cold, warm
                    for _ in range(runs_before):
                        run_sql(sql)
                    took_s, traffic, answer = at.during(lambda run_sql=run_sql, sql=sql: run_sql(sql))
                    answers.append(answer)
                    cells.append(seconds(took_s) + ("" if kind == "folder" else f" ({traffic})"))
                if opened is not None:
                    opened.close()
            assert all(np.allclose(_numbers(one), _numbers(answers[0])) for one in answers), (name, answers)
            table.rows.append(cells)
    return Report(
        BUCKET_READS,
        f"Reads of a store in a bucket ({scale.rows:,} rows, {rows.nbytes / 1e6:,.0f} MB as Arrow)",
        f"An S3 server in Python answers each request after {DELAY_S * 1000:g} ms. DuckDB reads Parquet by {how}",
        table,
    )


def _numbers(answer: list[tuple[Any, ...]]) -> list[float]:
    return [float(value) for row in answer for value in row if isinstance(value, (int, float))]


if __name__ == "__main__":
    from bench.__main__ import main

    main([BUCKET_READS])
