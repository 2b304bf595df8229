"""The six steps of the pipeline.

    1 schedule   load the year's schedule, and weather, planes, airports, airlines
    2 feed       what happened, with one Spark job and one atomic upsert per day, January to
                 November
    3 cancel     delete rows, insert some again, and insert rows that exist
    4 ask        mean delay by carrier and month, now and as of earlier moments of the feed
    5 second     another process reads while this one upserts December
    6 reopen     close, open again, and repeat all queries

All data goes in and out through PySpark. This process also has the store open (`nyala.connect`), to
create tables, to get the present moment, and to flush. It is the writer, so Spark sends its commits
to this process.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import nyala
import nyala.spark
from examples.flights import checks
from examples.flights.checks import CheckFailed, State
from examples.flights.data import ACTUAL, KEY, SCHEDULED, TABLES, FeedDay, Sources, read_csv
from examples.flights.place import Place

REINSTATED = 25
INSERTED_AGAIN = 20
ALREADY_THERE = 5
LAST_DAY_OF_STEP_2 = dt.date(2013, 11, 30)
# The query is run as of the last evening of these months, and of the end.
REMEMBERED_MONTHS = (3, 6, 9, 11)


class Screen(Protocol):
    """What the pipeline calls to show its progress."""

    def step(self, title: str) -> None: ...
    def say(self, text: str) -> None: ...
    def checked(self, text: str) -> None: ...
    def days(self, title: str, feed: list[FeedDay]) -> DayBar: ...
    def answers(self, columns: dict[str, list[Row]]) -> None: ...


class DayBar(Protocol):
    """A progress bar over days, for a `with` block."""

    def __enter__(self) -> DayBar: ...
    def __exit__(self, *exc: object) -> None: ...
    def advance(self, day: FeedDay) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Moment:
    """A timestamp of the store, the content of `flights` then, and the result of the query at this
    moment.
    """

    name: str
    timestamp: int
    state: State
    answer: tuple[Row, ...] = ()


class Pipeline:
    def __init__(self, spark: SparkSession, store: Place, sources: Sources, screen: Screen) -> None:
        self.spark = spark
        self.store = store
        self.sources = sources
        self.screen = screen
        self.db = store.connect()
        self.csv = {name: read_csv(spark, name, path) for name, path in sources.csv.items()}
        # Read once, because every check needs it.
        for name in ("flights", "airlines", "weather"):
            self.csv[name] = self.csv[name].cache()
        self.cancelled = (
            checks.never_left(self.csv["flights"], LAST_DAY_OF_STEP_2)
            .select(*KEY, *SCHEDULED, "rank")
            .cache()
        )
        self.state = State()
        self.moments: list[Moment] = []

    # -- reads and writes of Spark ----------------------------------------------------------------------------

    def write(self, df: DataFrame, table: str, operation: str) -> None:
        (
            df.write.format("nyala")
            .options(**self.store.spark_options)
            .option("table", table)
            .option("operation", operation)
            .mode("append")
            .save()
        )

    def read(self, table: str, columns: list[str] | None = None, at: int | None = None) -> DataFrame:
        reader = self.spark.read.format("nyala").options(**self.store.spark_options).option("table", table)
        if columns is not None:
            reader = reader.option("columns", ",".join(columns))
        if at is not None:
            reader = reader.option("at", at)
        return reader.load()

    # -- the steps --------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        self.screen.step("The schedule of 2013, before anything has flown")
        for name, spec in TABLES.items():
            self.db.create_table(name, spec.schema, spec.primary_key, spec.partition_by)
        for name in ("airlines", "airports", "planes", "weather"):
            self.write(self.csv[name].select(*TABLES[name].schema), name, "insert")
            rows = checks.same_rows(name, self.read(name), self.csv[name].select(*TABLES[name].schema))
            self.screen.checked(f"{rows:,} rows in table {name}")
        began = time.monotonic()
        self.write(self.csv["flights"].select(*KEY, *SCHEDULED), "flights", "insert")
        took = time.monotonic() - began
        self._check_rows(f"flights in the schedule, inserted in {took:.1f} s")
        self.screen.say(str(self.db["flights"]))

    def feed(self) -> None:
        days = [day for day in self.sources.feed if day.date <= LAST_DAY_OF_STEP_2]
        self.screen.step(f"The airline's feed: {len(days)} days, one atomic upsert of 6 columns each")
        month_ends = {max(d.date for d in days if d.date.month == m) for m in range(1, 12)}
        remembered = {date for date in month_ends if date.month in REMEMBERED_MONTHS}
        with self.screen.days("upserting", days) as bar:
            for day in days:
                self._bring_in(day)
                bar.advance(day)
                if day.date in month_ends:
                    # A larger feed is flushed in the background. Here a flush shows that it does
                    # not affect a moment.
                    self.db.flush()
                if day.date in remembered:
                    self._remember(f"{day.date:%-d %b}")
        self._check_rows("flights, with what happened to them")

    def cancel(self) -> None:
        self.screen.step("Cancelled, reinstated, and inserted twice")
        cancelled = self.cancelled
        count = cancelled.count()

        self.write(cancelled.select(*KEY), "flights", "delete")
        self.state = replace(self.state, reinstated=0)
        self._check_rows(f"flights left after {count:,} that never departed were deleted")

        again = cancelled.where(F.col("rank") <= REINSTATED).drop("rank")
        self.write(again, "flights", "insert")
        self.state = replace(self.state, reinstated=REINSTATED)
        self._check_rows(f"flights after {REINSTATED} of them were inserted again")

        # Some of these keys exist: each such row is an error, and the others are inserted.
        mixed = cancelled.where(
            F.col("rank").between(REINSTATED - ALREADY_THERE + 1, REINSTATED + INSERTED_AGAIN)
        ).drop("rank")
        result = nyala.spark.write(mixed, self.db, "flights", operation="insert", errors="collect")
        assert result.errors is not None
        self.state = replace(self.state, reinstated=REINSTATED + INSERTED_AGAIN)
        checks.same_number("rows inserted", result.inserted, INSERTED_AGAIN)
        checks.same_number("rows refused", result.errors.num_rows, ALREADY_THERE)
        self._check_rows(
            f"flights after {result.inserted} more; {result.errors.num_rows} were there already, among them:"
        )
        first = result.errors.slice(0, 1).to_pylist()[0]
        which = f"{first['carrier']} {first['flight']} of {first['time_hour']:%d %b %H:%M}"
        self.screen.say(f"    row {first['row']}, {which}: {first['code']}")
        self._remember("cancelled")

    def ask(self) -> None:
        self.screen.step("Mean departure delay by carrier and month, now and as of then")
        self._load_small_tables()
        for index, moment in enumerate(self.moments):
            self.moments[index] = self._answered(moment)
        self.screen.answers({moment.name: list(moment.answer) for moment in self.moments})

    def second_process(self, reader: ReaderProcess) -> None:
        days = [day for day in self.sources.feed if day.date > LAST_DAY_OF_STEP_2]
        self.screen.step(f"A second process reads while this one brings in December, {len(days)} days")
        with self.screen.days("upserting", days) as bar, reader:
            for day in days:
                self._bring_in(day)
                bar.advance(day)
                if reader.looks:
                    bar.note(f"reader sees {reader.looks[-1]['departures']:,} departures")
        self._check_looks(reader.looks)
        self._check_rows("flights at the end of the year")
        self._remember(f"{days[-1].date:%-d %b}")
        self.moments[-1] = self._answered(self.moments[-1])

    def reopen(self) -> None:
        self.screen.step("Closed, opened again: the same answers at every one of those moments")
        self.db.close()
        began = time.monotonic()
        self.db = self.store.connect()
        self.screen.say(f"  opened in {time.monotonic() - began:.2f} s")
        self._load_small_tables()
        for moment in self.moments:
            again = self._ask(moment)
            checks.same_answers(f"{moment.name}, after reopening", again, list(moment.answer))
            self.screen.checked(f"{len(again)} rows as of {moment.name}")
        self._check_rows("flights")
        self.db.close()

    # -- what the steps share ---------------------------------------------------------------------------------

    def _bring_in(self, day: FeedDay) -> None:
        self.write(
            read_csv(self.spark, "flights", day.path).select(*KEY, *ACTUAL), "flights", operation="upsert"
        )
        self.state = replace(self.state, through=day.date)

    def _remember(self, name: str) -> None:
        self.moments.append(Moment(name, self.db.now(), self.state))

    def _check_rows(self, what: str) -> None:
        rows = checks.same_rows(what, self.read("flights"), self._expected(self.state))
        self.screen.checked(f"{rows:,} {what}")

    def _load_small_tables(self) -> None:
        """Load airlines and weather once for all moments, because they do not change."""
        self.airlines = self.read("airlines", ["carrier", "name"]).cache()
        self.weather = self.read("weather", ["origin", "time_hour", "precip"]).cache()

    def _expected(self, state: State) -> DataFrame:
        return checks.expected(self.csv["flights"], self.cancelled, state)

    def _ask(self, moment: Moment) -> list[Row]:
        flights = self.read("flights", checks.QUESTION_COLUMNS, at=moment.timestamp)
        return checks.ask(flights, self.airlines, self.weather)

    def _answered(self, moment: Moment) -> Moment:
        began = time.monotonic()
        found = self._ask(moment)
        took = time.monotonic() - began
        flights = self._expected(moment.state)
        wanted = checks.ask(flights, self.csv["airlines"], self.csv["weather"])
        rows = checks.same_answers(f"the question as of {moment.name}", found, wanted)
        self.screen.checked(f"{rows} rows as of {moment.name}, in {took:.1f} s")
        return replace(moment, answer=tuple(found))

    def _check_looks(self, looks: list[dict[str, object]]) -> None:
        """Check that each read of the second process has the rows between two days, and is not
        older than the one before.
        """
        totals, total = {}, 0
        for day in self.sources.feed:
            total += day.departures
            totals[total] = str(day.date)
        seen = []
        for look in looks:
            departures = look["departures"]
            assert isinstance(departures, int)
            if totals.get(departures) != look["last_day"]:
                raise CheckFailed(
                    f"the second process saw {departures:,} departures up to "
                    f"{look['last_day']}: no whole number of days"
                )
            seen.append(departures)
        if seen != sorted(seen):
            raise CheckFailed(f"the second process saw the table go back in time: {seen}")
        checks.same_number("departures that the second process saw last", seen[-1], total)
        self.screen.checked(
            f"{len(looks)} looks from the second process, {len(set(seen))} different moments, each a whole day"
        )


class ReaderProcess:
    """Runs `reader_process.py` in a `with` block. It starts early, because its Spark session takes
    some seconds.
    """

    def __init__(self, store: Place, log: Path) -> None:
        self.looks: list[dict[str, object]] = []
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "examples.flights.reader_process",
                json.dumps(store.spark_options),
                str(log),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=Path(__file__).parents[2],
            process_group=0,  # only the first process gets Ctrl-C, and then ends this one
        )
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "ready" in message:
                self._ready.set()
            else:
                self.looks.append(message)
        self._ready.set()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")

    def __enter__(self) -> ReaderProcess:
        if not self._ready.wait(120) or self._process.poll() is not None:
            raise CheckFailed("the second process did not start; its log is beside the store")
        self._tell("go")
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is None:
            self._tell("stop")
            try:
                self._process.wait(120)
            except subprocess.TimeoutExpired:
                raise CheckFailed("the second process did not end") from None
            self._thread.join(10)
            if self._process.returncode != 0 or not self.looks:
                raise CheckFailed(f"the second process failed (exit {self._process.returncode})")
        self.end()

    def end(self) -> None:
        """Kill the process if it still runs. May be called twice."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
