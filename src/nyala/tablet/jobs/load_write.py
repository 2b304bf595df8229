"""A task of a load: writes one tablet's rows, in key order, as files in the job's staging folder.

S is the moment of the job's plan, t the timestamp of the job's commit.

    the rows of the tablet, by ascending key, are cut into chunks of about one rowset; for each chunk
      prepare     converts, checks and encodes the rows, as for any write
      resolve     decides the effect of each row, from the tablet's files as of S
      inserts     are written as a rowset: base, and UNDO "absent before t"
      updates     are collected, and written as a REDO file per rowset at the end of the task
      idle rows   change nothing as of S; they are written as a rowset that the commit examines again
    result: `StagedTablet` (files and counts), and the rows that failed

Memory: a chunk, and the tablet's deltas.

The timestamp t is not known yet, so the files do not contain it. The catalogue will give t to all
records of the files. Until then their timestamp is `UNKNOWN`.

Invariants
    L1  Rowsets of one task do not overlap, and are in key order.
    L2  All rows with the same key are in one chunk, so they are resolved together.
    L3  For each key that did not fail, the job's operation is staged: as a row, a change, or an
        idle row.
Source: docs/design/loads-and-jobs.md, "Executors write the files of a large load";
docs/design/rules.md, W6.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile.blocks.cache import BlockCache
from nyala.delta.delta_file import write_delta_file
from nyala.delta.run import LIVENESS
from nyala.env import Env
from nyala.errors import MISSING_COLUMN, NO_PARTITION, Error, InvalidArgumentError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.image import RowSetImage, one_array, whole_column
from nyala.rowset.writer import WrittenRowSet, write_rowset
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.schema import AUTO_INCREMENT, ColumnSchema, Schema
from nyala.schema.types import ColumnType
from nyala.tablet.flush.file_jobs import delta_types
from nyala.tablet.jobs.load_job import LoadPlan, StagedDelta, StagedTablet
from nyala.tablet.state.leased_files import kept_by_lease
from nyala.tablet.state.locate import equal_ranges
from nyala.tablet.state.root import TableState
from nyala.tablet.write.conditions import Condition
from nyala.tablet.write.direct_commit import absent_before, redo_runs
from nyala.tablet.write.effects import Effect, ResolvedBatch
from nyala.tablet.write.prepare import PreparedOperation, prepare
from nyala.tablet.write.resolve import resolve
from nyala.tablet.write.write_path import Request, prepare_request

UNKNOWN: Final = 1
ROW: Final = "_nyala_row"
"""The column with each row's number in the job. It is used in messages, and to order rows with one key."""

_CACHE_BYTES: Final = 64 << 20


@dataclass
class _Pending:
    """The changes of one rowset that the task has collected for a REDO file."""

    rowids: list[np.ndarray] = field(default_factory=list)
    columns: dict[int, list[pa.Array]] = field(default_factory=dict)


def write_tablet(
    env: Env,
    plan: LoadPlan,
    ordinal: int | None,
    operation: str,
    batches: Iterator[pa.RecordBatch],
    folder: str,
    name: str,
) -> tuple[StagedTablet, pa.Table | None]:
    """Write one tablet's part of a job; returns (the staged files, the failed rows or None).

    Messages of failed rows name the tablet.

    ordinal:   the tablet's index in the plan; None: no partition covers the rows, so all of them
               fail.
    operation: one of prepare.OPERATION_NAMES.
    batches:   the rows in key order, with the additional column ROW, the row's number in the job.
    folder:    the job's staging folder, relative to the store's folder.
    name:      the names of this attempt's files begin with it.
    Raises: SchemaError, ColumnNotFoundError; StorageError, CorruptionError; HistoryExpiredError if
            a file of the plan, or the staging folder, was removed.
    """
    cache = BlockCache(_CACHE_BYTES)
    with kept_by_lease(f"the load into table {plan.table!r}", "run the job again"):
        table = plan.table_state(env, [] if ordinal is None else [ordinal], cache)
        task = _Task(env, plan, table, operation, folder, name, ordinal)
        try:
            for rows in chunks(batches, plan.schema.key_columns, plan.rowset_target_bytes):
                task.take(rows)
            tablet_id = -1 if ordinal is None else plan.tablets[ordinal].id
            staged = StagedTablet(
                tablet_id, tuple(task.rowsets), tuple(task.deltas()), task.counts, tuple(task.idle)
            )
            if staged.rowsets or staged.deltas or staged.idle:
                env.files.sync_dir(os.path.join(plan.root_path, folder))
            return staged, pa.concat_tables(task.errors) if task.errors else None
        finally:
            cache.resize(0)
            for tablet in table.tablets:
                for rowset in tablet.rowsets:
                    rowset.close()


def chunks(
    batches: Iterator[pa.RecordBatch], keys: Sequence[ColumnSchema], target_bytes: int
) -> Iterator[pa.Table]:
    """Cut rows into parts of about `target_bytes` in memory, and yield the parts.

    Rows with the same key are in the same part.

    batches: the rows, sorted by key.
    keys:    the key columns.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size < target_bytes:
            continue
        rows = pa.Table.from_batches(held)
        end = _before_last_key(rows, keys)
        if end:
            yield rows.slice(0, end)
            rows = rows.slice(end)
        held = rows.combine_chunks().to_batches()
        size = sum(part.nbytes for part in held)
    if any(batch.num_rows for batch in held):
        yield pa.Table.from_batches(held)


def _before_last_key(rows: pa.Table, keys: Sequence[ColumnSchema]) -> int:
    """Return the number of rows before the rows that have the last key.

    rows: sorted by key; at least one.
    keys: the key columns.
    """
    same: Any = pa.array(np.ones(rows.num_rows, np.bool_))
    for key in keys:
        column = _as_sorted(rows.column(key.name).combine_chunks(), key.type)
        last = column[len(column) - 1]
        equal = column.is_null() if not last.is_valid else pc.fill_null(pc.equal(column, last), False)
        same = pc.and_(same, equal)
    different = np.flatnonzero(~np.asarray(same.to_numpy(zero_copy_only=False)))
    return int(different[-1]) + 1 if len(different) else 0


def _as_sorted(array: pa.Array, type: ColumnType) -> pa.Array:
    """Return key values as the table stores them, so that equal keys have equal values.

    Decimals with too many digits are rounded.
    """
    if type.scale is not None and pa.types.is_decimal(array.type) and array.type.scale > type.scale:
        return pc.round(array, type.scale, "half_towards_infinity")
    return array


class _Task:
    """One task of a load: resolves its rows, and writes the results to the staging folder."""

    def __init__(
        self,
        env: Env,
        plan: LoadPlan,
        table: TableState,
        operation: str,
        folder: str,
        name: str,
        ordinal: int | None,
    ) -> None:
        self._env = env
        self._plan = plan
        self._table = table
        self._operation, _, ignore = operation.partition("-")
        self._operation_name = operation
        self._ignore = bool(ignore)
        self._folder = folder
        self._name = name
        self._tablet_id = None if ordinal is None else plan.tablets[ordinal].id
        self._pending: dict[int, _Pending] = {}
        self.keys = [column.name for column in table.schema.key_columns]
        self.rowsets: list[WrittenRowSet] = []
        self.idle: list[WrittenRowSet] = []
        self.errors: list[pa.Table] = []
        self.counts = {"inserted": 0, "updated": 0, "deleted": 0, "ignored": 0}

    def take(self, rows: pa.Table) -> None:
        """Resolve some rows of the tablet, and write the new rows to the staging folder.

        Changes of existing rows are collected for `deltas`. Failed rows are added to `errors`.

        rows: one part of the task's rows, from `chunks`; with the column ROW.
        """
        numbers = rows.column(ROW).combine_chunks()
        data = rows.drop_columns([ROW])
        prepared = prepare(self._table, self._operation, data, ignore=self._ignore)
        resolved = resolve(self._table, [prepared])
        (counts,), (errors,) = resolved.counts, resolved.errors
        for name in self.counts:
            self.counts[name] += getattr(counts, name)
        if errors:
            found = errors.to_arrow(
                self._operation_name,
                {
                    c.name: prepared.columns.get(c.id, pa.nulls(prepared.row_count, c.type.arrow))
                    for c in self._table.schema.key_columns
                },
            )
            if self._table.tablets and NO_PARTITION in found.column("code").to_pylist():
                raise Error(
                    f"rows of table {self._plan.table!r} reached a wrong tablet: Spark's hash of a key differs from "
                    "Nyala's. Write them with df.write.format('nyala'), and report this error"
                )
            place = found.schema.get_field_index("row")
            in_job = numbers.take(found.column("row").combine_chunks())
            found = found.set_column(place, found.schema.field(place).with_type(in_job.type), in_job)
            self.errors.append(self._naming_the_tablet(found))
        for effect in resolved.effects:
            if effect.kind == "insert":
                self._insert(effect)
            else:
                self._change(resolved, effect)
        self._stage_idle(prepared, resolved, errors)

    def _naming_the_tablet(self, failed: pa.Table) -> pa.Table:
        """Add the tablet to the messages of failed rows."""
        if self._tablet_id is None:
            return failed
        messages = failed.column("message")
        named = pc.binary_join_element_wise(messages, f" (tablet {self._tablet_id})", "")
        return failed.set_column(failed.schema.get_field_index("message"), "message", named)

    def _insert(self, effect: Effect) -> None:
        count = len(effect.keys)
        image = RowSetImage(
            keys=effect.keys,
            columns=effect.columns,
            liveness=None,
            undo={LIVENESS: absent_before(UNKNOWN, count)},
            positions=np.arange(count),
        )
        name = f"{self._name}-{len(self.rowsets)}"
        self.rowsets.append(self._write_rowset(image, self._table.schema, name))

    def _stage_idle(self, prepared: PreparedOperation, resolved: ResolvedBatch, errors: RowErrors) -> None:
        """Stage the rows that change nothing, such as updates of missing keys.

        The commit reads them if another writer changed their keys after the task read the table.
        They are written as a rowset, with one row for each key that neither changes nor fails. If a
        key has several rows, an insert takes the first row, and other operations the last row.
        """
        touched = sum(len(effect.keys) for effect in resolved.effects)
        if touched == len(prepared.keys):
            return
        idle = ~errors.failed_mask(prepared.row_count)[prepared.first_rows]
        if touched:
            keys = EncodedKeys.concat([effect.keys for effect in resolved.effects])
            idle &= keys.take(keys.sort_indices()).find(prepared.keys) < 0
        at = np.flatnonzero(idle)
        if not len(at):
            return
        rows = (prepared.first_rows if self._operation == "insert" else prepared.last_rows)[at]
        given = tuple(column for column in self._table.schema.columns if column.id in prepared.columns)
        # All rows are marked as dead, so that a commit can tell this file from a file of new rows.
        image = RowSetImage(
            keys=prepared.keys.take(at),
            columns={column.id: prepared.columns[column.id].take(pa.array(rows)) for column in given},
            liveness=pa.array(np.zeros(len(at), np.bool_)),
            undo={},
            positions=np.arange(len(at)),
        )
        schema = dataclasses.replace(self._table.schema, columns=given)
        self.idle.append(self._write_rowset(image, schema, f"{self._name}-idle-{len(self.idle)}"))

    def _write_rowset(self, image: RowSetImage, schema: Schema, name: str) -> WrittenRowSet:
        (tablet,) = self._table.tablets
        return write_rowset(
            self._env.files, self._plan.root_path, f"{self._folder}/{name}.base", 0, tablet.id,
            image.piece(0, image.row_count), schema, deltas_durable=UNKNOWN,
        )  # fmt: skip

    def _change(self, resolved: ResolvedBatch, effect: Effect) -> None:
        columns = effect.new_values(self._table.schema.key_ids)
        order = np.lexsort((effect.rowids, effect.codes))
        codes, rowids = effect.codes[order], effect.rowids[order]
        for place, begin, end in equal_ranges(codes):
            _, rowset = resolved.rowsets[place]
            assert isinstance(rowset, DiskRowSet), "J1: no rows are in memory"
            pending = self._pending.setdefault(rowset.id, _Pending())
            pending.rowids.append(rowids[begin:end])
            for number, array in columns.items():
                part = array.take(pa.array(order[begin:end]))
                pending.columns.setdefault(number, []).append(one_array(part))

    def deltas(self) -> Iterator[StagedDelta]:
        """Write the collected changes of each rowset as a REDO file, and yield the files.

        Changes with much text are written as several files.
        """
        made = 0
        for rowset_id, pending in self._pending.items():
            # Rowids ascend, because keys ascend from chunk to chunk, and `_change` sorts each chunk.
            rowids = np.concatenate(pending.rowids)
            assert bool((rowids[1:] > rowids[:-1]).all()), "L1, S1: a row is changed once, in key order"
            columns = {number: whole_column(arrays) for number, arrays in pending.columns.items()}
            for runs in redo_runs(rowids, columns, UNKNOWN):
                path = f"{self._folder}/{self._name}-{rowset_id}-{made}.redo"
                made += 1
                types = delta_types(self._table.schema, runs)
                written = write_delta_file(
                    self._env.files, os.path.join(self._plan.root_path, path), "redo", runs, types
                )
                yield StagedDelta(rowset_id, path, written)


def check_columns(
    plan: LoadPlan, operation: str, schema: pa.Schema, condition: Condition | None = None
) -> None:
    """Check, before a job begins, that rows with this Arrow schema can be written.

    condition: the condition of an upsert (`when`, `newest_by`), which is checked too.
    Raises: ColumnNotFoundError, SchemaError; InvalidArgumentError if a required column is missing.
    """
    check_columns_of(plan.table_state(None, range(len(plan.tablets))), operation, schema, condition)


def check_keys_given(schema: Schema, name: str) -> None:
    """Check that `load()` can write to table `name`.

    Raises: InvalidArgumentError if the key is auto-incrementing, because tasks cannot give its
    values.
    """
    if schema.auto_increment is not None:
        raise InvalidArgumentError(
            f"load() cannot write to table {name!r}: only the store's writer can give the values of its key "
            f"column {AUTO_INCREMENT!r}; use write()"
        )


def check_columns_of(
    table: TableState, operation: str, schema: pa.Schema, condition: Condition | None = None
) -> None:
    """Check that rows with this Arrow schema can be written to `table` by a load.

    condition: the condition of an upsert (`when`, `newest_by`), which is checked too.
    Raises: the errors of `check_columns`.
    """
    name, _, ignore = operation.partition("-")
    prepare_request(table, Request(table.name, name, schema.empty_table(), bool(ignore), condition=condition))
    given = {*schema.names, AUTO_INCREMENT} if name == "insert" else {*schema.names}
    missing = [c.name for c in table.schema.key_columns if c.name not in given]
    if missing:
        raise InvalidArgumentError(
            f"{MISSING_COLUMN}: key column {missing[0]!r} of table {table.name!r} is missing: {name} needs all key "
            "columns"
        )
