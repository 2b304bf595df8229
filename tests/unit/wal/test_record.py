"""A batch is decoded from the log with all types, NULLs and slices."""

from __future__ import annotations

import datetime
import decimal
import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import CorruptionError
from nyala.wal.record import LogRecord, ResolvedGroup, decode_record, encode_record

VALUES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.date32(): st.dates(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(9, 2): st.decimals(-99999, 99999, places=2),
    pa.decimal128(38, 10): st.decimals(-(10**20), 10**20, places=10),
    pa.string(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=20),
}


def payload_of(record: LogRecord) -> pa.Buffer:
    return pa.py_buffer(b"".join(bytes(memoryview(part)) for part in encode_record(record)))


def round_trip(record: LogRecord) -> LogRecord:
    return decode_record(payload_of(record), record.timestamp)


def group_of(batch: pa.RecordBatch, kind: str = "insert") -> ResolvedGroup:
    return ResolvedGroup(3, 2, kind, (9,), (0, batch.num_rows), batch)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 8))
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=6))
    with decimal.localcontext() as context:
        context.prec = 38
        arrays = [
            pa.array(draw(st.lists(st.none() | VALUES[type_], min_size=rows, max_size=rows)), type_)
            for type_ in types
        ]
    batch = pa.RecordBatch.from_arrays(arrays, names=[str(10 + i) for i in range(len(types))])
    lower = draw(st.integers(0, rows))
    return batch.slice(lower, draw(st.integers(0, rows - lower)))


@given(batches(), st.sampled_from(["insert", "update", "delete"]), st.none() | st.text(max_size=20))
def test_any_encoded_batch_decodes_to_the_same(batch: pa.RecordBatch, kind: str, key: str | None) -> None:
    record = LogRecord(7, key, (group_of(batch, kind), group_of(batch.slice(0, 0))))
    again = round_trip(record)
    assert again == record
    for group in again.groups:
        group.batch.validate(full=True)


def test_a_slice_does_not_log_the_rows_around_it() -> None:
    """A slice of one row does not log the whole array."""
    big = pa.RecordBatch.from_arrays(
        [pa.array(range(100_000)), pa.array(["x" * 10] * 100_000)], names=["10", "11"]
    )
    assert payload_of(LogRecord(1, None, (group_of(big.slice(50_000, 1)),))).size < 1500


def test_a_later_change_of_the_users_array_does_not_change_the_record() -> None:
    """A user may reuse an array for the next batch."""
    values = np.arange(5)
    batch = pa.RecordBatch.from_arrays([pa.array(values)], names=["10"])
    parts = encode_record(LogRecord(1, None, (group_of(batch),)))
    values[:] = 0
    payload = pa.py_buffer(b"".join(bytes(memoryview(part)) for part in parts))
    assert decode_record(payload, 1).groups[0].batch.column(0).to_pylist() == [0, 1, 2, 3, 4]


@given(st.data())
def test_an_invalid_payload_raises_only_corruption_errors(data: st.DataObject) -> None:
    """A forged or damaged payload raises CorruptionError, and no struct.error or IndexError."""
    payload = bytearray(
        memoryview(
            payload_of(LogRecord(1, "k", (group_of(pa.RecordBatch.from_arrays([[1, 2]], names=["10"])),)))
        )
    )
    # Only the JSON part: Arrow's decoder reads the rest, and is fuzzed in its own project.
    upper = 4 + int.from_bytes(payload[:4], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, upper - 1))] = data.draw(st.integers(0, 255))
    try:
        record = decode_record(pa.py_buffer(bytes(payload)), 1, "wal-000000001", 64)
    except CorruptionError as error:
        assert (error.path, error.offset) == ("wal-000000001", 64)
    else:
        assert record.groups[0].batch.num_rows == 2 if record.groups else True


@pytest.mark.parametrize(
    ("tablets", "offsets", "kind"),
    [
        ((1,), (0, 1), "insert"),
        ((1,), (0, 2, 2), "insert"),
        ((1, 2), (0, 3, 2), "insert"),
        ((1,), (0, 2), "upsert"),
    ],
)
def test_s1_a_group_with_rows_of_no_tablet_is_refused(
    tablets: tuple[int, ...], offsets: tuple[int, ...], kind: str
) -> None:
    """Rows that belong to no tablet are neither written nor read."""
    batch = pa.RecordBatch.from_arrays([[1, 2]], names=["10"])
    with pytest.raises(AssertionError):
        encode_record(LogRecord(1, None, (ResolvedGroup(3, 2, kind, tablets, offsets, batch),)))
    good = bytes(
        memoryview(payload_of(LogRecord(1, None, (ResolvedGroup(3, 2, "insert", (1,), (0, 2), batch),))))
    )
    # The same JSON with wrong values of the same length.
    length = int.from_bytes(good[:4], "little")
    meta = good[4 : 4 + length].replace(b'"kind":"insert"', f'"kind":"{kind}"'.encode())
    meta = meta.replace(b'"tablets":[1]', f'"tablets":{list(tablets)}'.encode())
    meta = meta.replace(b'"offsets":[0,2]', f'"offsets":{list(offsets)}'.encode())
    arrow = good[4 + length + -(4 + length) % 8 :]
    bad = len(meta).to_bytes(4, "little") + meta + bytes(-(4 + len(meta)) % 8) + arrow
    with pytest.raises(CorruptionError):
        decode_record(pa.py_buffer(bad), 1)


def test_bytes_outside_of_all_groups_are_corruption() -> None:
    """Rows of a group that the JSON does not name are not dropped silently."""
    payload = bytes(memoryview(payload_of(LogRecord(1, None, ()))))
    with pytest.raises(CorruptionError, match="found 8 more bytes"):
        decode_record(pa.py_buffer(payload + bytes(8)), 1)


def test_a_record_keeps_the_counts_of_its_batch() -> None:
    """A repeated key gets these counts. Older records have none, and remain valid."""
    counted = LogRecord(5, "job-1", (), counts={"inserted": 3, "failed": 1})
    plain = LogRecord(5, "job-1", ())
    assert round_trip(counted) == counted and round_trip(plain) == plain
    assert b'{"key":"job-1","groups":[]}' in bytes(memoryview(payload_of(plain)))
    assert b'{"key":"job-1","told":{"inserted":3,"failed":1},"groups":[]}' in bytes(
        memoryview(payload_of(counted))
    )


@pytest.mark.parametrize("counts", [3, [], "x", {"inserted": "3"}, {"inserted": None}, {"inserted": 1.5}])
def test_invalid_counts_are_corruption(counts: Any) -> None:
    record = LogRecord(5, "job-1", (), counts={"inserted": 3})
    meta = {"key": "job-1", "told": counts, "groups": []}
    text = json.dumps(meta).encode()
    body = struct.pack("<I", len(text)) + text
    body += bytes(-len(body) % 8)
    with pytest.raises(CorruptionError, match="is invalid"):
        decode_record(pa.py_buffer(body), record.timestamp)


@given(batches())
def test_an_encoded_message_is_written_unchanged(batch: pa.RecordBatch) -> None:
    """Rows that are already encoded are not encoded again, and give the same record."""
    plain = LogRecord(7, None, (group_of(batch),))
    message = batch.serialize()
    group = ResolvedGroup(3, 2, "insert", (9,), (0, batch.num_rows), batch, batch_message=message)
    given_it = LogRecord(7, None, (group,))
    assert encode_record(given_it)[-1] is message
    assert payload_of(given_it).equals(payload_of(plain))
