"""Staged rows: the files that the tasks of a job write, and what the commit reads of them.

    task      rows ──► runs of some 64 MB ──► each in the order of (tablet, key) ──► an Arrow IPC stream and its CRC
    commit    the runs of all files, one after the other; of each row its tablet and its place in the job

A task routes its rows, because routing is work for many: the commit, which holds the lock, has hashes and codes of keys
computed already where they can be, and sorts runs that ascend, which is merging them.

Two columns are added to the user's: TABLET, the id of the row's tablet, or -1; ROW, its place among the task's rows.

Invariants
    F1  Rows of one key stand in the order in which the task was given them (W4), in a run and over runs.
    F2  A tablet's id is never given again, and its partition never moves: what a task has routed to an id that is there
        is routed rightly. Rows of another id, or of -1 (the key does not convert, no range covers it), are routed and
        judged by the commit.
    F3  What a file says is believed only as far as it is checked: see `tablet.settle.homes_of`.
Source: docs/format/staging.md; docs/design/spark.md, "What Spark offers a Python data source".
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.catalog.store import Catalog
from nyala.env import Env, MissingFileError
from nyala.errors import CorruptionError, InvalidArgumentError, TableNotFoundError
from nyala.tablet.jobs.load_job import LoadPlan, TabletFiles
from nyala.tablet.jobs.load_write import ROW
from nyala.tablet.jobs.staging import beside, plain_name
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.root import TableState, no_such_table
from nyala.tablet.state.validation import making_sense
from nyala.tablet.write.prepare import prepare
from nyala.wal.position import read_position

__all__ = [
    "ROW",
    "TABLET",
    "StagedRows",
    "check_names",
    "read_staged",
    "routing_plan",
    "with_tablets",
    "write_routed",
    "write_staged",
]

TABLET: Final = "_nyala_tablet"
_RUN_BYTES: Final = 64 << 20
_NOWHERE: Final = -1


def routing_plan(env: Env, path: str, name: str) -> LoadPlan:
    """A table's schema and tablets as the catalogue has them, without files: what a task needs to route rows.

    Cost: the catalogue is read, and no log. Raises: StorageError without a store; TableNotFoundError.
    """
    path = os.path.abspath(path)
    layout.require_store(env, path)
    with contextlib.closing(Catalog.open(env, layout.catalog_path(path), read_only=True)) as catalog:
        position = read_position(env.files, layout.position_path(path))
        state = catalog.load(at_least=0 if position is None else position.catalogue_version)
    entry = next((table for table in state.tables.values() if table.name == name), None)
    if entry is None:
        raise TableNotFoundError(no_such_table(name, {table.name: table for table in state.tables.values()}))
    tablets = tuple(TabletFiles(t.id, t.partition, ()) for t in state.tablets_by_table().get(entry.id, ()))
    return LoadPlan(
        path, entry.id, name, entry.schema, entry.partition_schema, tablets, 0, state.version, _RUN_BYTES
    )


# ------------------------------------------------------------------------------------------------ a task


def write_routed(env: Env, path: str, plan: LoadPlan, batches: Iterator[pa.RecordBatch]) -> int:
    """Write a task's rows, routed, as one staged file, synced; returns how many. Without rows there is no file.

    Memory: a run, and the file. Raises: StorageError, SchemaError for key columns of types that cannot be converted.
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
    """One run: the rows by tablet and key, those without a tablet behind them; `begin`: rows of the task before."""
    rows = pa.Table.from_batches(batches).combine_chunks()
    count = rows.num_rows
    order, homes = _homes(table, rows)
    if len(order) != count:
        lost = np.setdiff1d(np.arange(count), order)
        order = np.concatenate((order, lost))
        homes = np.concatenate((homes, np.full(len(lost), _NOWHERE)))
    if not bool((order[1:] > order[:-1]).all()):
        rows = rows.take(pa.array(order))
    numbers = pa.array(order + begin, pa.int64())
    columns = [column.combine_chunks() for column in rows.columns]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(homes, pa.int64()), numbers], names=[*rows.column_names, TABLET, ROW]
    )


def _homes(table: TableState, rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The places of rows that have a tablet, by tablet and key, and its id."""
    keys = [c.name for c in table.schema.key_columns if c.name in rows.column_names]
    prepared = prepare(table, "delete", rows.select(keys), ignore=True)
    ids = np.array([tablet.id for tablet in table.tablets], np.int64)
    homes = ids[prepared.tablets]
    if not prepared.is_distinct:
        homes = np.repeat(homes, prepared.group_sizes)
    return prepared.rows, homes


def with_tablets(errors: pa.Table, table: TableState) -> pa.Table:
    """Failing rows (`WriteError.errors`) whose messages, read far from here, name the tablet that each was for."""
    if not errors.num_rows:
        return errors
    # Behind row, operation, code and message stand the key's columns.
    keys = pa.table(errors.columns[4:], errors.column_names[4:])
    places, homes = _homes(table, keys.combine_chunks())
    words = np.full(errors.num_rows, "", object)
    words[places] = [f" (tablet {home})" for home in homes.tolist()]
    at = errors.column_names.index("message")
    named = pc.binary_join_element_wise(errors.column(at), pa.array(words, pa.string()), "")
    return errors.set_column(at, errors.schema.field(at), named)


def write_staged(env: Env, path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    """Write one staged file, synced; returns its rows. The format is that of `_read_file`."""
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
    """A job's rows as its files have them.

    numbers: of each row its place in the job, int64; None: they stand in their order.
    homes:   of each row the id of the tablet to which a task routed it, or -1; None: none was routed.
    """

    data: pa.Table
    numbers: np.ndarray | None = None
    homes: np.ndarray | None = None

    def take(self, places: np.ndarray) -> StagedRows:
        """Some of the rows, in the order of `places`."""
        return StagedRows(
            self.data.take(pa.array(places)),
            None if self.numbers is None else self.numbers[places],
            None if self.homes is None else self.homes[places],
        )


def read_staged(env: Env, folder: str, job: Mapping[str, Any]) -> StagedRows:
    """The staged rows of all files, in the order the job names them. Raises: CorruptionError, StorageError.

    folder: of the job's key; those of other keys stand beside it.
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
        with making_sense("staged file", path):
            found = list(_read_file(env, path))
            for batch in found:
                batch.validate(full=True)
                if {ROW, TABLET} & set(batch.schema.names):
                    numbers.append(_integers(batch, ROW) + before)
                    _integers(batch, TABLET)
                if batch.schema != (batches or found)[0].schema:
                    raise ValueError(f"columns {batch.schema.names}, other files of the job have other ones")
        before += sum(batch.num_rows for batch in found)
        batches += found
    if not batches:
        return StagedRows(pa.table({name: pa.array([], pa.null()) for name in job.get("columns", ())}))
    data = pa.Table.from_batches(batches)
    if not numbers:
        return StagedRows(data)
    homes = data.column(TABLET).to_numpy()
    return StagedRows(data.drop_columns([TABLET, ROW]), np.concatenate(numbers), homes)


def _integers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """One of our two columns. Raises: ValueError, KeyError when it is none."""
    column = batch.column(name)
    if column.type != pa.int64() or column.null_count:
        raise ValueError(f"column {name} of type {column.type} with {column.null_count} NULLs")
    values: np.ndarray = column.to_numpy()
    return values


def _read_file(env: Env, path: str) -> Iterator[pa.RecordBatch]:
    """A staged file: Arrow IPC stream, then the CRC-32C of its place and the stream, in 4 bytes (little-endian)."""
    try:
        data = env.files.read_all(path)
    except MissingFileError as error:
        raise CorruptionError(
            "a staged file is gone: the job's staging folder was removed; run the job again", path
        ) from error
    if len(data) < 4 or _crc(path, data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise CorruptionError(
            "a staged file is cut or damaged, or another file is in its place (CRC-32C differs): run the job again",
            path,
            0,
        )
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        yield from reader


def _crc(path: str, body: bytes | pa.Buffer) -> int:
    """Of `<key>/<name>` and the stream: the file of another job or task has another."""
    folder, name = os.path.split(path)
    place = f"{os.path.basename(folder)}/{name}".encode(errors="surrogateescape")
    return int(google_crc32c.extend(google_crc32c.value(place), body))


def check_names(table: str, names: Sequence[str]) -> None:
    """Raises: InvalidArgumentError when a column of the user's has a name of ours."""
    strange = [name for name in names if name in (TABLET, ROW)]
    if strange:
        raise InvalidArgumentError(
            f"a column of the DataFrame written to table {table!r} is called {strange[0]!r}: rename it"
        )
