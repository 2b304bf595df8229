"""Range partitions that are added and dropped, and reads that need the rows of a dropped range."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.api.database import Database
from nyala.api.table import Table
from tests.support import open_database

YEARS = [("2014-01-01", "2015-01-01"), ("2015-01-01", "2016-01-01"), ("2016-01-01", "2017-01-01")]


def metrics(db: Database, *, buckets: int = 0, bounds: Any = YEARS) -> Table:
    """Create the metrics table of the specification, with a row in each of three years."""
    levels: list[Any] = [nyala.hash_partition("host", "metric", buckets=buckets)] if buckets else []
    table = db.create_table(
        "metrics",
        {"host": "string", "metric": "string", "time": "timestamp", "value": "double"},
        primary_key=["host", "metric", "time"],
        partition_by=[*levels, nyala.range_partition("time", bounds=bounds)],
    )
    if bounds is YEARS:
        table.insert([row(year) for year in (2014, 2015, 2016)])
    return table


def row(year: int, host: str = "a") -> dict[str, Any]:
    return {"host": host, "metric": "m", "time": dt.datetime(year, 6, 1, tzinfo=dt.UTC), "value": float(year)}


def years(table: Any, **scan: Any) -> list[int]:
    return sorted(
        int(value) for value in table.scan(columns=["value"], **scan).to_arrow().column(0).to_pylist()
    )


def partitions(table: Table) -> list[str]:
    return [tablet.partition for tablet in table.tablets()]


# ------------------------------------------------------------------------------------------------ adding


@pytest.mark.parametrize("buckets", [0, 4])
def test_a_range_is_added_with_a_tablet_per_bucket(path: Path, buckets: int) -> None:
    """The specification's example: one more year adds four tablets, one per bucket."""
    db = open_database(path)
    t = metrics(db, buckets=buckets)
    with pytest.raises(nyala.NoPartitionError, match="no range partition of table 'metrics' covers this row"):
        t.insert([row(2017)])
    before = len(t.tablets())
    with t.alter() as a:
        a.add_range("2017-01-01", "2018-01-01")
    assert len(t.tablets()) == before + max(buckets, 1)
    t.insert([row(2017, host) for host in "abcdef"])
    db.close()
    db = open_database(path)
    assert years(db["metrics"]) == [2014, 2015, 2016, *[2017] * 6]
    assert years(db["metrics"], where="time >= '2017-01-01'") == [2017] * 6
    read = (
        db["metrics"].scan(where="time >= '2017-01-01' AND host = 'a' AND metric = 'm'").explain().to_dict()
    )
    assert read["tablets_read"] == 1
    db.close()


def test_bounds_may_have_fewer_columns_than_the_range(db: Database) -> None:
    t = db.create_table(
        "t", {"a": "int32", "b": "string", "c": "int8"}, ["a", "b", "c"],
        nyala.range_partition("a", "b", bounds=[((1, "m"), (2,))]),
    )  # fmt: skip
    with t.alter() as a:
        a.add_range((2, None), {"a": 3, "b": "x"})
        a.add_range((3, "x"), (4, "y"), upper_inclusive=True)
    assert partitions(t) == [
        "RANGE (a, b) [(1, 'm'), (2))",
        "RANGE (a, b) [(2), (3, 'x'))",
        "RANGE (a, b) [(3, 'x'), (4, 'y\0'))",
    ]
    t.insert({"a": [1, 2, 3, 4], "b": ["z", "a", "x", "y"], "c": [0, 0, 0, 0]})
    assert [tablet.rows for tablet in t.tablets()] == [1, 1, 2]


REFUSED: list[tuple[Callable[[nyala.Alteration], object], str]] = [
    (lambda a: a.add_range("2014-06-01", "2014-07-01"), r"\[2014-06-01, 2014-07-01\) would overlap RANGE"),
    (
        lambda a: a.add_range("2016-06-01", None),
        r"unbounded\) would overlap RANGE .time. \[2016-01-01, 2017-01-01\)",
    ),
    (lambda a: a.add_range(None, None), "would overlap"),
    (lambda a: a.add_range(*YEARS[1]), "the range partition .* exists already"),
    (lambda a: a.add_range("2020-01-01", "2019-01-01"), "lower bound must be less than the upper bound"),
    (lambda a: a.add_range("2020-01-01", "2020-01-01"), "lower bound must be less than the upper bound"),
    (lambda a: a.add_range("soon", None), "lower bound of range column 'time'"),
    (lambda a: a.add_range(("2020-01-01", 1), None), "has 2 values; the range has 1 column"),
    (lambda a: a.drop_range("2014-01-01", "2016-01-01"), "exact bounds"),
    (
        lambda a: a.drop_range("2014-01-01", "2016-01-01"),
        r"it overlaps .*2014.*2015.*: give the exact bounds",
    ),
    (lambda a: a.drop_range("2030-01-01", None), "no range partition .* to drop; the table has"),
]


@pytest.mark.parametrize(("step", "message"), REFUSED, ids=range(len(REFUSED)))
def test_an_invalid_range_raises_the_reason(
    db: Database, step: Callable[[nyala.Alteration], object], message: str
) -> None:
    t = metrics(db)
    seen = db._root()
    with pytest.raises(nyala.InvalidArgumentError, match=message), t.alter() as a:
        a.drop_range(*YEARS[2])
        a.add_range(*YEARS[2])
        step(a)
    assert db._root() is seen


# ------------------------------------------------------------------------------------------------ dropping


def test_a_read_that_needs_a_purged_range_names_it(path: Path) -> None:
    """It never returns fewer rows. Reads that exclude the range, and scans that began before, work."""
    db = open_database(path)
    t = metrics(db)
    db.flush()
    before, open_scan, snapshot = db.now(), t.scan(), db.snapshot()
    with t.alter() as a:
        a.drop_range(*YEARS[0], purge=True)
    named = r"needs the partition RANGE \(time\) \[2014-01-01, 2015-01-01\), which was dropped and purged"
    key = {name: row(2014)[name] for name in t.primary_key}
    for needs in (
        lambda: t.scan(at=before).count(),
        lambda: t.scan(at=before, where="value > 2015").to_arrow(),
        lambda: t.scan(at=before, schema="current").to_arrow(),
        lambda: t.count(at=before),
        lambda: t.at(before).scan().to_arrow(),
        lambda: t.at(before).to_arrow(),
        lambda: t.get(key, at=before),
        lambda: t.get_many([key], at=before),
        lambda: t.history(key, since=before),
        lambda: t.restore(to=before),
        lambda: db.copy_table("metrics", "copy", at=before),
        lambda: db.snapshot(at=before)["metrics"].scan().count(),
        lambda: db.snapshot(at=before).sql("SELECT sum(value) FROM metrics").fetchall(),
    ):
        with pytest.raises(nyala.HistoryExpiredError, match=named):
            needs()
    assert years(t, at=before, where="time >= '2015-01-01'") == [2015, 2016]
    assert years(t, at=before, where="time < '2014-01-01'") == []
    assert t.get({**key, "time": row(2015)["time"]}, at=before) == row(2015)
    assert t.history(key).num_rows == 0
    assert sorted(open_scan.to_arrow().column("value").to_pylist()) == [2014, 2015, 2016]
    assert years(snapshot["metrics"]) == [2014, 2015, 2016]
    assert years(t, at=db.now()) == [2015, 2016]
    snapshot.close()
    db.close()
    with open_database(path) as db, pytest.raises(nyala.HistoryExpiredError, match=named):
        db["metrics"].scan(at=before).count()


@pytest.mark.parametrize(
    ("condition", "total"),
    [
        ("time >= '2015-01-01'", 4031),
        ("time >= '2015-01-01' AND time < '2016-01-01'", 2015),
        ("time IN ('2016-06-01')", 2016),
    ],
)
def test_sql_that_excludes_a_purged_range_can_read_an_earlier_moment(
    db: Database, condition: str, total: int
) -> None:
    """DuckDB must not keep the filter to itself, or the scan would have to return the missing rows."""
    t = metrics(db)
    before = db.now()
    with t.alter() as a:
        a.drop_range(*YEARS[0], purge=True)
    with db.snapshot(at=before) as then:
        found = then.sql(f"SELECT coalesce(sum(value), 0) FROM metrics WHERE {condition}").fetchone()
    assert found == (total,)


def test_the_change_feed_names_purged_ranges(db: Database) -> None:
    """It has no deletes of their rows; its metadata names the ranges."""
    t = metrics(db)
    before = db.now()
    t.update([row(2014), row(2015)])
    with t.alter() as a:
        a.drop_range(*YEARS[0], purge=True)
    dropped = db.now()
    t.insert([row(2015, "b")])
    for versions in ("net", "all"):
        feed = t.changes(before, versions=versions)  # type: ignore[arg-type]
        assert sorted(feed.to_arrow().column("value").to_pylist()) == [2015, 2015]
        (gone,) = feed.dropped_ranges
        assert gone.range == "RANGE (time) [2014-01-01, 2015-01-01)" and before < gone.timestamp <= dropped
        assert json.loads(feed.schema.metadata[b"nyala.dropped_ranges"]) == [asdict(gone)]
        assert json.loads(feed.to_reader().schema.metadata[b"nyala.dropped_ranges"]) == [asdict(gone)]
    assert t.changes(dropped).dropped_ranges == () and t.changes(dropped).schema.metadata is None


def test_files_of_a_purged_range_are_removed_when_nobody_reads_them(db: Database) -> None:
    """An open scan keeps them until it is freed."""
    t = metrics(db)
    db.flush()

    def there() -> bool:
        return any((Path(db.path) / "data" / str(first)).iterdir())

    first = t.tablets()[0].id
    scan = t.scan()
    with t.alter() as a:
        a.drop_range(*YEARS[0], purge=True)
    db._writer().collect_garbage()
    assert there()
    assert scan.count() == 3
    del scan
    db._writer().collect_garbage()
    assert not there()


def test_purged_ranges_are_forgotten_with_the_history(path: Path) -> None:
    with open_database(path) as db:
        t = metrics(db)
        before = db.now()
        with t.alter() as a:
            a.drop_range(*YEARS[0], purge=True)
        state = db._writer().state.tables[1]
        assert len(state.purged) == 1
        assert state.without_past(before).purged == state.purged
        assert state.without_past(db.now()).purged == ()


def test_a_purged_range_does_not_keep_the_log(db: Database) -> None:
    """This holds even if its rows are only in memory."""
    t = metrics(db, bounds=[YEARS[0]])
    t.insert([row(2014)])
    assert db._root().memory_timestamp_min() is not None
    with t.alter() as a:
        a.drop_range(*YEARS[0], purge=True)
    assert db._root().memory_timestamp_min() is None
    assert t.tablets() == [] and years(t) == []
    t.flush()
    t.compact()


# ------------------------------------------------------------------------------------------------ the specification

UNBOUNDED = nyala.range_partition("time", splits=["2015-01-01", "2016-01-01"])
BOUNDED = nyala.range_partition(
    "time", bounds=[("2014-01-01", "2017-01-01")], splits=["2015-01-01", "2016-01-01"]
)
SAME_WITHOUT_SPLITS = nyala.range_partition("time", bounds=YEARS)
HASH = nyala.hash_partition("host", "metric", buckets=4)
HASHES = [nyala.hash_partition("host", buckets=4), nyala.hash_partition("metric", buckets=3)]
# name, levels, number of tablets, whether rows of other years have a partition
EXAMPLES: list[tuple[str, list[Any], int, bool]] = [
    ("range, unbounded", [UNBOUNDED], 3, True),
    ("range, bounded", [BOUNDED], 3, False),
    ("range, three bounds", [SAME_WITHOUT_SPLITS], 3, False),
    ("hash", [HASH], 4, True),
    ("hash and range", [HASH, BOUNDED], 12, False),
    ("hash and hash", HASHES, 12, True),
    ("hash, hash and range", [*HASHES, BOUNDED], 36, False),
]


@pytest.mark.parametrize(
    ("name", "levels", "tablets", "open_ended"), EXAMPLES, ids=[example[0] for example in EXAMPLES]
)
def test_the_examples_of_the_specification(
    db: Database, name: str, levels: list[Any], tablets: int, open_ended: bool
) -> None:
    """Each form of the metrics table has the documented number of tablets, and each level is pruned
    by itself.
    """
    t = db.create_table(
        "metrics",
        {
            "host": "string", "metric": "string", "time": "timestamp",
            "value": nyala.column("double", nullable=False),
        },
        ["host", "metric", "time"],
        levels,
    )  # fmt: skip
    assert len(t.tablets()) == tablets
    if open_ended:
        t.insert([row(2010), row(2030)])
    else:
        with pytest.raises(nyala.NoPartitionError):
            t.insert([row(2010)])
    t.insert([{**row(2015), "host": h, "metric": m} for h in "abc" for m in "xyz"])
    one = "host = 'a' AND metric = 'x' AND time >= '2015-01-01' AND time < '2016-01-01'"
    assert t.scan(where=one).explain().to_dict()["tablets_read"] == 1
    assert t.count(where=one) == 1
    of_level = {"hash and hash": [("host = 'a'", 3), ("metric = 'x'", 4), ("value = 1", 12)],
                "hash and range": [("host = 'a'", 12), ("time < '2015-01-01'", 4)]}  # fmt: skip
    for where, expected in of_level.get(name, []):
        assert t.scan(where=where).explain().to_dict()["tablets_read"] == expected


def test_a_year_can_be_added_to_bounded_ranges_only(db: Database) -> None:
    """In the specification's first example, an unbounded last range contains all later years."""
    first = db.create_table("first", {"time": "timestamp"}, "time", [UNBOUNDED])
    second = db.create_table("second", {"time": "timestamp"}, "time", [BOUNDED])
    with pytest.raises(nyala.InvalidArgumentError, match="would overlap"), first.alter() as a:
        a.add_range("2017-01-01", "2018-01-01")
    with second.alter() as a:
        a.add_range("2017-01-01", "2018-01-01")
    assert len(second.tablets()) == 4
