"""The DiskRowSet by itself: finding keys, reading no more than needed, skipping by rule Z1."""

from __future__ import annotations

import dataclasses
import tempfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.cfile import format
from nyala.cfile.bloom import Bloom
from nyala.cfile.cache import BlockCache
from nyala.cfile.column import BLOOM, ColumnKey
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.delta.compaction import insertion_undo
from nyala.delta.delta_file import DeltaFile, write_delta_file
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, DeltaRun, build_run
from nyala.env import PosixFiles
from nyala.errors import CorruptionError, StorageError
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.image import RowSetImage
from nyala.rowset.skipping import rows_left
from nyala.rowset.stats import RowSetStats
from nyala.rowset.writer import WrittenRowSet, filter_bits_per_key, write_rowset
from nyala.schema.constraint import Constraint
from nyala.schema.schema import ColumnSchema, Schema, build_schema, column

FILES = PosixFiles()
INSERTED = 100

VALUES = {"v": column("int32", block_size=512), "t": "string"}  # v has many small blocks
SCHEMAS = {
    "int": build_schema({"k": column("int64", block_size=512), **VALUES}, ["k"]),
    "text": build_schema({"k": column("string", block_size=512), **VALUES}, ["k"]),
    "composite": build_schema({"k": "int64", "l": "string", **VALUES}, ["k", "l"]),
}


def found_live(disk: DiskRowSet, keys: EncodedKeys, snapshot: int) -> list[int]:
    """The rowid of each key that is there at `snapshot`, or -1."""
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
    """Whether none of the rows [lower, upper), by default all, can satisfy the constraint at `snapshot`."""
    end = disk.row_count if upper is None else upper
    return not rows_left(disk, [(column, constraint)], snapshot, lower, end)


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
    return write_rowset(FILES, str(folder), ".", 5, 1, rows, schema, deltas_durable=INSERTED)


def open_(folder, schema: Schema, written: WrittenRowSet, cache_bytes: int = 1 << 20) -> DiskRowSet:
    cache = BlockCache(cache_bytes)
    assert written.undo is not None and written.undo_path is not None
    undo = DeltaFile.open(FILES, str(folder), written.undo.meta(1, written.undo_path), cache)
    return DiskRowSet.open(FILES, str(folder), written.meta, schema, cache, undo=[undo])


def rowset(folder, kind: str = "int", count: int = 2000, **kwargs) -> tuple[Schema, list[int], DiskRowSet]:
    """Even numbers as keys; v counts up, so that its blocks have narrow zones."""
    schema, numbers = SCHEMAS[kind], list(range(0, 2 * count, 2))
    written = write(folder, schema, image(schema, numbers, list(range(count))))
    return schema, numbers, open_(folder, schema, written, **kwargs)


def redo(folder, disk: DiskRowSet, name: str, runs: dict[int, DeltaRun], types) -> DeltaFile:
    written = write_delta_file(FILES, f"{folder}/{name}", "redo", runs, types)
    return DeltaFile.open(FILES, str(folder), written.meta(2, name))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_find_gives_the_row_of_each_key_there_and_minus_one_for_others(kind, tmp_path):
    """Bloom filter, value index and key blocks together, for keys before, between, behind, and repeated."""
    count = 20_000 if kind == "composite" else 2000  # a column of encoded keys has blocks of 64 KiB
    schema, numbers, disk = rowset(tmp_path, kind, count)
    disk.check()
    assert disk.keys._stored.worth_reading_all > 3
    rng = np.random.default_rng(5)
    probes = sorted(rng.integers(0, 2 * count + 200, 500).tolist())
    expected = [p // 2 if p % 2 == 0 and p < 2 * count else -1 for p in probes]
    assert disk.find(encode(schema, probes)).tolist() == expected
    assert disk.find(encode(schema, numbers)).tolist() == list(range(count))
    assert disk.find(encode(schema, [])).tolist() == []
    assert found_live(disk, encode(schema, [1, 2, 4]), INSERTED - 1) == [-1, -1, -1]
    assert found_live(disk, encode(schema, [1, 2, 4]), MAX_TIMESTAMP) == [-1, 1, 2]
    assert disk.keys_of(np.array([7, 3])).to_hashable() == encode(schema, [14, 6]).to_hashable()


@pytest.mark.parametrize("kind", SCHEMAS)
def test_keys_that_only_seem_to_be_there_are_told_from_those_that_are(kind, tmp_path, monkeypatch):
    """One absent key in 800 passes the bloom filter: the key blocks must decide, below the first key as well."""
    schema, numbers, disk = rowset(tmp_path, kind, 300)
    present = encode(schema, numbers[50:])
    monkeypatch.setattr(Bloom, "may_contain", lambda self, hashes: np.ones(len(hashes), np.bool_))
    part = image(schema, numbers[50:], list(range(50, 300)))
    disk = open_(
        tmp_path, schema, write_rowset(FILES, str(tmp_path), ".", 6, 1, part, schema, deltas_durable=1)
    )
    probes = list(range(700))
    expected = [p // 2 - 50 if p % 2 == 0 and 100 <= p < 600 else -1 for p in probes]
    assert disk.find(encode(schema, probes)).tolist() == expected
    assert disk.find(present).tolist() == list(range(250))


@pytest.mark.parametrize("kind", SCHEMAS)
@given(bounds=st.lists(st.none() | st.integers(-3, 260), min_size=2, max_size=2))
def test_rowid_range_is_where_the_keys_are_in_the_range(kind, bounds, tmp_path_factory):
    """A range scan reads from the first row at or above the lower bound to the last below the upper."""
    if not hasattr(test_rowid_range_is_where_the_keys_are_in_the_range, kind):
        folder = tmp_path_factory.mktemp("rows")
        setattr(test_rowid_range_is_where_the_keys_are_in_the_range, kind, rowset(folder, kind, 128))
    schema, numbers, disk = getattr(test_rowid_range_is_where_the_keys_are_in_the_range, kind)
    bounds = [None if b is None or (b < 0 and kind != "int") else b for b in bounds]
    lower, upper = (None if b is None else encode(schema, [b]).at(0) for b in bounds)
    begin, end = disk.rowid_range(KeyRange(lower, upper))
    inside = [
        n for n in numbers if (bounds[0] is None or n >= bounds[0]) and (bounds[1] is None or n < bounds[1])
    ]
    assert numbers[begin:end] == inside


def test_a_look_up_of_an_absent_key_reads_no_block(tmp_path):
    """INSERT asks every overlapping rowset whether its keys are new: the bloom filter answers nearly always."""
    schema, _, disk = rowset(tmp_path)
    stats = RowSetStats()
    assert (disk.find(encode(schema, [1]), stats) < 0).all()
    assert stats.blocks_read == 0


def test_point_reads_decode_only_the_blocks_they_touch(tmp_path):
    """get() of one row of a large rowset must not decode a column."""
    schema, _, disk = rowset(tmp_path, cache_bytes=0)
    stats = RowSetStats()
    v = schema.by_name("v")
    assert disk.gather(v, MAX_TIMESTAMP, np.array([1999, 3, 4]), stats).to_pylist() == [1999, 3, 4]
    assert stats.blocks_read == 2
    stats = RowSetStats()
    assert disk.find(encode(schema, [2000]), stats).tolist() == [1000]
    assert stats.blocks_read == 1


def test_the_present_without_redo_is_the_decoded_block_itself(tmp_path):
    """No copy of most of a block, and the UNDO file is not even opened: it is gone, and nobody notices."""
    schema, _, disk = rowset(tmp_path)
    (tmp_path / "5.base.undo").unlink()
    v = schema.by_name("v")
    most = disk.base_column(v.id).rows_per_block * 3 // 4
    first, again = (disk.column(v, INSERTED, 0, most) for _ in range(2))
    assert first.buffers()[1].address == again.buffers()[1].address
    small, other = (disk.column(v, INSERTED, 0, most // 3) for _ in range(2))
    assert small.equals(first[: most // 3]) and small.buffers()[1].address != other.buffers()[1].address
    assert disk.liveness(INSERTED, 0, 2000) is None
    with pytest.raises(StorageError):
        disk.liveness(INSERTED - 1, 0, 2000)


def test_scans_of_a_column_of_which_half_was_changed_keep_the_result_and_not_what_it_is_made_of(tmp_path):
    """The cache has room for the column as it is now and its patch, but for neither base nor REDO besides: the first
    scan leaves nothing, and what the second leaves, later ones find."""
    count = 1 << 17
    schema, _, disk = rowset(tmp_path, count=count, cache_bytes=count * 4 * 5 // 2)
    v = schema.by_name("v")
    changed = np.arange(0, count, 2)
    run = build_run("redo", changed, 200, pa.array(-changed, pa.int32()))
    written = write_delta_file(FILES, f"{tmp_path}/1.redo", "redo", {v.id: run}, {v.id: v.type})
    cache = disk.memo._cache
    file = DeltaFile.open(FILES, str(tmp_path), written.meta(2, "1.redo"), cache)
    disk = disk.with_flushed_deltas([file], 200)
    expected = np.arange(count)
    expected[changed] = -changed
    read = []
    for _ in range(4):
        stats = RowSetStats()
        for lower in range(0, count, 1 << 16):
            found = disk.column(v, MAX_TIMESTAMP, lower, lower + (1 << 16), stats)
            assert np.array_equal(found.to_numpy(), expected[lower : lower + (1 << 16)])
        read.append(stats.blocks_read)
    assert read[0] == read[1] > 0 and read[2:] == [0, 0]
    # A change in memory lasts until the next one only: then it is the base that scans come back for.
    disk.deltas.append(np.array([1]), 300, {v.id: pa.array([7], pa.int32())})
    for snapshot, value in ((MAX_TIMESTAMP, 7), (299, 1), (MAX_TIMESTAMP, 7)):
        for _ in range(3):  # nothing kept, kept, found: by this moment, and by no other
            assert disk.column(v, snapshot, 0, 1 << 16)[1].as_py() == value


def test_runs_of_a_rowset_are_kept_whole_while_all_of_them_are_a_small_part_of_the_cache(tmp_path):
    """Many small files are as much as a large one; UNDO, which tells of every insertion, has a part of its own."""
    schema, _, disk = rowset(tmp_path, count=200, cache_bytes=100 * 64 * 64 * 3 // 2)
    v = schema.by_name("v")
    cache = disk.memo._cache
    files = []
    for number in (1, 2):
        run = build_run("redo", np.arange(100), 100 * number, pa.array(range(100), pa.int32()))
        written = write_delta_file(FILES, f"{tmp_path}/{number}.redo", "redo", {v.id: run}, {v.id: v.type})
        files.append(DeltaFile.open(FILES, str(tmp_path), written.meta(number, f"{number}.redo"), cache))
        changed = disk.with_flushed_deltas(files, 100 * number)
        assert [changed.changes.keeps_runs(file, v.id) for file in files] == [number == 1] * number
    assert not changed.changes.keeps_runs(changed.undo[0], v.id)


def test_a_scan_of_one_column_does_not_open_the_changes_of_another(tmp_path):
    """REDO of column t is damaged; v is read all the same."""
    schema, _, disk = rowset(tmp_path)
    v, t = schema.by_name("v"), schema.by_name("t")
    run = build_run("redo", np.array([3]), 200, pa.array(["changed"]))
    disk = disk.with_flushed_deltas([redo(tmp_path, disk, "1.redo", {t.id: run}, {t.id: t.type})], 200)
    (tmp_path / "1.redo").write_bytes(b"")
    assert disk.column(v, MAX_TIMESTAMP, 0, 4).to_pylist() == [0, 1, 2, 3]
    assert disk.column(t, 199, 0, 4).to_pylist()[3] == "text 6", (
        "nor when the snapshot is older than the change"
    )
    with pytest.raises(CorruptionError, match="1.redo"):
        disk.column(t, 200, 0, 4)


def test_a_column_added_later_reads_its_default_and_its_changes(tmp_path):
    """X4: the alteration writes nothing; an UPDATE of the new column of an old row is a REDO over its default."""
    schema, _, disk = rowset(tmp_path, count=4)
    added = dataclasses.replace(schema.by_name("v"), id=schema.next_column_id, name="added", read_default=7)
    assert disk.zone(added.id) is None
    assert disk.column(added, MAX_TIMESTAMP, 1, 3).to_pylist() == [7, 7]
    disk.deltas.append(np.array([2]), 200, {added.id: pa.array([9], pa.int32())})
    assert disk.column(added, MAX_TIMESTAMP, 1, 3).to_pylist() == [7, 9]
    assert disk.column(added, 199, 1, 3).to_pylist() == [7, 7]
    assert disk.gather(added, 200, np.array([2, 0])).to_pylist() == [9, 7]
    eight, seven = Constraint.one_of([8]), Constraint.one_of([7])
    assert excluded(disk, added, eight, 199, 0, 4)
    assert not excluded(disk, added, seven, 199, 0, 4)
    assert not excluded(disk, added, eight, 200, 0, 4), "the changed row may hold anything"
    assert excluded(disk, added, eight, 200, 0, 2)


def test_dead_rows_are_in_the_file_and_stay_dead(tmp_path):
    """A row deleted before the flush is kept for its history; its base says that it is not there."""
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


def test_versions_share_files_and_leave_the_older_version_as_it_was(tmp_path):
    """A scan holds the version it began with while deltas are frozen, flushed and merged."""
    schema, _, first = rowset(tmp_path, count=4)
    v = schema.by_name("v")
    versions = [first]
    for number, time in enumerate((200, 300, 400)):
        disk = versions[-1]
        disk.deltas.append(np.array([1]), time, {v.id: pa.array([time], pa.int32())})
        frozen = disk.with_frozen_deltas()
        assert frozen.timestamp_min == time and frozen.nbytes > 0
        file = redo(tmp_path, disk, f"{number}.redo", frozen.frozen[0].runs(), {v.id: v.type})
        assert frozen.column(v, MAX_TIMESTAMP, 1, 2).to_pylist() == [time], "while it waits to be written"
        assert frozen.delta_touches(v.id, time) and frozen.live(np.array([1])).all()
        versions += [frozen, frozen.with_flushed_deltas([file], time)]
    last = versions[-1]
    assert last.meta.deltas_durable == 400 and last.timestamp_min is None and last.nbytes == 0
    from nyala.delta.compaction import merge_delta_files

    written = merge_delta_files(FILES, f"{tmp_path}/merged", last.redo[1:], {v.id: v.type})
    merged = last.with_merged_redo(
        last.redo[1:], DeltaFile.open(FILES, str(tmp_path), written.meta(9, "merged"))
    )
    assert len(merged.redo) == 2
    assert merged.size_bytes == merged.meta.size_bytes + sum(
        f.size_bytes for f in (*merged.undo, *merged.redo)
    )
    for version in (last, merged):
        version.check()
        for snapshot, value in ((199, 1), (200, 200), (299, 200), (300, 300), (MAX_TIMESTAMP, 400)):
            assert version.column(v, snapshot, 1, 2).to_pylist() == [value]
            assert version.gather(v, snapshot, np.array([1])).to_pylist() == [value]
    assert first.column(v, 200, 1, 2).to_pylist() == [200]


def test_x2_files_out_of_time_order_are_corruption(tmp_path):
    """R4: two REDO files that overlap in time would let the older value win."""
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
        ({"columns": ()}, "catalogue names|no column"),
    ],
)
def test_a_base_file_that_does_not_fit_its_entry_is_corruption(changed, words, tmp_path):
    """A catalogue that names the wrong file must not give wrong rows."""
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
def test_z1_a_skipped_window_holds_no_row_that_matches_at_the_snapshot(
    base, ascending, script, constraint, window
):
    """Predicates on updated columns at past timestamps: REDO in files and in memory, UNDO, and the base's zone maps."""
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
            values = disk.column(v, snapshot, 0, 512).to_pylist()
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
            assert disk.delta_touches(v.id, snapshot) >= bool(changed)


def test_z1_what_undo_brings_back_keeps_its_block(tmp_path):
    """A predicate on a past moment: the base's zone map knows the present only."""
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
    assert excluded(disk, v, wanted, 90), "the change at 90 is seen at 90"
    assert not excluded(disk, v, wanted, 89)
    assert not excluded(disk, v, wanted, 89, 640, 768)
    assert excluded(disk, v, wanted, 89, 768, 896)
    assert disk.delta_touches(v.id, 89) and not disk.delta_touches(v.id, INSERTED), "by file, unopened"


def test_z1_a_store_set_aside_keeps_its_blocks(tmp_path):
    """Between freeze and flush a change is in neither file nor DeltaMemStore."""
    schema, _, disk = rowset(tmp_path)
    v = schema.by_name("v")
    disk.deltas.append(np.array([700]), 200, {v.id: pa.array([5000], pa.int32())})
    frozen = disk.with_frozen_deltas()
    wanted = Constraint.one_of([5000])
    assert not excluded(frozen, v, wanted, 200, 640, 768)
    assert excluded(frozen, v, wanted, 199, 640, 768)


def test_z1_skips_the_blocks_that_neither_base_nor_changes_allow(tmp_path):
    """Zone maps are only worth having if they skip: one changed row keeps one block, not all."""
    schema, _, disk = rowset(tmp_path)
    v = schema.by_name("v")
    size = disk.reader.column(next(k for k in disk.meta.places if k.column_id == v.id)).rows_per_block
    wanted = Constraint.one_of([size])
    blocks = [(lower, min(lower + size, 2000)) for lower in range(0, 2000, size)]
    assert [excluded(disk, v, wanted, INSERTED, *b) for b in blocks] == [i != 1 for i in range(len(blocks))]
    disk.deltas.append(np.array([5 * size]), 200, {v.id: pa.array([size], pa.int32())})
    kept = [i for i, b in enumerate(blocks) if not excluded(disk, v, wanted, 200, *b)]
    assert kept == [1, 5]
    assert excluded(disk, v, wanted, 199, *blocks[5]), "the change is not yet there at 199"
    frozen = disk.with_frozen_deltas()
    disk = frozen.with_flushed_deltas(
        [redo(tmp_path, disk, "1.redo", frozen.frozen[0].runs(), {v.id: v.type})], 200
    )
    other = Constraint.one_of([7 * size])
    assert [i for i, b in enumerate(blocks) if not excluded(disk, v, other, 200, *b)] == [7], (
        "the file's own bounds exclude the value: its changes keep no block"
    )


def test_the_catalogue_is_told_what_was_written(tmp_path):
    """An entry of another tablet or version of the schema would give its rows to others, or read them as others."""
    schema = dataclasses.replace(SCHEMAS["int"], version=7)
    rows = image(schema, [1, 2], [1, 2])
    written = write_rowset(
        FILES, str(tmp_path), ".", 5, 3, rows, schema, deltas_durable=INSERTED, name="of-a-task"
    )
    meta = written.meta
    assert (meta.id, meta.tablet_id, meta.row_count, meta.schema_version) == (5, 3, 2, 7)
    assert written.paths == ["./of-a-task.base", "./of-a-task.base.undo"]


@pytest.mark.parametrize("part", ["base", "undo"])
def test_writing_fails_without_leaving_a_file(part, tmp_path, monkeypatch):
    """A full disk during a flush leaves the folder as it was."""

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
            FullAtUndo(), str(tmp_path), ".", 5, 1, image(schema, [1], [1]), schema, deltas_durable=1
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("row_bytes", "bits"),
    [(0.5, 0), (1.99, 0), (2, 8), (8, 8), (8.99, 8), (9, 9), (12.5, 12), (16, 16), (1000, 16)],
)
def test_a_filter_takes_an_eighth_of_what_its_rows_take(row_bytes, bits):
    """Where rows are narrow it would be most of the table, so the narrowest have none; where they are wide, a smaller
    one would save nothing."""
    assert filter_bits_per_key(row_bytes) == bits


@pytest.mark.parametrize(("width", "bits"), [(0, 0), (4, 8), (40, 16)])
def test_rows_get_the_filter_of_their_width(width, bits, tmp_path):
    """Its keys are found, and hardly any other, whatever it takes; rows of next to nothing have none."""
    count = 20_000
    schema = build_schema({"k": "int64", "b": "binary"}, ["k"])
    codec = KeyCodec([schema.columns[0].type])
    rng, keys = np.random.default_rng(1), pa.array(np.arange(count) * 2)
    values = pa.array([rng.bytes(width) for _ in range(count)], pa.binary())
    image = RowSetImage(codec.encode([keys]), {10: keys, 11: values}, None, {}, np.arange(count))
    write_rowset(PosixFiles(), str(tmp_path), ".", 5, 1, image, schema, deltas_durable=1)
    reader = CFileReader(PosixFiles(), str(tmp_path / "5.base"))
    column = reader.column(ColumnKey(BLOOM))
    if not bits:
        assert column is None and reader.bloom() is None
        return
    assert column.row_count == -(-count * bits // (8 * format.BLOOM_BLOCK_BYTES))
    filter = reader.bloom()
    assert filter.may_contain(codec.encode([keys]).hash64()).all()
    absent = codec.encode([pa.array(np.arange(count) * 2 + 1)])
    assert filter.may_contain(absent.hash64()).mean() < (0.05 if bits == 8 else 0.004)
