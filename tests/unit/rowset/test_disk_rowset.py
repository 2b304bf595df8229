"""The DiskRowSet: finding keys, reading no more than necessary, skipping by Z1."""

from __future__ import annotations

import dataclasses
import tempfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.writer import CFileWriter
from nyala.delta.compaction import insertion_undo
from nyala.delta.delta_file import DeltaFile, write_delta_file
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, DeltaRun, build_run
from nyala.env import PosixFiles
from nyala.errors import CorruptionError, StorageError
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.image import RowSetImage
from nyala.rowset.skipping import candidate_ranges
from nyala.rowset.writer import WrittenRowSet, write_rowset
from nyala.schema.predicates.constraint import Constraint
from nyala.schema.schema import ColumnSchema, Schema, build_schema, column
from nyala.tablet.state.opening import delta_entry

FILES = PosixFiles()
INSERTED = 100

VALUES = {"v": column("int32", block_size=512), "t": "string"}  # v has many small blocks
SCHEMAS = {
    "int": build_schema({"k": column("int64", block_size=512), **VALUES}, ["k"]),
    "text": build_schema({"k": column("string", block_size=512), **VALUES}, ["k"]),
    "composite": build_schema({"k": "int64", "l": "string", **VALUES}, ["k", "l"]),
}


def found_live(disk: DiskRowSet, keys: EncodedKeys, snapshot: int) -> list[int]:
    """Return the rowid of each key that is alive at `snapshot`, or -1."""
    rowids = disk.find(keys)
    alive = disk.gather_liveness(snapshot, np.maximum(rowids, 0))
    return np.where((rowids >= 0) & alive, rowids, -1).tolist()


def excluded(
    disk: DiskRowSet,
    column: ColumnSchema,
    constraint: Constraint,
    snapshot: int,
    lower: int = 0,
    upper: int | None = None,
) -> bool:
    """Return whether no row of [lower, upper) can satisfy the constraint at `snapshot`.

    The default range is all rows.
    """
    end = disk.row_count if upper is None else upper
    return not candidate_ranges(disk, [(column, constraint)], snapshot, lower, end)


def key_columns(schema: Schema, numbers: list[int]) -> list[pa.Array]:
    if schema.key_count == 2:
        return [
            pa.array([n // 10 for n in numbers], pa.int64()),
            pa.array([f"l{n % 10}" for n in numbers], pa.string()),
        ]
    if schema.columns[0].type.name == "string":
        return [pa.array([f"{n:06}" for n in numbers], pa.string())]
    return [pa.array(numbers, pa.int64())]


def encode(schema: Schema, numbers: list[int]):
    return KeyCodec([c.type for c in schema.key_columns]).encode(key_columns(schema, numbers))


def image(
    schema: Schema, numbers: list[int], v: list[int | None], liveness: list[bool] | None = None
) -> RowSetImage:
    columns = dict(zip((c.id for c in schema.key_columns), key_columns(schema, numbers), strict=True))
    columns[schema.by_name("v").id] = pa.array(v, pa.int32())
    columns[schema.by_name("t").id] = pa.array([f"text {n}" for n in numbers])
    rows = np.arange(len(numbers))
    undo = {LIVENESS: insertion_undo(rows, np.full(len(rows), INSERTED))}
    alive = None if liveness is None else pa.array(liveness)
    return RowSetImage(encode(schema, numbers), columns, alive, undo, rows)


def write(folder, schema: Schema, rows: RowSetImage) -> WrittenRowSet:
    return write_rowset(FILES, str(folder), "5.base", 5, 1, rows, schema, deltas_durable=INSERTED)


def open_(folder, schema: Schema, written: WrittenRowSet, cache_bytes: int = 1 << 20) -> DiskRowSet:
    cache = BlockCache(cache_bytes)
    assert written.undo is not None and written.undo_path is not None
    undo = DeltaFile.open(FILES, str(folder), delta_entry(1, 0, written.undo_path, written.undo), cache)
    return DiskRowSet.open(FILES, str(folder), written.meta, schema, cache, undo=[undo])


def rowset(folder, kind: str = "int", count: int = 2000, **kwargs) -> tuple[Schema, list[int], DiskRowSet]:
    """Create a rowset with even numbers as keys.

    Values of v ascend, so its blocks have narrow zone maps.
    """
    schema, numbers = SCHEMAS[kind], list(range(0, 2 * count, 2))
    written = write(folder, schema, image(schema, numbers, list(range(count))))
    return schema, numbers, open_(folder, schema, written, **kwargs)


def redo(folder, disk: DiskRowSet, name: str, runs: dict[int, DeltaRun], types) -> DeltaFile:
    written = write_delta_file(FILES, f"{folder}/{name}", "redo", runs, types)
    return DeltaFile.open(FILES, str(folder), delta_entry(2, 0, name, written))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_find_returns_the_row_of_each_key_or_minus_one(kind, tmp_path):
    """Keys before, between and after those of the file, also repeated, give -1 or their row."""
    count = 20_000 if kind == "composite" else 2000  # a column of encoded keys has blocks of 64 KiB
    schema, numbers, disk = rowset(tmp_path, kind, count)
    disk.check()
    assert disk.keys._stored.break_even_segments > 3
    rng = np.random.default_rng(5)
    probes = sorted(rng.integers(0, 2 * count + 200, 500).tolist())
    expected = [p // 2 if p % 2 == 0 and p < 2 * count else -1 for p in probes]
    assert disk.find(encode(schema, probes)).tolist() == expected
    assert disk.find(encode(schema, numbers)).tolist() == list(range(count))
    assert disk.find(encode(schema, [])).tolist() == []
    assert found_live(disk, encode(schema, [1, 2, 4]), INSERTED - 1) == [-1, -1, -1]
    assert found_live(disk, encode(schema, [1, 2, 4]), MAX_TIMESTAMP) == [-1, 1, 2]
    assert disk.keys_of(np.array([7, 3])).to_hashable() == encode(schema, [14, 6]).to_hashable()


def test_a_scan_of_one_column_does_not_open_the_changes_of_another(tmp_path):
    """REDO of column t is damaged; v is read without an error."""
    schema, _, disk = rowset(tmp_path)
    v, t = schema.by_name("v"), schema.by_name("t")
    run = build_run("redo", np.array([3]), 200, pa.array(["changed"]))
    disk = disk.with_flushed_deltas([redo(tmp_path, disk, "1.redo", {t.id: run}, {t.id: t.type})], 200)
    (tmp_path / "1.redo").write_bytes(b"")
    assert disk.decode(v, MAX_TIMESTAMP, 0, 4).to_pylist() == [0, 1, 2, 3]
    assert disk.decode(t, 199, 0, 4).to_pylist()[3] == "text 6", (
        "nor when the snapshot is older than the change"
    )
    with pytest.raises(CorruptionError, match="1.redo"):
        disk.decode(t, 200, 0, 4)


def test_a_column_added_later_reads_its_default_and_its_changes(tmp_path):
    """X4: adding a column writes nothing. An UPDATE of an old row is a REDO over the default."""
    schema, _, disk = rowset(tmp_path, count=4)
    added = dataclasses.replace(schema.by_name("v"), id=schema.next_column_id, name="added", read_default=7)
    assert disk.base_column(added.id) is None
    assert disk.decode(added, MAX_TIMESTAMP, 1, 3).to_pylist() == [7, 7]
    disk.deltas.append(np.array([2]), 200, {added.id: pa.array([9], pa.int32())})
    assert disk.decode(added, MAX_TIMESTAMP, 1, 3).to_pylist() == [7, 9]
    assert disk.decode(added, 199, 1, 3).to_pylist() == [7, 7]
    assert disk.gather(added, 200, np.array([2, 0])).to_pylist() == [9, 7]
    eight, seven = Constraint.one_of([8]), Constraint.one_of([7])
    assert excluded(disk, added, eight, 199, 0, 4)
    assert not excluded(disk, added, seven, 199, 0, 4)
    assert not excluded(disk, added, eight, 200, 0, 4), "the changed row may have any value"
    assert excluded(disk, added, eight, 200, 0, 2)


def test_dead_rows_are_in_the_file_and_stay_dead(tmp_path):
    """A row that was deleted before the flush is kept for its history, and is dead in the base."""
    schema = SCHEMAS["int"]
    written = write(tmp_path, schema, image(schema, [1, 2, 3], [1, 2, 3], [True, False, True]))
    disk = open_(tmp_path, schema, written)
    disk.check()
    assert disk.liveness(MAX_TIMESTAMP, 0, 3).tolist() == [True, False, True]
    assert disk.liveness(MAX_TIMESTAMP, 2, 3) is None
    assert disk.live(np.array([1, 0])).tolist() == [False, True]
    disk.deltas.append(np.array([0]), 200, {LIVENESS: pa.array([False])})
    assert disk.liveness(MAX_TIMESTAMP, 0, 3).tolist() == [False, False, True]
    assert disk.liveness(199, 0, 3).tolist() == [True, False, True]


def test_x2_files_out_of_time_order_are_corruption(tmp_path):
    """R4: with two REDO files that overlap in time, the older value would win."""
    schema, _, disk = rowset(tmp_path, count=4)
    v = schema.by_name("v")
    late, early = (
        redo(
            tmp_path,
            disk,
            name,
            {v.id: build_run("redo", np.array([0]), t, pa.array([1], pa.int32()))},
            {v.id: v.type},
        )
        for name, t in (("late.redo", 300), ("early.redo", 200))
    )
    with pytest.raises(CorruptionError, match=r"late\.redo up to 300 before .*early\.redo from 200"):
        DiskRowSet.open(FILES, str(tmp_path), disk.meta, schema, redo=[late, early])
    DiskRowSet.open(FILES, str(tmp_path), disk.meta, schema, redo=[early, late])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"row_count": 5}, "5 "),
        ({"key_min": b"\0" * 8}, "keys from"),
        ({"columns": ()}, "catalogue names|lacks column"),
    ],
)
def test_a_base_file_that_does_not_match_its_entry_is_corruption(changed, words, tmp_path):
    """If the catalogue entry names another file, reading raises an error and returns no rows."""
    schema, _, disk = rowset(tmp_path, count=4)
    wrong = DiskRowSet.open(FILES, str(tmp_path), dataclasses.replace(disk.meta, **changed), schema)
    with pytest.raises(CorruptionError, match=words):
        wrong.check()


# --- Z1 -------------------------------------------------------------------------------------------

constraints = st.one_of(
    st.lists(st.integers(-5, 70), min_size=1, max_size=3).map(Constraint.one_of),
    st.tuples(st.none() | st.integers(-5, 70), st.none() | st.integers(-5, 70)).map(
        lambda b: Constraint.between(SCHEMAS["int"].by_name("v").type, *b)
    ),
    st.sampled_from([Constraint(null="only"), Constraint()]),
)
changes = st.lists(
    st.tuples(
        st.lists(st.integers(0, 63), min_size=1, max_size=4, unique=True), st.none() | st.integers(-5, 70)
    ),
    max_size=6,
)


@given(
    base=st.lists(st.none() | st.integers(0, 63), min_size=64, max_size=64),
    ascending=st.booleans(),
    script=changes,
    constraint=constraints,
    window=st.sampled_from([1, 8, 32, 64]),
)
def test_z1_a_skipped_range_has_no_matching_row_at_the_snapshot(base, ascending, script, constraint, window):
    """Predicates on updated columns at past snapshots, with REDO in files and memory, and UNDO."""
    schema = build_schema(
        {"k": "int64", "v": column("int32", block_size=512, encoding="plain"), "t": "string"}, ["k"]
    )
    v = schema.by_name("v")
    base = sorted(base, key=lambda x: (x is None, x or 0)) if ascending else base
    with tempfile.TemporaryDirectory() as folder:
        # 64 rows per row of the script, so that the column has several blocks of 128 rows.
        cells = [cell for cell in base for _ in range(8)]
        rows = image(schema, list(range(512)), cells)
        history = build_run("undo", np.array([3, 77]), 90, pa.array([-4, 66], pa.int32()))
        rows = dataclasses.replace(rows, undo={**rows.undo, v.id: history})
        disk = open_(folder, schema, write(folder, schema, rows))
        for step, (where, value) in enumerate(script):
            at = np.sort(np.array(where)) * 8
            disk.deltas.append(at, 200 + step, {v.id: pa.array([value] * len(at), pa.int32())})
            if step % 3 == 1:
                frozen = disk.with_frozen_deltas()
                file = redo(folder, disk, f"{step}.redo", frozen.frozen[0].runs(), {v.id: v.type})
                disk = frozen.with_flushed_deltas([file], 200 + step)
        for snapshot in (80, INSERTED, 201, 203, MAX_TIMESTAMP):
            values = disk.decode(v, snapshot, 0, 512).to_pylist()
            for lower in range(0, 512, 8 * window):
                inside = values[lower : lower + 8 * window]
                if excluded(disk, v, constraint, snapshot, lower, lower + len(inside)):
                    assert not any(constraint.admits(value) for value in inside)
            if excluded(disk, v, constraint, snapshot):
                assert not any(constraint.admits(value) for value in values)
            changed = [
                r
                for f in disk.undo + disk.redo
                for r in [f.run(v.id)]
                if r is not None and r.relevant(snapshot)
            ]
            assert disk.has_changes(v.id, snapshot) >= bool(changed)


def test_z1_a_block_with_matching_undo_is_not_skipped(tmp_path):
    """Z1: the zone map of the base has only present values, so a block with matching UNDO is read."""
    schema = SCHEMAS["int"]
    v = schema.by_name("v")
    rows = image(schema, list(range(2000)), list(range(2000)))
    history = build_run("undo", np.array([700]), 90, pa.array([5000], pa.int32()))
    disk = open_(
        tmp_path,
        schema,
        write(tmp_path, schema, dataclasses.replace(rows, undo={**rows.undo, v.id: history})),
    )
    wanted = Constraint.one_of([5000])
    assert excluded(disk, v, wanted, INSERTED)
    assert excluded(disk, v, wanted, 90), "the snapshot 90 includes the change at 90"
    assert not excluded(disk, v, wanted, 89)
    assert not excluded(disk, v, wanted, 89, 640, 768)
    assert excluded(disk, v, wanted, 89, 768, 896)
    assert disk.has_changes(v.id, 89) and not disk.has_changes(v.id, INSERTED), "known without opening a file"


@pytest.mark.parametrize("part", ["base", "undo"])
def test_a_failed_flush_leaves_no_file(part, tmp_path, monkeypatch):
    """A flush to a full disk fails and leaves no file in the folder."""

    class FullAtUndo(PosixFiles):
        def create(self, path):
            if path.endswith(".undo"):
                raise StorageError("no space left", path=path)
            return super().create(path)

    def full(self, hashes, bits_per_key):
        raise StorageError("no space left", path="5.base")

    if part == "base":
        monkeypatch.setattr(CFileWriter, "append_bloom", full)
    schema = SCHEMAS["int"]
    with pytest.raises(StorageError, match="no space"):
        write_rowset(
            FullAtUndo(), str(tmp_path), "5.base", 5, 1, image(schema, [1], [1]), schema, deltas_durable=1
        )
    assert list(tmp_path.iterdir()) == []
