"""Compares every result of Nyala with Spark over the CSV files.

A `State` says which rows the table must have at a moment, and `expected` computes them from the CSV
alone. Two checks use it: `same_rows` compares all rows and columns by count and hash sum, and
`same_answers` compares the results of step 4 row by row. A failed check ends the run.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from examples.flights.data import ACTUAL, KEY, SCHEDULED

# The columns of `flights` that the query needs. Spark does not pass them to a Python data source,
# so they are an option.
QUESTION_COLUMNS = ["carrier", "month", "origin", "time_hour", "dep_delay"]


class CheckFailed(Exception):
    """A result of Nyala differs from that of Spark over the CSV files."""


@dataclass(frozen=True)
class State:
    """The content of `flights`: the feed up to a day, inclusive, and the state of cancelled
    flights.

    reinstated: None: cancelled flights are not deleted yet. A number: they are deleted, and the
    first ones by key, as many as this number, are inserted again.
    """

    through: dt.date | None = None
    reinstated: int | None = None


def never_left(csv: DataFrame, until: dt.date) -> DataFrame:
    """Return the flights up to a day that have no departure. `rank` is their position in key order,
    from 1.
    """
    rank = F.row_number().over(Window.orderBy(*KEY))
    return csv.where(F.col("dep_time").isNull() & (_date() <= F.lit(until))).withColumn("rank", rank)


def expected(csv: DataFrame, cancelled: DataFrame, state: State) -> DataFrame:
    """Return the rows of `flights` in `state`, from the CSV files. cancelled: the result of
    `never_left`.
    """
    happened = F.lit(False) if state.through is None else _date() <= F.lit(state.through)
    departed = happened & F.col("dep_time").isNotNull()
    rows = csv
    if state.reinstated is not None:
        gone = cancelled.where(F.col("rank") > state.reinstated)
        rows = rows.join(F.broadcast(gone.select(*KEY)), KEY, "left_anti")
    return rows.select(*KEY, *SCHEDULED, *(F.when(departed, F.col(name)).alias(name) for name in ACTUAL))


def ask(flights: DataFrame, airlines: DataFrame, weather: DataFrame) -> list[Row]:
    """Return the mean delay by carrier and month, with the airline's name and the weather at
    departure.
    """
    raining = F.col("precip") > 0
    answer = (
        flights.join(F.broadcast(airlines.select("carrier", "name")), "carrier")
        .join(F.broadcast(weather.select("origin", "time_hour", "precip")), ["origin", "time_hour"], "left")
        .groupBy("carrier", "name", "month")
        .agg(
            F.count("*").alias("scheduled"),
            F.count("dep_delay").alias("flown"),
            # Averages of integers are exact sums and one division, so both sides are equal to the last bit.
            F.avg("dep_delay").alias("mean_delay"),
            F.avg(F.when(raining, F.col("dep_delay"))).alias("mean_delay_in_rain"),
        )
    )
    return sorted(answer.collect(), key=lambda row: (row.carrier, row.month))


def same_rows(what: str, found: DataFrame, wanted: DataFrame) -> int:
    """Check that both have the same rows, with all columns, in any order. Return their number."""
    wanted = wanted.select(*(F.col(f.name).cast(f.dataType).alias(f.name) for f in found.schema.fields))
    # One job for both sides, because most of a small job is its start.
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
    """Check that both lists are equal, row by row. Return their length."""
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
    """Return one row: the number of rows, and the sum of their hashes."""
    columns = [F.col(name) for name in df.columns]
    # Spark's hash ignores NULL, so (NULL, 5) and (5, NULL) would be equal. So hash also which
    # values are NULL.
    hashed = F.xxhash64(*columns, *(F.isnull(c) for c in columns)).cast("decimal(38,0)")
    return df.agg(F.lit(side).alias("side"), F.count("*").alias("count_"), F.sum(hashed).alias("total"))
