"""`nyala demo`: a small store in a few seconds, and what can be done with it.

    1 make a table      2 insert, ten atomic batches      3 ask      4 correct one column of some rows
    5 the same question as of before      6 a mistake      7 a second process, while this one writes

Everything that is said is looked up in the store, and what should agree is compared. The store stays, to play
with; the next demo in the same folder begins anew, and a folder with anything else in it is refused.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from nyala.cli.base import Command, Failure, program, settings
from nyala.cli.output import duration, echo_json, moment, rich_console, size
from nyala.cli.progress import Bar, finish_first
from nyala.cli.stores import no_file

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.api.database import Database
    from nyala.api.table import Table

__all__ = ["demo"]

TABLE: Final = "metrics"
# By this an earlier demo's table is known from one that means something to somebody.
COMMENT: Final = "made by nyala demo"

STEPS: Final = 7
HOSTS: Final = 12
METRICS: Final = {"cpu": "%", "memory": "%", "disk": "MB/s", "network": "MB/s", "load": ""}
TIMES: Final = 5000  # one every 10 seconds: 14 hours
BATCHES: Final = 10
FIRST_US: Final = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
STEP_US: Final = 10_000_000
ONE: Final = "host = 'host-03' AND metric = 'cpu'"


class Screen:
    """What a person sees; silent with --json, where `facts` is the answer."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._console = None if quiet else rich_console()
        self.facts: dict[str, Any] = {}

    def say(self, text: str = "") -> None:
        if not self._quiet:
            click.echo(text)

    @contextmanager
    def step(self, number: int, name: str, title: str) -> Iterator[dict[str, Any]]:
        """A heading, what the block says, and its time; the yielded facts go into the JSON answer."""
        if self._console is not None:
            self._console.print(f"\n[bold]{number} of {STEPS}  {title}[/bold]")
        else:
            self.say(f"\n{number} of {STEPS}  {title}")
        facts: dict[str, Any] = {}
        began_s = time.monotonic()
        yield facts
        self.facts[name] = {**facts, "seconds": round(time.monotonic() - began_s, 4)}


@dataclass
class Demo:
    """The steps, in order, on one open store."""

    folder: str
    database: Database
    screen: Screen
    table: Table = field(init=False)
    before: int = 0

    def run(self) -> None:
        self.make_table()
        self.insert()
        self.ask()
        self.correct()
        self.time_travel()
        self.mistake()
        self.second_process()

    def make_table(self) -> None:
        import nyala

        with self.screen.step(1, "create", "A table with an enforced key, cut into four tablets"):
            self.database.drop_table(TABLE, missing_ok=True)
            self.table = self.database.create_table(
                TABLE,
                {
                    "host": "string",
                    "metric": "string",
                    "time": "timestamp",
                    "value": "double",
                    "unit": "string",
                },
                primary_key=["host", "metric", "time"],
                partition_by=[nyala.hash_partition("host", "metric", buckets=4)],
                comment=COMMENT,
            )
            self.screen.say("   metrics (host, metric, time → value, unit), HASH (host, metric) BUCKETS 4")

    def insert(self) -> None:
        rows = HOSTS * len(METRICS) * TIMES
        with self.screen.step(2, "insert", f"{rows:,} rows, in {BATCHES} atomic batches") as facts:
            took_s = 0.0
            with Bar("   inserting", BATCHES, quiet=settings().json) as bar:
                for number in range(BATCHES):
                    batch = measurements(number * TIMES // BATCHES, (number + 1) * TIMES // BATCHES)
                    began_s = time.monotonic()
                    with finish_first():
                        self.table.insert(batch)
                    took_s += time.monotonic() - began_s
                    bar.update(number + 1)
            began_s = time.monotonic()
            self.table.flush()
            flush_s = time.monotonic() - began_s
            stats = self.table.stats()
            expect(stats["rows"] == rows, f"{rows} rows, found {stats['rows']}")
            facts.update(rows=rows, insert_seconds=round(took_s, 4), flush_seconds=round(flush_s, 4))
            facts.update(bytes=stats["bytes"])
            self.screen.say(
                f"   durable in {duration(took_s)} ({rows / took_s:,.0f} rows/s), then written from memory to column "
                f"files in {duration(flush_s)}:\n   {size(stats['bytes'])} on disk, "
                f"{stats['bytes'] / rows:.1f} bytes a row"
            )

    def ask(self) -> None:
        with self.screen.step(3, "ask", f"A question: the mean where {ONE}") as facts:
            began_s = time.monotonic()
            mean, rows = self.mean()
            took_s = time.monotonic() - began_s
            read = self.table.scan(columns=["value"], where=ONE).explain().to_dict()
            facts.update(mean=mean, rows=rows)
            facts.update({key: read[key] for key in ("tablets_read", "tablets_total", "blocks_skipped")})
            self.screen.say(
                f"   {mean:.2f}, from {rows:,} rows in {duration(took_s)}; read were {read['tablets_read']} of "
                f"{read['tablets_total']} tablets, {read['blocks_total'] - read['blocks_skipped']} of "
                f"{read['blocks_total']} blocks"
            )

    def correct(self) -> None:
        with self.screen.step(
            4, "upsert", "A correction: upsert key and value of its rows, and no other column"
        ) as facts:
            from nyala import compute as pc

            self.before = self.database.now()
            wrong = self.table.scan(columns=["host", "metric", "time", "value"], where=ONE).to_arrow()
            right = wrong.set_column(3, "value", pc.divide(wrong.column("value"), 2.0))
            key = wrong.slice(0, 1).select(["host", "metric", "time"]).to_pylist()[0]
            row_before = self.table.get(key)
            began_s = time.monotonic()
            with finish_first():
                result = self.table.upsert(right)
            took_s = time.monotonic() - began_s
            row_after = self.table.get(key)
            assert row_before is not None and row_after is not None
            expect(row_after["unit"] == row_before["unit"], "the unit stays")
            facts.update(updated=result.updated, **moment(result.timestamp))
            self.screen.say(
                f"   {result.updated:,} rows updated in {duration(took_s)}, at one timestamp; one of them:"
            )
            for name, row in (("before", row_before), ("after", row_after)):
                self.screen.say(f"     {name:<6}  value {row['value']:.2f}  unit {row['unit']}")

    def time_travel(self) -> None:
        with self.screen.step(
            5, "time_travel", "Time travel: the same question, now and as of before"
        ) as facts:
            began_s = time.monotonic()
            then, _ = self.mean(at=self.before)
            took_s = time.monotonic() - began_s
            now, _ = self.mean()
            expect(then == self.screen.facts["ask"]["mean"], "the past has not changed")
            expect(math.isclose(now * 2, then), "values were halved")
            facts.update(mean_before=then, mean_now=now, before=moment(self.before))
            self.screen.say(
                f"   now {now:.2f}, before {then:.2f} (read in {duration(took_s)}); no copy was made"
            )

    def mistake(self) -> None:
        with self.screen.step(6, "mistake", "A mistake: insert a row whose key is taken") as facts:
            from nyala.errors import DuplicateKeyError

            rows = self.table.count()
            try:
                self.table.insert(measurements(0, 1).slice(0, 1))
            except DuplicateKeyError as error:
                facts.update(error=type(error).__name__, message=str(error))
                self.screen.say(f"   {type(error).__name__}: {error}")
            expect("error" in facts and self.table.count() == rows, "a taken key is an error")

    def second_process(self) -> None:
        import subprocess

        title = "A second process reads, read-only, while this one is the writer"
        with self.screen.step(7, "second_process", title) as facts:
            fresh = {
                "host": "host-99",
                "metric": "cpu",
                "time": "2026-06-01T12:00:00",
                "value": 42.0,
                "unit": "%",
            }
            with finish_first():
                result = self.table.upsert([fresh])
            command = [sys.executable, "-P", "-m", "nyala", "--json", "table", "scan", self.folder, TABLE]
            began_s = time.monotonic()
            with subprocess.Popen(
                [*command, "--where", "host = 'host-99'"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            ) as child:
                said, complaint = child.communicate()
            took_s = time.monotonic() - began_s
            if child.returncode != 0:
                raise Failure(f"the second process failed: {complaint.strip()}")
            seen = json.loads(said)
            expect([row["value"] for row in seen["rows"]] == [42.0], "the second process sees the row")
            expect(seen["timestamp"] >= result.timestamp, "the second process is up to date")
            facts.update(pid=child.pid, writer_pid=os.getpid(), process_seconds=round(took_s, 4))
            self.screen.say(
                f"   process {child.pid} saw the row that process {os.getpid()} had just written "
                f"({duration(took_s)}, most of it Python's start)"
            )

    def mean(self, at: int | None = None) -> tuple[float, int]:
        from nyala import compute as pc

        values = self.table.scan(columns=["value"], where=ONE, at=at).to_arrow().column("value")
        return float(pc.mean(values).as_py()), len(values)


def measurements(first: int, end: int) -> pa.Table:
    """The rows of all hosts and metrics at the times [first, end): waves, the same in each demo."""
    import numpy as np
    import pyarrow as pa

    series, times = HOSTS * len(METRICS), end - first
    time_index = np.repeat(np.arange(first, end), series)
    series_index = np.tile(np.arange(series), times)
    host, metric = series_index // len(METRICS), series_index % len(METRICS)
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


def expect(true: bool, what: str) -> None:
    if not true:
        raise Failure(f"the demo found something wrong, please report it: expected that {what}")


def check_folder(database: Database) -> None:
    """Nothing may be in the store but an earlier demo's table."""
    from nyala.cli.stores import state_of

    strange = [name for name in database.list_tables() if state_of(database, name).entry.comment != COMMENT]
    if strange:
        raise Failure(
            f"{database.path} is a store with tables of its own ({', '.join(strange[:5])}): name another folder",
            "FolderTaken",
        )


@click.command(cls=Command)
@click.argument("folder", type=click.Path(), default="nyala-demo", callback=no_file)
def demo(folder: str) -> None:
    """Make a small store in FOLDER and show what it can do, in a few seconds.

    FOLDER is nyala-demo if not given; it is new, empty, or an earlier demo's.
    """
    from nyala.api.database import connect

    screen = Screen(settings().json)
    began_s = time.monotonic()
    with connect(folder) as database:
        check_folder(database)
        screen.say(
            f"A store in the folder {folder}: tables with an enforced key, and every moment of their past."
        )
        run = Demo(folder, database, screen)
        run.run()
        seconds = time.monotonic() - began_s
        if settings().json:
            echo_json(
                {
                    "store": database.path,
                    "table": TABLE,
                    **moment(database.now()),
                    "steps": screen.facts,
                    "seconds": round(seconds, 3),
                }
            )
            return
    name, place = program(), shlex.quote(folder)
    screen.say(
        f"""
Done in {duration(seconds)}. The store stays; look at it yourself:

  {name} table describe {place}
  {name} table scan {place} --where "{ONE}" --limit 5
  {name} table scan {place} --where "{ONE}" --limit 5 --at {run.before}

  {os.path.basename(sys.executable)}
  >>> import nyala
  >>> metrics = nyala.connect({folder!r})["{TABLE}"]
  >>> metrics.scan(where="value > 89", limit=5)"""
    )
