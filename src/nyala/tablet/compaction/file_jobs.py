"""Compactions as functions from files to files. They use no store, lock, catalogue or log.

    job         reads                   writes
    MergeJob    rowsets                 new rowsets, one for each slice of the keys; rowids change
    MajorJob    base columns + REDO     a part + UNDO (+ REDO of the other columns); rowids stay
    MinorJob    REDO files              one REDO file
    UndoJob     UNDO files              one UNDO file, or none

A job leaves out history that only reads before its timestamp `cut` need.

A job may run in a thread, in a worker process or in a Spark task. It reads immutable files and
writes new files, and syncs the files and their folder. The names of the new files contain the job's
`token`, by which the caller finds them. The caller then installs the files (`lifecycle`), or
removes them.

A job reads no changes in memory. Before a merge, its caller flushes the changes of the inputs; the
install moves later changes to the new rowsets. A delta compaction keeps rowids, so changes in
memory stay valid.

Memory: a merge holds the delta files of its inputs, and one slice in several copies while it writes
the slice. A slice takes about `target_bytes` on disk.
Source: docs/design/compaction.md, "Files to files"; docs/design/kudu.md, "Rows in flush and
compaction" and "Delta compactions".
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec, WrittenFile
from nyala.cfile.writer import CFileWriter
from nyala.delta.compaction import merge_delta_files
from nyala.delta.delta_file import LIVENESS_TYPE, WrittenDelta, write_delta_file
from nyala.delta.run import LIVENESS, DeltaRun, Rowids, merge_runs, without_history
from nyala.env import Env
from nyala.errors import Error, StorageError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.rowset.compaction.inputs import compacted_column
from nyala.rowset.compaction.merging import merge_images
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.read_ahead import expect_rows
from nyala.rowset.writer import WrittenRowSet, column_spec, write_rowset
from nyala.schema.plain_arrays import array_of_bytes
from nyala.schema.schema import ColumnSchema, Schema
from nyala.schema.types import ColumnType
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.entries import (
    RowSetFiles,
    decode_delta,
    decode_file,
    decode_written_rowset,
    encode_delta,
    encode_file,
    encode_written_rowset,
)

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (rows done, rows in total)."""

# A small cache is enough: each block is decoded once, or twice at the border of two slices.
_CACHE_BYTES: Final = 32 << 20

# How many keys to sample in order to find the borders of slices: per slice over all rowsets, and the
# least number per rowset.
_SAMPLES_PER_SLICE: Final = 64
_SAMPLES_MIN: Final = 16
_NO_ROWS: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class MergeJob:
    """A merging compaction. It cuts the keys into slices, and writes each slice as a rowset.

    rowset_ids: the id of each slice's rowset.
    bounds:   the encoded keys between slices, in hexadecimal; each is the first key of a slice.
              None: the job chooses slices of about equal bytes. See `text_limit`.
    snapshot: all changes up to this timestamp are in the inputs' files.
    cut:      nobody reads at moments before this timestamp. So the output leaves out history that
              is older.
    purged:   the encoded keys, in hexadecimal and ascending, whose deleted rows are to be erased.
              The merge leaves out all versions of these rows up to the timestamp `purged_until`.
              It keeps rows that were inserted again with these keys after this timestamp.
    """

    root_path: str
    tablet_id: int
    schema: Schema
    inputs: tuple[RowSetFiles, ...]
    snapshot: int
    cut: int
    rowset_ids: tuple[int, ...]
    token: str
    bounds: tuple[str, ...] | None = None
    purged: tuple[str, ...] = ()
    purged_until: int = 0


@dataclass(frozen=True)
class _RowSetJob:
    """The common fields of delta compactions, which keep the rowids of their rowset."""

    root_path: str
    tablet_id: int
    schema: Schema
    input: RowSetFiles
    cut: int
    token: str


@dataclass(frozen=True)
class MajorJob(_RowSetJob):
    """A major delta compaction of some columns of one rowset. LIVENESS may be among them."""

    column_ids: tuple[int, ...]


@dataclass(frozen=True)
class MinorJob(_RowSetJob):
    """A minor delta compaction: merges REDO files of one rowset, given by their ids."""

    file_ids: tuple[int, ...]


@dataclass(frozen=True)
class UndoJob(_RowSetJob):
    """A merge of UNDO files of one rowset, given by their ids."""

    file_ids: tuple[int, ...]


@dataclass(frozen=True)
class WrittenPart:
    """A finished part file; `path` is relative to the store's folder."""

    path: str
    file: WrittenFile


@dataclass(frozen=True)
class Output:
    """The files that a job has written; `paths` are relative to the store's folder."""

    rowsets: tuple[WrittenRowSet, ...] = ()
    part: WrittenPart | None = None
    undo: tuple[str, WrittenDelta] | None = None
    redo: tuple[str, WrittenDelta] | None = None

    @property
    def paths(self) -> list[str]:
        paths = [path for rowset in self.rowsets for path in rowset.paths]
        if self.part is not None:
            paths.append(self.part.path)
        return paths + [made[0] for made in (self.undo, self.redo) if made is not None]

    @property
    def size_bytes(self) -> int:
        """The size in bytes of all files together."""
        size = sum(rowset.meta.size_bytes for rowset in self.rowsets)
        deltas = [rowset.undo for rowset in self.rowsets if rowset.undo is not None]
        deltas += [made[1] for made in (self.undo, self.redo) if made is not None]
        size += 0 if self.part is None else self.part.file.size_bytes
        return size + sum(delta.file.size_bytes for delta in deltas)


Job: TypeAlias = MergeJob | MajorJob | MinorJob | UndoJob


def run(env: Env, job: Job, progress: Progress = lambda done, total: None) -> Output:
    """Run the job. On return its files and their folder are synced.

    Raises: StorageError, CorruptionError. The job's files are then removed, if the disk allows that.
    """
    written: list[str] = []
    try:
        if isinstance(job, MergeJob):
            output = _merge(env, job, written, progress)
        elif isinstance(job, MajorJob):
            output = _major(env, job, written)
        else:
            output = _redo_or_undo(env, job, written)
        if written:
            env.files.sync_dir(os.path.join(job.root_path, layout.tablet_directory(job.tablet_id)))
    except BaseException:
        for path in written:
            with contextlib.suppress(Error):
                env.files.unlink(os.path.join(job.root_path, path), missing_ok=True)
        raise
    return output


# ------------------------------------------------------------------------------------------------ merging


def _merge(env: Env, job: MergeJob, written: list[str], progress: Progress) -> Output:
    cache = BlockCache(_CACHE_BYTES)
    rowsets = [files.open(env, job.root_path, cache, job.schema) for files in job.inputs]
    where = "rowsets " + ", ".join(str(rowset.id) for rowset in rowsets)
    total = sum(rowset.row_count for rowset in rowsets)
    purged = _purged_rows(job, rowsets)
    done = 0
    made: list[WrittenRowSet] = []
    try:
        ids = iter(job.rowset_ids)
        for key_range in (
            slices(rowsets, len(job.rowset_ids))
            if job.bounds is None
            else key_ranges([bytes.fromhex(bound) for bound in job.bounds])
        ):
            images = []
            try:
                parts = [(rowset, *rowset.rowid_range(key_range)) for rowset in rowsets]
                for rowset, lower, upper in parts:
                    expect_rows(rowset, [column.id for column in job.schema.columns], None, lower, upper)
                for rowset, lower, upper in parts:
                    if lower < upper:
                        image = rowset.image(job.schema, lower, upper, job.cut)
                        rows = purged.get(rowset.id, _NO_ROWS)
                        rows = rows[(rows >= lower) & (rows < upper)] - lower
                        images.append(image.without_past_of(rows, job.purged_until) if len(rows) else image)
                        done += upper - lower
                if not images:
                    continue
                image = merge_images(images, job.schema, job.cut, where)
            except pa.ArrowInvalid as error:
                if "overflow" not in str(error):
                    raise
                raise StorageError(
                    f"{where} cannot be compacted: the history of one key has more than 2 GiB in one column ({error}). "
                    "Set a shorter history for the table; the next compaction then drops the older values"
                ) from error
            if image.row_count:
                number = next(ids)
                path = layout.new_data_path(env, job.tablet_id, number, "base", job.token)
                written += [path, f"{path}.undo"]
                result = write_rowset(
                    env.files, job.root_path, path, number, job.tablet_id, image, job.schema,
                    deltas_durable=job.snapshot,
                )  # fmt: skip
                made.append(result)
            progress(done, total)
    finally:
        cache.resize(0)  # otherwise each file that is closed would search the whole cache for its blocks
        for rowset in rowsets:
            rowset.close()
    return Output(rowsets=tuple(made))


def _purged_rows(job: MergeJob, rowsets: Sequence[DiskRowSet]) -> dict[int, Rowids]:
    """Return the rowids of the rows whose keys are in `job.purged`, by rowset id."""
    if not job.purged:
        return {}
    keys = rowsets[0].codec.from_binary(array_of_bytes([bytes.fromhex(key) for key in job.purged]))
    found = {rowset.id: rowset.find(keys) for rowset in rowsets}
    return {number: rowids[rowids >= 0] for number, rowids in found.items()}


def slices(rowsets: Sequence[DiskRowSet], count: int) -> Iterator[KeyRange]:
    """Return at most `count` key ranges of about equal bytes that cover all keys, in order.

    Cost: reads the rowsets' key indexes, and also some blocks of keys if an index has too few keys.
    """
    bounds: list[bytes] = []
    if count > 1:
        per_rowset = max(_SAMPLES_MIN, _SAMPLES_PER_SLICE * count // len(rowsets))
        samples = [rowset.keys.sample(per_rowset) for rowset in rowsets]
        keys = EncodedKeys.concat([sample for sample, _ in samples])
        weights = np.concatenate(
            [
                np.diff(np.append(rowids, rowset.row_count)) * (rowset.base_bytes / rowset.row_count)
                for rowset, (_, rowids) in zip(rowsets, samples, strict=True)
            ]
        )
        order = keys.sort_indices()
        reached = np.cumsum(weights[order])
        for number in range(1, count):
            place = int(np.searchsorted(reached, reached[-1] * number / count))
            bound = keys.at(int(order[place]))
            if not bounds or bound > bounds[-1]:
                bounds.append(bound)
    return key_ranges(bounds)


def key_ranges(bounds: Sequence[bytes]) -> Iterator[KeyRange]:
    """Return the key ranges between these ascending keys; together they cover all keys."""
    return itertools.starmap(KeyRange, itertools.pairwise([None, *bounds, None]))


def _new_path(env: Env, job: _RowSetJob, kind: str) -> str:
    return layout.new_data_path(env, job.tablet_id, job.input.rowset.id, kind, job.token)


# ------------------------------------------------------------------------------------------------ deltas


def _major(env: Env, job: MajorJob, written: list[str]) -> Output:
    rowset = job.input.open(env, job.root_path, None, job.schema)
    chosen = set(job.column_ids)
    specs: list[tuple[ColumnWriteSpec, pa.Array]] = []
    past: dict[int, DeltaRun] = {}
    rest: dict[int, DeltaRun] = {}
    try:
        expect_rows(rowset, chosen, None, 0, rowset.row_count)
        changed = {number for file in rowset.redo for number in file.column_ids}
        known: dict[int, ColumnSchema] = {column.id: column for column in job.schema.columns}
        for number in sorted(changed & {*known, LIVENESS}):
            if number not in chosen:
                runs = [run for file in rowset.redo if (run := file.run(number)) is not None]
                rest[number] = merge_runs(runs)
                continue
            column = known.get(number)
            base, undo = compacted_column(rowset, column, job.cut)
            spec = (
                ColumnWriteSpec(ColumnKey(BASE, 0, LIVENESS), LIVENESS_TYPE)
                if column is None
                else column_spec(column, job.schema)
            )
            specs.append((spec, base))
            if undo is not None and len(undo):
                past[number] = undo
        part = None
        if specs:
            part_path = _new_path(env, job, "part")
            written.append(part_path)
            part = WrittenPart(part_path, _write_columns(env, os.path.join(job.root_path, part_path), specs))
        types = _types(job.schema)
        undo_made = _write_deltas(env, job, "undo", past, types, written)
        redo_made = _write_deltas(env, job, "redo", without_history(rest, job.cut), types, written)
    finally:
        rowset.close()
    return Output(part=part, undo=undo_made, redo=redo_made)


def _write_columns(env: Env, path: str, specs: Sequence[tuple[ColumnWriteSpec, pa.Array]]) -> WrittenFile:
    writer = CFileWriter(env.files, path)
    try:
        for spec, array in specs:
            writer.append_column(spec, array)
        return writer.finish(sync=True)
    except BaseException:
        writer.abort()
        raise


def _types(schema: Schema) -> dict[int, ColumnType]:
    return {column.id: column.type for column in schema.columns}


def _write_deltas(
    env: Env,
    job: _RowSetJob,
    kind: Any,
    runs: dict[int, DeltaRun],
    types: dict[int, ColumnType],
    written: list[str],
) -> tuple[str, WrittenDelta] | None:
    if not any(len(run) for run in runs.values()):
        return None
    path = _new_path(env, job, kind)
    written.append(path)
    return path, write_delta_file(env.files, os.path.join(job.root_path, path), kind, runs, types)


def _redo_or_undo(env: Env, job: MinorJob | UndoJob, written: list[str]) -> Output:
    rowset = job.input.open(env, job.root_path, None, job.schema)
    types = _types(job.schema)
    try:
        for file in (*rowset.redo, *rowset.undo):
            if file.id in job.file_ids:
                file.reader.prefetch_all()
        if isinstance(job, MinorJob):
            inputs = [file for file in rowset.redo if file.id in job.file_ids]
            if not any(file.column_ids & {*types, LIVENESS} for file in inputs):
                return Output()  # all columns of these files were dropped
            path = _new_path(env, job, "redo")
            written.append(path)
            merged = merge_delta_files(env.files, os.path.join(job.root_path, path), inputs, types, job.cut)
            return Output(redo=(path, merged))
        files = [file for file in rowset.undo if file.id in job.file_ids]
        kept = {*types, LIVENESS}
        runs: dict[int, DeltaRun] = {}
        for number in sorted({number for file in files for number in file.column_ids} & kept):
            found = [run for file in files if (run := file.run(number)) is not None]
            found.sort(key=lambda run: -run.timestamp_min)  # `merge_runs` is fastest with the newest first
            runs[number] = merge_runs(found)
        runs = without_history(runs, job.cut)
        return Output(undo=_write_deltas(env, job, "undo", runs, types, written))
    finally:
        rowset.close()


# ------------------------------------------------------------------------------------------------ as JSON

_KINDS: Final[dict[str, type[Any]]] = {
    "merge": MergeJob,
    "major": MajorJob,
    "minor": MinorJob,
    "undo": UndoJob,
}


def encode_job(job: Job) -> tuple[str, dict[str, Any]]:
    """Return the job as (kind, arguments), which are sent to a worker process as JSON."""
    kind = next(name for name, made in _KINDS.items() if isinstance(job, made))
    fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    fields["schema"] = job.schema.to_json()
    if isinstance(job, MergeJob):
        fields["inputs"] = [files.to_json() for files in job.inputs]
    else:
        fields["input"] = job.input.to_json()
    return kind, {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def decode_job(kind: str, fields: dict[str, Any]) -> Job:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    values["schema"] = Schema.from_json(fields["schema"])
    if kind == "merge":
        values["inputs"] = tuple(RowSetFiles.from_json(files) for files in fields["inputs"])
    else:
        values["input"] = RowSetFiles.from_json(fields["input"])
    job: Job = _KINDS[kind](**values)
    return job


def encode_output(output: Output) -> dict[str, Any]:
    return {
        "rowsets": [encode_written_rowset(made) for made in output.rowsets],
        "part": None
        if output.part is None
        else {"path": output.part.path, "file": encode_file(output.part.file)},
        "undo": None if output.undo is None else [output.undo[0], encode_delta(output.undo[1])],
        "redo": None if output.redo is None else [output.redo[0], encode_delta(output.redo[1])],
    }


def decode_output(fields: dict[str, Any]) -> Output:
    part, undo, redo = fields["part"], fields["undo"], fields["redo"]
    return Output(
        tuple(decode_written_rowset(made) for made in fields["rowsets"]),
        None if part is None else WrittenPart(part["path"], decode_file(part["file"])),
        None if undo is None else (undo[0], decode_delta(undo[1])),
        None if redo is None else (redo[0], decode_delta(redo[1])),
    )
