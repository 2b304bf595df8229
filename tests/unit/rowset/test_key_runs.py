"""The index of a MemRowSet's keys compared with a dict, in every layout of keys."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.rowset.key_lookup import key_runs
from nyala.rowset.key_lookup.key_runs import KeyRuns, SharedKeys
from nyala.schema.types import ColumnType

CODECS = {
    "int": KeyCodec([ColumnType("int32")]),
    "fixed": KeyCodec([ColumnType("int64"), ColumnType("int16")]),
    "binary": KeyCodec([ColumnType("string")]),
}


def encode(layout: str, numbers: list[int]):
    codec = CODECS[layout]
    arrays = {
        "int": [numbers],
        "fixed": [[n // 5 for n in numbers], [n % 5 for n in numbers]],
        "binary": [[f"{n:04}" + "\0" * (n % 3) for n in numbers]],
    }[layout]
    return codec.encode([pa.array(a, t.arrow) for a, t in zip(arrays, codec.types, strict=True)])


def add(index, keys, first_rowid):
    """Add the keys as a tablet does: they are in the middle of a batch's shared keys."""
    shared = SharedKeys(EncodedKeys.concat([keys, keys, keys]))
    return index.insert(shared, len(keys), len(keys), first_rowid)


@pytest.mark.parametrize("layout", CODECS)
@given(data=st.data())
def test_exactly_the_inserted_keys_are_found(layout, data):
    """An index and all older states of it, after small and large batches, agree with a dict."""
    limit, key_runs.TAIL_KEYS_MAX = key_runs.TAIL_KEYS_MAX, 7
    try:
        numbers = data.draw(st.permutations(range(60)))
        index, rows, states = KeyRuns(CODECS[layout].empty()), {}, []
        while numbers:
            size = data.draw(st.integers(1, 12))
            batch, numbers = sorted(numbers[:size]), numbers[size:]
            index = add(index, encode(layout, batch), len(rows))
            rows |= {n: len(rows) + i for i, n in enumerate(batch)}
            states.append((index, dict(rows)))
        for index, rows in states:
            index.check(len(rows))
            probes = data.draw(st.lists(st.integers(-5, 65), max_size=20))
            found = index.find(encode(layout, probes), len(rows))
            assert found.tolist() == [rows.get(n, -1) for n in probes], (
                "each state of the index has its own keys"
            )
            bounds = sorted((data.draw(st.integers(0, 60)), data.draw(st.integers(0, 60))))
            lower, upper = (encode(layout, [bound]).at(0) for bound in bounds)
            inside = index.rowids_in(KeyRange(lower, upper), len(rows))
            assert inside.tolist() == sorted(row for n, row in rows.items() if bounds[0] <= n < bounds[1])
            whole = index.sorted(len(rows))
            assert whole.rowids.tolist() == [rows[n] for n in sorted(rows)]
    finally:
        key_runs.TAIL_KEYS_MAX = limit
