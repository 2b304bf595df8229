"""Converts Arrow rows to bytes in Arrow's IPC stream format, and back."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["from_ipc", "to_ipc"]


def to_ipc(rows: pa.Table | pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return sink.getvalue()


def from_ipc(data: bytes | pa.Buffer) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()
