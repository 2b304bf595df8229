"""The tokens of a scan return the rows of the scan, in key order if requested, wherever the rows are stored."""

from __future__ import annotations

import itertools
import os
import tempfile
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given, settings

import nyala
from nyala.api.scan import Scan, read_token
from tests.support import open_database

SHARED_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
COLUMNS = ["a", "b", "v", "s"]
# Other types that a reader may request, also for key columns.
WIDER = pa.schema({"a": pa.string(), "b": pa.int64(), "v": pa.int64(), "s": pa.large_string()})
WHERES = [
    None,
    "v >= 3",
    "v IS NULL",
    "a = 'x' AND NOT b < 2",
    "(b IN (1, 3) OR s LIKE '%q') AND a <> 'y'",
]
keys = st.tuples(st.sampled_from("xyz"), st.integers(0, 9))
Key = tuple[str, int]
# A round: keys to upsert with a value, keys to delete, and whether to flush.
rounds_of_changes = st.lists(
    st.tuples(
        st.lists(keys, min_size=1, max_size=8),
        st.one_of(st.none(), st.integers(0, 5)),
        st.lists(keys, max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def of_tokens(scan: Scan, columns: list[str] | None = None) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each token."""
    schema = scan.schema if columns is None else pa.schema([scan.schema.field(name) for name in columns])
    return [
        as_tuples(pa.Table.from_batches(list(read_token(token, columns=columns)), schema))
        for token in scan.tokens()
    ]


def as_tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    if not table.column_names:
        return [()] * table.num_rows
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def in_any_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


@settings(max_examples=settings().max_examples)
@given(
    rounds=rounds_of_changes,
    columns=st.lists(st.sampled_from(COLUMNS), unique=True),
    narrow=st.lists(st.sampled_from(COLUMNS), unique=True),
    where=st.sampled_from(WHERES),
    wide=st.booleans(),
    ordered=st.booleans(),
    limit=st.one_of(st.none(), st.integers(0, 5)),
    back=st.integers(0, 3),
)
def test_tokens_give_the_rows_of_their_scan(
    rounds: list[tuple[list[Key], int | None, list[Key], bool]],
    columns: list[str],
    narrow: list[str],
    where: str | None,
    wide: bool,
    ordered: bool,
    limit: int | None,
    back: int,
) -> None:
    with (
        tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder,
        open_database(folder, durability="os") as db,
    ):
        table = db.create_table(
            "t",
            {"a": "varchar(9)", "b": "int16", "v": "int32", "s": "string"},
            ["a", "b"],
            nyala.hash_partition("b", buckets=2),
        )
        moments = [db.now()]
        for upserted, value, deleted, flushed in rounds:
            table.upsert([{"a": a, "b": b, "v": value, "s": f"{a}q{value}"} for a, b in upserted])
            moments.append(db.now())
            if deleted:
                table.delete([{"a": a, "b": b} for a, b in dict.fromkeys(deleted)], on_missing="ignore")
                moments.append(db.now())
            if flushed:
                db.flush()
        at = moments[-1 - min(back, len(moments) - 1)]
        requested = pa.schema([WIDER.field(name) for name in columns]) if wide else columns
        scan = table.scan(columns=requested, where=where, at=at, order_by_key=ordered)
        expected = as_tuples(scan.to_arrow())
        assert len(expected) == scan.count()
        by_token = of_tokens(scan)
        assert in_any_order(list(itertools.chain(*by_token))) == in_any_order(expected)
        if ordered:
            whole_key = columns + [name for name in ("a", "b") if name not in columns]
            whole = table.scan(columns=whole_key, where=where, at=at, order_by_key=True).to_arrow()
            assert expected == [row[: len(columns)] for row in as_tuples(whole)], (
                "a projection does not change the order"
            )
            for rows in by_token:
                assert is_subsequence(rows, expected)
        wanted = [name for name in narrow if name in columns]
        kept = [columns.index(name) for name in wanted]
        narrowed = list(itertools.chain(*of_tokens(scan, wanted)))
        assert in_any_order(narrowed) == in_any_order(
            [tuple(row[index] for index in kept) for row in expected]
        )
        limited = table.scan(columns=requested, where=where, at=at, order_by_key=ordered, limit=limit)
        if limit is not None:
            assert [rows[:limit] for rows in by_token] == of_tokens(limited) or not ordered
            assert all(len(rows) <= limit for rows in of_tokens(limited))
            assert limited.count() == min(limit, len(expected)) == len(as_tuples(limited.to_arrow()))
            if ordered:
                assert as_tuples(limited.to_arrow()) == expected[:limit]


def is_subsequence(rows: list[tuple[Any, ...]], of: list[tuple[Any, ...]]) -> bool:
    remaining = iter(of)
    return all(row in remaining for row in rows)
