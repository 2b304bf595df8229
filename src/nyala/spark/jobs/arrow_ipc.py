"""Arrow tables as bytes of Arrow's stream format: between driver and tasks they travel in binary columns."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["from_ipc", "to_ipc"]


def to_ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def from_ipc(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()
