"""The data of the benchmarks: TPC-H's lineitem, a table with fifty columns, and small rows. All
stores get the same.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LINEITEM_KEY = ["l_orderkey", "l_linenumber"]
MONEY = pa.decimal128(15, 2)


def lineitem(scale_factor: float, folder: str) -> tuple[pa.Table, str]:
    """Return TPC-H's lineitem, about 6 M rows × the scale factor, and a sentence that says how it
    was made.

    tpchgen-cli makes it. If that is not installed, NumPy makes rows of the same types and ranges of
    values.
    """
    tool = tpch_tool()
    if tool is None:
        return _lineitem_like(
            int(scale_factor * 6_000_000)
        ), "lineitem-like rows made with NumPy (no tpchgen-cli)"
    subprocess.run(
        [tool, "parquet", "-s", str(scale_factor), "-T", "lineitem", "-o", folder, "--quiet", "--overwrite"],
        check=True,
    )
    path = Path(folder) / "lineitem.parquet"
    table = read_plain(path)
    path.unlink()
    return table, f"TPC-H lineitem of scale factor {scale_factor:g}"


def make_tpch(scale_factor: float, folder: str) -> None:
    """Make all eight tables of TPC-H, as Parquet files. Raises FileNotFoundError without
    tpchgen-cli.
    """
    tool = tpch_tool()
    if tool is None:
        raise FileNotFoundError("TPC-H's tables need tpchgen-cli (`make bench` installs it)")
    os.makedirs(folder, exist_ok=True)
    subprocess.run([tool, "parquet", "-s", str(scale_factor), "-o", folder, "--quiet"], check=True)


def read_plain(path: str | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file of tpchgen-cli without nullable columns and string views, which some stores do
    not support.
    """
    read = pq.read_table(path, columns=columns)
    fields = [
        pa.field(f.name, pa.string() if pa.types.is_string_view(f.type) else f.type, nullable=False)
        for f in read.schema
    ]
    return read.cast(pa.schema(fields)).combine_chunks()


def tpch_tool() -> str | None:
    """Return the path of tpchgen-cli, or None if it is not installed."""
    return shutil.which("tpchgen-cli", path=str(Path(sys.executable).parent)) or shutil.which("tpchgen-cli")


_ALIGNED_BYTES = 64


def write_mapped(table: pa.Table, path: str) -> None:
    """Write a table to a file for `read_mapped`. The columns must have one chunk and no NULLs.

    This is not Arrow's IPC file, in which buffers are aligned to 8 bytes: Lance and delta-rs crash
    on such decimals.
    """
    places: list[list[tuple[int, int] | None]] = []
    with open(path, "wb") as file:
        for column in table.columns:
            (chunk,) = column.chunks
            assert chunk.offset == 0 and chunk.null_count == 0
            mine: list[tuple[int, int] | None] = [None]
            for buffer in chunk.buffers()[1:]:
                file.write(b"\0" * (-file.tell() % _ALIGNED_BYTES))
                mine.append((file.tell(), buffer.size))
                file.write(buffer)
            places.append(mine)
    Path(path + ".places").write_bytes(pickle.dumps((table.schema, table.num_rows, places)))


def read_mapped(path: str) -> pa.Table:
    """Return a table that `write_mapped` wrote, as a memory map, so that it does not count as
    memory of this process.
    """
    schema, rows, places = pickle.loads(Path(path + ".places").read_bytes())
    whole = pa.memory_map(path).read_buffer()
    arrays = [
        pa.Array.from_buffers(
            field.type, rows, [None if place is None else whole.slice(*place) for place in mine]
        )
        for field, mine in zip(schema, places, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _lineitem_like(rows: int) -> pa.Table:
    rng = np.random.default_rng(1992)

    def money(low: int, high: int, cents: int = 1) -> pa.Array:
        """Return decimals with two places, from 128-bit little-endian numbers of cents."""
        low_half = rng.integers(low, high, rows) * cents
        words = np.stack([low_half, np.zeros_like(low_half)], axis=1)
        return pa.Array.from_buffers(MONEY, rows, [None, pa.py_buffer(words.tobytes())])

    def words(*choice: str) -> pa.Array:
        return pa.array(choice).take(pa.array(rng.integers(0, len(choice), rows)))

    ordered = rng.integers(8036, 10440, rows)  # days since the epoch: 1992 to 1998

    def days(least: int, most: int) -> pa.Array:
        return pa.array((ordered + rng.integers(least, most, rows)).astype(np.int32)).cast(pa.date32())

    columns = {
        "l_orderkey": pa.array(np.arange(rows) // 4 * 8 + 1),
        "l_partkey": pa.array(rng.integers(1, 200_000, rows)),
        "l_suppkey": pa.array(rng.integers(1, 10_000, rows)),
        "l_linenumber": pa.array((np.arange(rows) % 4 + 1).astype(np.int32)),
        "l_quantity": money(1, 51, cents=100),
        "l_extendedprice": money(90_000, 10_000_000),
        "l_discount": money(0, 11),
        "l_tax": money(0, 9),
        "l_returnflag": words("A", "N", "R"),
        "l_linestatus": words("O", "F"),
        "l_shipdate": days(1, 122),
        "l_commitdate": days(30, 91),
        "l_receiptdate": days(2, 152),
        "l_shipinstruct": words("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"),
        "l_shipmode": words("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"),
        "l_comment": words("carefully final deposits", "furiously even accounts", "quick requests sleep"),
    }
    schema = pa.schema([pa.field(name, column.type, nullable=False) for name, column in columns.items()])
    return pa.table(columns, schema=schema)


def wide(rows: int) -> pa.Table:
    """Return rows of fifty columns: the key `id`, 24 random doubles (d0 …), 20 integers of several
    widths (i0 …), 5 texts.
    """
    rng = np.random.default_rng(50)
    columns: dict[str, pa.Array] = {"id": pa.array(np.arange(rows))}
    for number in range(24):
        columns[f"d{number}"] = pa.array(rng.random(rows))
    for number in range(20):
        columns[f"i{number}"] = pa.array(rng.integers(0, 10 ** (1 + number // 2), rows))
    words = pa.array([f"{word} {number}" for number in range(200) for word in ("red", "green", "blue")])
    for number in range(5):
        columns[f"s{number}"] = words.take(pa.array(rng.integers(0, len(words), rows)))
    return pa.table(columns)


def small_rows(ids: np.ndarray, rng: np.random.Generator) -> pa.Table:
    """Return rows of about 70 bytes: the key `id`, four doubles, two integers, two texts."""
    n = len(ids)
    return pa.table(
        {
            "id": pa.array(ids),
            "price": pa.array(np.round(rng.random(n) * 1000, 2)),
            "load": pa.array(rng.random(n)),
            "low": pa.array(rng.random(n)),
            "high": pa.array(rng.random(n)),
            "count": pa.array(rng.integers(0, 1000, n)),
            "seen": pa.array(rng.integers(0, 2**40, n)),
            "host": _HOSTS.take(pa.array(rng.integers(0, len(_HOSTS), n))),
            "state": _STATES.take(pa.array(rng.integers(0, len(_STATES), n))),
        }
    )


_HOSTS = pa.array([f"host-{number:04d}" for number in range(1000)])
_STATES = pa.array(["new", "open", "held", "closed"])
