"""Calls of other processes as requests: an invalid request is refused, and changes nothing."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.sampled import is_long_run

import nyala
from nyala.env import SYSTEM
from nyala.errors import CorruptionError, InvalidArgumentError
from nyala.handover import calls
from nyala.handover.calls import CALLS, Outgoing, converted, encode_call
from nyala.handover.channel import Connection, send
from nyala.handover.local_writer import SeenTable, TableDraft
from nyala.tablet.alter import Draft
from nyala.tablet.state.idempotency import CALL_RETENTION_US, call_key, keys_to_forget
from nyala.tablet.tables.creation import NewTable
from nyala.tablet.write.conditions import NewestBy
from nyala.tablet.write.where_writes import ToDelete, ToUpdate
from nyala.tablet.write.write_path import Request


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64", "s": "varchar(5)"}, "k")
        table.insert([(k, k, "a") for k in range(5)])
        yield db


def requests(db: nyala.Database) -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    """Return a request for each call, with its attachments. They can be executed in any order."""
    table = db._root().table("t")
    draft = TableDraft.of(Draft.of(db._root(), table))
    rows = [
        Request("t", "upsert", [{"k": 1, "v": 2}, {"k": 2, "v": 1, "s": "x"}], condition=NewestBy("v")),
        Request("t", "apply", [("insert-ignore", {"k": 1}), ("delete", 99), ("update", {"k": 1, "v": None})]),
        Request("t", "delete", [{"k": 77}, {"k": None}], ignore=True),
    ]
    sent = [converted(table, request) for request in rows]
    arguments: dict[str, dict[str, Any]] = {
        "write": {"requests": sent, "collect": True, "message": "m"},
        "commit_set": {
            "requests": sent[1:], "seen": [SeenTable.of(table)] * 2, "since": db.now(), "message": None,
            "collect": True,
        },
        "write_selected": {
            "name": "t", "operation": "update", "collect": False, "message": None,
            "select": ToUpdate({"v": nyala.expr("v + 1"), "s": pa.scalar("b")}, "k < 3 AND s LIKE 'a%'"),
        },
        "restore": {"table_id": table.id, "to": db.now(), "message": None},
        "create_table": {
            "new": NewTable("made", table.schema, table.entry.partition_schema, table.partitions),
            "rows": [converted(table, Request("made", "insert", [{"k": 1}, {"k": 2, "s": "x"}]))], "replaces": True,
        },
        "drop_tables": {"names": ["t", "none"], "purge": False},
        "undrop_table": {"table_id": 999, "new_name": "x"},
        "alter_to": {"table_id": table.id, "before": draft, "after": draft},
        "copy_table": {
            "table_id": table.id, "at": db.now(), "new_name": "copy",
            "partition_schema": table.entry.partition_schema, "partitions": table.partitions,
        },
        "clone_table": {"name": "t", "new_name": "clone", "at": None, "replaces": True},
        "repartition": {
            "table_id": 999, "partition_schema": table.entry.partition_schema, "partitions": table.partitions,
        },
        "purge_dropped": {"name": None},
        "purge": {"name": "t", "keys": pa.table({"k": [4]}), "wait_s": 0.0, "message": None},
        "purge_status": {"name": "t"},
        "tag": {"name": "tag", "at": None},
        "drop_tag": {"name": "none"},
        "flush": {"name": None},
        "compact": {"name": "t"},
        "vacuum": {"name": "t", "dry_run": True},
    }  # fmt: skip
    made = {}
    for name in CALLS:
        out = Outgoing(SYSTEM, db.path)
        key = call_key(f"{name}-key") if CALLS[name].keyed else None
        made[name] = encode_call(name, arguments.get(name, {}), key, out), out.attachments
    return made


def execute(db: nyala.Database, request: dict[str, Any], attachments: list[bytes]) -> Any:
    return send(SYSTEM, db.path, request, attachments, 20)


def test_each_call_has_a_valid_example(db: nyala.Database) -> None:
    for name, (request, attachments) in requests(db).items():
        try:
            execute(db, request, attachments)
        except nyala.Error as error:
            assert name in ("commit_set", "drop_tables", "undrop_table", "repartition", "drop_tag"), (
                name,
                error,
            )
    assert sorted(db.list_tables()) == ["clone", "copy", "made", "t"]


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"do": "call"},
        {"do": "call", "name": "close"},
        {"do": "call", "name": "__init__", "arguments": {}},
        {"do": "call", "name": ["write"], "arguments": {}},
        {"do": "call", "name": "stats"},
        {"do": "call", "name": "stats", "arguments": {"self": 1}, "forget": []},
        {"do": "call", "name": "stats", "arguments": [], "forget": []},
        {"do": "call", "name": "flush", "arguments": {"name": 5}, "forget": []},
        {
            "do": "call",
            "name": "drop_tables",
            "arguments": {"names": ["t"], "purge": 1},
            "forget": [],
            "key": None,
        },
        {
            "do": "call",
            "name": "drop_tables",
            "arguments": {"names": ["t"], "purge": True},
            "forget": [],
            "key": 7,
        },
        {
            "do": "call",
            "name": "drop_tables",
            "arguments": {"names": ["t"], "purge": True},
            "forget": [5],
            "key": None,
        },
        {"do": "open", "path": "/etc/passwd"},
    ],
    ids=repr,
)
def test_an_invalid_call_is_refused(db: nyala.Database, request_: dict[str, Any]) -> None:
    with pytest.raises((InvalidArgumentError, CorruptionError)):
        execute(db, request_, [])
    assert db["t"].count() == 5


STRANGE: list[Any] = [
    None, True, -1, 0, 3, 1 << 62, 1 << 80, 1.5, float("nan"), "", "t", "x" * 10_000, "\ud800", "../../etc", [], [[]],
    [1], {}, {"k": 1}, ["0" * 14 + "-" + "0" * 32, "x.arrow"], ["../..", "passwd"],
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def changed(request: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return the request with one value replaced, removed or doubled."""
    made = copy.deepcopy(request)
    path = chance.choice(
        [path for path in places(made) if path and path[0] in ("arguments", "key", "forget")]
    )
    *outer, last = path
    inside = made
    for key in outer:
        inside = inside[key]
    how = chance.randrange(6)
    if how == 0 and isinstance(inside, dict):
        del inside[last]
    elif how == 1 and isinstance(inside, list):
        inside.append(inside[last])
    else:
        inside[last] = chance.choice(STRANGE)
    return made


def test_changed_requests_are_executed_or_refused(db: nyala.Database) -> None:
    """No request causes an internal error of the writer, or damages the store."""
    chance = random.Random(11)
    made = requests(db)
    for number in range(20_000 if is_long_run() else 300):
        name = chance.choice(list(made))
        request, attachments = made[name]
        request = changed(request, chance)
        if request.get("key"):
            request["key"] = call_key(str(number))
        try:
            execute(db, request, attachments)
        except nyala.Error as error:
            assert "failed on the request" not in str(error), (name, request)
            assert getattr(error, "outcome", None) is None, (name, request)
        for table in set(db.list_tables()) - {"t"}:
            db.drop_table(table, purge=bool(number % 2))
        for tag in db.tags():
            db.drop_tag(tag.name)
        if "t" not in db.list_tables():
            db.create_table("t", {"k": "int64", "v": "int64", "s": "varchar(5)"}, "k")
    db["t"].upsert([(1, 1, "a")])
    db.close()
    with nyala.connect(db.path) as again:
        assert again["t"].get(1) == {"k": 1, "v": 1, "s": "a"}
    assert nyala.check(db.path).problems == ()


@pytest.mark.parametrize("damage", range(4))
def test_invalid_attachments_are_refused(db: nyala.Database, damage: int) -> None:
    """The attachments have wrong lengths, types or values, or errors of rows that do not exist."""
    request, attachments = requests(db)["write"]
    one = request["arguments"]["requests"][1]
    rows = calls.from_ipc(attachments[one["rows"]])
    wrong = [
        ("rows", rows.slice(1)),
        ("codes", pa.table({"code": pa.array([200, 0, 0], pa.uint8())})),
        ("given", pa.table({"v": pa.array([True, None, True])})),
        ("errors", pa.table({"row": [5], "code": ["null"], "message": ["m"]})),
    ]
    what, table = wrong[damage]
    one[what] = len(attachments)
    with pytest.raises(CorruptionError, match="request to write is invalid"):
        execute(db, request, [*attachments, bytes(calls.to_ipc(table))])
    with pytest.raises(CorruptionError):
        execute(db, request, [*attachments, b"no stream"])
    assert db["t"].count() == 5


def test_keys_of_calls_are_forgotten(db: nyala.Database) -> None:
    """The writer forgets a key when the sender has its result, or after some minutes."""
    store = db._writer()
    request, attachments = requests(db)["write"]
    request["key"] = call_key("one")
    first = execute(db, request, attachments)
    assert store.committed(call_key("one")) is not None
    assert (
        execute(db, request, attachments)[0]["results"][0]["timestamp"] == first[0]["results"][0]["timestamp"]
    )
    execute(db, {**request, "key": call_key("two"), "forget": [call_key("one"), "stream/a/1"]}, attachments)
    assert store.committed(call_key("one")) is None
    assert store.committed(call_key("two")) is not None
    db.flush()
    assert set(store.state.committed_keys) == {call_key("two")}
    known = {call_key("two"): 1000, "job": 1000}
    assert keys_to_forget(known, 1001 + CALL_RETENTION_US) == [call_key("two")]


def test_a_delete_without_a_condition_is_refused(db: nyala.Database) -> None:
    out = Outgoing(SYSTEM, db.path)
    arguments = {
        "name": "t",
        "operation": "delete",
        "select": ToDelete("TRUE"),
        "collect": False,
        "message": None,
    }
    request = encode_call("write_selected", arguments, None, out)
    request["arguments"]["select"]["where"] = None
    with pytest.raises(CorruptionError, match="a delete needs a condition"):
        execute(db, request, out.attachments)
    assert db["t"].count() == 5


def test_a_session_serves_other_requests_too(db: nyala.Database) -> None:
    """A connection with a transaction also sends other requests. A second begin replaces the first."""
    connection = Connection(SYSTEM, db.path, 20)
    try:
        first, _ = connection.request({"do": "begin"})
        second, _ = connection.request({"do": "begin"})
        assert second["since"] > first["since"] and len(db._writer().pins.held) == 1
        request, attachments = requests(db)["flush"]
        assert connection.request(request, attachments)[0]["done"]["rows"] == 5
        with pytest.raises(InvalidArgumentError, match="unknown request"):
            connection.request({"do": "what"})
        assert connection.request({"do": "begin"})[0]["since"] > second["since"]
    finally:
        connection.close()
