"""Delta files: records come back, damage is reported, and unneeded files are not opened."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.catalog.model import DeltaEntry
from nyala.cfile import memory
from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.blocks.read_stats import ReadStats
from nyala.delta.compaction import merge_delta_files
from nyala.delta.delta_file import DeltaFile, RunBounds, write_delta_file
from nyala.delta.run import LIVENESS, DeltaRun, build_run
from nyala.env import PosixFiles
from nyala.errors import CorruptionError, InvalidArgumentError, StorageError
from nyala.schema.types import ColumnType
from nyala.tablet.state.opening import delta_entry

FILES = PosixFiles()
TYPES = {10: ColumnType("int32"), 11: ColumnType("string"), 12: ColumnType("decimal", 20, 2)}
ARROW = {**{number: type.arrow for number, type in TYPES.items()}, LIVENESS: pa.bool_()}


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def run_of(kind: str, *records: tuple[int, int, object], type: pa.DataType = ARROW[10]) -> DeltaRun:
    rowids, times, values = ([record[i] for record in records] for i in range(3))
    return build_run(kind, ints(*rowids), ints(*times), pa.array(values, type))  # type: ignore[arg-type]


def write(folder, runs: dict[int, DeltaRun], kind: str = "redo", name: str = "1.redo") -> DeltaEntry:
    written = write_delta_file(FILES, f"{folder}/{name}", kind, runs, TYPES)  # type: ignore[arg-type]
    return delta_entry(1, 0, name, written)


def same(left: DeltaRun | None, right: DeltaRun) -> bool:
    return (
        left is not None
        and left.kind == right.kind
        and left.rowids.tolist() == right.rowids.tolist()
        and left.timestamps.tolist() == right.timestamps.tolist()
        and left.values.equals(right.values)
    )


@pytest.mark.parametrize("kind", ["redo", "undo"])
@given(data=st.data())
def test_every_run_comes_back(kind, data, tmp_path_factory):
    """Runs of any columns come back from a file: alone or together, with and without NULLs."""
    cells = {
        10: st.none() | st.integers(-9, 9),
        11: st.none() | st.text(max_size=4),
        12: st.none() | st.decimals(-99, 99, places=2),
        LIVENESS: st.booleans(),
    }
    runs = {}
    places = st.sets(st.tuples(st.integers(0, 99), st.integers(1, 99)), min_size=1, max_size=20)
    together = sorted(data.draw(places))
    for number in data.draw(st.sets(st.sampled_from(list(cells)), min_size=1)):
        where = together if data.draw(st.booleans()) else sorted(data.draw(places))
        runs[number] = run_of(kind, *((r, t, data.draw(cells[number])) for r, t in where), type=ARROW[number])
    folder = tmp_path_factory.mktemp("delta")
    meta = write(folder, runs, kind)
    file = DeltaFile.open(FILES, str(folder), meta, BlockCache(1 << 20))
    file.check()
    assert file.column_ids == set(runs)
    for number, run in runs.items():
        assert same(file.run(number), run)
    assert (meta.timestamp_min, meta.timestamp_max) == (
        min(run.timestamp_min for run in runs.values()),
        max(run.timestamp_max for run in runs.values()),
    )
    file.close()


def test_columns_with_different_timestamps_do_not_share_them(tmp_path):
    """Columns with the same rows and different timestamps have their own timestamps in the file."""
    runs = {
        10: run_of("redo", (3, 5, 1), (4, 5, 2)),
        11: run_of("redo", (3, 6, "x"), (4, 5, "y"), type=pa.string()),
    }
    file = DeltaFile.open(FILES, str(tmp_path), write(tmp_path, runs))
    assert same(file.run(10), runs[10]) and same(file.run(11), runs[11])


def test_a_file_is_relevant_only_if_a_record_may_apply(tmp_path):
    """REDO newer than the snapshot, and UNDO not newer than it, are not opened."""
    records = ((0, 5, 1), (0, 9, 2))
    redo = DeltaFile.open(FILES, str(tmp_path), write(tmp_path, {10: run_of("redo", *records)}))
    undo = DeltaFile.open(
        FILES, str(tmp_path), write(tmp_path, {10: run_of("undo", *records)}, "undo", "1.undo")
    )
    assert [redo.relevant(t) for t in (4, 5, 9)] == [False, True, True]
    assert [undo.relevant(t) for t in (4, 8, 9)] == [True, True, False]


def test_reading_one_column_does_not_read_another(tmp_path):
    """A damaged column does not disturb reads of another."""
    runs = {
        10: run_of("redo", (0, 5, 1)),
        11: run_of("redo", (1, 5, "damaged" * 9), type=pa.string()),
    }
    meta = write(tmp_path, runs)
    data = bytearray((tmp_path / "1.redo").read_bytes())
    data[data.index(b"damaged")] ^= 1
    (tmp_path / "1.redo").write_bytes(data)
    file = DeltaFile.open(FILES, str(tmp_path), meta)
    assert same(file.run(10), runs[10])
    assert file.run(99) is None
    with pytest.raises(CorruptionError, match="1.redo"):
        file.run(11)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"timestamp_min": 6}, "expected timestamps"),
        ({"timestamp_max": 8}, "expected timestamps"),
        ({"kind": "undo"}, "not in the order"),
        ({"column_ids": (10, 11)}, "no values of column 11"),
    ],
)
def test_a_file_that_does_not_match_its_entry_is_corruption(changed, words, tmp_path):
    """A catalogue entry that names a wrong file gives no wrong rows."""
    meta = write(tmp_path, {10: run_of("redo", (0, 5, 1), (0, 9, 2))})
    file = DeltaFile.open(FILES, str(tmp_path), dataclasses.replace(meta, **changed))
    with pytest.raises(CorruptionError, match=words) as caught:
        file.check()
    assert "1.redo" in str(caught.value)


@pytest.mark.parametrize("changed", [{"timestamp_min": 6}, {"timestamp_max": 8}, {"column_ids": (10, 11)}])
def test_reads_without_timestamps_also_detect_a_wrong_file(changed, tmp_path):
    """`newest`, which reads no timestamps, also detects a file that does not match its entry."""
    meta = write(tmp_path, {10: run_of("redo", (0, 5, 1), (0, 9, 2))})
    file = DeltaFile.open(FILES, str(tmp_path), dataclasses.replace(meta, **changed))
    with pytest.raises(CorruptionError):
        file.newest(11 if "column_ids" in changed else 10, 0, 1)


def test_newest_returns_the_last_record_of_each_row(tmp_path):
    """The last record of each row wins, and no timestamps are read."""
    records = [(1, 5, 1), (1, 9, 2), (4, 6, None), (4, 7, 3), (7, 5, 4), (9, 9, 5)]
    meta = write(tmp_path, {10: run_of("redo", *records)})
    stats = ReadStats()
    file = DeltaFile.open(FILES, str(tmp_path), meta)
    for lower, upper, expected in ((0, 100, {1: 2, 4: 3, 7: 4, 9: 5}), (2, 9, {4: 3, 7: 4}), (5, 7, {})):
        rowids, values = file.newest(10, lower, upper, stats)
        assert dict(zip(rowids.tolist(), values.to_pylist(), strict=True)) == expected
    assert stats.blocks_read == 2 * 3, "only blocks of rowids and values are read"
    held = file.run(10)
    assert held is not None and file.newest(10, 2, 9, stats)[1].to_pylist() == [3, 4]
    assert stats.blocks_read == 2 * 3, "a run that is still referenced is not read again"
    assert file.newest(11, 0, 9) is None


def test_newest_detects_rowids_out_of_order(tmp_path, monkeypatch):
    """`newest` raises an error for rowids out of order, because patches need ascending rowids."""
    monkeypatch.setattr(DeltaRun, "check", lambda _: None)
    for number, rowids in enumerate(([3, 2], [-1, 2])):
        run = DeltaRun("redo", ints(*rowids), ints(5, 6), pa.array([1, 2], pa.int32()))
        file = DeltaFile.open(FILES, str(tmp_path), write(tmp_path, {10: run}, name=f"{number}.redo"))
        with pytest.raises(CorruptionError, match="not in the order"):
            file.newest(10, -5, 9)


def test_records_out_of_order_are_corruption(tmp_path):
    """F1: records out of order raise an error that names the record, also with a right checksum."""
    good = run_of("redo", (0, 5, 1), (0, 9, 2))
    broken = DeltaRun("redo", good.rowids, good.timestamps[::-1].copy(), good.values)
    with pytest.raises(AssertionError, match="D1"):
        write(tmp_path, {10: broken})  # F1 is also checked before writing
    DeltaRun.check, check = lambda self: None, DeltaRun.check  # type: ignore[method-assign]
    try:
        meta = write(tmp_path, {10: broken})
    finally:
        DeltaRun.check = check  # type: ignore[method-assign]
    for read in (DeltaFile.run, DeltaFile.check_run):
        with pytest.raises(CorruptionError, match=r"record 1 of column 10 \(rowid 0, timestamp 5\)"):
            read(DeltaFile.open(FILES, str(tmp_path), meta), 10)


@pytest.mark.parametrize("window", [1, 2, 3, 100])
def test_a_check_in_parts_finds_every_problem(window, tmp_path, monkeypatch):
    """F1 and F2 are checked inside of parts and between parts. A good file gives the bounds of all
    parts.
    """
    monkeypatch.setattr(memory, "_RANGE_ROWS_MAX", window)
    good = [(n // 2, 5 + n, n) for n in range(8)]
    swapped = [[*good[:at], good[at + 1], good[at], *good[at + 2 :]] for at in range(7)]
    twice = [[*good[:at], *good[at : at + 1] * 2, *good[at + 1 :]] for at in range(8)]
    negative = [[(-1, 5, 0), *good], [*good, (4, -1, 0)]]
    monkeypatch.setattr(DeltaRun, "check", lambda self: None)
    for number, records in enumerate([good, *swapped, *twice, *negative]):
        rowids, times, values = (list(part) for part in zip(*records, strict=True))
        run = DeltaRun("redo", ints(*rowids), ints(*times), pa.array(values, pa.int32()))
        meta = write(tmp_path, {10: run}, name=f"{number}.redo")
        for changed in ({}, {"timestamp_min": 6}, {"timestamp_max": 11}):
            outcomes = []
            for read in (DeltaFile.run, DeltaFile.check_run):
                try:
                    entry = dataclasses.replace(meta, **changed)
                    outcomes.append(read(DeltaFile.open(FILES, str(tmp_path), entry), 10))
                except CorruptionError as error:
                    outcomes.append(str(error))
            if isinstance(outcomes[0], DeltaRun):
                assert records is good and not changed
                assert outcomes[1] == RunBounds(3, 5, 12)
            else:
                assert outcomes[0] == outcomes[1]
                assert ("not in the order" in outcomes[0]) == (records is not good)


def test_a_flipped_byte_is_an_error_or_makes_no_difference(tmp_path):
    """Every third byte of a small file is flipped: no value changes, and no other exception is
    raised.
    """
    runs = {
        10: run_of("redo", (1, 5, 1), (1, 7, None), (8, 5, -3)),
        LIVENESS: run_of("redo", (2, 6, False), type=pa.bool_()),
    }
    meta = write(tmp_path, runs)
    good = (tmp_path / "1.redo").read_bytes()
    wrong = 0
    places = range(0, len(good), 3)
    for place in places:
        damaged = bytearray(good)
        damaged[place] ^= 0x10
        (tmp_path / "1.redo").write_bytes(damaged)
        file = DeltaFile.open(FILES, str(tmp_path), meta)
        try:
            file.check()
        except CorruptionError as error:
            assert "1.redo" in str(error)
            wrong += 1
        except StorageError:  # the changed version number means a newer format
            wrong += 1
        file.close()
    assert wrong == len(places)


def test_a_failed_write_leaves_no_file(tmp_path):
    """After a delta flush to a full disk, no file remains."""

    class FullDisk(PosixFiles):
        def create(self, path):
            file = super().create(path)

            def fail(*parts):
                raise StorageError("no space left", path=path)

            file.append = fail
            return file

    with pytest.raises(StorageError, match="no space"):
        write_delta_file(FullDisk(), f"{tmp_path}/1.redo", "redo", {10: run_of("redo", (0, 5, 1))}, TYPES)
    assert list(tmp_path.iterdir()) == []


def test_merge_delta_files_keeps_every_record_and_drops_dropped_columns(tmp_path):
    """A minor delta compaction reads like its inputs one after another."""
    inputs = []
    for number, time in enumerate((5, 7, 9)):
        runs = {10: run_of("redo", (0, time, time), (number, time + 1, -time))}
        if time == 7:
            runs[11] = run_of("redo", (4, 7, "seven"), type=pa.string())
            runs[LIVENESS] = run_of("redo", (4, 8, False), type=pa.bool_())
        inputs.append(DeltaFile.open(FILES, str(tmp_path), write(tmp_path, runs, name=f"{number}.redo")))
    written = merge_delta_files(FILES, f"{tmp_path}/merged", inputs, {10: TYPES[10]})
    merged = DeltaFile.open(FILES, str(tmp_path), delta_entry(9, 0, "merged", written))
    merged.check()
    assert merged.column_ids == {10, LIVENESS}, "column 11 is no longer in the schema; LIVENESS always is"
    run = merged.run(10)
    assert run is not None
    assert run.rowids.tolist() == [0, 0, 0, 0, 1, 2]
    assert run.timestamps.tolist() == [5, 6, 7, 9, 8, 10]
    assert run.values.to_pylist() == [5, -5, 7, 9, -7, -9]
    assert (merged.timestamp_min, merged.timestamp_max) == (5, 10)
    only_text = [DeltaFile.open(FILES, str(tmp_path), write(
        tmp_path, {11: run_of("redo", (4, 7, "seven"), type=pa.string())}, name="text.redo"
    ))]  # fmt: skip
    with pytest.raises(InvalidArgumentError, match="delete the files"):
        merge_delta_files(FILES, f"{tmp_path}/none", only_text, {10: TYPES[10]})


# Rows up to 4 million with several changes each, so that rowids take many blocks.
_MANY = 600_000


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> tuple[DeltaFile, DeltaRun]:
    rng = np.random.default_rng(3)
    rowids = np.sort(rng.integers(0, 4_000_000, _MANY))
    times = np.arange(_MANY) * 7 % (1 << 40)
    run = build_run("redo", rowids, times, pa.array(rng.integers(-9, 9, _MANY), pa.int32()))
    folder = tmp_path_factory.mktemp("large")
    return DeltaFile.open(FILES, str(folder), write(folder, {10: run})), run


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(0, 4_000_000), (0, 1), (1_999_000, 2_000_000), (3_999_999, 4_000_000), (500_000, 1_500_000), (7, 7),
     (4_000_000, 5_000_000)],
)  # fmt: skip
def test_a_range_has_the_records_of_its_rows(large, lower: int, upper: int) -> None:
    """A range has exactly the records of its rows, also at the borders of blocks and after the last
    row.
    """
    file, run = large
    assert same(file.run_of_rows(10, lower, upper), run.of_rows(lower, upper))
    assert file.run_of_rows(11, lower, upper) is None
