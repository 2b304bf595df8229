"""Forged contents with right checksums and a valid form give a result or an error of Nyala.

An error of Python or Arrow, or an assertion, is a failure. Forged are:

    rows of the catalogue    one value of one row            the store is opened, read, checked, written, compacted
    records of the log       types, NULLs, ids, versions     the log is replayed
    tokens                   any value of their JSON, and    the token is read
                             their Arrow streams
    requests to the writer   any value, and staged files     the request is carried out

`test_fuzz` changes single bytes. A failure prints the case; `--hypothesis-seed=N` runs it again.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import nyala
from nyala.api.database import Database
from nyala.api.scan import read_token
from nyala.catalog import checkpoint
from nyala.catalog.codec import encode_state
from nyala.catalog.loading import read_catalogue
from nyala.catalog.model import CatalogState
from nyala.env import SYSTEM
from nyala.errors import CorruptionError, Error
from nyala.handover import commits as handover
from nyala.tablet.changes import change_token
from nyala.tablet.changes.change_token import make_change_tokens, read_change_token
from nyala.tablet.changes.spec import ChangeSpec
from nyala.tablet.jobs.load_commit import LoadCommit
from nyala.tablet.jobs.load_job import LoadPlan
from nyala.tablet.jobs.load_write import ROW
from nyala.tablet.jobs.staged_files import TABLET
from nyala.tablet.write.prepare import OPERATION_NAMES
from nyala.wal.record import LogRecord, ResolvedGroup
from tests.corruption.seeded import Origin, contents, copy_store, make_origin, same, tamper
from tests.fuzz.test_fuzz import allow_only_nyala_errors, reseal
from tests.loads import stage
from tests.sampled import every_nth
from tests.support import folder_in_memory, open_database

# A failure prints the whole store, which is long. Hypothesis should not warn of that.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

SEEDS = st.integers(0, 2**32)
# Each example creates a whole store.
FEWER = settings(max_examples=max(settings().max_examples // 5, 3))
STRANGE: list[Any] = [
    None, "", "x", "t", "../x", "é\0", -1, 0, 1, 7, 2**31, 2**63 - 1, 2**63, 10**30, 1.5, True, [], {}, [[]], ["k"],
]  # fmt: skip


def another(value: Any, chance: random.Random) -> Any:
    """Return a value close to this one, or one of the same kind, or any value."""
    kind = chance.randrange(3)
    if isinstance(value, bool) and kind:
        return not value
    if isinstance(value, int) and kind:
        return value + chance.choice([-1, 1, -1000, 1000, 1 << 40, 1 << 62])
    if isinstance(value, str) and kind:
        names = (
            "int8 int32 int64 float double string binary bool date timestamp varchar(1) decimal(9,2) decimal(38,4) "
            "redo undo net insert rle dictionary plain"
        ).split()
        return chance.choice([*names, value + "x", value[:-1], value.upper(), value[:1] * 3])
    return chance.choice(STRANGE)


def forged(value: Any, chance: random.Random) -> Any:
    """Return JSON in which one value, at any depth, is removed, doubled or replaced."""
    if isinstance(value, dict) and value and chance.random() < 0.93:
        name = chance.choice(sorted(value))
        if chance.random() < 0.05:
            return {key: held for key, held in value.items() if key != name}
        return {**value, name: forged(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        if chance.random() < 0.1:
            return [*value[:at], *value[at : at + 1] * chance.choice([0, 2]), *value[at + 1 :]]
        return [*value[:at], forged(value[at], chance), *value[at + 1 :]]
    return another(value, chance)


def strange_column(count: int, chance: random.Random) -> pa.Array:
    """Return values of any type, sometimes with a NULL."""
    values = [chance.randrange(-3, 70) for _ in range(count)]
    kinds = {
        "int64": lambda: pa.array(values, pa.int64()),
        "int8": lambda: pa.array(values, pa.int8()),
        "uint64": lambda: pa.array([abs(v) << 50 for v in values], pa.uint64()),
        "text": lambda: pa.array([f"text {v}" for v in values]),
        "binary": lambda: pa.array([bytes([v & 255, 0]) for v in values]),
        "double": lambda: pa.array([v / 3 for v in values]),
        "bool": lambda: pa.array([v > 0 for v in values]),
        "null": lambda: pa.nulls(count),
        "list": lambda: pa.array([[v] for v in values], pa.list_(pa.int64())),
        "struct": lambda: pa.array([{"a": v} for v in values]),
        "dictionary": lambda: pa.array([str(v % 3) for v in values]).dictionary_encode(),
        "view": lambda: pa.array([f"text {v}" for v in values], pa.string_view()),
        "decimal": lambda: pa.array(values, pa.int64()).cast(pa.decimal128(38, 2)),
        "timestamp": lambda: pa.array(values, pa.timestamp("ns", "UTC")),
    }
    made = kinds[chance.choice([*kinds, *["int64", "text"] * 4])]()
    if count and chance.random() < 0.2:
        return pa.concat_arrays([made.slice(0, count - 1), pa.nulls(1, made.type)])
    return made


def stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def strange_batch(names: list[str], chance: random.Random, count: int = 3) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([strange_column(count, chance) for _ in names], names=names)


# --- a whole store to begin with


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with folder_in_memory() as folder:
        yield make_origin(folder)


@contextlib.contextmanager
def copied(origin: Origin) -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield copy_store(origin.path, folder / "s")


def use(origin: Origin, path: Path) -> None:
    """Do what a user might do with a store. Each operation must work or raise an error of Nyala."""
    allow_only_nyala_errors(lambda: nyala.check(path).ok)
    try:
        db = open_database(path, direct_commit_bytes=4_000)
    except Error:
        return
    try:
        for name in db.list_tables():
            table = db[name]
            for at in origin.moments:
                allow_only_nyala_errors(
                    lambda table=table, at=at: table.scan(at=at, order_by_key=True).to_arrow()
                )
            allow_only_nyala_errors(lambda table=table: table.scan(where="v > 10").to_arrow())
            allow_only_nyala_errors(lambda table=table: table.changes(since=origin.moments[0]).to_arrow())
        for work in (
            lambda: db["t"].upsert({"k": [1, 1000], "v": [1, 2]}),
            lambda: db["u"].upsert({"a": ["x", "q"], "b": [1, 1], "v": [0.0, 1.0]}),
            lambda: db["t"].get({"k": 1}),
            lambda: db["t"].update({"k": [10], "v": [1]}, on_missing="ignore"),
            db.flush,
            lambda: [db[name].compact() for name in db.list_tables()],
            lambda: [db[name].vacuum() for name in db.list_tables()],
            lambda: db.check().ok,
        ):
            allow_only_nyala_errors(work)
    finally:
        allow_only_nyala_errors(db.close)


# --- the catalogue


def forge_checkpoint(path: Path, chance: random.Random) -> str:
    """Write a checkpoint of the whole catalogue with one forged value and right checksums."""
    folder = str(path)
    state, _ = read_catalogue(SYSTEM, folder, f"{folder}/wal", None)
    strange = json.dumps(forged(json.loads(encode_state(state)), chance)).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "encode_state", lambda _: strange)
        checkpoint.write_checkpoint(SYSTEM.files, folder, state)
    return strange.decode()[:2000]


@given(seed=SEEDS)
@FEWER
def test_any_checkpoint_with_a_right_checksum(origin: Origin, seed: int) -> None:
    with copied(origin) as path:
        print(forge_checkpoint(path, random.Random(seed)))
        use(origin, path)


def test_a_rowset_whose_last_key_precedes_its_first_is_refused(origin: Origin) -> None:
    """Compactions choose rowsets by these keys. Found by the test above, with seed 64383."""
    with copied(origin) as path:

        def turn_round(state: CatalogState) -> dict[str, Any]:
            rowset = min(state.rowsets.values(), key=lambda entry: entry.id)
            return {"put_rowsets": [replace(rowset, key_min=b"\xff" * 9)]}

        tamper(path, turn_round)
        with pytest.raises(nyala.CorruptionError, match="key_min greater than its key_max"):
            open_database(path)
        (problem,) = nyala.check(path).problems
        assert problem.kind == "log"


def test_a_rowset_with_more_rows_than_its_file_can_have_is_refused(origin: Origin) -> None:
    """A scan would read splits for years. Found by the test above, with seed 21989."""
    with copied(origin) as path:

        def swell(state: CatalogState) -> dict[str, Any]:
            rowset = min(state.rowsets.values(), key=lambda entry: entry.id)
            return {"put_rowsets": [replace(rowset, row_count=(1 << 62) + 1)]}

        tamper(path, swell)
        with pytest.raises(nyala.CorruptionError, match="has 4611686018427387905 rows in"):
            open_database(path)


def test_a_delta_file_of_another_rowset_is_rows_or_corruption(
    origin: Origin, request: pytest.FixtureRequest
) -> None:
    """Each file is valid by itself, and a compaction combines them. Found by the test above, with
    seed 1554.

    `make test` tests a twelfth of the pairs.
    """
    pairs: list[tuple[int, int]] = []
    with copied(origin) as path, open_database(path) as db:
        state = db._writer().state
        pairs += [(d, r) for d in state.deltas for r in state.rowsets if state.deltas[d].rowset_id != r]
    assert len(pairs) > 4
    for delta, rowset in every_nth(12, pairs, request):

        def give(state: CatalogState, delta: int = delta, rowset: int = rowset) -> dict[str, Any]:
            return {"put_deltas": [replace(state.deltas[delta], rowset_id=rowset)]}

        with copied(origin) as path:
            tamper(path, give)
            use(origin, path)


def test_a_timestamp_near_the_limit_is_refused(origin: Origin) -> None:
    """No transaction could follow. Found by the test above, with seed 48592."""
    with copied(origin) as path:
        tamper(path, lambda state: {"timestamp": (1 << 63) - 2})
        with pytest.raises(nyala.CorruptionError, match="too close to the limit"):
            open_database(path)


# --- records of the log


def strange_record(db: Database, timestamp: int, chance: random.Random) -> LogRecord:
    """Return a record of a table that exists or not, with values that may not fit the table."""
    state = db._root().table(chance.choice(["t", "t", "u"]))
    columns = list(state.schema.columns)
    chance.shuffle(columns)
    if chance.random() < 0.5:
        columns = sorted(columns[: 1 + chance.randrange(len(columns))], key=lambda column: column.id)
    names = [str(column.id) for column in columns]
    if chance.random() < 0.2:
        names[chance.randrange(len(names))] = chance.choice(["99", "-1", "x", "", "1.5", names[0]])
    count = chance.randrange(4)
    arrays = [
        strange_column(count, chance)
        if chance.random() < 0.4
        else pa.array([chance.randrange(30) for _ in range(count)], pa.int64())
        .cast(pa.string())
        .cast(column.type.arrow)
        for column in columns
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    tablets = [tablet.id for tablet in state.tablets]
    chosen = tuple(sorted(chance.sample([*tablets, 99, -1], 1 + chance.randrange(2))))
    offsets = (0, count) if len(chosen) == 1 else (0, chance.randrange(count + 1), count)
    version = state.schema.version + chance.choice([0, 0, 0, 1, -1])
    table_id, kind = state.id if chance.random() < 0.9 else 99, chance.choice(["insert", "update", "delete"])
    group = ResolvedGroup(table_id, version, kind, chosen, offsets, batch)
    return LogRecord(timestamp, None, (group,))


@given(seed=SEEDS)
@FEWER
@example(seed=758)  # an update that has a key twice
def test_any_log_record_with_a_right_checksum(origin: Origin, seed: int) -> None:
    chance = random.Random(seed)
    with copied(origin) as path:
        db = open_database(path)
        store = db._writer()
        for _ in range(2):
            store.log.append(strange_record(db, store.clock.next(), chance))
        store.log.close()
        store._medium.lock.release()
        store._closed = True
        use(origin, path)


# --- tokens


@pytest.fixture(scope="module")
def db(origin: Origin) -> Iterator[Database]:
    with copied(origin) as path, open_database(path) as db:
        db["u"].upsert({"a": ["in memory"], "b": [1], "v": [None]})
        yield db


@pytest.mark.parametrize("length", [1 << 31, 1 << 40, (1 << 63) - 1])
def test_a_huge_length_in_a_token_allocates_no_memory(db: Database, length: int) -> None:
    """A token has the places of columns in a file. Memory of this length must not be allocated
    before the file is read.
    """
    token = next(data for data in db["t"].scan().tokens() if b'"places"' in data)
    size = int.from_bytes(token[16:20], "little")
    meta = json.loads(token[20 : 20 + size])
    places = meta["rowsets"][0]["files"]["rowset"]["places"]
    places[4::5] = [length] * (len(places) // 5)  # five numbers for each column, the length last
    text = json.dumps(meta).encode()
    data = reseal(token[:16] + struct.pack("<I", len(text)) + text + token[20 + size :], 12, 16)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            list(read_token(data))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@given(seed=SEEDS)
@example(seed=659)  # a last key that precedes the first one
def test_any_scan_token_with_a_right_checksum(db: Database, seed: int) -> None:
    """Its schema, files and rows in memory may be forged."""
    chance = random.Random(seed)
    table = db[chance.choice(["t", "u"])]
    scan = table.scan(where=chance.choice([None, "v > 3"]), order_by_key=chance.random() < 0.5)
    token = chance.choice(scan.tokens())
    length = int.from_bytes(token[16:20], "little")
    meta = json.loads(token[20 : 20 + length])
    bodies, at = [], 20 + length
    while at < len(token):
        size = int.from_bytes(token[at : at + 8], "little")
        bodies.append(token[at + 8 : at + 8 + size])
        at += 8 + size
    for _ in range(1 + chance.randrange(2)):
        if bodies and chance.random() < 0.4:
            at = chance.randrange(len(bodies))
            with pa.ipc.open_stream(bodies[at]) as reader:
                names = reader.schema.names
            bodies[at] = stream(strange_batch(names, chance, chance.randrange(4)))
        else:
            meta = forged(meta, chance)
    text = json.dumps(meta).encode()
    data = token[:16] + struct.pack("<I", len(text)) + text
    data += b"".join(struct.pack("<Q", len(body)) + body for body in bodies)
    allow_only_nyala_errors(lambda: list(read_token(reseal(data, 12, 16))))


@given(seed=SEEDS)
def test_any_change_token_with_a_right_checksum(db: Database, seed: int) -> None:
    """Its schema and files may be forged."""
    chance = random.Random(seed)
    store = db._writer()
    state = store.root.table("t")
    flushed_until = min(rowset.meta.deltas_durable for rowset in state.tablets[0].rowsets)
    spec = ChangeSpec(
        state.schema.columns,
        1,
        0,
        flushed_until,
        chance.choice(["all", "net"]),
        chance.choice(["until", "both"]),
    )
    token = chance.choice(make_change_tokens(store.root_path, state, spec))
    head = change_token._HEAD.size
    meta = json.loads(token[head:])
    for _ in range(1 + chance.randrange(2)):
        meta = forged(meta, chance)
    text = json.dumps(meta).encode()
    allow_only_nyala_errors(lambda: list(read_change_token(reseal(token[:head] + text, 12, head))))


def test_a_change_token_without_key_columns_is_refused(db: Database) -> None:
    """Rows of several rowsets are merged by their keys. Found by the test above, with seed 505078."""
    store = db._writer()
    state = store.root.table("t")
    flushed_until = min(rowset.meta.deltas_durable for rowset in state.tablets[0].rowsets)
    spec = ChangeSpec(state.schema.columns, 1, 0, flushed_until)
    token = make_change_tokens(store.root_path, state, spec)[0]
    head = change_token._HEAD.size
    for columns in ([], {}, ["v"], ["v", "k"]):
        text = json.dumps({**json.loads(token[head:]), "columns": columns}).encode()
        with pytest.raises(nyala.CorruptionError, match="do not begin with the key columns"):
            list(read_change_token(reseal(token[:head] + text, 12, head)))


# --- requests to the writer


def staged(path: Path, chance: random.Random, names: list[str]) -> tuple[str, str]:
    """Create a staging folder with a file of strange columns, and return (key of the folder, name
    of the file).
    """
    key, folder = handover.new_staging(str(path), 3600)
    columns = [name for name in names if chance.random() < 0.9]
    count = chance.randrange(5)
    arrays = [
        strange_column(count, chance) if chance.random() < 0.3 else pa.array(range(count), pa.int64())
        for _ in columns
    ]
    for name in (TABLET, ROW):
        if chance.random() < 0.6:
            columns.append(name)
            odd = chance.random() < 0.4
            arrays.append(strange_column(count, chance) if odd else pa.array([1] * count, pa.int64()))
    body = stream(pa.RecordBatch.from_arrays(arrays, names=columns))
    if chance.random() < 0.2:
        at = chance.randrange(len(body))
        body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
    name = "0.arrow"
    with open(f"{folder}/{name}", "wb") as file:
        file.write(body + struct.pack("<I", google_crc32c.value(f"{key}/{name}".encode() + body)))
    return key, name


def a_commit(path: Path, chance: random.Random) -> dict[str, Any]:
    table = chance.choice(["t", "u"])
    names = ["k", "v", "s"] if table == "t" else ["a", "b", "v"]
    operation = chance.choice([*OPERATION_NAMES, handover.CHANGES])
    if operation == handover.CHANGES:
        names += ["_change_type", chance.choice(["_commit_version", "_commit_timestamp"])]
    key, name = staged(path, chance, names)
    job = {"key": key, "table": table, "operation": operation, "errors": chance.choice(["raise", "collect"]),
           "files": [name], "columns": names, "overwrite": chance.random() < 0.2}  # fmt: skip
    return {"do": "commit", "job": job}


def a_load(db: Database, chance: random.Random) -> dict[str, Any]:
    """Return a request to commit what tasks of a load have staged: new rows, changes, and rows
    without effect.
    """
    store = db._writer()
    begin = {"do": "begin load", "table": "t", "lease": None, "holder": "a job"}
    _, (attachment,) = handover.answer_request(store, begin)
    plan = LoadPlan.from_json(json.loads(attachment))
    key, _ = handover.new_staging(store.root_path, 3600)
    operation = chance.choice(["upsert", "insert-ignore"])
    rows = pa.table(
        {"k": range(50, 250), "v": range(200)} if chance.random() < 0.7 else {"k": range(50, 250)}
    )
    tablets, _ = stage(db, plan, f"staging/{key}", operation, rows)
    files = {rowset.rowset.id: rowset for tablet in plan.tablets for rowset in tablet.rowsets}
    job = LoadCommit(
        key, plan.table_id, plan.schema.version, plan.snapshot, operation, tuple(rows.column_names), tuple(tablets),
        files, False,
    )  # fmt: skip
    return {"do": "commit load", "job": job.to_json()}


@given(seed=SEEDS)
@FEWER
def test_any_request_to_the_writer(origin: Origin, seed: int) -> None:
    """A request is carried out, or refused with an error of Nyala. A refused request has changed
    nothing.
    """
    chance = random.Random(seed)
    with copied(origin) as path, open_database(path, direct_commit_bytes=4_000) as db:
        store = db._writer()
        kind = chance.randrange(4)
        if kind == 0:
            request = {"do": "begin load", "table": "t", "lease": None, "holder": "a job"}
        elif kind == 1:
            request = {"do": "end load", "lease": "remote-00"}
        elif kind == 2:
            request = a_commit(path, chance)
        else:
            request = a_load(db, chance)
            if chance.random() < 0.5:
                request["job"]["tablets"] = forged(request["job"]["tablets"], chance)
        if kind != 2 or chance.random() < 0.5:
            request = forged(request, chance)
        if not isinstance(request, dict):
            return
        before = contents(db, [db.now()])

        def ask() -> None:
            try:
                handover.answer_request(store, json.loads(json.dumps(request)))
            except Error:
                (moment,) = before["u"]
                assert same(contents(db, [moment]), before) and db.now() == moment, (
                    "a refused request has changed rows"
                )
                raise

        allow_only_nyala_errors(ask)
        store.check_writable()
        allow_only_nyala_errors(lambda: contents(db, origin.moments))
        allow_only_nyala_errors(lambda: db.check().ok)
