"""`nyala fs check` finds every kind of damage, and no problem in an undamaged store."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.corruption.seeded import contents, copy_store, files_of, make_store, same, tamper
from tests.sampled import is_long_run
from tests.support import cli_runner, folder_in_memory, open_database, rows

import nyala
from nyala.catalog.model import CatalogChange, CatalogState
from nyala.cfile import memory
from nyala.cfile.column import BASE, BLOOM, KEY, ColumnKey
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.delta.delta_file import write_delta_file
from nyala.delta.run import LIVENESS, DeltaRun
from nyala.env import SYSTEM
from nyala.rowset import writer as rowset_writer
from nyala.tablet import check
from nyala.tablet.recovery import bootstrap
from nyala.tablet.state.opening import delta_entry


@pytest.fixture(scope="module")
def origin() -> Iterator[tuple[Path, list[int]]]:
    with folder_in_memory() as folder:
        _, moments = make_store(folder / "origin")
        yield folder / "origin", moments


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, where syncs take no time."""
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
def store(origin: tuple[Path, list[int]], tmp_path: Path) -> Path:
    return copy_store(origin[0], tmp_path / "s")


def kinds(path: Path) -> set[str]:
    return {problem.kind for problem in nyala.check(path).problems}


def a_file(path: Path, suffix: str) -> Path:
    return min(path.rglob(f"*{suffix}"), key=lambda file: (file.parent.name, file.name))


# ── undamaged stores ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_undamaged_store_has_no_problems(store: Path, origin: tuple[Path, list[int]]) -> None:
    """The check reads all files and log records, and changes nothing."""
    before = {name: (store / name).read_bytes() for name in files_of(store) if "catalog" not in name}
    report = nyala.check(store)
    assert report.ok and report.alone and report.notes == () and report.repairs == ()
    data = [name for name in files_of(store) if name.startswith("data/")]
    assert report.files == len(data) and {Path(name).suffix for name in data} == {
        ".base",
        ".undo",
        ".redo",
        ".part",
    }
    assert report.bytes == sum((store / name).stat().st_size for name in data)
    assert (report.tables, report.tablets, report.log_records) == (2, 3, 5)
    after = {name: (store / name).read_bytes() for name in files_of(store) if "catalog" not in name}
    assert after == before


def test_an_open_store_is_checked_with_its_memory(tmp_path: Path) -> None:
    db, _ = make_store(tmp_path / "s", close=False)
    with db:
        for report in (db.check(), nyala.check(tmp_path / "s")):
            assert report.ok and not report.alone and "were not checked" in report.notes[0]
            assert report.rowsets > 3 and report.log_records == 5
        with nyala.connect(tmp_path / "s", read_only=True) as reader:
            assert reader.check().ok
        db["t"].flush()
        assert db.check().ok


def test_a_writer_that_was_killed_leaves_no_problem(tmp_path: Path) -> None:
    """An unfinished log record and an old position record are the result of a crash, not damage."""
    db, _ = make_store(tmp_path / "s", close=False)
    copied = copy_store(tmp_path / "s", tmp_path / "killed")
    db.close()
    segment = max((copied / "wal").glob("wal-*"))
    with open(segment, "ab") as file:
        file.write(b"half a record")
    report = nyala.check(copied)
    assert report.ok and "never acknowledged" in report.notes[0]


def test_a_folder_without_a_store_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(nyala.StorageError, match="folder"):
            nyala.check(path)


# ── logical damage: every checksum is right ─────────────────────────────────────────────────────────────────────────


def copied_rowset(path: Path) -> Callable[[CatalogState], CatalogChange]:
    """Return a change that adds a copy of a rowset, so each of its keys lives twice."""

    def change(state: CatalogState) -> CatalogChange:
        rowset = min(state.rowsets.values(), key=lambda entry: entry.id)
        copied = os.path.dirname(rowset.path) + "/900.base"
        shutil.copy(path / rowset.path, path / copied)
        return CatalogChange(put_rowsets=[replace(rowset, id=900, path=copied)])

    return change


def wrong_bounds(state: CatalogState) -> CatalogChange:
    rowset = min(state.rowsets.values(), key=lambda entry: entry.id)
    return CatalogChange(put_rowsets=[replace(rowset, key_min=rowset.key_max)])


def wrong_tablet(state: CatalogState) -> CatalogChange:
    rowset = min(state.rowsets.values(), key=lambda entry: entry.id)
    other = next(t.id for t in state.tablets.values() if t.id != rowset.tablet_id and t.table_id == 1)
    return CatalogChange(put_rowsets=[replace(rowset, tablet_id=other)])


def without(kind: str) -> Callable[[CatalogState], CatalogChange]:
    """Return a change that drops a delta file, so the chain of changes has a gap."""
    return lambda state: CatalogChange(
        drop_deltas=[min(delta.id for delta in state.deltas.values() if delta.kind == kind)]
    )


def changed_delta(**fields: Any) -> Callable[[CatalogState], CatalogChange]:
    def change(state: CatalogState) -> CatalogChange:
        delta = min((d for d in state.deltas.values() if d.kind == "redo"), key=lambda entry: entry.id)
        return CatalogChange(
            put_deltas=[
                replace(delta, **{name: getattr(delta, name) + step for name, step in fields.items()})
            ]
        )

    return change


def durable_marks_too_low(state: CatalogState) -> CatalogChange:
    changed = {delta.rowset_id for delta in state.deltas.values() if delta.kind == "redo"}
    return CatalogChange(put_rowsets=[replace(state.rowsets[min(changed)], deltas_durable=1)])


def other_rowsets_deltas(state: CatalogState) -> CatalogChange:
    """Return a change that assigns a REDO file of a large rowset to a small one."""
    redo = next(d for d in state.deltas.values() if d.kind == "redo")
    small = min(state.rowsets.values(), key=lambda entry: entry.row_count)
    assert small.id != redo.rowset_id
    return CatalogChange(put_deltas=[replace(redo, rowset_id=small.id)])


def more_redo(
    path: Path, *runs: tuple[int, list[int], list[int], pa.Array]
) -> Callable[[CatalogState], CatalogChange]:
    """Return a change that adds a new REDO file to a rowset without one. runs: its columns' records."""

    def change(state: CatalogState) -> CatalogChange:
        changed = {delta.rowset_id for delta in state.deltas.values() if delta.kind == "redo"}
        rowset = max(
            (r for r in state.rowsets.values() if r.id not in changed), key=lambda entry: entry.row_count
        )
        newest = state.timestamp_max + 10
        schema = next(iter(state.tables.values())).schema
        found = {
            column: DeltaRun("redo", np.array(rows), np.array(times) + newest, values)
            for column, rows, times, values in runs
        }
        name = os.path.dirname(rowset.path) + "/more.redo"
        written = write_delta_file(
            SYSTEM.files,
            str(path / name),
            "redo",
            found,
            {column.id: column.type for column in schema.columns},
        )
        return CatalogChange(
            put_rowsets=[replace(rowset, deltas_durable=newest + 100)],
            put_deltas=[delta_entry(state.next_delta_id, rowset.id, name, written)],
        )

    return change


def more_undo(path: Path, was_alive: bool, late: bool) -> Callable[[CatalogState], CatalogChange]:
    """Return a change that adds an UNDO file to an unchanged rowset.

    It says whether the first row was alive before a moment, which is later or earlier than the other
    UNDO records of the rowset.
    """

    def change(state: CatalogState) -> CatalogChange:
        changed = {delta.rowset_id for delta in state.deltas.values() if delta.kind == "redo"}
        undo = min(
            (d for d in state.deltas.values() if d.kind == "undo" and d.rowset_id not in changed),
            key=lambda entry: entry.id,
        )
        moment = undo.timestamp_max + 10 if late else undo.timestamp_min - 10
        run = DeltaRun("undo", np.array([0]), np.array([moment]), pa.array([was_alive]))
        name = os.path.dirname(undo.path) + "/more.undo"
        written = write_delta_file(SYSTEM.files, str(path / name), "undo", {LIVENESS: run}, {})
        return CatalogChange(
            put_rowsets=[replace(state.rowsets[undo.rowset_id], deltas_durable=undo.timestamp_max + 10)],
            put_deltas=[delta_entry(state.next_delta_id, undo.rowset_id, name, written)],
        )

    return change


FALSE = pa.array([False])


@pytest.mark.parametrize(
    ("seed", "kind", "words"),
    [
        pytest.param(copied_rowset, "key-twice", "live rows in rowset", id="a key lives twice"),
        pytest.param(wrong_bounds, "index", "expected keys from", id="wrong bounds"),
        pytest.param(wrong_tablet, "wrong-tablet", "belongs to tablet", id="a rowset in another tablet"),
        pytest.param(without("redo"), "orphan-file", "does not name this file", id="a forgotten REDO file"),
        pytest.param(without("undo"), "orphan-file", "does not name this file", id="a forgotten UNDO file"),
        pytest.param(changed_delta(timestamp_min=1), "damage", "expected timestamps", id="REDO begins too late"),
        pytest.param(changed_delta(timestamp_min=-1), "damage", "as the catalogue says", id="REDO begins too early"),
        pytest.param(durable_marks_too_low, "damage", "are on disk up to", id="durable marks too low"),
        pytest.param(other_rowsets_deltas, "damage", "the rowset has", id="REDO of another rowset"),
        pytest.param(
            lambda path: more_redo(path, (LIVENESS, [0, 0], [0, 1], pa.array([False, False]))),
            "damage", "chain of changes is broken", id="a row dies twice",
        ),
        pytest.param(
            lambda path: more_redo(path, (LIVENESS, [0], [0], pa.array([True]))),
            "damage", "chain of changes is broken", id="a living row is born",
        ),
        pytest.param(
            lambda path: more_redo(path, (LIVENESS, [0], [0], FALSE), (11, [0], [5], pa.array([7]))),
            "damage", "after the row was deleted", id="a dead row is changed",
        ),
        pytest.param(
            lambda path: more_undo(path, was_alive=False, late=False),
            "damage", "is inserted at .* chain of changes is broken", id="a row was born twice",
        ),
        pytest.param(
            lambda path: more_undo(path, was_alive=True, late=True),
            "damage", "is deleted at .* chain of changes is broken", id="the delete of a live row is undone",
        ),
    ],
)  # fmt: skip
def test_logical_damage_is_found(
    store: Path, seed: Any, kind: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checksums are right, but the content is wrong. Ranges of three rows find the same problems."""
    tamper(store, seed(store) if takes_path(seed) else seed)
    problems = nyala.check(store).problems
    assert kind in {problem.kind for problem in problems}, problems
    assert any(re.search(words, problem.message) for problem in problems), problems
    monkeypatch.setattr(memory, "_RANGE_ROWS_MAX", 3)
    assert nyala.check(store).problems == problems


def takes_path(seed: Any) -> bool:
    return "path" in seed.__code__.co_varnames[: seed.__code__.co_argcount]


def test_a_key_that_lives_in_memory_and_on_disk_is_found(tmp_path: Path) -> None:
    """Without the durable marks, the replay inserts rows that are on disk."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64"}, "k")
        table.insert({"k": [1, 2]})
        db.flush()

    def forget(state: CatalogState) -> CatalogChange:
        return CatalogChange(
            put_tablets=[replace(t, inserts_durable=0) for t in state.tablets.values()], wal_start=1
        )

    tamper(tmp_path / "s", forget)
    assert "key-twice" in kinds(tmp_path / "s")


def test_a_ghost_does_not_live(store: Path) -> None:
    """A key that was deleted and inserted again has two rows, one of them dead. This is not a problem."""
    with open_database(store) as db:
        found = [
            rowset.find(db._writer().root.table("t").codec.encode([pa.array([5], pa.int64())]))
            for tablet in db._writer().root.table("t").tablets
            for rowset in tablet.rowsets
        ]
        assert sum(bool(rowids[0] >= 0) for rowids in found) == 2, "the store has no ghost"
    assert nyala.check(store).ok


# Values that make a rowset large enough for a bloom filter.
WIDE = np.random.default_rng(1).random(20_000)


# ── derived data ────────────────────────────────────────────────────────────────────────────────────────────────────


def bloom_misses(patch: pytest.MonkeyPatch) -> None:
    original = CFileWriter.append_bloom
    patch.setattr(
        CFileWriter,
        "append_bloom",
        lambda self, hashes, bits_per_key: original(
            self, hashes * np.uint64(0x9E3779B97F4A7C15), bits_per_key
        ),
    )


def index_is_wrong(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        rowset_writer, "_first_keys",
        lambda column, schema, keys: (lambda at: keys.take(at + 1).to_binary()) if column.name == "k" else None,
    )  # fmt: skip


def zone_map_is_wrong(patch: pytest.MonkeyPatch) -> None:
    from nyala.cfile import writer

    original = writer.zone_of

    def narrower(form: Any, array: Any) -> Any:
        zone = original(form, array)
        return replace(zone, max=zone.min) if zone.min is not None else zone

    patch.setattr(writer, "zone_of", narrower)


@pytest.mark.parametrize("spoil", [bloom_misses, index_is_wrong, zone_map_is_wrong])
def test_wrong_derived_data_are_found_and_rewritten(
    tmp_path: Path, spoil: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """A wrong bloom filter, key index or zone map hides rows. The rows are right, so a repair loses nothing."""
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch)
        with open_database(tmp_path / "s") as db:
            table = db.create_table("t", {"k": "int64", "v": "int64", "w": "double"}, "k")
            table.insert({"k": range(100), "v": range(100), "w": WIDE[:100]})
            db.flush()
    report = nyala.check(tmp_path / "s")
    assert {problem.kind for problem in report.problems} == {"index"}
    assert all(problem.repairable and problem.rowset_id == 1 for problem in report.problems)
    repaired = nyala.check(tmp_path / "s", repair=True)
    assert repaired.ok, repaired.problems
    assert "rewrote rowset 1 of table 't'" in repaired.repairs[0]
    with nyala.connect(tmp_path / "s") as db:
        assert db["t"].get({"k": 77}) == {"k": 77, "v": 77, "w": WIDE[77]}
        assert db["t"].count("v > 50") == 49
        assert db["t"].scan(where="k >= 40").to_arrow().num_rows == 60
        db["t"].update({"k": [77], "v": [0]})
        assert db.check().ok


def test_a_damaged_bloom_filter_is_reported_once(tmp_path: Path) -> None:
    """Both the check of the file and the check of the keys read the bloom filter."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "w": "double"}, "k")
        table.insert({"k": range(20_000), "w": WIDE})
        db.flush()
    base = a_file(tmp_path / "s", ".base")
    with CFileReader(SYSTEM.files, str(base)) as reader:
        (offset, length), *_ = reader.column(ColumnKey(BLOOM)).extents()
    data = bytearray(base.read_bytes())
    data[offset + length // 2] ^= 1
    base.write_bytes(data)
    (problem,) = nyala.check(tmp_path / "s").problems
    assert problem.kind == "index" and problem.repairable and problem.offset == offset
    assert "the bloom filter cannot be read" in problem.message
    repaired = nyala.check(tmp_path / "s", repair=True)
    assert repaired.ok and "rewrote rowset 1 of table 't'" in repaired.repairs[0]


def test_a_repair_is_done_before_the_log_is_replayed(tmp_path: Path) -> None:
    """With a wrong bloom filter, the replay would not find the row of an update."""
    with open_database(tmp_path / "s") as db:
        with pytest.MonkeyPatch.context() as patch:
            bloom_misses(patch)
            table = db.create_table("t", {"k": "int64", "v": "int64", "w": "double"}, "k")
            table.insert({"k": range(100), "v": range(100), "w": WIDE[:100]})
            db.flush()
        rowset = db._writer().root.table("t").tablets[0].rowsets[0]
        rowset.deltas.check()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "nyala.cfile.index.bloom_filter.BloomFilter.may_contain",
                lambda self, hashes: np.ones(len(hashes), np.bool_),
            )
            patch.setattr(
                "nyala.cfile.index.bloom_filter.BloomFilter.may_contain_one", lambda self, key_hash: True
            )
            db["t"].update({"k": [5], "v": [500]})
    repaired = nyala.check(tmp_path / "s", repair=True)
    assert repaired.ok and repaired.repairs
    with nyala.connect(tmp_path / "s") as db:
        assert db["t"].get({"k": 5}) == {"k": 5, "v": 500, "w": WIDE[5]}


def bytes_of(path: Path, key: ColumnKey) -> list[int]:
    """Return the offsets of all bytes of a column: of its blocks and of its footer."""
    with contextlib.closing(CFileReader(SYSTEM.files, str(path))) as reader:
        column = reader.column(key)
        assert column is not None
        extents = [*column.extents(), (column.place.offset, column.place.length)]
    return [offset for first, length in extents for offset in range(first, first + length)]


def flipped(content: bytes, offset: int) -> bytes:
    return content[:offset] + bytes([content[offset] ^ 16]) + content[offset + 1 :]


def test_a_damaged_bloom_filter_is_rewritten(store: Path, origin: tuple[Path, list[int]]) -> None:
    """After damage anywhere in its blocks or its footer, a repair rewrites it, and no row is lost."""
    with open_database(copy_store(origin[0], store.with_name("copy"))) as db:
        expected = contents(db, origin[1])
    file = a_file(store, ".base")
    whole = file.read_bytes()
    offsets = bytes_of(file, ColumnKey(BLOOM))
    for offset in offsets[:: len(offsets) // (6 if is_long_run() else 3)]:
        copied = copy_store(origin[0], store)
        file.write_bytes(flipped(whole, offset))
        (problem,) = {(p.kind, p.path, p.repairable) for p in nyala.check(copied).problems}
        assert problem == ("index", str(file), True)
        repaired = nyala.check(copied, repair=True)
        assert repaired.ok and "rewrote" in repaired.repairs[0], repaired
        with open_database(copied) as db:
            assert same(contents(db, origin[1]), expected)


def test_damaged_encoded_keys_are_rewritten_from_the_key_columns(
    store: Path, origin: tuple[Path, list[int]]
) -> None:
    """The two key columns have the same keys, so a repair encodes them again."""
    with open_database(copy_store(origin[0], store.with_name("copy"))) as db:
        expected = contents(db, origin[1])
        (tablet,) = db._writer().root.table("u").tablets
        file = store / tablet.rowsets[0].meta.path
    whole = file.read_bytes()
    offsets = bytes_of(file, ColumnKey(KEY))
    for offset in offsets[:: len(offsets) // (6 if is_long_run() else 3)]:
        copied = copy_store(origin[0], store)
        file.write_bytes(flipped(whole, offset))
        assert {(p.kind, p.path, p.repairable) for p in nyala.check(copied).problems} == {
            ("index", str(file), True)
        }
        with pytest.raises(nyala.CorruptionError), open_database(copied) as db:
            db["u"].get({"a": "x", "b": 2})
        repaired = nyala.check(copied, repair=True)
        assert repaired.ok and "rewrote" in repaired.repairs[0], repaired
        with open_database(copied) as db:
            assert same(contents(db, origin[1]), expected)
            assert db["u"].get({"a": "x", "b": 2}) == {"a": "x", "b": 2, "v": 1.5}


def test_encoded_keys_are_not_rewritten_from_damaged_key_columns(store: Path) -> None:
    with open_database(store) as db:
        (tablet,) = db._writer().root.table("u").tablets
        file = store / tablet.rowsets[0].meta.path
        key_column = db._writer().root.table("u").schema.columns[0].id
    damaged = flipped(file.read_bytes(), bytes_of(file, ColumnKey(KEY))[3])
    damaged = flipped(damaged, bytes_of(file, ColumnKey(BASE, 0, key_column))[3])
    file.write_bytes(damaged)
    report = nyala.check(store, repair=True)
    assert not report.ok and report.repairs == () and file.read_bytes() == damaged


def test_encoded_keys_are_not_rewritten_if_the_bounds_differ(store: Path) -> None:
    """If the key columns contradict the bounds in the catalogue, a repair cannot know which is right."""
    with open_database(store) as db:
        (tablet,) = db._writer().root.table("u").tablets
        meta = tablet.rowsets[0].meta
    file = store / meta.path
    file.write_bytes(damaged := flipped(file.read_bytes(), bytes_of(file, ColumnKey(KEY))[3]))
    tamper(
        store, lambda state: {"put_rowsets": [replace(state.rowsets[meta.id], key_max=meta.key_max + b"\1")]}
    )
    report = nyala.check(store, repair=True)
    assert not report.ok and report.repairs == () and file.read_bytes() == damaged
    assert any("do not match its bounds" in note for note in report.notes), report.notes


def test_a_repair_keeps_dropped_columns(tmp_path: Path) -> None:
    """Snapshots from before the drop of a column can still be read after the repair."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
        table.insert({"k": [1, 2], "v": [10, 20]})
        db.flush()
        before = db.now()
        with table.alter() as alteration:
            alteration.drop_column("v")
            alteration.add_column("w", "int64")
        expected = rows(db["t"], at=before)
    assert expected == [(1, 10), (2, 20)]
    file = a_file(tmp_path / "s", ".base")
    file.write_bytes(flipped(file.read_bytes(), bytes_of(file, ColumnKey(BLOOM))[7]))
    repaired = nyala.check(tmp_path / "s", repair=True)
    assert repaired.ok and len(repaired.repairs) == 1
    with open_database(tmp_path / "s") as db:
        assert rows(db["t"], at=before) == expected


@pytest.mark.parametrize("suffix", [".base", ".undo", ".redo", ".part"])
def test_bytes_behind_the_end_of_a_file_are_cut_off(
    store: Path, origin: tuple[Path, list[int]], suffix: str
) -> None:
    """Nobody reads bytes behind the end of a file. A repair cuts them off."""
    with open_database(copy_store(origin[0], store.with_name("copy"))) as db:
        expected = contents(db, origin[1])
    file = a_file(store, suffix)
    whole = file.read_bytes()
    file.write_bytes(whole + b"behind")
    with open_database(store) as db:
        assert same(contents(db, origin[1]), expected)
    (problem,) = nyala.check(store).problems
    assert (problem.kind, problem.path, problem.offset) == ("surplus", str(file), len(whole))
    repaired = nyala.check(store, repair=True)
    assert repaired.ok and repaired.repairs == (
        f"cut 6 bytes off the end of {file.relative_to(store)}, which belong to no data",
    )
    assert file.read_bytes() == whole


def test_a_log_that_is_too_large_for_memory_is_not_replayed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its records are read, and a note says that its rows were not checked. After a flush they are."""
    monkeypatch.setattr(check, "REPLAY_LIMIT_BYTES", 1000)
    monkeypatch.setattr(bootstrap, "GATHER_ROWS", 1)
    report = nyala.check(store)
    assert report.ok and report.log_records == 5 and "were not checked" in report.notes[0]
    with open_database(store) as db:
        db.flush()
    assert "were not checked" not in str(nyala.check(store).notes)
    tamper(store, copied_rowset(store))
    assert "key-twice" in kinds(store)


@pytest.mark.parametrize("where", ["rows", "undo"])
def test_a_rowset_with_damaged_rows_is_not_repaired(store: Path, where: str) -> None:
    """A rewrite would drop the damaged rows. The report names the file and advises a backup."""
    file = base = a_file(store, ".base")
    content = bytearray(base.read_bytes())
    content[bytes_of(base, ColumnKey(BLOOM))[7]] ^= 1
    content[80] ^= where == "rows"  # a block of values
    base.write_bytes(bytes(content))
    if where == "undo":
        file = base.with_name(base.name + ".undo")
        content = bytearray(file.read_bytes())
        content[80] ^= 1
        file.write_bytes(bytes(content))
        assert kinds(store) == {"index", "damage"}
    orphan = orphan_in_data(store)
    orphan.write_bytes(b"")
    report = nyala.check(store, repair=True)
    assert not report.ok and file.read_bytes() == bytes(content)
    assert report.repairs == (f"removed {orphan.relative_to(store)}, which the catalogue does not name",)
    assert any(
        note.startswith(f"not repaired: damage of {file.relative_to(store)} (table") and "backup" in note
        for note in report.notes
    ), report.notes


def test_wrong_bounds_are_repaired(store: Path, origin: tuple[Path, list[int]]) -> None:
    with open_database(origin[0]) as db:
        expected = contents(db, origin[1])
    tamper(store, wrong_bounds)
    repaired = nyala.check(store, repair=True)
    assert repaired.ok and len(repaired.repairs) == 1
    with open_database(store) as db:
        assert same(contents(db, origin[1]), expected)
    assert nyala.check(store).ok


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", [".base", ".undo", ".redo", ".part", "nyala.json"])
def test_a_missing_file_is_found(store: Path, suffix: str) -> None:
    file = a_file(store, suffix)
    file.unlink()
    problems = nyala.check(store).problems
    assert problems[0].kind == "missing-file"
    assert problems[0].path == str(file) and not problems[0].repairable
    if suffix == ".base":
        message = f"{file} does not exist, but the store needs it: restore it from a backup"
        assert problems[0].message == message
    again = nyala.check(store, repair=True)
    assert not again.ok and again.repairs == (), "a repair cannot create a missing file"


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "missing"])
def test_current_rows_are_read_without_a_damaged_undo_file(
    store: Path, origin: tuple[Path, list[int]], damage: str
) -> None:
    """The message says that only earlier snapshots need the file, and each message appears once."""
    undo = a_file(store, ".undo")
    content = bytearray(undo.read_bytes())
    content[len(content) // 3] ^= 4
    if damage == "missing":
        undo.unlink()
    else:
        undo.write_bytes(bytes({"flip": content, "cut": content[:-1], "empty": b""}[damage]))
    problems = nyala.check(store).problems
    messages = [problem.message for problem in problems]
    assert len(set(messages)) == len(messages) and all(problem.path == str(undo) for problem in problems)
    past = "; current rows are read without this file, only earlier snapshots need it"
    assert all(message.endswith(past) for message in messages)
    with open_database(store) as db, open_database(origin[0]) as whole:
        for name in ("t", "u"):
            assert repr(rows(db[name])) == repr(rows(whole[name]))


@pytest.mark.parametrize("suffix", [".base", ".undo", ".redo", ".part"])
@pytest.mark.parametrize("damage", ["flip", "cut", "append", "empty"])
def test_a_damaged_file_is_found(store: Path, suffix: str, damage: str) -> None:
    file = a_file(store, suffix)
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[len(content) // 3] ^= 4
    made = {"flip": content, "cut": content[:-1], "append": content + b"\0", "empty": b""}[damage]
    file.write_bytes(bytes(made))
    report = nyala.check(store)
    found = [problem for problem in report.problems if problem.path == str(file)]
    assert suffix == ".undo" or not any("current rows" in problem.message for problem in found)
    kind = "surplus" if damage == "append" else "damage"
    assert found and found[0].kind == kind and found[0].rowset_id is not None, report.problems
    assert found[0].table in ("t", "u") and found[0].offset is not None
    with pytest.raises(nyala.CorruptionError), nyala.connect(store) as db:
        for name in db.list_tables():
            db._root().table(name)
            for tablet in db._root().table(name).tablets:
                for rowset in tablet.rowsets:
                    rowset.check()


def orphan_in_data(path: Path) -> Path:
    return next(folder for folder in (path / "data").iterdir()) / "77-0123456789abcdef.base"


def orphan_in_log(path: Path) -> Path:
    first = min((path / "wal").glob("wal-*"))
    return first.with_name(first.name[:-1] + "0")


def orphan_in_staging(path: Path) -> Path:
    return path / "staging" / "not-a-job"


@pytest.mark.parametrize("place", [orphan_in_data, orphan_in_log, orphan_in_staging])
def test_an_orphan_is_found_and_removed(store: Path, place: Callable[[Path], Path]) -> None:
    orphan = place(store)
    orphan.write_bytes(b"an orphan")
    (problem,) = nyala.check(store).problems
    assert (problem.kind, problem.path, problem.repairable) == ("orphan-file", str(orphan), True)
    repaired = nyala.check(store, repair=True)
    assert repaired.ok and not orphan.exists()
    assert repaired.repairs == (f"removed {orphan.relative_to(store)}, which the catalogue does not name",)


def file_in_data(path: Path) -> Path:
    file = path / "data" / ".DS_Store"
    file.write_bytes(b"?")
    return file


def file_called_like_a_tablet(path: Path) -> Path:
    file = path / "data" / "77"
    file.write_bytes(b"?")
    return file


def folder_in_data(path: Path) -> Path:
    folder = path / "data" / "1 (copy)"
    shutil.copytree(next((path / "data").iterdir()), folder)
    return folder


def folder_in_a_tablets(path: Path) -> Path:
    folder = next((path / "data").iterdir()) / "copy"
    folder.mkdir()
    (folder / "1.base").write_bytes(b"?")
    return folder


@pytest.mark.parametrize(
    "place", [file_in_data, file_called_like_a_tablet, folder_in_data, folder_in_a_tablets]
)
def test_foreign_files_are_reported_and_kept(store: Path, place: Callable[[Path], Path]) -> None:
    """Files of other programs in the data folder do not prevent an open, and a repair keeps them."""
    strange = place(store)
    before = sorted(strange.rglob("*"))
    report = nyala.check(store)
    assert report.ok and any(
        note.endswith(f"left alone: {strange.relative_to(store)}") for note in report.notes
    ), report.notes
    assert nyala.check(store, repair=True).ok
    nyala.connect(store).close()
    assert strange.exists() and sorted(strange.rglob("*")) == before


def test_the_note_names_some_of_many_foreign_files(store: Path) -> None:
    for number in range(7):
        (store / "data" / f"mine-{number}").write_bytes(b"?")
    (note,) = [note for note in nyala.check(store).notes if "left alone" in note]
    assert note.endswith(": data/mine-0, data/mine-1, data/mine-2, data/mine-3, data/mine-4 and 2 more")


def test_a_damaged_position_record_is_found_and_rewritten(store: Path) -> None:
    record = store / "wal" / "position"
    record.write_bytes(bytes(len(record.read_bytes())))
    assert kinds(store) == {"position"}
    assert nyala.check(store, repair=True).ok
    assert record.exists()


def test_a_missing_segment_of_the_log_is_found(store: Path) -> None:
    segment = max((store / "wal").glob("wal-*"))
    segment.unlink()
    assert kinds(store) == {"log"} and not nyala.check(store, repair=True).ok


def test_a_lost_end_of_the_log_is_found_and_not_repaired(store: Path) -> None:
    """The position record says that more was synced, which no repair can bring back."""
    last = max((store / "wal").glob("wal-*"))
    last.write_bytes(last.read_bytes()[:-200])
    report = nyala.check(store)
    assert {problem.kind for problem in report.problems} == {"log"} and "backup" in report.problems[0].message
    assert not nyala.check(store, repair=True).ok
    assert last.read_bytes()


def test_a_damaged_catalogue_is_found_and_nothing_is_removed(store: Path) -> None:
    """Without the catalogue nobody knows which files are needed, so a repair removes none."""
    orphan = orphan_in_data(store)
    orphan.write_bytes(b"")
    file = max((store / "checkpoints").iterdir())
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    assert kinds(store) == {"catalogue"}
    assert kinds(store) == {"catalogue"} and nyala.check(store, repair=True).repairs == ()
    assert orphan.exists()


# ── the command line ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_prints_problems_and_exits_with_3(store: Path) -> None:
    from nyala.cli.app import app

    def run(*words: str) -> Any:
        return cli_runner().invoke(app, ["fs", "check", str(store), *words])

    whole = run()
    assert whole.exit_code == 0 and "no problems" in whole.stdout
    orphan = orphan_in_data(store)
    orphan.write_bytes(b"")
    found = run()
    assert found.exit_code == 3 and f"orphan-file: {orphan}" in found.stdout and "--repair" in found.stderr
    document = json.loads(run("--json").stdout)
    assert not document["ok"] and document["problems"][0]["repairable"]
    repaired = run("--repair")
    assert (
        repaired.exit_code == 0
        and f"repaired: removed data/{orphan.parent.name}/{orphan.name}" in repaired.stdout
    )
    a_file(store, ".base").unlink()
    lost = run("--repair")
    assert lost.exit_code == 3 and "backup" in lost.stderr


def test_a_repair_beside_a_writer_is_refused(store: Path) -> None:
    with open_database(store), pytest.raises(nyala.LockedError):
        nyala.check(store, repair=True)
