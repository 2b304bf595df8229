"""Every answer out of Nyala compared with Spark over the plain CSV.

What the table must hold at a moment is said once, as a `State`, and worked out from the CSV alone (`expected`).
Two checks use it: all rows and columns by count and hash sum (`same_rows`), and the answers to the question of
step 4 row by row (`same_answers`). A check that fails ends the run.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from examples.flights.data import ACTUAL, KEY, SCHEDULED

# What the question needs of table `flights`: a Python data source is not told by Spark, so it is said.
QUESTION_COLUMNS = ["carrier", "month", "origin", "time_hour", "dep_delay"]


class CheckFailed(Exception):
    """Nyala's answer is not Spark's over the CSV."""


@dataclass(frozen=True)
class State:
    """What `flights` holds: the feed up to and including a day, and what became of the cancelled flights.

    reinstated   None: nothing is deleted yet; else they are, but for so many that are there again, the first by key
    """

    through: dt.date | None = None
    reinstated: int | None = None


def never_left(csv: DataFrame, until: dt.date) -> DataFrame:
    """The flights up to and including a day that have no departure, in the order of the key (`rank` from 1)."""
    rank = F.row_number().over(Window.orderBy(*KEY))
    return csv.where(F.col("dep_time").isNull() & (_date() <= F.lit(until))).withColumn("rank", rank)


def expected(csv: DataFrame, cancelled: DataFrame, state: State) -> DataFrame:
    """The rows of table `flights` in `state`, from the plain CSV; `cancelled` is what `never_left` gave."""
    happened = F.lit(False) if state.through is None else _date() <= F.lit(state.through)
    departed = happened & F.col("dep_time").isNotNull()
    rows = csv
    if state.reinstated is not None:
        gone = cancelled.where(F.col("rank") > state.reinstated)
        rows = rows.join(F.broadcast(gone.select(*KEY)), KEY, "left_anti")
    return rows.select(*KEY, *SCHEDULED, *(F.when(departed, F.col(name)).alias(name) for name in ACTUAL))


def ask(flights: DataFrame, airlines: DataFrame, weather: DataFrame) -> list[Row]:
    """The question: mean delay by carrier and month, with the airline's name and the weather at departure."""
    raining = F.col("precip") > 0
    answer = (
        flights.join(F.broadcast(airlines.select("carrier", "name")), "carrier")
        .join(F.broadcast(weather.select("origin", "time_hour", "precip")), ["origin", "time_hour"], "left")
        .groupBy("carrier", "name", "month")
        .agg(
            F.count("*").alias("scheduled"),
            F.count("dep_delay").alias("flown"),
            # Averages of whole numbers: exact sums, one division, so both sides agree to the last bit.
            F.avg("dep_delay").alias("mean_delay"),
            F.avg(F.when(raining, F.col("dep_delay"))).alias("mean_delay_in_rain"),
        )
    )
    return sorted(answer.collect(), key=lambda row: (row.carrier, row.month))


def same_rows(what: str, found: DataFrame, wanted: DataFrame) -> int:
    """Both hold the same rows, all columns; returns how many. Order does not matter, duplicates do."""
    wanted = wanted.select(*(F.col(f.name).cast(f.dataType).alias(f.name) for f in found.schema.fields))
    # One job for both sides: a small one costs mostly its start.
    sides = _fingerprint(found, "found").union(_fingerprint(wanted, "wanted")).collect()
    by_side = {row.side: (row.count_, row.total) for row in sides}
    if by_side["found"] != by_side["wanted"]:
        odd = found.exceptAll(wanted).limit(3).collect()
        missing = wanted.exceptAll(found).limit(3).collect()
        raise CheckFailed(
            f"{what}: Nyala has {by_side['found'][0]:,} rows, Spark over the CSV {by_side['wanted'][0]:,}.\n"
            f"  only in Nyala: {odd}\n  only in the CSV: {missing}"
        )
    return int(by_side["found"][0])


def same_answers(what: str, found: list[Row], wanted: list[Row]) -> int:
    """Both lists are equal, row by row; returns their length."""
    if len(found) != len(wanted):
        raise CheckFailed(f"{what}: {len(found)} rows, Spark over the CSV gives {len(wanted)}")
    for ours, theirs in zip(found, wanted, strict=True):
        if ours != theirs:
            raise CheckFailed(f"{what}: Nyala says {ours}, Spark over the CSV {theirs}")
    return len(found)


def same_number(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise CheckFailed(f"{what}: {found:,}, and it should be {wanted:,}")


def _date() -> Column:
    return F.make_date("year", "month", "day")


def _fingerprint(df: DataFrame, side: str) -> DataFrame:
    """One row: how many rows `df` has, and the sum of their hashes."""
    columns = [F.col(name) for name in df.columns]
    # NULL does not enter Spark's hash, so that (NULL, 5) and (5, NULL) would be one: it is told apart by itself.
    hashed = F.xxhash64(*columns, *(F.isnull(c) for c in columns)).cast("decimal(38,0)")
    return df.agg(F.lit(side).alias("side"), F.count("*").alias("count_"), F.sum(hashed).alias("total"))
