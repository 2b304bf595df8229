"""The screen of the demo: options, steps with their times, and commands to try next. Also handles
Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from pyspark.sql import Row
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.table import Table

from examples.flights.checks import CheckFailed
from examples.flights.data import FeedDay, prepare
from examples.flights.pipeline import Moment, Pipeline, ReaderProcess
from examples.flights.place import Place, clear_earlier_demo
from examples.flights.session import start_spark

STEPS = 6
CARRIERS_SHOWN = ("UA", "B6", "EV", "DL", "AA")
MONTHS_SHOWN = (1, 6, 11)

NEXT = """
All checks passed, in {seconds:.0f} s. Now look at it yourself:

  {bin}/nyala table list {words}
  {bin}/nyala table describe {words} flights
  {bin}/nyala table scan {words} flights --columns carrier,flight,time_hour,dep_delay --where "dep_delay > 600"

as it stood on the evening of {then.name}: the same with --at {then.timestamp}

  {bin}/python
  >>> import nyala
  >>> flights = nyala.connect({arguments}, read_only=True)["flights"]
  >>> flights.scan(where="dest = 'HNL'", limit=5)
"""


class DayBar:
    """A progress bar over the days of the feed, with the date and a note."""

    def __init__(self, screen: Screen, title: str, feed: list[FeedDay]) -> None:
        self._screen = screen
        self._progress = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=18),
            MofNCompleteColumn(),
            TextColumn("{task.fields[date]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=screen.console,
        )
        self._task = self._progress.add_task(title, total=len(feed), date="", note="")

    def __enter__(self) -> DayBar:
        self._screen.working(None)
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()
        self._screen.working("checking")

    def advance(self, day: FeedDay) -> None:
        self._progress.update(self._task, advance=1, date=str(day.date))

    def note(self, text: str) -> None:
        self._progress.update(self._task, note=text)


class Screen:
    """Prints steps with their times and a line for each check. On a terminal it also shows a
    spinner.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._number = 0
        self._status: Status | None = None
        self._began = self._step_began = time.monotonic()
        self._stop_asked = False

    def stop(self, *_: object) -> NoReturn:
        """Handle Ctrl-C: raise KeyboardInterrupt. If Python ignores it, because it is deleting an
        object, raise it again at the next step.
        """
        self._stop_asked = True
        raise KeyboardInterrupt

    def step(self, title: str) -> None:
        self.end_step()
        self._number += 1
        self.console.print(f"\n[bold]{self._number} of {STEPS}  {title}[/bold]", highlight=False)
        self.working("working")

    def end_step(self) -> None:
        if self._stop_asked:
            raise KeyboardInterrupt
        self.working(None)
        if self._number:
            self.console.print(f"  [dim]{time.monotonic() - self._step_began:.1f} s[/dim]")
        self._step_began = time.monotonic()

    def working(self, text: str | None) -> None:
        """Show a spinner with a text. None removes it, because a progress bar needs the last line."""
        if self._status is not None:
            self._status.stop()
        self._status = None if text is None else self.console.status(f"{text} …")
        if self._status is not None:
            self._status.start()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def checked(self, text: str) -> None:
        self.console.print(f"  [green]✓[/green] {text}", highlight=False)

    def days(self, title: str, feed: list[FeedDay]) -> DayBar:
        return DayBar(self, title, feed)

    def answers(self, columns: dict[str, list[Row]]) -> None:
        """Print minutes of delay of the five largest airlines in three months, and numbers of
        flights, with a column per moment.
        """
        table = Table(title="Mean departure delay in minutes, as of …", title_justify="left", box=None)
        table.add_column("airline", no_wrap=True, max_width=22)
        table.add_column("month", justify="right")
        for name in columns:
            table.add_column(name, justify="right")
        by_moment = [{(row.carrier, row.month): row for row in rows} for rows in columns.values()]
        for carrier in CARRIERS_SHOWN:
            for month in MONTHS_SHOWN:
                cells = [rows[carrier, month] for rows in by_moment]
                delays = ("·" if row.mean_delay is None else f"{row.mean_delay:.2f}" for row in cells)
                table.add_row(cells[0].name, f"2013-{month:02}", *delays)
        table.add_section()
        for what in ("scheduled", "flown"):
            totals = (f"{sum(row[what] for row in rows):,}" for rows in columns.values())
            table.add_row(f"all flights, {what}", "", *totals)
        self.console.print(table)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def run(store: Place, work: Path, screen: Screen, days_of_month: int) -> Moment:
    """Run the six steps. Return the first moment that was queried."""
    log = work / "spark.log"
    screen.say(
        "Nyala: a year of New York's flights through PySpark, each answer checked against Spark over the CSV."
    )
    screen.working("starting Spark")
    began = time.monotonic()
    sources = prepare(work, days_of_month)
    spark = start_spark(log, on_cluster=store.in_bucket)
    screen.working(None)
    ready = f"Spark {spark.version} and the data are ready ({time.monotonic() - began:.1f} s)"
    screen.say(f"{ready}. Store: {store.path}. Master: {spark.sparkContext.master}")
    reader: ReaderProcess | None = None
    try:
        pipeline = Pipeline(spark, store, sources, screen)
        pipeline.schedule()
        pipeline.feed()
        pipeline.cancel()
        reader = ReaderProcess(store, work / "spark-of-second-process.log")
        pipeline.ask()
        pipeline.second_process(reader)
        pipeline.reopen()
        screen.end_step()
        return pipeline.moments[0]
    finally:
        screen.working(None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would interrupt this cleanup
        if reader is not None:
            reader.end()
        with contextlib.suppress(Exception):  # the connection to Spark may be broken
            spark.stop()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights",
        description="A year of New York's flights through PySpark into Nyala, each answer checked (`make demo`).",
    )
    parser.add_argument(
        "--store",
        default="demo-store",
        help="the folder to write (default: demo-store), or the URL of a bucket, s3://bucket/flights: then Spark's "
        "configuration names the master, and credentials are in the environment of each machine",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a storage option of the URL, such as endpoint=https://host:9000; may be repeated",
    )
    parser.add_argument("--quick", action="store_true", help="only the first three days of each month")
    options = parser.parse_args(arguments)
    pairs = dict(text.split("=", 1) for text in options.option if "=" in text)
    if len(pairs) < len(options.option) or (pairs and "://" not in options.store):
        parser.error("--option takes NAME=VALUE, each name once, and is for a store with a URL")
    values = {"true": True, "false": False}
    store = Place(options.store, {name: values.get(text, text) for name, text in pairs.items()})
    clear_earlier_demo(store)
    screen = Screen(Console())
    before = signal.signal(signal.SIGINT, screen.stop)
    try:
        return _run_and_say(store, 3 if options.quick else 31, screen)
    finally:
        signal.signal(signal.SIGINT, before)


def _run_and_say(store: Place, days_of_month: int, screen: Screen) -> int:
    work = Path(tempfile.mkdtemp(prefix="nyala-flights-"))
    try:
        then = run(store, work, screen, days_of_month)
    except CheckFailed as failure:
        screen.console.print("\n[bold red]A check failed.[/bold red]")
        screen.say(str(failure))
        screen.say(f"The store is kept in {store.path}, Spark's log in {work}.")
        return 1
    except KeyboardInterrupt:
        end_children()
        screen.working(None)
        begun = store.in_bucket or Path(store.path).exists()
        kept = f"What was acknowledged is in {store.path}" if begun else "Nothing was written yet"
        screen.say(f"\nStopped. {kept}; `make demo` starts from the beginning.")
        shutil.rmtree(work, ignore_errors=True)  # Spark may still be writing its log
        return 130
    except BaseException:
        screen.say(f"\nStopped by an error. The store is kept in {store.path}, Spark's log in {work}.")
        raise
    shutil.rmtree(work)
    options = f", storage_options={dict(store.options)}" if store.options else ""
    screen.say(
        NEXT.format(
            seconds=screen.seconds,
            bin=_short(Path(sys.executable).parent),
            words=store.words,
            arguments=f'"{store.path}"{options}',
            then=then,
        )
    )
    return 0


def end_children() -> None:
    """End the processes that this one started. A Java that was starting at Ctrl-C would otherwise
    run for ever.
    """
    try:
        found = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
    except OSError:  # a system without pgrep
        return
    for number in found.stdout.split():
        with contextlib.suppress(OSError):  # pgrep lists itself, and has ended
            os.kill(int(number), signal.SIGKILL)


def _short(path: Path) -> Path:
    """Return the path as a user would type it from the working folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    raise SystemExit(main())
