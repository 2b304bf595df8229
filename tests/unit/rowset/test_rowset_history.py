"""Histories of rows read the same at every snapshot, after flushes and all kinds of compactions.

`MiniTablet` is a tablet in little code, with real files. It sends changes to the rowset with the
key's live row, and new rows to its MemRowSet. The expected rows are in a dict.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.catalog.model import PartEntry
from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec
from nyala.cfile.writer import CFileWriter
from nyala.delta.batch import SharedBatch
from nyala.delta.compaction import merge_delta_files
from nyala.delta.delta_file import LIVENESS_TYPE, DeltaFile, write_delta_file
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, Rowids, merge_runs
from nyala.env import PosixFiles
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.compaction.inputs import compacted_column
from nyala.rowset.compaction.merging import merge_images
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.part import Part
from nyala.rowset.rowset_tree import RowSetTree
from nyala.rowset.writer import column_spec, write_rowset
from nyala.schema.schema import Schema, build_schema, column
from nyala.tablet.state.opening import delta_entry

Row = tuple[object, ...]

SCHEMAS = {
    "one int": build_schema({"k": "int64", "val": "int32", "text": "string"}, ["k"]),
    "one text": build_schema(
        {"k": column("string", block_size=512), "val": "int32", "text": "string"}, ["k"]
    ),
    "composite": build_schema({"k": "int32", "l": "string", "val": "int32", "text": "string"}, ["k", "l"]),
}


def key_values(schema: Schema, number: int) -> Row:
    values = {
        "int64": number,
        "int32": number // 3,
        "string": f"{number:03}\0" if number % 2 else f"{number:03}",
    }
    return tuple(values[c.type.name] for c in schema.key_columns)


def find_live(rowset: MemRowSet | DiskRowSet, keys: EncodedKeys, snapshot: int) -> Rowids:
    """Return the rowid of each key, or -1 if no row of it is alive at `snapshot`."""
    rowids = rowset.find(keys)
    hit = np.flatnonzero(rowids >= 0)
    rowids[hit[~rowset.gather_liveness(snapshot, rowids[hit])]] = -1
    return rowids


class MiniTablet:
    """One tablet's rowsets, operated by the test; timestamps rise by one."""

    def __init__(self, schema: Schema, directory: str, cache_bytes: int = 1 << 20) -> None:
        self.schema, self.root, self.files = schema, directory, PosixFiles()
        self.codec = KeyCodec([c.type for c in schema.key_columns])
        self.cache = BlockCache(cache_bytes)
        self.memory = MemRowSet(self.codec, schema)
        self.disk: list[DiskRowSet] = []
        self.now = 0
        self.next_id = 1
        self.versions: dict[int, list[tuple[int, Row | None]]] = {}  # key number -> (timestamp, values)

    # --- expected rows ---------------------------------------------------------------------------------

    def expected(self, snapshot: int) -> dict[Row, Row]:
        rows = {}
        for number, versions in self.versions.items():
            known = [row for t, row in versions if t <= snapshot]
            if known and known[-1] is not None:
                rows[key_values(self.schema, number)] = known[-1]
        return rows

    def alive(self, number: int) -> bool:
        return bool(self.versions.get(number)) and self.versions[number][-1][1] is not None

    # --- writing ------------------------------------------------------------------------------------

    def write(self, changes: dict[int, Row | None]) -> None:
        """Apply one batch at the next timestamp.

        changes: by key number, both values (an upsert), one value in a tuple (an update of `val`),
        or None (a delete).
        """
        self.now += 1
        fresh: list[int] = []
        for number in sorted(changes, key=lambda n: self.keys([n]).at(0)):
            row = changes[number]
            if row is None:
                if self.alive(number):
                    self.change(number, {LIVENESS: pa.array([False])})
                    self.note(number, None)
            elif self.alive(number):
                self.change(number, self.arrays(row))
                self.note(number, row)
            elif len(row) == 2:
                if (ghost := int(self.memory.find(self.keys([number]))[0])) >= 0:
                    back = {LIVENESS: pa.array([True]), **self.arrays(row)}
                    self.memory.deltas.append(np.array([ghost]), self.now, back)
                else:
                    fresh.append(number)
                self.note(number, row)
        if fresh:
            columns = {c.id: pa.array([key_values(self.schema, n)[i] for n in fresh], c.type.arrow)
                       for i, c in enumerate(self.schema.key_columns)}  # fmt: skip
            rows = [self.versions[n][-1][1] for n in fresh]
            for i, c in enumerate(self.schema.value_columns):
                columns[c.id] = pa.array([row[i] for row in rows if row is not None], c.type.arrow)
            self.memory.insert(self.keys(fresh), SharedBatch(columns), 0, len(fresh), self.now)

    def note(self, number: int, row: Row | None) -> None:
        versions = self.versions.setdefault(number, [])
        if row is not None and len(row) == 1:
            before = versions[-1][1]
            assert before is not None
            row = (row[0], before[1])
        versions.append((self.now, row))

    def arrays(self, row: Row) -> dict[int, pa.Array]:
        columns = self.schema.value_columns
        return {c.id: pa.array([value], c.type.arrow) for c, value in zip(columns, row, strict=False)}

    def keys(self, numbers: list[int]):
        values = [key_values(self.schema, number) for number in numbers]
        return self.codec.encode(
            [pa.array([v[i] for v in values], c.type.arrow) for i, c in enumerate(self.schema.key_columns)]
        )

    def change(self, number: int, columns: dict[int, pa.Array]) -> None:
        places = [
            rowset
            for rowset in self.rowsets()
            if find_live(rowset, self.keys([number]), MAX_TIMESTAMP)[0] >= 0
        ]
        assert len(places) == 1, "a key is live in exactly one rowset"
        places[0].deltas.append(places[0].find(self.keys([number])), self.now, columns)

    # --- changing the layout --------------------------------------------------------------------------

    def flush(self, snapshot: int | None = None) -> None:
        """Flush at `snapshot` and move later changes, unless rows were inserted later."""
        at = self.now if snapshot is None else snapshot
        memory, image = self.memory, self.memory.image(at)
        image.check()
        if not 0 < image.row_count == memory.row_count:
            return
        middle = (image.row_count + 1) // 2
        for lower, upper in ((0, middle), (middle, image.row_count)):
            if lower == upper:
                continue
            rowset = self.adopt(image.piece(lower, upper), at)
            inside = (image.positions >= lower) & (image.positions < upper)
            for batch in memory.deltas.batches_after(at):
                moved = batch.moved(np.where(inside, image.positions - lower, -1))
                rowset.deltas.append(moved.rowids, moved.timestamps, moved.columns)
            self.disk.append(rowset)
        self.memory = MemRowSet(self.codec, self.schema)

    def adopt(self, image, at: int) -> DiskRowSet:
        number = self.take_id()
        written = write_rowset(
            self.files, self.root, f"{number}.base", number, 7, image, self.schema, deltas_durable=at
        )
        undo = []
        if written.undo is not None:
            undo = [self.open_delta(delta_entry(self.take_id(), 0, written.undo_path, written.undo))]
        return DiskRowSet.open(self.files, self.root, written.meta, self.schema, self.cache, undo=undo)

    def freeze_deltas(self) -> None:
        """Do the first half of a delta flush."""
        for index, rowset in enumerate(self.disk):
            if rowset.deltas.record_count:
                self.disk[index] = rowset.with_frozen_deltas()

    def flush_deltas(self) -> None:
        self.freeze_deltas()
        for index, rowset in enumerate(self.disk):
            files = []
            for store in rowset.frozen:
                path = f"{self.take_id()}.redo"
                types = {c.id: c.type for c in self.schema.columns}
                written = write_delta_file(self.files, f"{self.root}/{path}", "redo", store.runs(), types)
                files.append(self.open_delta(delta_entry(self.take_id(), 0, path, written)))
            if files:
                self.disk[index] = rowset.with_flushed_deltas(files, self.now)

    def merge_deltas(self) -> None:
        for index, rowset in enumerate(self.disk):
            if len(rowset.redo) > 1:
                path = f"{self.take_id()}.redo"
                types = {c.id: c.type for c in self.schema.columns}
                written = merge_delta_files(self.files, f"{self.root}/{path}", rowset.redo[-2:], types)
                file = self.open_delta(delta_entry(self.take_id(), 0, path, written))
                self.disk[index] = rowset.with_merged_redo(rowset.redo[-2:], file)

    def compact_major(self, column_ids: set[int]) -> None:
        """Do a major delta compaction of these columns for every rowset that has REDO in files."""
        types = {c.id: c.type for c in self.schema.columns}
        for index, rowset in enumerate(self.disk):
            changed = {number for file in rowset.redo for number in file.column_ids}
            if not changed & column_ids:
                continue
            writer, past = CFileWriter(self.files, f"{self.root}/{self.next_id}.part"), {}
            for number in sorted(changed & column_ids):
                column = None if number == LIVENESS else self.schema.by_id(number)
                base, undo = compacted_column(rowset, column)
                liveness = ColumnWriteSpec(ColumnKey(BASE, 0, LIVENESS), LIVENESS_TYPE)
                writer.append_column(liveness if column is None else column_spec(column, self.schema), base)
                if undo is not None:
                    past[number] = undo
            made = writer.finish(sync=False)
            entry = PartEntry(
                self.take_id(),
                rowset.id,
                made.path.rsplit("/", 1)[1],
                made.file_id,
                made.size_bytes,
                tuple(made.columns),
            )
            part = Part.open(self.files, self.root, entry, self.cache)
            path = f"{self.take_id()}.undo"
            undo_file = write_delta_file(self.files, f"{self.root}/{path}", "undo", past, types)
            left = {
                number: merge_runs([run for file in rowset.redo if (run := file.run(number)) is not None])
                for number in changed - column_ids
            }
            rest = None
            if left:
                rest_path = f"{self.take_id()}.redo"
                written = write_delta_file(self.files, f"{self.root}/{rest_path}", "redo", left, types)
                rest = self.open_delta(delta_entry(self.take_id(), 0, rest_path, written))
            self.disk[index] = rowset.with_major_compaction(
                rowset.redo, rest, part, self.open_delta(delta_entry(self.take_id(), 0, path, undo_file))
            )

    def merge_rowsets(self, chosen: slice) -> None:
        """Flush the changes of these rowsets, and merge the rowsets."""
        self.flush_deltas()
        inputs = self.disk[chosen]
        if not inputs:
            return
        images = [rowset.image(self.schema, 0, rowset.row_count) for rowset in inputs]
        merged = merge_images(images, self.schema, 0, "rowsets")
        merged.check()
        self.disk[chosen] = [self.adopt(merged, self.now)]

    def open_delta(self, meta) -> DeltaFile:
        return DeltaFile.open(self.files, self.root, meta, self.cache)

    def take_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    # --- reading --------------------------------------------------------------------------------------

    def rowsets(self) -> Iterator[MemRowSet | DiskRowSet]:
        yield self.memory
        yield from self.disk

    def scan(self, snapshot: int, window: int = 1000) -> dict[Row, Row]:
        rows: dict[Row, Row] = {}
        for rowset in self.rowsets():
            for lower in range(0, rowset.row_count, window):
                upper = min(lower + window, rowset.row_count)
                alive = rowset.liveness(snapshot, lower, upper)
                table = [rowset.decode(c, snapshot, lower, upper).to_pylist() for c in self.schema.columns]
                for index, row in enumerate(zip(*table, strict=True)):
                    if alive is None or alive[index]:
                        key = row[: self.schema.key_count]
                        assert key not in rows, "a key is read twice"
                        rows[key] = row[self.schema.key_count :]
        return rows

    def get(self, snapshot: int) -> dict[Row, Row]:
        """Return the rows of `scan`, but by look-ups of their keys."""
        numbers = sorted(self.versions, key=lambda n: self.keys([n]).at(0))
        rows: dict[Row, Row] = {}
        if not numbers:
            return rows
        keys = self.keys(numbers)
        candidates: list[tuple[MemRowSet | DiskRowSet, int, int]] = [(self.memory, 0, len(keys))]
        for rowset, lower, upper in [*candidates, *RowSetTree(self.disk).candidates(keys)]:
            rowids = find_live(rowset, keys.slice(lower, upper - lower), snapshot)
            hit = np.flatnonzero(rowids >= 0)[::-1]  # in any order
            table = [rowset.gather(c, snapshot, rowids[hit]).to_pylist() for c in self.schema.value_columns]
            for place, row in zip(hit.tolist(), zip(*table, strict=True), strict=True):
                rows[key_values(self.schema, numbers[lower + place])] = row
        return rows

    def one_by_one(self, snapshot: int) -> dict[Row, Row]:
        """Return the rows of `scan`, but read one by one."""
        rows: dict[Row, Row] = {}
        for rowset in self.rowsets():
            keys = [
                rowset.decode(c, snapshot, 0, rowset.row_count).to_pylist() for c in self.schema.key_columns
            ]
            for rowid, key in enumerate(zip(*keys, strict=True)):
                if rowset.is_live(snapshot, rowid):
                    assert key not in rows, "a key is read twice"
                    rows[key] = tuple(rowset.row(self.schema.value_columns, snapshot, rowid))
        return rows

    def check(self) -> None:
        for snapshot in (*range(self.now + 1), MAX_TIMESTAMP):
            assert self.one_by_one(snapshot) == self.expected(snapshot), f"row by row at {snapshot}"
        for rowset in self.rowsets():
            rowset.check()
        for snapshot in (*range(self.now + 1), MAX_TIMESTAMP):
            assert self.scan(snapshot) == self.expected(snapshot), f"scan at {snapshot}"
            assert self.scan(snapshot, window=2) == self.expected(snapshot), f"scan by windows at {snapshot}"
            assert self.get(snapshot) == self.expected(snapshot), f"look-ups at {snapshot}"


def test_the_last_of_changes_in_files_and_three_stores_wins(tmp_path):
    """Several DeltaMemStores are frozen if a flush waits. The value of the last one must win."""
    tablet = MiniTablet(SCHEMAS["one int"], str(tmp_path))
    tablet.write({1: (1, "a"), 2: (1, "a")})
    tablet.flush()
    for step in ("flush_deltas", "freeze_deltas", "freeze_deltas", ""):
        tablet.write({1: (tablet.now,), 2: (tablet.now, str(tablet.now))})
        if step:
            getattr(tablet, step)()
    tablet.check()


# --- any history ----------------------------------------------------------------------------------

values = st.none() | st.integers(-5, 5)
texts = st.none() | st.sampled_from(["", "x", "\0", "long " * 5])
whole_row = st.tuples(values, texts)
change = st.one_of(whole_row, whole_row, st.tuples(values), st.none())
batches = st.dictionaries(st.integers(0, 11), change, min_size=1, max_size=6)
layout = st.sampled_from(["flush", "freeze_deltas", "flush_deltas", "merge_deltas"]) | st.integers(0, 3)
# The columns that are moved into the base (the last two of a schema, and LIVENESS), or the rowsets
# that are merged.
rewriting = st.frozensets(st.integers(-3, -1), min_size=1) | st.tuples(st.integers(0, 2), st.integers(1, 4))
steps = st.lists(batches | batches | layout | rewriting, min_size=1, max_size=14)


@pytest.mark.parametrize("kind", SCHEMAS)
@given(script=steps, cached=st.booleans())
def test_any_history_reads_like_the_dict_of_versions(kind, script, cached):
    """Batches, flushes and compactions in random order change no row at any snapshot."""
    with tempfile.TemporaryDirectory() as directory:
        tablet = MiniTablet(SCHEMAS[kind], directory, cache_bytes=1 << 20 if cached else 0)
        for step in script:
            if isinstance(step, dict):
                tablet.write(step)  # type: ignore[arg-type]
            elif isinstance(step, int):
                tablet.flush(max(0, tablet.now - step))
            elif isinstance(step, frozenset):
                ids = [LIVENESS, *(c.id for c in SCHEMAS[kind].value_columns)]
                tablet.compact_major({ids[place] for place in step})
            elif isinstance(step, tuple):
                tablet.merge_rowsets(slice(step[0], step[0] + step[1]))
            else:
                getattr(tablet, step)()
        tablet.check()
