"""`nyala demo`: makes a small store in a few seconds, and shows what Nyala can do with it.

The demo reads from the store everything that it prints, and checks it. The store is not deleted. A
second demo in the same folder replaces the table; the demo refuses a store with other tables.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from nyala.cli.base import Command, Failure, program, settings
from nyala.cli.output import duration, echo_json, moment, size
from nyala.cli.progress import delay_interrupt
from nyala.cli.stores import check_store_path, state_of

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.api.database import Database
    from nyala.api.table import Table

__all__ = ["demo"]

TABLE: Final = "metrics"
# The comment of the demo's table: a second demo replaces a table with this comment.
COMMENT: Final = "made by nyala demo"
HOSTS: Final = 12
METRICS: Final = {"cpu": "%", "memory": "%", "disk": "MB/s", "network": "MB/s", "load": ""}
TIMES: Final = 5000  # one every 10 seconds: 14 hours
BATCHES: Final = 10
FIRST_US: Final = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
STEP_US: Final = 10_000_000
# The series of measurements that the demo queries and updates.
SERIES: Final = "host = 'host-03' AND metric = 'cpu'"


@click.command(cls=Command)
@click.argument("folder", type=click.Path(), default="nyala-demo", callback=check_store_path)
def demo(folder: str) -> None:
    """Make a small store in FOLDER and show what it can do, in a few seconds.

    FOLDER must be new, empty, or from an earlier demo. Default: nyala-demo.
    """
    from nyala.api.database import connect
    from nyala.env.paths import is_bucket_url

    if is_bucket_url(folder):
        raise Failure(
            "the demo can only make a store in a folder: pass the folder's path. To make a store in a bucket "
            "from your own files, use `table load --create`",
            "FolderExpected",
        )
    began_s = time.monotonic()
    with connect(folder) as database:
        names = database.list_tables()
        others = [name for name in names if state_of(database, name).entry.comment != COMMENT]
        if others:
            raise Failure(
                f"{database.path} is a store with other tables ({', '.join(others[:5])}): pass another folder",
                "FolderTaken",
            )
        _echo(f"Creating a store in the folder {folder}: tables with an enforced key and their history.")
        table = _make_table(database)
        mean = _query(table)
        before = _update(database, table)
        _time_travel(table, before, mean)
        _mistake(table)
        _second_process(folder, table)
        seconds = time.monotonic() - began_s
        if settings().json:
            document = {
                "store": database.path,
                "table": TABLE,
                "rows": table.count(),
                "before": moment(before),
            }
            echo_json({**document, **moment(database.now()), "seconds": round(seconds, 3)})
    name, place = program(), shlex.quote(folder)
    _echo(
        f"""
Done in {duration(seconds)}. The store is not deleted. Look at it:

  {name} table describe {place}
  {name} table scan {place} --where "{SERIES}" --limit 5
  {name} table scan {place} --where "{SERIES}" --limit 5 --at {before}

  {os.path.basename(sys.executable)}
  >>> import nyala
  >>> metrics = nyala.connect({folder!r})["{TABLE}"]
  >>> metrics.scan(where="value > 89", limit=5)"""
    )


def _echo(text: str) -> None:
    if not settings().json:
        click.echo(text)


def _expect(true: bool, what: str) -> None:
    """Raise Failure unless `true`. what: the expectation in words, for the message."""
    if not true:
        raise Failure(f"the demo failed, please report it: expected that {what}")


def _make_table(database: Database) -> Table:
    import nyala

    _echo("\n1 of 6  Create a table with a primary key and four tablets, and insert rows in atomic batches")
    database.drop_table(TABLE, missing_ok=True, purge=True)
    table = database.create_table(
        TABLE,
        {"host": "string", "metric": "string", "time": "timestamp", "value": "double", "unit": "string"},
        primary_key=["host", "metric", "time"],
        partition_by=[nyala.hash_partition("host", "metric", buckets=4)],
        comment=COMMENT,
    )
    took_s = 0.0
    for number in range(BATCHES):
        batch = _measurements(number * TIMES // BATCHES, (number + 1) * TIMES // BATCHES)
        began_s = time.monotonic()
        with delay_interrupt():
            table.insert(batch)
        took_s += time.monotonic() - began_s
    table.flush()
    rows, nbytes = HOSTS * len(METRICS) * TIMES, table.stats().bytes
    _expect(table.count() == rows, f"there are {rows} rows")
    _echo(
        f"   {rows:,} rows, durable in {duration(took_s)} ({rows / took_s:,.0f} rows/s); {size(nbytes)} on disk, "
        f"{nbytes / rows:.1f} bytes a row"
    )
    return table


def _mean(table: Table, at: int | None = None) -> tuple[float, int]:
    """Return the mean value of one series at a moment, and its number of rows."""
    from nyala import compute as pc

    values = table.scan(columns=["value"], where=SERIES, at=at).to_arrow().column("value")
    return float(pc.mean(values).as_py()), len(values)


def _query(table: Table) -> float:
    """Query one series of measurements. Return the mean of its values."""
    _echo(f"\n2 of 6  Query the mean where {SERIES}")
    began_s = time.monotonic()
    mean, rows = _mean(table)
    took_s = time.monotonic() - began_s
    read = table.scan(columns=["value"], where=SERIES).explain().to_dict()
    blocks = read["blocks_total"] - read["blocks_skipped"]
    _echo(
        f"   {mean:.2f}, from {rows:,} rows in {duration(took_s)}; the query read {read['tablets_read']} of "
        f"{read['tablets_total']} tablets, {blocks} of {read['blocks_total']} blocks"
    )
    return mean


def _update(database: Database, table: Table) -> int:
    """Halve the values of one series. Return the timestamp before the update."""
    from nyala import compute as pc

    _echo("\n3 of 6  Update these rows: upsert only the key and the value column")
    before = database.now()
    wrong = table.scan(columns=["host", "metric", "time", "value"], where=SERIES).to_arrow()
    key = wrong.slice(0, 1).select(["host", "metric", "time"]).to_pylist()[0]
    old, began_s = table.get(key), time.monotonic()
    with delay_interrupt():
        result = table.upsert(wrong.set_column(3, "value", pc.divide(wrong.column("value"), 2.0)))
    took_s, new = time.monotonic() - began_s, table.get(key)
    assert old is not None and new is not None
    _expect(new["unit"] == old["unit"], "the unit does not change")
    _echo(
        f"   {result.updated:,} rows updated in {duration(took_s)}, at one timestamp; for example:\n"
        f"     before  value {old['value']:.2f}  unit {old['unit']}\n"
        f"     after   value {new['value']:.2f}  unit {new['unit']}"
    )
    return before


def _time_travel(table: Table, before: int, mean: float) -> None:
    _echo("\n4 of 6  Time travel: the same query, now and as of before the update")
    (then, _), (now, _) = _mean(table, before), _mean(table)
    _expect(then == mean, "the earlier rows have not changed")
    _expect(math.isclose(now * 2, then), "values were halved")
    _echo(f"   now {now:.2f}, before {then:.2f}; no copy was made")


def _mistake(table: Table) -> None:
    from nyala.errors import DuplicateKeyError

    _echo("\n5 of 6  A mistake: insert a row with a duplicate key")
    rows, message = table.count(), ""
    try:
        table.insert(_measurements(0, 1).slice(0, 1))
    except DuplicateKeyError as error:
        message = f"{type(error).__name__}: {error}"
    _expect(bool(message) and table.count() == rows, "a duplicate key is an error")
    _echo(f"   {message}")


def _second_process(folder: str, table: Table) -> None:
    import subprocess

    _echo("\n6 of 6  A second process reads the store while this process is the writer")
    fresh = {"host": "host-99", "metric": "cpu", "time": "2026-06-01T12:00:00", "value": 42.0, "unit": "%"}
    with delay_interrupt():
        result = table.upsert([fresh])
    command = [sys.executable, "-P", "-m", "nyala", "--json", "table", "scan", folder, TABLE]
    ran = subprocess.run(
        [*command, "--where", "host = 'host-99'"], capture_output=True, text=True, encoding="utf-8"
    )
    if ran.returncode != 0:
        raise Failure(f"the second process failed: {ran.stderr.strip()}")
    seen: dict[str, Any] = json.loads(ran.stdout)
    _expect([row["value"] for row in seen["rows"]] == [42.0], "the second process sees the row")
    _expect(seen["timestamp"] >= result.timestamp, "the second process is up to date")
    _echo(f"   it read the row that process {os.getpid()} has just written")


def _measurements(first: int, end: int) -> pa.Table:
    """Return the rows of all hosts and metrics for the times [first, end). The values are sine waves."""
    import numpy as np
    import pyarrow as pa

    series, times = HOSTS * len(METRICS), end - first
    time_index = np.repeat(np.arange(first, end), series)
    host, metric = np.divmod(np.tile(np.arange(series), times), len(METRICS))
    value = 50 + 40 * np.sin(time_index / 300 + host) * np.cos(time_index / 70 + metric)
    hosts = pa.array([f"host-{number:02}" for number in range(HOSTS)])
    return pa.table(
        {
            "host": hosts.take(pa.array(host)),
            "metric": pa.array(list(METRICS)).take(pa.array(metric)),
            "time": pa.array(FIRST_US + time_index * STEP_US, pa.timestamp("us", tz="UTC")),
            "value": np.round(value, 2),
            "unit": pa.array(list(METRICS.values())).take(pa.array(metric)),
        }
    )
