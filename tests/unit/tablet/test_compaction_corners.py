"""Rare cases of compactions. Each once led to wrong rows or to work without end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import key_value_table, open_database, rows

from nyala.errors import CorruptionError
from nyala.rowset.size import DECODED_PER_TARGET
from nyala.tablet import maintenance
from nyala.tablet.compaction.background import DELAY_S
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.measurement import Layouts
from nyala.tablet.compaction.plans import MergePlan
from nyala.tablet.maintenance import choose_flush, pressure_of
from nyala.testing.clock import ManualClock, SeededRandomness

ROWS = 1 << 17  # two splits of a scan


def test_an_expired_rowset_with_deletes_in_memory_is_dropped_after_a_flush(folder: Path) -> None:
    """A rowset whose last deletes are in memory cannot be dropped before a flush.

    The background does not retry without end, and vacuum flushes first.
    """
    clock = ManualClock()
    with open_database(folder, clock=clock) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, primary_key="k", history="10s")
        table.insert({"k": range(1000), "v": [0] * 1000})
        table.flush()
        table.delete({"k": range(500)})
        table.flush()
        table.delete({"k": range(500, 1000)})
        clock.advance(100)
        table.insert({"k": [5000], "v": [1]})
        compactor = db.maintenance.compactor
        for _ in range(3):
            compactor.run_once(db._writer())
            clock.advance(2)
        assert compactor.counters.given_up == 0
        table.vacuum()
        assert table.stats().rowsets == 1, "only the row that was inserted last is left"
        assert rows(table) == [(5000, 1)]


def test_vacuum_frees_rows_whose_deletes_are_in_memory(folder: Path) -> None:
    """Vacuum frees rows whose deletes are only in memory. `dry_run` counts them too."""
    clock = ManualClock()
    with open_database(folder, clock=clock) as db:
        table = db.create_table("t", {"k": "int64", "s": "string"}, primary_key="k", history="10s")
        table.insert({"k": range(20000), "s": [f"{k * 0x9E3779B97F4A7C15 % 2**64:x}" for k in range(20000)]})
        table.flush()
        table.delete({"k": range(0, 20000, 2)})
        clock.advance(100)
        table.insert({"k": [-1], "s": ["new"]})
        before = table.stats().bytes
        estimate = table.vacuum(dry_run=True)
        assert estimate.rowsets_rewritten == 1 and estimate.bytes > before // 3
        assert table.vacuum().bytes > before // 3
        assert table.stats().dead_rows == 0
        assert table.vacuum(dry_run=True).bytes == 0
        assert table.count() == 10001


@pytest.mark.parametrize("key", ["int64", "string"])
def test_large_rows_are_cut_into_rowsets_of_the_target_size(folder: Path, key: str) -> None:
    """All keys are in one block, whose first key alone does not show where to cut."""
    target, noise = 200_000, SeededRandomness()
    with open_database(folder, rowset_target_bytes=target) as db:
        table = db.create_table("t", {"k": key, "b": "string"}, primary_key="k")
        keys = range(400) if key == "int64" else [f"{number:04}\0" for number in range(400)]
        for part in range(4):
            table.insert({"k": keys[part::4], "b": [noise.token_hex(2500) for _ in range(100)]})
            table.flush()
        table.compact()
        (tablet,) = db._writer().root.table("t").tablets
        sizes = [rowset.size_bytes for rowset in tablet.rowsets]
        assert len(sizes) > 3 and max(sizes) < 1.6 * target and min(sizes) > 0.6 * target, sizes
        assert table.count() == 400
        one = tablet.rowsets[0]
        few = one.keys.sample(7)
        assert few[1].tolist() == list(range(0, one.row_count, one.row_count // 7))
        assert [few[0].at(place) for place in range(len(few[0]))] == [
            one.keys_of(few[1]).at(place) for place in range(len(few[1]))
        ]


def test_text_that_compresses_well_makes_rowsets_that_fit_into_memory(folder: Path) -> None:
    """2 GB of equal text take a few kilobytes on disk, but a merge cannot hold them in memory at once."""
    target = 100_000
    with open_database(folder, rowset_target_bytes=target) as db:
        table = db.create_table("t", {"k": "int64", "s": "string"}, primary_key="k")
        text = "the same text again and again " * 100
        for part in range(8):
            table.insert({"k": range(part * 200, part * 200 + 200), "s": [text] * 200})
            table.flush()
        assert table.stats().bytes < target
        (tablet,) = db._writer().root.table("t").tablets
        decoded = sum(layout.decoded_bytes for layout in Layouts().of_tablet(tablet, 0))
        assert decoded == pytest.approx(1600 * len(text), rel=0.05)
        table.compact()
        (tablet,) = db._writer().root.table("t").tablets
        limit = DECODED_PER_TARGET * target
        assert decoded / limit < len(tablet.rowsets) < 2 * decoded / limit
        assert all(rowset.row_count * len(text) < 1.5 * limit for rowset in tablet.rowsets)
        compactor = db.maintenance.compactor
        assert not compactor.run_once(db._writer()), "no more work is left"
        assert table.count() == 1600


def test_a_log_that_a_merge_keeps_is_no_reason_to_flush(folder: Path) -> None:
    """If a merge keeps the log, no flush is started: it could not make the log shorter.

    Otherwise each write would become a file.
    """
    with open_database(folder, log_limit_bytes=1) as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        table.flush()
        store = db._writer()
        (tablet,) = store.root.table("t").tablets
        with store.flush_lock:
            taken = store.reservations.take([tablet.rowsets[0].id], holds_deltas=True)
        assert taken is not None
        table.insert({"k": [2], "v": [2]})
        assert choose_flush(pressure_of(store)) == {tablet.id}  # older than what the merge keeps
        table.flush()
        table.update({"k": [1], "v": [3]})
        table.insert({"k": [3], "v": [3]})
        assert choose_flush(pressure_of(store)) == set()
        assert pressure_of(store).tablets == [
            maintenance.TabletMemory(tablet.id, *_memory_of_new_rows(store))
        ]
        store.reservations.release(taken)
        assert choose_flush(pressure_of(store)) == {tablet.id}
        assert rows(table) == [(1, 3), (2, 2), (3, 3)]


@pytest.mark.parametrize("work", ["dry run", "vacuum", "compact"])
def test_files_in_use_by_manual_maintenance_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """The background merges rowsets, and removes their files, after the call chose them."""
    clock = ManualClock()
    with open_database(folder, clock=clock) as db:
        table = db.create_table("t", {"k": "int64", "s": "string"}, primary_key="k", history="10s")
        for part in range(6):
            table.insert({"k": range(part, 6000, 6), "s": ["text"] * 1000})
            table.flush()
        table.delete({"k": range(0, 6000, 4)})
        table.flush()
        clock.advance(100)
    with open_database(folder, clock=clock) as db:
        table, store = db["t"], db._writer()
        of_tablet, busy = Layouts.of_tablet, [True]

        def late(self: Layouts, *arguments: Any, **keywords: Any) -> Any:
            if busy[0]:
                busy[0] = False
                (tablet,) = store.root.table("t").tablets
                plan = MergePlan(tuple(rowset.id for rowset in tablet.rowsets), 1.0)
                assert compact(store, tablet.entry.table_id, tablet.id, plan, run_here(store))
                store.collect_garbage()
            return of_tablet(self, *arguments, **keywords)

        monkeypatch.setattr(Layouts, "of_tablet", late)
        if work == "compact":
            table.compact()
        else:
            table.vacuum(dry_run=work == "dry run")
        assert not busy[0] and len(store.root.table("t").tablets[0].rowsets) == 1
        store.collect_garbage()
        assert not store.state.garbage, "no one needs the files any more"
        assert table.count() == 4500


def test_n2_a_damaged_file_does_not_stop_compactions_of_other_tables(folder: Path) -> None:
    """Planning reads liveness from files.

    The tablet of a file that cannot be read is delayed, longer each time.
    """
    clock = ManualClock()
    with open_database(folder, clock=clock) as db:
        for name in ("damaged", "whole"):
            table = db.create_table(name, {"k": "int64"}, primary_key="k", history="10s")
            for part in range(6):
                table.insert({"k": range(part, 6000, 6)})
                table.flush()
            table.delete({"k": range(0, 6000, 6)})
            table.flush()
        for rowset in db._writer().root.table("damaged").tablets[0].rowsets:
            for file in rowset.redo:
                (folder / file.path).write_bytes(bytes(file.size_bytes))
    with open_database(folder, clock=clock) as db:
        clock.advance(100)
        compactor = db.maintenance.compactor
        with pytest.raises(CorruptionError):
            compactor.run_once(db._writer())
        while compactor.run_once(db._writer()):
            pass
        assert db["whole"].stats().rowsets == 1
        for seconds in (DELAY_S, 2 * DELAY_S):
            clock.advance(seconds - 1)
            assert not compactor.run_once(db._writer())
            clock.advance(1)
            with pytest.raises(CorruptionError):
                compactor.run_once(db._writer())


def _memory_of_new_rows(store: Any) -> tuple[int, int]:
    (tablet,) = store.root.table("t").tablets
    return tablet.memory.nbytes, tablet.memory.timestamp_min
