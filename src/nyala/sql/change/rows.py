"""Keeps the rows that DuckDB computes for a write.

From 64 MB on, the rows are in a temporary file that is mapped into memory. So a batch can be larger
than memory.

Source: docs/design/sql-and-polars.md, "Statements that write".
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from nyala.errors import StorageError

SPILLED_BYTES_MIN: Final = 64 << 20
# The temporary files that are mapped now.
_MAPPED: Final[weakref.WeakSet[mmap.mmap]] = weakref.WeakSet()


def collected(reader: pa.RecordBatchReader) -> pa.Table:
    """Return all rows of a stream as a table.

    If the rows have 64 MB or more, the whole table is in a temporary file that is mapped into memory.
    """
    batches: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in reader:
        batches.append(batch)
        nbytes += batch.nbytes
        if nbytes >= SPILLED_BYTES_MIN:
            return _spilled(reader, batches)
    return pa.Table.from_batches(batches, reader.schema)


def _spilled(reader: pa.RecordBatchReader, batches: list[pa.RecordBatch]) -> pa.Table:
    try:
        return _mapped(reader, batches)
    except OSError as error:
        raise StorageError(
            f"the rows of the statement cannot be written to a temporary file: {error}. Nothing was written to the "
            "store: free space in the temporary folder, or let TMPDIR name another one"
        ) from error


def _mapped(reader: pa.RecordBatchReader, batches: list[pa.RecordBatch]) -> pa.Table:
    with tempfile.TemporaryFile(prefix="nyala-sql-", suffix=".arrow") as file:
        with pa.ipc.new_file(file, reader.schema) as writer:
            while batches:
                writer.write_batch(batches.pop(0))
            for batch in reader:
                writer.write_batch(batch)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # keeps the content
    _MAPPED.add(mapped)
    return pa.ipc.open_file(pa.py_buffer(mapped)).read_all()


def release_pages() -> None:
    """Free the memory that holds rows of temporary files, so that a large commit uses less memory.

    The rows stay in the files, and the next access reads them from the disk.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in list(_MAPPED):
            mapped.madvise(mmap.MADV_DONTNEED)


def are_distinct(rows: pa.Table, keys: Sequence[str]) -> bool:
    """Whether no two rows have the same key."""
    if rows.num_rows < 2:
        return True
    if len(keys) == 1:
        return bool(len(rows.column(keys[0]).unique()) == rows.num_rows)
    return bool(rows.select(keys).group_by(list(keys)).aggregate([]).num_rows == rows.num_rows)
