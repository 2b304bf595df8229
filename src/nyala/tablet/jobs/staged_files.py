"""Staged rows: Arrow files that a job's tasks write, and that the commit reads.

    task      cuts its rows into runs of about 64 MB, sorts each run by tablet and key, and writes the
              runs as an Arrow IPC stream with a checksum
    commit    reads the runs of all files

Many tasks find the rows' tablets and sort the rows at the same time. So the commit, which holds the
commit lock, has less to do.

A file has the user's columns and two more: TABLET, the id of the row's tablet or -1, and ROW, the
row's number in the task.

Invariants
    F1  Rows with the same key keep the task's order, within a run and between runs.
    F2  A tablet's id is never used again, and its partition never changes. So if a row's tablet
        still exists, it is the right one. If the tablet does not exist, or its id is -1, the commit
        finds the tablet itself. A task writes -1 if the key cannot be converted, or if no range
        covers the key.
    F3  The commit checks the tablet ids of a file before it uses them: see
        `tablet.write.prepare.routed_ordinals`.
Source: docs/format/staging.md; docs/design/spark.md, "What Spark offers a Python data source".
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.catalog.model import CatalogState
from nyala.env import Env, MissingFileError
from nyala.errors import CorruptionError, InvalidArgumentError, TableNotFoundError
from nyala.tablet.jobs.load_job import LoadPlan, TabletFiles
from nyala.tablet.jobs.load_write import ROW
from nyala.tablet.jobs.staging import beside, plain_name
from nyala.tablet.state.root import TableState, no_such_table
from nyala.tablet.state.validation import validating
from nyala.tablet.write.prepare import prepare

TABLET: Final = "_nyala_tablet"
_RUN_BYTES: Final = 64 << 20
_NO_TABLET: Final = -1


def routing_plan_of(state: CatalogState, path: str, name: str) -> LoadPlan:
    """Return the plan by which tasks find the tablet of each row: a table's schema and partitions.

    path: the store's folder or URL. Raises: TableNotFoundError.
    """
    entry = next((table for table in state.tables.values() if table.name == name), None)
    if entry is None:
        raise TableNotFoundError(no_such_table(name, {table.name: table for table in state.tables.values()}))
    tablets = tuple(TabletFiles(t.id, t.partition, ()) for t in state.tablets_by_table().get(entry.id, ()))
    return LoadPlan(
        path, entry.id, name, entry.schema, entry.partition_schema, tablets, 0, state.version, _RUN_BYTES
    )


# ------------------------------------------------------------------------------------------------ a task


def write_routed(env: Env, path: str, plan: LoadPlan, batches: Iterator[pa.RecordBatch]) -> int:
    """Write a task's rows, with their tablets, as one synced staged file; return their number.

    Without rows, no file is written.
    Memory: about 64 MB of rows, and the file.
    Raises: StorageError; SchemaError if a key column cannot be converted.
    """
    table = plan.table_state(None, range(len(plan.tablets)))
    routed = _routed_runs(table, batches)
    first = next(routed, None)
    if first is None:
        return 0
    return write_staged(env, path, first.schema, itertools.chain([first], routed))


def _routed_runs(table: TableState, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    size = begin = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= _RUN_BYTES:
            yield _routed(table, held, begin)
            begin += sum(part.num_rows for part in held)
            held, size = [], 0
    if held:
        yield _routed(table, held, begin)


def _routed(table: TableState, batches: Sequence[pa.RecordBatch], begin: int) -> pa.RecordBatch:
    """Return the rows of all `batches` as one batch, sorted by tablet and then by key.

    Rows that belong to no tablet come last. Two columns are added: TABLET, the tablet's id, and
    ROW, the row's number in the order in which the task got its rows.

    begin: the number of rows that this task has returned before.
    """
    rows = pa.Table.from_batches(batches).combine_chunks()
    count = rows.num_rows
    order, tablets = _tablet_order(table, rows)
    if len(order) != count:
        lost = np.setdiff1d(np.arange(count), order)
        order = np.concatenate((order, lost))
        tablets = np.concatenate((tablets, np.full(len(lost), _NO_TABLET)))
    if not bool((order[1:] > order[:-1]).all()):
        rows = rows.take(pa.array(order))
    numbers = pa.array(order + begin, pa.int64())
    columns = [column.combine_chunks() for column in rows.columns]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(tablets, pa.int64()), numbers], names=[*rows.column_names, TABLET, ROW]
    )


def _tablet_order(table: TableState, rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays: the positions of rows that have a tablet, and the ids of these tablets.

    Both are ordered by tablet and key.
    """
    keys = [c.name for c in table.schema.key_columns if c.name in rows.column_names]
    prepared = prepare(table, "delete", rows.select(keys), ignore=True)
    ids = np.array([tablet.id for tablet in table.tablets], np.int64)
    tablets = ids[prepared.tablets]
    if not prepared.is_distinct:
        tablets = np.repeat(tablets, prepared.group_sizes)
    return prepared.rows, tablets


def with_tablets(errors: pa.Table, table: TableState) -> pa.Table:
    """Add the tablet to the messages of failed rows (`WriteError.errors`)."""
    if not errors.num_rows:
        return errors
    # The columns after row, operation, code and message are those of the key.
    keys = pa.table(errors.columns[4:], errors.column_names[4:])
    places, tablets = _tablet_order(table, keys.combine_chunks())
    suffixes = np.full(errors.num_rows, "", object)
    suffixes[places] = [f" (tablet {number})" for number in tablets.tolist()]
    at = errors.column_names.index("message")
    named = pc.binary_join_element_wise(errors.column(at), pa.array(suffixes, pa.string()), "")
    return errors.set_column(at, errors.schema.field(at), named)


def write_staged(env: Env, path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    """Write one staged file and sync it; return its row count. `read_staged` reads such files."""
    sink = pa.BufferOutputStream()
    rows = 0
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for batch in batches:
            rows += batch.num_rows
            writer.write_batch(batch)
    body = sink.getvalue()
    file = env.files.create(path)
    try:
        file.append(body, _crc(path, body).to_bytes(4, "little"))
        file.sync()
    finally:
        file.close()
    env.files.sync_dir(os.path.dirname(path))
    return rows


# ------------------------------------------------------------------------------------------------ the commit


@dataclass(frozen=True)
class StagedRows:
    """The rows of a job from its staged files.

    numbers: the number of each row in the job, int64; None: a row's number is its position.
    routed:  the tablet id of each row as its task computed it, or -1; None: the tasks computed no
             ids.
    """

    data: pa.Table
    numbers: np.ndarray | None = None
    routed: np.ndarray | None = None

    def take(self, places: np.ndarray) -> StagedRows:
        """Return the rows at these positions."""
        return StagedRows(
            self.data.take(pa.array(places)),
            None if self.numbers is None else self.numbers[places],
            None if self.routed is None else self.routed[places],
        )


def read_staged(env: Env, folder: str, job: Mapping[str, Any]) -> StagedRows:
    """Read the staged rows of all files, in the order of `job["files"]`.

    folder: the staging folder of the job. `job["files"]` may also name files in other staging
            folders.
    Raises: CorruptionError, StorageError.
    """
    batches: list[pa.RecordBatch] = []
    numbers: list[np.ndarray] = []
    before = 0
    for named in job["files"]:
        if isinstance(named, str):
            path = os.path.join(folder, plain_name(named))
        else:
            key, name = named
            path = os.path.join(beside(folder, key), plain_name(name))
        with validating("staged file", path):
            found = list(_read_file(env, path))
            for batch in found:
                batch.validate(full=True)
                if {ROW, TABLET} & set(batch.schema.names):
                    numbers.append(_integers(batch, ROW) + before)
                    _integers(batch, TABLET)
                if batch.schema != (batches or found)[0].schema:
                    raise ValueError(
                        f"the columns {batch.schema.names} or their types differ from other files of the job"
                    )
        before += sum(batch.num_rows for batch in found)
        batches += found
    if not batches:
        return StagedRows(pa.table({name: pa.array([], pa.null()) for name in job.get("columns", ())}))
    data = pa.Table.from_batches(batches)
    if not numbers:
        return StagedRows(data)
    routed = data.column(TABLET).to_numpy()
    return StagedRows(data.drop_columns([TABLET, ROW]), np.concatenate(numbers), routed)


def read_rows(env: Env, path: str) -> pa.Table:
    """Read the rows of one staged file. Raises: CorruptionError, StorageError."""
    with validating("staged file", path):
        found = pa.Table.from_batches(list(_read_file(env, path)))
        found.validate(full=True)
        return found


def _integers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """Return the column TABLET or ROW as NumPy. Raises: KeyError if it is missing; ValueError."""
    column = batch.column(name)
    if column.type != pa.int64() or column.null_count:
        raise ValueError(
            f"expected column {name} as int64 without NULLs, found {column.type} with {column.null_count} NULLs"
        )
    values: np.ndarray = column.to_numpy()
    return values


def _read_file(env: Env, path: str) -> Iterator[pa.RecordBatch]:
    """Read a staged file: an Arrow IPC stream, then a CRC-32C (4 bytes little-endian, `_crc`)."""
    try:
        data = env.files.read_all(path)
    except MissingFileError as error:
        raise CorruptionError(
            "a staged file is gone: the job's staging folder was removed; run the job again", path
        ) from error
    if len(data) < 4 or _crc(path, data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise CorruptionError(
            "a staged file is truncated, damaged or in the wrong place (its CRC-32C does not match): run the job again",
            path,
            0,
        )
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        yield from reader


def _crc(path: str, body: bytes | pa.Buffer) -> int:
    """Return the checksum of a staged file: the CRC-32C of its name (`<key>/<name>`) and content.

    Because it covers the name, a file in a wrong folder has a wrong checksum.
    """
    folder, name = os.path.split(path)
    place = f"{os.path.basename(folder)}/{name}".encode(errors="surrogateescape")
    return int(google_crc32c.extend(google_crc32c.value(place), body))


def check_names(table: str, names: Sequence[str]) -> None:
    """Check that no column of the user has the name TABLET or ROW. Raises: InvalidArgumentError."""
    reserved = [name for name in names if name in (TABLET, ROW)]
    if reserved:
        raise InvalidArgumentError(
            f"the DataFrame written to table {table!r} has a column with the reserved name {reserved[0]!r}: rename it"
        )
