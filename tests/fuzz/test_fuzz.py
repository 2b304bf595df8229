"""Any text or bytes that a caller passes to Nyala give a result or an error of Nyala.

An error of Python or Arrow is a failure. The texts are SQL statements, predicates and expressions
from a grammar, with some characters changed. The bytes are log records, scan tokens, change tokens
and messages to the writer, with some bytes changed and the checksum computed again, as an attacker
would. `test_forged` has bytes with a valid form and wrong values.
`tests/corruption/test_cfile_damage.py` has blocks of files, and
`tests/unit/catalog/test_loading.py` rows of the catalogue.

A failure prints the case; `--hypothesis-seed=N` runs it again.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable, Iterator

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nyala
from nyala.api.database import Database
from nyala.api.scan import read_token
from nyala.errors import Error
from nyala.handover import channel as handover_channel
from nyala.handover import frames
from nyala.tablet.changes import change_token
from nyala.tablet.changes.change_token import make_change_tokens, read_change_token, rows_token
from nyala.tablet.changes.spec import ChangeSpec
from nyala.wal.record import LogRecord, ResolvedGroup, decode_record, encode_record
from tests.figures import counted
from tests.support import folder_in_memory, open_database

# --- texts

NAMES = st.sampled_from(["k", "s", "v", "d", "t", "u", '"s"', "nosuch", "t.k", '"a""b"', ""])
LITERALS = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.floats().map(repr),
    st.text(max_size=5).map(lambda text: "'" + text.replace("'", "''") + "'"),
    st.sampled_from(
        [
            "NULL",
            "TRUE",
            "X'0a'",
            "X'0'",
            "DATE '2013-02-30'",
            "TIMESTAMP '2013-01-01'",
            "1e999",
            "''",
            "-",
            "?",
        ]
    ),
)
OPERANDS = st.recursive(
    NAMES | LITERALS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/%|&"), inner).map(" ".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"CAST({text} AS int8)"),
        st.tuples(st.sampled_from(["abs", "lower", "sum", "coalesce", "nosuch"]), inner).map(
            lambda call: f"{call[0]}({call[1]})"
        ),
    ),
    max_leaves=5,
)
CONDITIONS = st.recursive(
    st.one_of(
        st.tuples(OPERANDS, st.sampled_from(["=", "<>", "<", ">=", "LIKE", "IS", "=="]), OPERANDS).map(
            " ".join
        ),
        st.tuples(OPERANDS, st.lists(LITERALS, max_size=4)).map(
            lambda pair: f"{pair[0]} IN ({', '.join(pair[1])})"
        ),
        OPERANDS.map(lambda text: f"{text} IS NOT NULL"),
        st.tuples(OPERANDS, LITERALS, LITERALS).map(
            lambda three: f"{three[0]} BETWEEN {three[1]} AND {three[2]}"
        ),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(" ".join),
        inner.map(lambda text: f"NOT ({text})"),
    ),
    max_leaves=4,
)
STATEMENTS = st.one_of(
    st.tuples(OPERANDS, NAMES, CONDITIONS).map(
        lambda three: f"SELECT {three[0]} FROM {three[1]} WHERE {three[2]}"
    ),
    st.tuples(OPERANDS, CONDITIONS).map(
        lambda two: (
            f"WITH x AS (SELECT * FROM t) SELECT count(*), {two[0]} FROM x JOIN u ON {two[1]} GROUP BY ALL"
        )
    ),
    st.tuples(st.sampled_from(["DELETE FROM", "DROP TABLE", "COPY", "ATTACH", "PRAGMA", "SET"]), NAMES).map(
        " ".join
    ),
    st.tuples(OPERANDS, st.integers(-3, 10**25)).map(
        lambda two: f"SELECT * FROM t ORDER BY {two[0]} LIMIT {two[1]}"
    ),
    st.text(max_size=30),
)


@st.composite
def mutated(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """Return a text of the grammar. In half of the examples, some characters are left out, doubled
    or changed.
    """
    text = draw(texts)
    for _ in range(draw(st.integers(-2, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["", "(", ")", "'", '"', ",", ";", "\0", "é", "--", "/*"])) + text[
            at + draw(st.integers(0, 2)) :
        ]  # fmt: skip
    return text


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        columns = {"k": "int64", "s": "string", "v": "double", "d": "date"}
        table = db.create_table("t", columns, "k", nyala.hash_partition("k", buckets=2))
        table.insert({"k": range(20), "s": [f"text {n}" for n in range(20)], "v": [n / 3 for n in range(20)]})
        db.flush()
        table.update({"k": [1, 2], "s": [None, "é"]})
        table.insert({"k": [100], "s": ["in memory"]})
        db.create_table("u", {"k": "int64", "s": "string"}, "k").insert({"k": [1], "s": ["x"]})
        yield db


@pytest.fixture(scope="module")
def one_row() -> Iterator[nyala.Table]:
    """A table of its own store, because random statements may drop the tables of `db`."""
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        table = db.create_table("u", {"k": "int64", "s": "string"}, "k")
        table.insert({"k": [1], "s": ["x"]})
        yield table


# An example takes a millisecond here, so the long tests run three times as many as elsewhere.
MORE = settings(max_examples=settings().max_examples * (3 if settings().max_examples > 100 else 1))


def allow_only_nyala_errors(call: Callable[[], object]) -> None:
    """Fail if the call raises an error that is not one of Nyala."""
    with counted(
        "random texts and bytes given to SQL, predicates, log, tokens, hand-over", "examples"
    ) as tried:
        tried.append(1)
        try:
            call()
        except Error as error:
            assert str(error), "an error must have a message"


@MORE
@given(text=mutated(STATEMENTS))
def test_any_statement_has_a_result_or_a_nyala_error(db: Database, text: str) -> None:
    allow_only_nyala_errors(lambda: db.sql(text).to_arrow())


@MORE
@given(text=mutated(CONDITIONS))
def test_any_predicate_has_a_result_or_a_nyala_error(db: Database, text: str) -> None:
    """`count` counts the rows that `scan` returns."""

    def both() -> None:
        assert db["t"].count(text) == db["t"].scan(where=text).to_arrow().num_rows

    allow_only_nyala_errors(both)


@MORE
@given(text=mutated(OPERANDS), where=mutated(CONDITIONS))
def test_any_expression_updates_or_has_a_nyala_error(one_row: nyala.Table, text: str, where: str) -> None:
    allow_only_nyala_errors(lambda: one_row.update(set={"s": nyala.expr(text)}, where=where))
    assert one_row.count() == 1


# --- bytes

Changes = list[tuple[float, int]]
CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4)


def changed(data: bytes, lower: int, changes: Changes) -> bytes:
    """Return `data` with some bytes from `lower` on set to others."""
    made = bytearray(data)
    for place, value in changes:
        made[lower + int(place * (len(data) - lower))] = value
    return bytes(made)


def a_payload() -> tuple[bytes, int]:
    """Return the payload of a log record, and the position at which its Arrow messages begin."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2, 3]), pa.array(["a", None, "long text " * 9]), pa.array([b"", b"\xff", None])],
        names=["10", "11", "12"],
    )
    parts = encode_record(LogRecord(1, "key", (ResolvedGroup(1, 1, "insert", (1, 2), (0, 1, 3), batch),)))
    return b"".join(bytes(part) for part in parts), len(parts[0])


@MORE
@given(changes=CHANGES, length=st.floats(0, 1))
def test_any_arrow_body_of_a_log_record_is_rows_or_corruption(changes: Changes, length: float) -> None:
    """Rows that the decoder accepts can be read: no offset points outside of the message."""
    payload, lower = a_payload()
    damaged = changed(payload, lower, changes)
    for data in (damaged, damaged[: lower + int(length * (len(payload) - lower))]):

        def read(data: bytes = data) -> None:
            for group in decode_record(pa.py_buffer(data), 1, "wal-000000001", 64).groups:
                group.batch.to_pylist()

        allow_only_nyala_errors(read)


def reseal(token: bytes, crc_at: int, covered_from: int) -> bytes:
    """Return the token with the checksum of its present bytes."""
    crc = struct.pack("<I", google_crc32c.value(token[covered_from:]))
    return token[:crc_at] + crc + token[crc_at + 4 :]


@MORE
@given(changes=CHANGES, seed=st.integers(0, 2**32), ordered=st.booleans())
def test_any_scan_token_gives_rows_or_a_nyala_error(
    db: Database, changes: Changes, seed: int, ordered: bool
) -> None:
    chance = random.Random(seed)
    token = chance.choice(db["t"].scan(columns=["s", "k"], where="k >= 0", order_by_key=ordered).tokens())
    length = int.from_bytes(token[16:20], "little")
    for lower in (0, 16, 20 + length):
        data = reseal(changed(token, lower, changes), 12, 16)
        allow_only_nyala_errors(lambda data=data: list(read_token(data)))  # type: ignore[misc]


@MORE
@given(changes=CHANGES, seed=st.integers(0, 2**32))
def test_any_change_token_gives_rows_or_a_nyala_error(db: Database, changes: Changes, seed: int) -> None:
    chance = random.Random(seed)
    store = db._writer()
    state = store.root.table("t")
    flushed_until = min(rowset.meta.deltas_durable for rowset in state.tablets[0].rowsets)
    spec = ChangeSpec(state.schema.columns, 1, 0, flushed_until, "all")
    token = chance.choice(make_change_tokens(store.root_path, state, spec))
    head = change_token._HEAD.size
    rows = rows_token(pa.Table.from_batches(read_change_token(token)))
    for data in (
        changed(token, 0, changes),
        reseal(token[:head] + b"{}", 12, head),
        changed(rows, 0, changes),
        reseal(changed(rows, head, changes), 12, head),
    ):
        allow_only_nyala_errors(lambda data=data: list(read_change_token(data)))  # type: ignore[misc]


def frame(text: bytes, attachments: list[bytes]) -> bytes:
    """Return a message to the writer with `text` as its JSON, and right checksums."""
    head = struct.pack("<4sII", frames.MAGIC, len(text), len(attachments))
    head += b"".join(struct.pack("<Q", len(attachment)) for attachment in attachments)
    body = text + b"".join(attachments)
    return (
        head
        + struct.pack("<I", google_crc32c.value(head))
        + body
        + struct.pack("<I", google_crc32c.value(body))
    )


@MORE
@given(
    text=st.one_of(
        st.binary(max_size=40),
        st.integers(1, 4).map(lambda n: b"[" * 10**n),
        st.text(max_size=10).map(lambda text: json.dumps({"do": text}).encode()),
    ),
    attachments=st.lists(st.binary(max_size=20), max_size=3),
    changes=st.none() | CHANGES,
)
def test_any_message_to_the_writer_is_read_or_refused(
    text: bytes, attachments: list[bytes], changes: Changes | None
) -> None:
    """An invalid message ends its connection. Another error would end the thread that serves all."""
    sent = frame(text, attachments)
    sent = sent if changes is None else changed(sent, 0, changes)
    left, right = socket.socketpair()
    with left, right:
        left.sendall(sent)
        left.shutdown(socket.SHUT_WR)
        try:
            message, found = handover_channel._Wire(right, lambda: 5.0).receive_frame()
        except (frames.BrokenFrame, EOFError):
            return
        assert isinstance(message, dict) and (changes is not None or found == attachments)
