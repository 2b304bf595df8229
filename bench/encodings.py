"""Speed of each encoding on columns of lineitem, and on columns that lineitem has none like.

Those made here have what its columns lack: long runs, booleans, doubles, decimals of 16 bytes, NULLs. Blocks of 65,536
rows on one core, without compression and checksums; every decoded column is compared with what was given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.costs import Cost, cost, merged
from bench.report import Table, megabytes

LINEITEM = ("l_orderkey", "l_quantity", "l_extendedprice", "l_shipdate", "l_returnflag", "l_comment")
BLOCK_ROWS = 1 << 16
RUN_ROWS = 500
NULL_SHARE = 0.1


class Encoded(NamedTuple):
    """One column in one encoding, without compression and checksums."""

    column: str
    encoding: str
    blocks: int
    arrow_bytes: int
    stored_bytes: int
    decoded_bytes: int  # what decoding writes
    encode_s: float
    decode_s: float
    encode_calls: int | None  # of Python and of C that Python calls, for the whole column
    decode_calls: int | None

    def cells(self) -> list[str]:
        """As `COLUMNS` has them. Bytes: encoding goes over what Arrow has and what it stores, decoding over what is
        stored and what it gives."""
        return [
            f"{self.column}, {self.encoding}",
            megabytes(self.arrow_bytes),
            f"{self.stored_bytes / self.arrow_bytes:.3f}",
            f"{self.arrow_bytes / self.encode_s / 1e9:.2f}",
            f"{self.arrow_bytes / self.decode_s / 1e9:.2f}",
            f"{_count(self.encode_calls)} / {_count(self.decode_calls)}",
            f"{self.blocks:,}",
            f"{_count(self.arrow_bytes + self.stored_bytes)} / {_count(self.stored_bytes + self.decoded_bytes)}",
        ]


COLUMNS = (
    "column, encoding", "in Arrow", "stored ÷ Arrow", "encode GB/s", "decode GB/s", "calls, encode / decode", "blocks",
    "bytes touched, encode / decode",
)  # fmt: skip
TITLE = (
    "Encodings on one core, blocks of 65,536 rows, without compression and checksums; GB of Arrow; calls and bytes of "
    f"the whole column. Columns that are not lineitem's were made: runs of about {RUN_ROWS} rows, "
    f"{NULL_SHARE * 100:g} % NULLs"
)


@dataclass
class Encodings:
    rows: list[Encoded] = field(default_factory=list)
    profiles: dict[str, Cost] = field(default_factory=dict)  # of each encoding over all columns, by direction

    def table(self) -> Table:
        table = Table(list(COLUMNS))
        table.rows += [one.cells() for one in self.rows]
        return table


def made_columns(rows: int) -> dict[str, pa.Array]:
    """What lineitem has no column like."""
    rng = np.random.default_rng(45)
    runs = np.arange(rows) // RUN_ROWS
    words = pa.array([f"host-{number:04d}.example.net" for number in range(200)])
    nulls = rng.random(rows) < NULL_SHARE
    cents = rng.integers(-(10**15), 10**15, rows)
    wide = pa.Array.from_buffers(  # 128-bit little-endian numbers
        pa.decimal128(38, 4), rows, [None, pa.py_buffer(np.stack([cents, cents >> 63], axis=1).tobytes())]
    )
    return {
        "int64, runs": pa.array(runs * 7919 % 1_000_003),
        "int32, runs, NULLs": pa.array((runs % 977).astype(np.int32), mask=runs % 10 == 3),
        "bool, runs": pa.array(runs % 3 == 0),
        "bool, at random": pa.array(rng.random(rows) < 0.3),
        "bool, NULLs": pa.array(rng.random(rows) < 0.3, mask=nulls),
        "double, two places": pa.array(np.round(rng.random(rows) * 1000, 2)),
        "double, at random": pa.array(rng.random(rows)),
        "double, runs": pa.array(np.sqrt(runs.astype(np.float64))),
        "double, NULLs": pa.array(rng.random(rows), mask=nulls),
        "decimal128(38, 4)": wide,
        "int64, NULLs": pa.array(rng.integers(0, 100_000, rows), mask=nulls),
        "text, runs": words.take(pa.array(runs % len(words))),
        "text, NULLs": words.take(pa.array(rng.integers(0, len(words), rows), mask=nulls)),
    }


def measure(files: str, repeats: int) -> dict[str, Any]:
    """{"encodings": `Encodings`}"""
    found = Encodings()
    profiles: dict[str, list[Cost]] = {}
    for name, given in _columns(files):
        for one, encoding_cost, decoding_cost in _measured(name, given, repeats):
            found.rows.append(one)
            profiles.setdefault(f"encode, {one.encoding}", []).append(encoding_cost)
            profiles.setdefault(f"decode, {one.encoding}", []).append(decoding_cost)
    found.profiles = {name: merged(costs).short() for name, costs in sorted(profiles.items())}
    return {"encodings": found}


def _columns(files: str) -> Iterator[tuple[str, pa.Array]]:
    path = os.path.join(files, "lineitem.parquet")
    for name in LINEITEM:
        read = pq.read_table(path, columns=[name]).column(0)
        plain = pa.string() if pa.types.is_string_view(read.type) else read.type
        given = read.cast(plain).combine_chunks()
        yield name, given.chunk(0) if isinstance(given, pa.ChunkedArray) else given
    yield from made_columns(pq.read_metadata(path).num_rows).items()


def _measured(name: str, given: pa.Array, repeats: int) -> Iterator[tuple[Encoded, Cost, Cost]]:
    """By each encoding that the column's type and values allow."""
    from nyala.cfile.encoding import EncodedValues, encoding_by_code
    from nyala.cfile.physical import physical
    from nyala.schema.types import parse_type

    form = physical(parse_type(given.type))
    bounds = [(at, min(at + BLOCK_ROWS, len(given))) for at in range(0, len(given), BLOCK_ROWS)]
    # Validity lies beside the values in a block, and is no encoding's affair.
    valid = [_bitmap(given.slice(lower, upper - lower)) for lower, upper in bounds]
    for code in range(16):
        encoding = encoding_by_code(code)
        if encoding is None or not encoding.handles(form):
            continue
        some = encoding.prepare(form, form.stored_array(given[:1000]))
        if some is not None:  # what is loaded at the first call
            some.encode(0, min(1000, len(given)))
        kept: list[Any] = []

        def encode(encoding: Any = encoding) -> Any:
            encoder = encoding.prepare(form, form.stored_array(given))
            return encoder and (encoder, [encoder.encode(lower, upper) for lower, upper in bounds])

        def decode(encoding: Any = encoding, kept: Any = kept) -> list[pa.Array]:
            encoder, blocks = kept[-1]
            return [
                encoding.decode(form, EncodedValues(block, upper - lower, *validity, encoder.dictionary))
                for (lower, upper), block, validity in zip(bounds, blocks, valid, strict=True)
            ]

        encode_s, decode_s = [], []
        decoded: list[pa.Array] = []
        for _ in range(repeats):
            decoded = []
            begun = perf_counter()
            kept[:] = [encode()]
            encode_s.append(perf_counter() - begun)
            if kept[0] is None:
                break
            begun = perf_counter()
            decoded = decode()
            decode_s.append(perf_counter() - begun)
        if not decode_s:
            continue
        for (lower, upper), array in zip(bounds, decoded, strict=True):
            if not array.cast(given.type).equals(given.slice(lower, upper - lower)):
                raise AssertionError(f"{name}, {encoding.name}: decoded to something else")
        encoder, blocks = kept[0]
        size = sum(block.size for block in blocks)
        size += 0 if encoder.dictionary is None else encoder.dictionary.nbytes
        costs = cost(encode, top=1000), cost(decode, top=1000)
        sizes = len(bounds), given.nbytes, size, sum(array.nbytes for array in decoded)
        took = median(encode_s), median(decode_s)
        calls = costs[0].calls, costs[1].calls
        yield Encoded(name, encoding.name, *sizes, *took, *calls), *costs


def _bitmap(block: pa.Array) -> tuple[pa.Buffer | None, int]:
    """(validity without an offset, number of NULLs), as `EncodedValues` has them."""
    if not block.null_count:
        return None, 0
    bits = np.packbits(pc.is_valid(block).to_numpy(zero_copy_only=False), bitorder="little")
    return pa.py_buffer(bits), block.null_count


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
