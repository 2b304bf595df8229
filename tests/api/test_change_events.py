"""Change events: Debezium envelopes, flat rows with an operation, and feeds of other tables."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nyala
from nyala.testing.s3_server import S3Server
from tests import sampled
from tests.processes import children

Event = dict[str, Any]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        make(db)
        yield db


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nyala.Table]:
    """A table that stays empty."""
    with nyala.connect(tmp_path_factory.mktemp("s") / "s", maintenance=False) as db:
        yield make(db)


def make(db: nyala.Database) -> nyala.Table:
    return db.create_table(
        "t",
        {
            "k": "int64",
            "v": "string",
            "price": "decimal(9,2)",
            "seen": "timestamp",
            "day": "date",
            "ts_ms": "int64",
            "must": nyala.column("int32", nullable=False, default=0),
        },
        primary_key="k",
        partition_by=nyala.hash_partition("k", buckets=2),
    )


def rows(table: Any, *columns: str) -> list[tuple[Any, ...]]:
    names = columns or ("k", "v")
    found = table.scan(columns=list(names)).to_arrow().to_pylist()
    return sorted(tuple(row[name] for name in names) for row in found)


def envelope(op: str, before: Event | None, after: Event | None, ts: int = 0, **more: Any) -> Event:
    return {
        "op": op,
        "before": before,
        "after": after,
        "ts_ms": ts,
        "source": {"lsn": ts, "db": "shop"},
        **more,
    }


def as_json(events: list[Event | None]) -> list[str | None]:
    return [None if event is None else json.dumps(event) for event in events]


def as_wrapped(events: list[Event | None]) -> list[str]:
    """Wrap events as Kafka Connect's JSON converter does with schemas."""
    return [json.dumps({"schema": {"type": "struct"}, "payload": event}) for event in events]


def as_arrow(events: list[Event | None]) -> pa.Table:
    return pa.Table.from_pylist([event for event in events if event is not None])


def as_arrow_payload(events: list[Event | None]) -> pa.Table:
    return pa.table({"payload": pa.array(events)})


FORMS = [list, as_json, as_wrapped, as_arrow, as_arrow_payload]


# --- Debezium -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_envelopes_in_every_form(db: nyala.Database, form: Any) -> None:
    """Create, read, update, delete, and the tombstone after a delete."""
    table = db["t"]
    table.insert([{"k": 9, "v": "old"}])
    result = table.apply_changes(
        form(
            [
                envelope("r", None, {"k": 1, "v": "a"}),
                envelope("c", None, {"k": 2, "v": "b"}),
                envelope("u", {"k": 1, "v": "a"}, {"k": 1, "v": "c"}),
                envelope("d", {"k": 9, "v": "old"}, None),
                None,
                envelope("d", {"k": 7, "v": None}, None),
            ]
        )
    )
    assert (result.inserted, result.updated, result.deleted, result.ignored) == (2, 1, 1, 1)
    assert rows(table) == [(1, "c"), (2, "b")]


@pytest.mark.parametrize("form", FORMS)
def test_late_and_repeated_envelopes_change_nothing(db: nyala.Database, form: Any) -> None:
    table = db["t"]
    newest = [envelope("u", None, {"k": 1, "v": "new"}, 7), envelope("d", {"k": 2, "v": None}, None, 7)]
    late = [envelope("c", None, {"k": 1, "v": "old"}, 6), envelope("c", None, {"k": 2, "v": "old"}, 5)]
    assert table.apply_changes(form(newest), sequence="ts_ms").inserted == 1
    assert table.apply_changes(form(late), sequence="ts_ms").ignored == 2
    assert table.apply_changes(form(newest), sequence="ts_ms").ignored == 2
    assert rows(table, "k", "v", "ts_ms") == [(1, "new", 7)]
    again = form([envelope("c", None, {"k": 2, "v": "back"}, 8)])
    assert table.apply_changes(again, sequence="source.lsn", sequence_column="ts_ms").inserted == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sequence", [None, "ts_ms"])
def test_an_update_of_the_key_deletes_the_old_row(db: nyala.Database, form: Any, sequence: Any) -> None:
    table = db["t"]
    events = [
        envelope("c", None, {"k": 1, "v": "a"}, 1),
        envelope("c", None, {"k": 5, "v": "b"}, 2),
        envelope("u", {"k": 1, "v": "a"}, {"k": 2, "v": "a"}, 3),
        envelope("u", {"k": 5, "v": "b"}, {"k": 5, "v": "c"}, 4),
    ]
    table.apply_changes(form(events[:2]), sequence=sequence)
    result = table.apply_changes(form(events[2:]), sequence=sequence)
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    assert rows(table) == [(2, "a"), (5, "c")]
    if sequence is not None:
        assert table.apply_changes(form(events), sequence=sequence).ignored == 5


def test_values_of_a_deleted_row_are_not_read(db: nyala.Database) -> None:
    """Only the key and the sequence count, so a delete never fails because of another column."""
    table = db["t"]
    for form in FORMS:
        table.insert([{"k": 1}])
        events = form([envelope("d", {"k": 1, "price": "no number", "more": 1}, None)])
        assert table.apply_changes(events).deleted == 1
    for form in (list, as_json, as_arrow):
        table.insert([{"k": 1}])
        flat = [{"op": "d", "k": 1, "price": "no number"}, {"op": "c", "k": 2, "price": "1.00"}]
        assert table.apply_changes(form(flat)).deleted == 1
        table.delete([2])


def test_each_event_changes_only_its_own_columns(db: nyala.Database) -> None:
    """A column stays as it is if an event leaves it out, or if Debezium marks it as unavailable."""
    table = db["t"]
    table.insert([{"k": 1, "v": "big", "must": 3}, {"k": 2, "v": "big", "must": 4}])
    unavailable = "__debezium_unavailable_value"
    table.apply_changes(
        [envelope("u", None, {"k": 1, "must": 5}), envelope("u", None, {"k": 2, "v": unavailable, "must": 6})]
    )
    assert rows(table, "k", "v", "must") == [(1, "big", 5), (2, "big", 6)]
    table.apply_changes(as_arrow([envelope("u", None, {"k": 2, "v": unavailable, "must": 7})]))
    assert rows(table, "k", "v", "must") == [(1, "big", 5), (2, "big", 7)]


def test_a_column_may_be_called_payload_or_after(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "payload": "string", "after": "int64"}, primary_key="k")
        flat = [
            {"op": "c", "k": 1, "payload": "text", "after": 5},
            {"op": "c", "k": 2, "payload": None, "after": None},
        ]
        table.apply_changes(flat)
        table.apply_changes(pa.Table.from_pylist([{**row, "k": row["k"] + 2} for row in flat]))
        table.apply_changes([envelope("c", None, {"k": 5, "payload": "x", "after": 1})])
        table.apply_changes(as_arrow([envelope("c", None, {"k": 6, "payload": "x", "after": 1})]))
        assert table.count() == 6


# --- flat rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [list, as_json, as_arrow, lambda events: as_arrow(events).to_pydict()])
def test_flat_rows_with_other_names_of_operations(db: nyala.Database, form: Any) -> None:
    table = db["t"]
    events = [
        {"what": "I", "k": 1, "v": "a", "when": 3},
        {"what": "insert", "k": 2, "v": "b", "when": 3},
        {"what": "X", "k": 3, "v": "c", "when": 3},
        {"what": "DELETE", "k": 2, "v": "b", "when": 4},
    ]
    result = table.apply_changes(
        form(events), operation="what", operations={"I": "upsert", "X": "skip"},
        sequence="when", sequence_column="ts_ms",
    )  # fmt: skip
    assert (result.inserted, result.deleted) == (2, 1) and rows(table, "k", "v", "ts_ms") == [(1, "a", 3)]


@pytest.mark.parametrize("form", [list, as_arrow])
def test_the_sequence_may_be_a_time(db: nyala.Database, form: Any) -> None:
    for ms in (2000, 1000):
        db["t"].apply_changes(
            form([{"op": "c", "k": 1, "v": str(ms), "when": ms}]),
            sequence="when", sequence_column="seen", units={"seen": "ms"},
        )  # fmt: skip
    assert rows(db["t"], "v", "seen") == [("2000", dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC))]


@pytest.mark.parametrize("form", [list, as_arrow])
def test_the_sequence_may_also_be_a_column(db: nyala.Database, form: Any) -> None:
    """The field is written to both columns."""
    events = [{"op": "c", "k": 1, "must": 5}]
    db["t"].apply_changes(form(events), sequence="must", sequence_column="ts_ms")
    assert rows(db["t"], "must", "ts_ms") == [(5, 5)]


@pytest.mark.parametrize("form", [list, as_arrow])
def test_an_operation_may_be_another_value_than_text(db: nyala.Database, form: Any) -> None:
    """Such as `__deleted`, a bool in the flat form of Debezium."""
    table = db["t"]
    events = [{"__deleted": False, "k": 1}, {"__deleted": False, "k": 2}, {"__deleted": True, "k": 1}]
    table.apply_changes(form(events), operation="__deleted", operations={True: "delete", False: "upsert"})
    assert rows(table, "k") == [(2,)]


def test_operations_may_be_categories(db: nyala.Database) -> None:
    table = db["t"]
    events = pa.table({"op": pa.array(["c", "d", "c"]).dictionary_encode(), "k": [1, 1, 2],
                       "v": pa.array(["x", "x", "y"]).dictionary_encode()})  # fmt: skip
    table.apply_changes(events)
    assert rows(table) == [(2, "y")]


@pytest.mark.parametrize("form", [list, as_json, as_arrow])
def test_columns_are_chosen_and_renamed(db: nyala.Database, form: Any) -> None:
    table = db["t"]
    events = [
        envelope("c", None, {"id": 1, "name": "a", "secret": "x"}),
        envelope("c", None, {"id": 2, "name": "b", "secret": "x"}),
        envelope("d", {"id": 1, "name": "a", "secret": "x"}, None),
    ]
    table.apply_changes(form(events), columns={"id": "k", "name": "v"})
    assert rows(table) == [(2, "b")]
    assert table.apply_changes(form(events[2:]), columns={"id": "k", "name": "v"}).ignored == 1
    flat = [{"op": "u", "k": 2, "v": "c", "trace": 7}]
    table.apply_changes(form(flat), columns=["k", "v"])
    assert rows(table) == [(2, "c")]
    table.apply_changes(form([{"op": "u", "k": 2, "v": None}]), columns={"k": "k", "op": "v"})
    assert rows(table) == [(2, "u")]


# --- values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [list, as_json, as_arrow])
@pytest.mark.parametrize(
    ("unit", "number"), [("s", 1_700_000_000), ("ms", 1_700_000_000_000), ("ns", 17 * 10**17)]
)
def test_numbers_are_times_in_a_unit(db: nyala.Database, form: Any, unit: str, number: int) -> None:
    """`units` says in which unit a number of an event is a time."""
    table = db["t"]
    flat = [{"op": "c", "k": 1, "seen": number, "day": 19675}, {"op": "c", "k": 2, "seen": None, "day": None}]
    table.apply_changes(form(flat), units={"seen": unit, "day": "d"})
    seen = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
    assert rows(table, "k", "seen", "day") == [(1, seen, dt.date(2023, 11, 14)), (2, None, None)]


@pytest.mark.parametrize("form", [list, as_json, as_arrow])
def test_decimals_are_read_from_text(db: nyala.Database, form: Any) -> None:
    table = db["t"]
    table.apply_changes(form([{"op": "c", "k": 1, "price": "10.10"}, {"op": "c", "k": 2, "price": None}]))
    assert rows(table, "k", "price") == [(1, Decimal("10.10")), (2, None)]


def test_numbers_of_json_keep_their_digits(tmp_path: Path) -> None:
    """A decimal has exactly the digits of the text, and a double is the nearest number."""
    with nyala.connect(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "d": "decimal(38,20)", "f": "double"}, primary_key="k")
        table.apply_changes(['{"op": "c", "k": 1, "d": 0.10000000000000000001, "f": 0.1}'])
        assert table[1] == {"k": 1, "d": Decimal("0.10000000000000000001"), "f": 0.1}


@pytest.mark.parametrize("form", [list, as_json, as_arrow])
@pytest.mark.parametrize(
    ("column", "bad", "says"),
    [
        ("price", "ten", r"column 'price': 'ten' is not a number of type decimal\(9,2\)"),
        ("price", "1.005", r"column 'price': .*1.005 "),
        ("price", "1234567890", "column 'price': .*does not fit"),
        (
            "day",
            2**40,
            "column 'day': 1099511627776 is not a number of days, the unit that units= gives for this column",
        ),
        ("seen", 2**62, "column 'seen': .*is beyond 64 bits of microseconds"),
    ],
)
def test_a_value_that_cannot_be_read_is_an_error_of_its_row(
    db: nyala.Database, form: Any, column: str, bad: Any, says: str
) -> None:
    """With errors="collect", the other events are applied."""
    table = db["t"]
    good = {"price": "1.00", "day": 1, "seen": 1}[column]
    events = form([{"op": "c", "k": k, column: bad if k == 2 else good} for k in (1, 2, 3)])
    units = {"seen": "s", "day": "d"}
    with pytest.raises(
        nyala.InvalidValueError, match=r"1 of 3 rows failed and nothing was written: row 1 \(k=2\)"
    ):
        table.apply_changes(events, units=units)
    assert table.count() == 0
    result = table.apply_changes(events, units=units, errors="collect")
    assert result.inserted == 2 and result.errors["row"].to_pylist() == [1]
    assert result.errors["code"].to_pylist() == ["out-of-range"]
    assert_says(result.errors["message"][0].as_py(), says)


def assert_says(message: str, says: str) -> None:
    assert re.search(says, message), message


@pytest.mark.parametrize("form", [list, as_json, as_arrow_payload])
def test_errors_name_the_position_of_the_event(db: nyala.Database, form: Any) -> None:
    """Tombstones, skipped events and events that become two rows count as one position each."""
    table = db["t"]
    events = [
        envelope("u", {"k": 8}, {"k": 9, "must": 1}, 1),
        None,
        envelope("m", None, None, 2),
        envelope("c", None, {"k": 1, "v": "x", "must": None}, 3),
        envelope("d", {"k": None}, None, 4),
        envelope("c", None, {"k": 2, "v": "x", "must": 1}, 5),
        envelope("c", None, {"k": 3, "v": "x", "must": 1}, None),
    ]
    result = table.apply_changes(form(events), sequence="ts_ms", operations={"m": "skip"}, errors="collect")
    assert result.errors["row"].to_pylist() == [3, 4, 6]
    assert result.errors["code"].to_pylist() == ["null", "null", "null"]
    assert result.errors["operation"].to_pylist() == ["upsert", "delete-ignore", "upsert"]
    assert rows(table, "k") == [(2,), (9,)]


# --- feeds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", ["net", "all"])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("form", ["feed", "arrow", "dicts", "reader"])
def test_the_feed_of_another_table(db: nyala.Database, versions: Any, before: bool, form: str) -> None:
    """Applying the feed of a table to its copy makes both equal."""
    source, copy = (
        db["t"],
        db.create_table("copy", {"k": "int64", "v": "string", "n": "int64"}, primary_key="k"),
    )
    since = source.upsert([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}, {"k": 3, "v": "c"}])
    copy.upsert([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}, {"k": 3, "v": "c"}])
    source.update([{"k": 1, "v": "d"}])
    source.delete([{"k": 2}])
    source.insert([{"k": 4, "v": "e"}])
    source.delete([4])
    source.insert([{"k": 5, "v": "f"}])
    feed = source.changes(since=since, versions=versions, before=before, columns=["v"])
    events: Any = feed
    if form != "feed":
        events = feed.to_reader() if form == "reader" else feed.to_arrow()
        events = events.to_pylist() if form == "dicts" else events
    copy.apply_changes(events)
    assert rows(copy) == rows(source) == [(1, "d"), (3, "c"), (5, "f")]


def test_a_feed_applied_twice_and_late(db: nyala.Database) -> None:
    """`_commit_version` is the sequence of a feed."""
    source = db["t"]
    copy = db.create_table("copy", {"k": "int64", "v": "string", "at": "int64"}, primary_key="k")
    start = db.now()
    middle = source.upsert([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}])
    source.delete([1])
    source.upsert([{"k": 2, "v": "c"}])
    first = source.changes(since=start, until=middle, columns=["v"])
    second = source.changes(since=middle, columns=["v"])
    for feed in (second, first, second, first):
        copy.apply_changes(feed, sequence="_commit_version", sequence_column="at")
        assert rows(copy) == [(2, "c")]


# --- all together ---------------------------------------------------------------------------------------


def history(random_: random.Random, keys: int, count: int) -> tuple[list[Event], dict[int, tuple[str, int]]]:
    """Draw envelopes in the order of the source, and the final rows of the source."""
    truth: dict[int, tuple[str, int]] = {}
    events = []
    for ts in range(1, count + 1):
        k = random_.randrange(keys)
        before = {"k": k, "v": truth[k][0]} if k in truth else None
        draw = random_.random()
        if before is None or draw < 0.55:
            after = {"k": k, "v": f"v{ts}"}
            events.append(envelope("c" if before is None else "u", before, after, ts))
            truth[k] = (f"v{ts}", ts)
        elif draw < 0.85:
            events.append(envelope("d", before, None, ts))
            del truth[k]
        else:
            new = next(n for n in range(keys, 1000 * keys) if n not in truth)
            after = {"k": new, "v": f"v{ts}"}
            events.append(envelope("u", before, after, ts))
            del truth[k]
            truth[new] = (f"v{ts}", ts)
    return events, truth


@pytest.mark.parametrize("seed", sampled.each(3, range(12)))
def test_events_in_any_order_make_the_table_of_the_source(tmp_path: Path, seed: int) -> None:
    """Shuffled and repeated, in every form, between flushes, compactions, replays and direct commits."""
    random_ = random.Random(seed)
    events, truth = history(random_, keys=10, count=70)
    arriving: list[Event | None] = [*events, *random_.sample(events, 30), None]
    random_.shuffle(arriving)
    path = tmp_path / "s"
    db = nyala.connect(path, maintenance=False)
    make(db)
    while arriving:
        size = random_.choice([1, 3, 20])
        part, arriving = arriving[:size], arriving[size:]
        db._writer().direct_commit_bytes = random_.choice([0, 64 << 20])
        arrives = random_.choice(FORMS)(part)
        if random_.random() < 0.3:
            with db.transaction() as tx:
                tx["t"].apply_changes(arrives, sequence="ts_ms")
        else:
            db["t"].apply_changes(arrives, sequence="ts_ms")
        act = random_.random()
        if act < 0.15:
            db["t"].flush()
        elif act < 0.25:
            db["t"].compact()
        elif act < 0.35:
            db.close()
            db = nyala.connect(path, maintenance=False)
    assert {k: (v, ts) for k, v, ts in rows(db["t"], "k", "v", "ts_ms")} == truth
    db.close()
    assert nyala.check(path).problems == ()


def test_events_in_any_order_in_a_bucket(tmp_path: Path) -> None:
    random_ = random.Random(1)
    events, truth = history(random_, keys=8, count=60)
    random_.shuffle(events)
    with S3Server() as server:

        def connect() -> nyala.Database:
            return nyala.connect(
                "s3://bucket/store", storage_options=server.options, group_interval=0, maintenance=False
            )

        with connect() as db:
            make(db)
        for begin in range(0, len(events), 15):
            with connect() as db:
                db["t"].apply_changes(events[begin : begin + 15], sequence="ts_ms")
                if begin == 15:
                    db["t"].flush()
        with connect() as db:
            assert {k: (v, ts) for k, v, ts in rows(db["t"], "k", "v", "ts_ms")} == truth


def test_a_process_that_shares_the_store_applies_events(tmp_path: Path) -> None:
    """Late events, remembered deletes, error positions and transactions work as in the writer's process."""
    with children(tmp_path / "s", 1) as [holder], nyala.connect(tmp_path / "s") as db:
        assert not holder.value("db.read_only")
        table = make(db)
        result = table.apply_changes(
            [
                envelope("d", {"k": 2}, None, 9),
                None,
                envelope("c", None, {"k": 1, "price": "x"}, 5),
                envelope("c", None, {"k": 3, "v": "c"}, 5),
            ],
            sequence="ts_ms",
            errors="collect",
        )
        assert (result.inserted, result.ignored, result.errors["row"].to_pylist()) == (1, 1, [2])
        late = [envelope("c", None, {"k": 2, "v": "late"}, 8), envelope("u", None, {"k": 3, "v": "late"}, 4)]
        assert table.apply_changes(late, sequence="ts_ms").ignored == 2
        with db.transaction() as tx:
            assert tx["t"].apply_changes(late, sequence="ts_ms").ignored == 2
            tx["t"].apply_changes([envelope("d", {"k": 4}, None, 9)], sequence="ts_ms")
        assert [result.ignored for result in tx.results] == [2, 1]
        assert table.upsert([{"k": 4, "ts_ms": 8}], newest_by="ts_ms").ignored == 1
        assert table.upsert([{"k": 3, "v": "d"}], when="old.v = ?", params=["b"]).ignored == 1
        assert rows(table) == [(3, "c")]


def test_events_in_a_transaction_see_its_own_writes(db: nyala.Database) -> None:
    """One transaction may have events with a sequence and writes without one."""
    table = db["t"]
    table.insert([{"k": 3, "v": "c"}])
    with db.transaction() as tx:
        tx["t"].apply_changes([envelope("d", {"k": 1}, None, 9)], sequence="ts_ms")
        late = tx["t"].apply_changes([envelope("c", None, {"k": 1, "v": "late"}, 8)], sequence="ts_ms")
        assert late.ignored == 1
        tx["t"].apply_changes([envelope("c", None, {"k": 2, "v": "b"}, 8)], sequence="ts_ms")
        tx["t"].delete([3])
    assert rows(table) == [(2, "b")]
    assert table.apply_changes([envelope("c", None, {"k": 1, "v": "late"}, 9)], sequence="ts_ms").ignored == 1
    assert table.apply_changes([envelope("c", None, {"k": 3, "v": "new"}, 1)], sequence="ts_ms").inserted == 1


def test_two_transactions_with_events_of_one_key_conflict(db: nyala.Database) -> None:
    """They conflict even if the first commit only remembers a delete of a missing key."""
    with pytest.raises(nyala.ConflictError), db.transaction() as tx:
        tx["t"].apply_changes([envelope("c", None, {"k": 1, "v": "a"}, 5)], sequence="ts_ms")
        other = apply_in_thread(db, [envelope("d", {"k": 1}, None, 9)])
        assert other.ignored == 1
    assert rows(db["t"]) == []


def apply_in_thread(db: nyala.Database, events: list[Event]) -> Any:
    """Apply events in another thread, because this thread has an open transaction."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(db["t"].apply_changes, events, sequence="ts_ms").result()


def test_no_events_change_nothing(db: nyala.Database) -> None:
    table, at = db["t"], db.now()
    nothing = [
        [],
        (),
        [None],
        pa.table({"op": pa.array([], pa.string())}),
        [{"op": "m"}],
        table.changes(since=at),
    ]
    for events in nothing:
        result = table.apply_changes(events, operations={"m": "skip"})
        assert (result.inserted, result.ignored, len(result.errors)) == (0, 0, 0)
        assert table.apply_changes(events, sequence="ts_ms", operations={"m": "skip"}).updated == 0


# --- what events must be --------------------------------------------------------------------------------

CREATE = envelope("c", None, {"k": 1, "v": "a"}, 1)


@pytest.mark.parametrize(
    ("events", "options", "says"),
    [
        (["{not json"], {}, r"event 0 is text, but not JSON: Expecting property name"),
        ([CREATE, "[1, 2]"], {}, r"event 1 is \[1, 2\], not an object with fields"),
        (["[" * 100_000], {}, "event 0 is text, but not JSON"),
        (["5"], {}, "event 0 is 5, not an object"),
        ([{"schema": {}, "payload": 5}], {}, "event 0 is 5, not an object"),
        ([{"k": 1}], {}, "the events have no field 'op' with the operation; their fields are k: pass operation='…'"),
        ([CREATE], {"operation": "kind"}, "no field 'kind' with the operation; their fields are op, before, after"),
        ([CREATE, envelope("t", None, None)], {}, "event 1: field 'op' has the unknown operation 't': pass oper"),
        (as_arrow([CREATE, {"op": None}]), {}, "event 1: field 'op' has the unknown operation NULL"),
        ([CREATE, {"after": {"k": 1}}], {}, "event 1: field 'op' has the unknown operation NULL"),
        ([{"op": ["c"], "k": 1}], {}, "event 0: field 'op' must be the name of an operation"),
        ([CREATE, envelope("d", None, None)], {}, "event 1 is a delete without `before`, so its key is unknown"),
        (as_arrow([CREATE, envelope("d", None, None)]), {}, "event 1 is a delete without `before`"),
        ([CREATE, envelope("u", {"k": 1}, None)], {}, "event 1 is an insert or update without `after`"),
        (as_arrow([CREATE, envelope("u", {"k": 1}, None)]), {}, "event 1 is an insert or update without `after`"),
        ([CREATE, envelope("c", None, "row")], {}, "event 1: 'after' is 'row', not an object with the columns"),
        (pa.table({"op": ["c"], "after": ["row"]}), {}, "field 'after' of the events is string, not a struct"),
        ({"op": ["c", 1], "k": [1, 2]}, {}, "field 'op' of the events has values of different types"),
        ([envelope("c", None, {"k": 1, "w": 2})], {}, "a field 'w', which is not a column of the table"),
        ([{"op": "c", "k": 1, "ts": 5}], {}, "a field 'ts', which is not a column of the table; did you mean 'ts_ms'"),
        ([CREATE], {"columns": {"k": "k", "v": "w"}}, "columns: the table has no column 'w'"),
        ([CREATE], {"columns": ["k", "must"]}, "columns: the events have no field 'must'"),
        (as_arrow([CREATE]), {"columns": ["k", "must"]}, "columns: the events have no field 'must'"),
        ([CREATE], {"columns": {"k": "k", "v": "k"}}, "columns: two fields would be written to the same column"),
        ([CREATE], {"columns": "k"}, "columns takes a list of fields, or a dict from field to column, not 'k'"),
        ([CREATE], {"operation": 5}, "operation takes the name of a field, not 5"),
        ([CREATE], {"sequence": 5}, "sequence takes the name of a field, not 5"),
        (
            [CREATE], {"sequence": "ts", "sequence_column": "ts_ms"},
            "sequence='ts': the events have no such field; did you mean 'ts_ms'",
        ),
        ([CREATE], {"sequence": "source.pos", "sequence_column": "ts_ms"}, "sequence='source.pos': the events have no"),
        (as_arrow([CREATE]), {"sequence": "source.pos", "sequence_column": "ts_ms"}, "the events have no such field"),
        (as_arrow([CREATE]), {"sequence": "sauce.lsn", "sequence_column": "ts_ms"}, "did you mean 'source'"),
        ([CREATE], {"sequence": "source.lsn"}, "needs a column that remembers the sequence 'source.lsn' .*add_column"),
        ([CREATE], {"sequence_column": "ts_ms"}, "sequence_column needs sequence="),
        ([CREATE], {"sequence": "ts_ms", "sequence_column": "k"}, "'k' is part of the key"),
        ([CREATE], {"units": {"seen": "m"}}, "units: 'seen' takes one of s, ms, us, ns, d, not 'm'"),
        ([CREATE], {"units": {"sen": "ms"}}, "units: the table has no column 'sen'; did you mean 'seen'"),
        ([CREATE], {"units": "ms"}, "units takes a dict, not 'ms'"),
        ([CREATE], {"operations": ["t"]}, r"operations takes a dict, not \['t'\]"),
        ([CREATE], {"operations": {"t": "truncate"}}, "'t' must mean one of upsert, delete, skip, not 'truncate'"),
        ([{"op": "c", "k": 1, "seen": 5}], {}, "column 'seen': the events have whole numbers, .*units={'seen': 'ms'}"),
        (pa.table({"op": ["c"], "k": [1], "seen": [5]}), {}, "column 'seen': the events have whole numbers"),
        ([{"op": "c", "k": 1, "v": 5}], {}, "column 'v': expected string"),
        (["x", 5], {}, "item 0 of the data list has the type str"),
        (5, {}, "int is not supported as data"),
        ([CREATE], {"errors": "ignore"}, "errors takes 'raise' or 'collect'"),
        (
            pa.table({"op": ["u"], "before": [{"k": "x"}], "after": [{"k": 1}]}), {},
            "field 'k' is string in `before`, but int64 in `after`",
        ),
    ],
)  # fmt: skip
def test_invalid_events_are_an_error_with_advice(
    db: nyala.Database, events: Any, options: Event, says: str
) -> None:
    with pytest.raises(
        (nyala.InvalidArgumentError, nyala.ColumnNotFoundError, nyala.SchemaError), match=says
    ):
        db["t"].apply_changes(events, **options)
    assert db["t"].count() == 0


def test_a_batch_refuses_events(db: nyala.Database) -> None:
    with db.batch() as batch, pytest.raises(nyala.InvalidArgumentError, match=r"apply_changes\(…\).*b.apply"):
        batch.insert("t", {"k": [1]})
        db["t"].apply_changes([CREATE])
