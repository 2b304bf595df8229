"""Functions that the tests run on the machines of a cluster, with a store in a bucket.

`connect` opens the store; the other functions use it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame
from tests.spark.cluster.standalone import server, session

import nyala
import nyala.spark
from nyala.spark.source.options import ReadOptions
from nyala.spark.source.reader import NyalaReader
from nyala.testing.faulty_objects import Request
from nyala.testing.s3_server import WireFault

STORE: Final = "s3://bucket/store"
BACKUPS: Final = "s3://bucket/backups"

Rows = dict[int, Any]

_options: dict[str, Any] = {}
_open: list[nyala.Database] = []


# ── the store


def connect(endpoint: str, **more: Any) -> None:
    """Open the store as its writer. The credentials are in the environment."""
    use(endpoint)
    _open.append(nyala.connect(STORE, storage_options=_options, **more))


def connect_with_keys(endpoint: str, secret: str) -> None:
    """Open the store as its writer, with credentials that only this program has."""
    use(endpoint)
    keys = {"access_key_id": "of-the-program", "secret_access_key": secret}
    _open.append(nyala.connect(STORE, storage_options={**_options, **keys}))


def use(endpoint: str) -> None:
    """Let other processes write."""
    _options.update(endpoint=endpoint, allow_http=True, region="us-east-1")


def close() -> None:
    if _open:
        _open.pop().close()


def database() -> nyala.Database:
    return _open[0]


def create(*names: str) -> None:
    for name in names:
        database().create_table(name, {"k": "int64", "v": "int64"}, "k", nyala.hash_partition("k", buckets=4))


def is_sound() -> bool:
    return database().check().ok


# ── rows


def spark_options(table: str, **more: Any) -> dict[str, Any]:
    return {"path": STORE, "table": table, **{f"storage.{name}": _options[name] for name in _options}, **more}


def frame(rows: Rows, parts: int = 4) -> DataFrame:
    """Return a DataFrame of rows that tasks make."""
    table = pa.table({"k": pa.array(rows.keys(), pa.int64()), "v": pa.array(rows.values(), pa.int64())})
    return session().createDataFrame(table).repartition(parts)


def rows_of(df: DataFrame) -> Rows:
    found = df.select("k", "v").toArrow()
    keys = found["k"].to_pylist()
    rows = dict(zip(keys, found["v"].to_pylist(), strict=True))
    assert len(rows) == len(keys), "a key occurs twice"
    return rows


def loaded(table: str, **options: Any) -> DataFrame:
    return session().read.format("nyala").options(**spark_options(table, **options)).load()


# ── jobs


def write(table: str, rows: Rows, operation: str = "upsert") -> None:
    """Write with `df.write`."""
    job = frame(rows).write.format("nyala").options(**spark_options(table, operation=operation))
    job.mode("append").save()


def write_with_counts(table: str, rows: Rows, **arguments: Any) -> tuple[nyala.WriteResult, list[Any]]:
    """Write with `nyala.spark.write`. Return the result, and the keys of failing rows."""
    done = nyala.spark.write(frame(rows), STORE, table, storage_options=_options, **arguments)
    failed = sorted(done.errors["k"].to_pylist()) if len(done.errors) else []
    return nyala.WriteResult(done.timestamp, done.inserted, done.updated, done.deleted, done.ignored), failed


def read(table: str, **options: Any) -> Rows:
    return rows_of(loaded(table, **options))


def read_in_each_way(table: str) -> list[Rows]:
    """Return the rows as read by the format, by SQL and by a scan."""
    by_sql = nyala.spark.sql(session(), f"SELECT k, v FROM {table}", store=STORE, storage_options=_options)
    by_scan = database()[table].scan().to_spark(session())
    return [read(table), rows_of(by_sql), rows_of(by_scan)]


def read_of_a_session_that_knows_the_store(table: str) -> Rows:
    nyala.spark.register(session(), STORE, storage_options=_options)
    return rows_of(session().read.format("nyala").option("table", table).load())


def answer(text: str) -> list[tuple[Any, ...]]:
    """Return the rows of `nyala.spark.sql`."""
    found = nyala.spark.sql(session(), text, store=STORE, storage_options=_options)
    return [tuple(row) for row in found.collect()]


def load(table: str, rows: Rows, **arguments: Any) -> tuple[int, int]:
    """Load by executors. Return the numbers of inserted and ignored rows."""
    done = nyala.spark.load(frame(rows), database()[table], tasks=4, **arguments)
    return done.inserted, done.ignored


def upsert(table: str, rows: Rows) -> tuple[int, int]:
    """Upsert by executors. Return the numbers of inserted and updated rows."""
    done = nyala.spark.upsert(frame(rows), database()[table], tasks=4)
    return done.inserted, done.updated


def stream(source: str, target: str, checkpoint: str) -> None:
    """Apply the new changes of a table to another one."""
    feed = session().readStream.format("nyala").options(**spark_options(source, changes="true")).load()
    query = (
        feed.writeStream.format("nyala")
        .options(**spark_options(target, operation="changes"), checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)


def compact(table: str) -> Any:
    database().flush()
    return nyala.spark.compact(session(), database()[table])


def backup(table: str) -> str | None:
    made = nyala.spark.backup(session(), database()[table], BACKUPS, storage_options=_options)
    return None if made is None else made.kind


def restore(table: str, name: str, at: int | None = None) -> None:
    nyala.spark.restore(
        session(), BACKUPS, table, at=at, into=database(), name=name, storage_options=_options
    )


def update(table: str, rows: Rows) -> int:
    """Update without Spark. Return the timestamp of the commit."""
    return database()[table].upsert({"k": list(rows), "v": list(rows.values())}).timestamp


def delete(table: str, keys: list[int]) -> int:
    return database()[table].delete({"k": keys}).timestamp


def content(table: str) -> Rows:
    """Return the rows, read without Spark, by a new reader."""
    with nyala.connect(STORE, read_only=True, storage_options=_options) as db:
        found = db[table].to_arrow()
    return dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))


# ── failures


def write_and_die(endpoint: str, table: str, rows: Rows) -> None:
    """Commit, begin another commit, and be killed."""
    connect(endpoint)
    update(table, rows)
    os.kill(os.getpid(), signal.SIGKILL)


def read_with_a_secret_option(table: str, secret: str) -> None:
    loaded(table, **{"storage.secret_access_key": secret})


def fail_requests(fault: WireFault | None) -> None:
    """On machine s3: set the fault of all requests from now on."""
    server().faults = None if fault is None else lambda request: fault


def fail_every(count: int) -> None:
    """On machine s3: let each n-th request fail from now on, with different temporary faults."""
    faults: list[WireFault] = ["503", "drop after", "half", "500", "drop before", 0.2]

    def fault(request: Request) -> WireFault | None:
        number, rest = divmod(request.number, count)
        return None if rest else faults[number % len(faults)]

    server().faults = fault


def pass_time(seconds: float) -> None:
    """On machine s3: move the bucket's clock."""
    server().advance(seconds)


def bodies() -> Mapping[str, bytes]:
    """On machine s3: return all objects."""
    return server().bodies()


# ── files and output of Spark


def shown(table: str) -> tuple[list[bytes], list[bytes]]:
    """Return plans and what is sent to tasks: a reader, its partitions, and functions of all jobs."""
    df = loaded(table).where("v > 0")
    sent: list[bytes] = []
    pickled = CloudPickleSerializer.dumps

    def dumps(self: CloudPickleSerializer, value: Any) -> bytes:
        sent.append(pickled(self, value))
        return sent[-1]

    with mock.patch.object(CloudPickleSerializer, "dumps", dumps):
        by_scan = database()[table].scan().to_spark(session())
        assert by_scan.count() == df.count() + 1
        load(table, {-1: -1})
        upsert(table, {-1: -2})
        compact(table)
        backup(table)
    jvm: Any = session()._jvm
    explain = jvm.PythonSQLUtils.explainString
    plans = [explain(frame._jdf.queryExecution(), "extended").encode() for frame in (df, by_scan)]
    reader = NyalaReader(ReadOptions.parse(spark_options_as_text(table)), df.schema, None)
    return plans, [pickle.dumps(reader), pickle.dumps(reader.partitions()), b"".join(sent)]


def spark_options_as_text(table: str) -> dict[str, str]:
    return {name: str(value) for name, value in spark_options(table).items()}


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def run_page(code: str) -> str:
    """Return what the blocks of a page print."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "page", "exec"), {"spark": session()})
    return printed.getvalue()
