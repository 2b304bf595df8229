"""Compactions while others write: reads of every moment return the same rows before and after.

Kinds of work, and the phases in which a test can do something else (`phase`):

    flush                "frozen": memory is set aside; "written": before the change of the catalogue
    merge                "reserved": the inputs are flushed as of S; "written": before the install
    major, minor, undo   as for a merge, but DeltaMemStores of the rowset may be flushed

Each named case is a history in which such an engine could lose, double or resurrect a row."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.sampled import in_turns
from tests.support import logged_rows, open_database, rows

import nyala
from nyala.api.database import Database
from nyala.delta.run import LIVENESS
from nyala.env import PosixFiles, RandomFile, system_files
from nyala.errors import CorruptionError, StorageError
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet.compaction import file_jobs
from nyala.tablet.compaction.lifecycle import CompactionReport, compact, run_here
from nyala.tablet.compaction.plans import MajorPlan, MergePlan, MinorPlan, Plan
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.workers.process import JobCancelled
from nyala.testing.faulty_files import FaultyFiles

Act = Callable[[], None]


# --- helpers -------------------------------------------------------------------------------


def rowsets(db: Database, name: str = "t") -> tuple[DiskRowSet, ...]:
    (tablet,) = db._writer().root.table(name).tablets
    return tablet.rowsets


def merge(db: Database, outputs: int = 1, only: slice = slice(None), **options: Any) -> Any:
    ids = tuple(rowset.id for rowset in rowsets(db)[only])
    return carry_out(db, MergePlan(ids, 1.0, outputs), **options)


def major(db: Database, *columns: str, number: int = 0, **options: Any) -> Any:
    """Compact the deltas of these columns ("liveness" is one); default: all changed columns."""
    schema = db._writer().root.table("t").schema
    names = columns or (*(column.name for column in schema.value_columns), "liveness")
    ids = tuple(LIVENESS if name == "liveness" else schema.by_name(name).id for name in names)
    return carry_out(db, MajorPlan(rowsets(db)[number].id, tuple(sorted(ids)), 1.0), **options)


def minor(
    db: Database, files: slice = slice(None), kind: Any = "redo", number: int = 0, **options: Any
) -> Any:
    return carry_out(db, MinorPlan(rowsets(db)[number].id, files, 1.0, kind), **options)


def carry_out(db: Database, plan: Plan, runner: Any = None, **options: Any) -> CompactionReport | None:
    store = db._writer()
    table = store.root.table("t")
    return compact(store, table.id, table.tablets[0].id, plan, runner or run_here(store), **options)


def at(name: str, act: Act) -> Callable[[str], None]:
    """Return a phase function that calls `act` in the phase `name`."""
    seen = []

    def phase(reached: str) -> None:
        seen.append(reached)
        if reached == name:
            act()

    return phase


class Recorded:
    """The table's rows at each moment, recorded while this moment was the present."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.moments: list[tuple[int, list[tuple[Any, ...]]]] = []

    def note(self) -> None:
        self.moments.append((self.db.now(), rows(self.db["t"])))

    def check(self, db: Database | None = None) -> None:
        """Check that every moment has its recorded rows, and that all structures keep their invariants."""
        db = db or self.db
        for moment, expected in self.moments:
            assert rows(db["t"], at=moment) == expected, f"at {moment}"
        assert rows(db["t"]) == self.moments[-1][1]
        for _, tablet in db._writer().root.tablets():
            for rowset in tablet.all_rowsets():
                rowset.check()
        assert list(db._writer().state.problems()) == []

    def write(self, operation: str, *arguments: Any, **options: Any) -> None:
        getattr(self.db["t"], operation)(*arguments, **options)
        self.note()


def data_files(path: Path | str) -> set[str]:
    root = Path(path)
    return {str(file.relative_to(root)) for file in (root / "data").rglob("*") if file.is_file()}


def no_orphan(db: Database) -> None:
    """Check that the folder has exactly the files that the catalogue names."""
    state = db._writer().state
    wanted = {path for path in state.garbage if path.startswith("data/")} | set(state.files())
    assert data_files(db.path) == wanted


def killed(db: Database, folder: Path) -> Path:
    """Return a copy of the folder, as a process that is killed now would leave it."""
    copy = folder / f"killed-{len(list(folder.iterdir()))}"
    shutil.copytree(db.path, copy, ignore=shutil.ignore_patterns("*.sock"))
    return copy


def two_rowsets(db: Database) -> Recorded:
    """Create two rowsets that overlap, with ghosts and delta files.

           0       1     2     3     4     5     6     7
    A      REDO    REDO  .     dead  dead  dead            four REDO files
    B                          .     dead        REDO  REDO   three REDO files
    """
    table = db.create_table("t", {"k": "int64", "a": "int64", "b": "string"}, "k", history="forever")
    recorded = Recorded(db)
    recorded.write("insert", {"k": list(range(6)), "a": list(range(6)), "b": [f"{k}" for k in range(6)]})
    db.flush()
    recorded.write("delete", {"k": [3, 4]})
    recorded.write("insert", {"k": [3, 4, 6, 7], "a": [30, 40, 60, 70], "b": ["30", None, "60", "70"]})
    db.flush()
    recorded.write("update", {"k": [0, 6], "a": [100, None]})
    db.flush()
    recorded.write("update", {"k": [0, 7], "b": ["hundred", None]})
    recorded.write("delete", {"k": [4]})
    db.flush()
    recorded.write("update", {"k": [1, 7], "a": [11, 77], "b": ["eleven", "seven"]})
    recorded.write("delete", {"k": [5]})
    db.flush()
    assert [len(rowset.redo) for rowset in rowsets(db)] == [4, 3] and table.count() == 6
    return recorded


# --- writes in each phase of each kind of work ------------------------------------------------------------


def _batch(recorded: Recorded) -> None:
    """Write a batch that inserts and deletes a new key, and deletes and inserts an existing key.

    The first has no effect, the second is an update.
    """
    with recorded.db.batch() as batch:
        batch.insert("t", {"k": [30], "a": [1]})
        batch.delete("t", {"k": [30]})
        batch.delete("t", {"k": [2]})
        batch.insert("t", {"k": [2], "a": [22]})
    recorded.note()


def _again(recorded: Recorded) -> None:
    recorded.write("delete", {"k": [2, 3, 7]}, on_missing="ignore")
    recorded.write("insert", {"k": [2, 3, 7], "a": [-2, -3, -7], "b": ["again"] * 3})
    recorded.write("update", {"k": [3], "a": [-33]})


def _while_dead(recorded: Recorded) -> None:
    recorded.write("delete", {"k": [0, 6]}, on_missing="ignore")


MUTATIONS: dict[str, Callable[[Recorded], None]] = {
    "inserts, of ghosts too": lambda recorded: recorded.write(
        "insert", {"k": [4, 5, 20], "a": [4, 5, 20]}, on_conflict="ignore"
    ),
    "updates": lambda recorded: recorded.write(
        "update", {"k": [0, 3, 6], "a": [-1, None, -6]}, on_missing="ignore"
    ),
    "deletes": _while_dead,
    "deleted and inserted again": _again,
    "upserts of one column": lambda recorded: recorded.write("upsert", {"k": [0, 4, 7, 21], "b": ["u"] * 4}),
    "one batch that undoes itself": _batch,
}

KINDS: dict[str, tuple[Callable[..., Any], tuple[str, str]]] = {
    "flush": (lambda db, phase: flush(db._writer(), phase=phase), ("frozen", "written")),
    "minor": (lambda db, phase: minor(db, phase=phase), ("reserved", "written")),
    "major of one column": (lambda db, phase: major(db, "a", phase=phase), ("reserved", "written")),
    "major": (lambda db, phase: major(db, phase=phase), ("reserved", "written")),
    "merge": (lambda db, phase: merge(db, phase=phase), ("reserved", "written")),
    "merge into three": (lambda db, phase: merge(db, 3, phase=phase), ("reserved", "written")),
    "rewrite of one": (lambda db, phase: merge(db, only=slice(1), phase=phase), ("reserved", "written")),
}

PHASES = ("reserved", "written")
# Other kinds run only with the tests marked `long`.
KINDS_IN_EVERY_RUN = ("minor", "merge")
KIND_PARAMETERS = [
    pytest.param(kind, marks=() if kind in KINDS_IN_EVERY_RUN else pytest.mark.long) for kind in KINDS
]


@pytest.mark.parametrize(("mutation", "kind"), in_turns(MUTATIONS, KINDS))
def test_writes_in_any_phase_are_neither_lost_nor_doubled(db: Database, kind: str, mutation: str) -> None:
    """Rows are written before, during and after each kind of work.

    Then every moment has its rows, and each key is live in one rowset.
    """
    recorded, (work, phases) = two_rowsets(db), KINDS[kind]
    MUTATIONS[mutation](recorded)
    reached = []

    def phase(name: str) -> None:
        reached.append(name)
        MUTATIONS[mutation](recorded)

    assert work(db, phase)
    assert tuple(reached) == phases
    recorded.check()
    MUTATIONS[mutation](recorded)
    db.flush()
    recorded.check()
    assert merge(db) is not None and len(rowsets(db)) == 1
    recorded.check()
    db["t"].upsert({"k": list(range(9)), "a": [1] * 9})
    assert db["t"].count("a = 1 AND k < 9") == 9


@pytest.mark.parametrize("kind", KIND_PARAMETERS)
def test_a_process_killed_in_any_phase_loses_nothing_and_leaves_no_file(
    folder: Path, db: Database, kind: str
) -> None:
    """The next open has every acknowledged row, and removes unreferenced files; then the store can
    be used.
    """
    recorded, (work, _) = two_rowsets(db), KINDS[kind]
    images: list[tuple[Path, list[Any]]] = []

    def everything(name: str) -> None:
        for mutation in MUTATIONS.values():
            mutation(recorded)
        images.append((killed(db, folder), list(recorded.moments)))

    assert work(db, everything)
    everything("installed")
    db._writer().collect_garbage()
    everything("collected")
    for image, moments in images:
        with open_database(image) as again:
            recorded_then = Recorded(again)
            recorded_then.moments = moments
            recorded_then.check()
            no_orphan(again)
            again["t"].compact()
            recorded_then.check()
            again["t"].upsert({"k": list(range(9)), "a": [1] * 9})  # each key is live in one rowset
            assert again["t"].count("a = 1 AND k < 9") == 9


@pytest.mark.parametrize(
    ("kind", "phase"), in_turns(["minor", "major", "major of one column", "undo"], PHASES)
)
def test_r4_a_flush_during_a_delta_compaction(db: Database, kind: str, phase: str) -> None:
    """Rowids do not change, so the rowset can be flushed.

    The new REDO file comes after the result of the compaction.
    """
    recorded = two_rowsets(db)
    if kind == "undo":
        major(db, "b")

    def flushed() -> None:
        for value in (1, 2):
            recorded.write("update", {"k": [0, 2], "a": [value, value], "b": ["x", "y"]})
            recorded.write("delete", {"k": [1]}, on_missing="ignore")
            recorded.write("insert", {"k": [1], "a": [value]})
            db.flush()

    if kind == "undo":
        assert minor(db, kind="undo", phase=at(phase, flushed))
    else:
        assert KINDS[kind][0](db, at(phase, flushed))
    recorded.check()
    for older, newer in pairwise(rowsets(db)[0].redo):
        assert older.timestamp_max <= newer.timestamp_min
    db.close()
    with open_database(db.path) as again:
        recorded.check(again)


# --- R3, R4: flushes, direct commits and drops during compactions ------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_r3_a_flush_during_a_merge_does_not_write_changes_of_its_inputs(
    folder: Path, db: Database, phase: str
) -> None:
    """A flush would write the changes to an input that the merge drops, so the log keeps them."""
    recorded = two_rowsets(db)
    images = []

    def flushed() -> None:
        before = [rowset.redo for rowset in rowsets(db)]
        recorded.write("update", {"k": [0, 6], "a": [45, 46]})
        recorded.write("insert", {"k": [50], "a": [50]})
        db.flush()
        old = rowsets(db)[:2]
        assert [rowset.redo for rowset in old] == before
        assert [rowset.deltas.record_count for rowset in old] == [1, 1]
        assert not any(rowset.frozen for rowset in old)
        assert len(rowsets(db)) == 3, "the MemRowSet is not an input, so it is flushed"
        assert logged_rows(db), "R3: the log has the changes, because they are only in memory"
        images.append(killed(db, folder))

    assert merge(db, phase=at(phase, flushed))
    recorded.check()
    new = rowsets(db)[-1]
    assert new.deltas.record_count == 2 and len(rowsets(db)) == 2
    images.append(killed(db, folder))
    db.flush()
    assert not rowsets(db)[-1].deltas.record_count and logged_rows(db) == 0
    recorded.check()
    for image in images:
        with open_database(image) as again:
            recorded.check(again)
            no_orphan(again)


def test_r2_a_merges_outputs_are_durable_up_to_its_beginning(db: Database) -> None:
    """With a greater mark, a replay would skip changes made during the merge; with a smaller one,
    it would double them.
    """
    recorded = many_rows(db)
    recorded.write("update", {"k": [0], "v": [1]})
    snapshot = db.now()
    late = at("written", lambda: recorded.write("update", {"k": [0], "v": [2]}))
    assert merge(db, 2, phase=late)
    assert [rowset.meta.deltas_durable for rowset in rowsets(db)] == [snapshot, snapshot]
    assert [rowset.timestamp_min for rowset in rowsets(db)] == [db.now(), None]


@pytest.mark.parametrize("phase", PHASES)
def test_r4_a_direct_commit_revokes_a_merge(folder: Path, phase: str) -> None:
    """A direct commit cannot wait for the merge, so the merge gives up, and no row is lost."""
    with open_database(folder / "s", direct_commit_bytes=1000) as db:
        recorded = two_rowsets(db)
        before: set[str] = set()
        assert merge(db, phase=at(phase, lambda: _large_batch(recorded, before))) is None
        recorded.check()
        assert len(rowsets(db)) == 3
        assert data_files(db.path) <= before, "C4: a compaction that gives up leaves no file"
        no_orphan(db)
        assert not any(db._writer().reservations.taken(rowset.id) for rowset in rowsets(db))
        assert merge(db)
        recorded.check()
        db.close()
        with open_database(folder / "s") as again:
            recorded.check(again)


@pytest.mark.parametrize(("kind", "phase"), in_turns(["minor", "major"], PHASES))
def test_r4_a_direct_commit_during_a_delta_compaction(folder: Path, kind: str, phase: str) -> None:
    """Rowids do not change, so the compaction is completed, as during a flush."""
    with open_database(folder / "s", direct_commit_bytes=1000) as db:
        recorded = two_rowsets(db)
        assert KINDS[kind][0](db, at(phase, lambda: _large_batch(recorded, set())))
        recorded.check()
        no_orphan(db)
        db.close()
        with open_database(folder / "s") as again:
            recorded.check(again)
            assert merge(again)
            recorded.check(again)


def _large_batch(recorded: Recorded, files: set[str]) -> None:
    """Write changes of both rowsets and new rows as files; adds the names of all present files to `files`."""
    recorded.write("update", {"k": [0], "a": [1]})
    many = [0, *range(3, 200)]
    recorded.write("upsert", {"k": many, "b": ["direct"] * len(many)})
    files.update(data_files(recorded.db.path))


@pytest.mark.parametrize("phase", PHASES)
def test_a_direct_commit_of_new_rows_revokes_no_compaction(folder: Path, phase: str) -> None:
    """This holds even if ghosts of its keys are in memory."""
    with open_database(folder / "s", direct_commit_bytes=1000) as db:
        recorded = two_rowsets(db)

        def load() -> None:
            recorded.write("delete", {"k": [0, 6]})
            many = [0, 4, 6, *range(8, 200)]
            recorded.write("insert", {"k": many, "a": many, "b": ["loaded"] * len(many)})
            recorded.write("update", {"k": [0, 1, 50], "a": [1, 2, 3]})

        ids = {rowset.id for rowset in rowsets(db)}
        assert merge(db, 2, phase=at(phase, load))
        assert not ids & {rowset.id for rowset in rowsets(db)}
        recorded.check()
        db.close()
        with open_database(folder / "s") as again:
            recorded.check(again)
            assert merge(again)
            recorded.check(again)


def test_r4_a_direct_commit_to_another_table_revokes_no_compaction(folder: Path) -> None:
    with open_database(folder / "s", direct_commit_bytes=1000) as db:
        recorded = two_rowsets(db)
        other = db.create_table("other", {"k": "int64"}, "k")
        late = at("written", lambda: other.insert({"k": list(range(500))}) and None)
        assert merge(db, phase=late)
        recorded.check()
        assert other.count() == 500


@pytest.mark.parametrize(("kind", "phase"), in_turns(["minor", "major", "merge"], PHASES))
def test_a_table_dropped_during_its_compaction_leaves_no_file(db: Database, kind: str, phase: str) -> None:
    """The compaction has no effect and leaves no file."""
    two_rowsets(db)

    def drop() -> None:
        db.drop_table("t", purge=True)
        db._writer().collect_garbage()

    assert KINDS[kind][0](db, at(phase, drop)) is None
    db._writer().collect_garbage()
    assert data_files(db.path) == set() and db.list_tables() == []
    db.create_table("t", {"k": "int64", "a": "int64"}, "k")
    assert rows(db["t"]) == []


# --- ghosts -----------------------------------------------------------------------------------------------


def lives(db: Database, count: int, ends_alive: bool) -> Recorded:
    """Create one key that lives `count` times, each time in its own rowset, beside a key that stays."""
    db.create_table("t", {"k": "int64", "v": "int64"}, "k", history="forever")
    recorded = Recorded(db)
    for life in range(count):
        recorded.write("insert", {"k": [1, 10 + life], "v": [10 * life, 0]})
        recorded.write("update", {"k": [1], "v": [10 * life + 1]})
        db.flush()
        recorded.write("update", {"k": [1], "v": [10 * life + 2]})
        if life < count - 1 or not ends_alive:
            recorded.write("delete", {"k": [1]})
        db.flush()
    assert len(rowsets(db)) == count
    return recorded


@pytest.mark.parametrize(
    ("pair", "ends_alive"), [((0, 1), True), ((0, 2), True), ((0, 3), True), ((1, 3), True), ((1, 3), False)]
)
def test_g1_rowsets_with_rows_of_one_key_may_be_merged_in_any_order(
    db: Database, pair: tuple[int, int], ends_alive: bool
) -> None:
    """The first two need not be neighbours in time: their row was dead while another row of the key lived."""
    recorded = lives(db, 4, ends_alive)
    table, first = db["t"], recorded.moments[0][0]
    versions = table.history({"k": 1}).to_pylist()
    changes = [table.changes(first, versions=kind).to_arrow().to_pylist() for kind in ("net", "all")]
    ids = [rowset.id for rowset in rowsets(db)]
    assert carry_out(db, MergePlan(tuple(ids[number] for number in pair), 1.0))
    while True:
        recorded.check()
        assert table.history({"k": 1}).to_pylist() == versions
        for kind, expected in zip(("net", "all"), changes, strict=True):
            found = table.changes(first, versions=kind).to_arrow().to_pylist()
            assert sorted(found, key=str) == sorted(expected, key=str)
        if len(rowsets(db)) == 1:
            break
        assert merge(db, only=slice(2))
    assert rowsets(db)[0].row_count == 5


def test_r5_a_key_inserted_again_during_a_merge_of_its_ghosts(folder: Path, db: Database) -> None:
    """The new row is in memory, and the merged one stays dead.

    The next delete and update must find the new row.
    """
    recorded = lives(db, 3, False)
    assert merge(db, phase=at("written", lambda: recorded.write("insert", {"k": [1], "v": [99]})))
    recorded.check()
    recorded.write("update", {"k": [1], "v": [100]})
    image = killed(db, folder)
    with open_database(image) as again:
        recorded.check(again)
    recorded.write("delete", {"k": [1]})
    db.flush()
    assert merge(db)
    recorded.check()


def many_rows(db: Database) -> Recorded:
    """Create two rowsets of 400 rows, one after the other, with blocks so small that a merge can cut them."""
    key = nyala.column("int64", block_size=512)
    table = db.create_table("t", {"k": key, "v": "int64"}, "k", history="forever")
    recorded = Recorded(db)
    for first in (0, 400):
        recorded.write("insert", {"k": list(range(first, first + 400)), "v": [0] * 400})
        db.flush()
    assert table.count() == 800
    return recorded


def test_many_rows_of_one_timestamp_keep_their_order_in_time(db: Database) -> None:
    """All rows of a batch have one timestamp; they are on both sides of borders of rowsets and of
    delta files.
    """
    recorded = many_rows(db)
    for value in range(1, 4):
        recorded.write("update", {"k": list(range(800)), "v": [value] * 800})
        if value == 2:
            recorded.write("delete", {"k": list(range(0, 800, 2))})
            recorded.write("insert", {"k": list(range(0, 800, 2)), "v": [-1] * 400})
        db.flush()
    assert merge(db, 4)
    recorded.check()
    assert db["t"].count() == 800 and len(rowsets(db)) == 4
    assert all(left.meta.key_max < right.meta.key_min for left, right in pairwise(rowsets(db)))


def test_c1_a_merge_refuses_a_key_that_is_alive_twice(db: Database) -> None:
    """A merge must not hide damage (G1): the error names the key, and nothing changes."""
    recorded = two_rowsets(db)
    store = db._writer()
    files = data_files(db.path)
    table = store.root.table("t")
    doubled = MergePlan(tuple(rowset.id for rowset in rowsets(db)), 1.0)

    def twice(job: Any, reservation: Any) -> Any:
        return run_here(store)(dataclasses.replace(job, inputs=(*job.inputs, job.inputs[0])), reservation)

    with pytest.raises(CorruptionError, match="two rows whose lives overlap"):
        compact(store, table.id, table.tablets[0].id, doubled, twice)
    assert data_files(db.path) == files
    recorded.check()


# --- files after a compaction -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "redo_left"),
    [(("a",), 1), (("b",), 1), (("liveness",), 1), (("a", "b"), 1), (("a", "b", "liveness"), 0), ((), 0)],
)
def test_a_major_delta_compaction_leaves_at_most_one_redo_and_adds_one_undo_file(
    db: Database, columns: tuple[str, ...], redo_left: int
) -> None:
    """REDO of the columns moves to base and UNDO, other REDO becomes one file, and rowids stay."""
    recorded = two_rowsets(db)
    before = rowsets(db)[0]
    assert len(before.redo) == 4
    assert major(db, *columns)
    after = rowsets(db)[0]
    assert len(after.redo) == redo_left
    assert len(after.undo) == len(before.undo) + 1 and len(after.parts) == 1
    assert after.meta == before.meta
    schema = db._writer().root.table("t").schema
    chosen = {LIVENESS if name == "liveness" else schema.by_name(name).id for name in columns}
    if columns:
        assert after.parts[0].column_ids == chosen
        assert not any(set(file.column_ids) & chosen for file in after.redo)
    recorded.check()
    db.close()
    with open_database(db.path) as again:
        recorded.check(again)
        assert len(rowsets(again)[0].parts) == 1


def test_repeated_major_delta_compactions(db: Database) -> None:
    """A column is read from its newest part. A part that is not the newest one for any column is removed."""
    recorded = two_rowsets(db)
    for round_, columns in enumerate((("a", "b"), ("a",), ("b",), ("liveness",), ("a", "b"))):
        recorded.write("update", {"k": [0, 2], "a": [round_, -round_]})
        recorded.write("update", {"k": [2], "b": [f"round {round_}"]})
        recorded.write("delete", {"k": [1]}, on_missing="ignore")
        recorded.write("insert", {"k": [1], "a": [round_]})
        db.flush()
        major(db, *columns)
        recorded.check()
        no_orphan(db)
    first = rowsets(db)[0]
    assert [len(part.column_ids) for part in first.parts] == [1, 2]
    assert len(first.undo) == 6
    db.close()
    with open_database(db.path) as again:
        recorded.check(again)
        assert merge(again)
        recorded.check(again)
        again._writer().collect_garbage()
        assert not [name for name in data_files(again.path) if name.endswith(".part")]


def undo_files(db: Database) -> Recorded:
    """Create a rowset with UNDO files of six major compactions of `a`; two of them also compacted `b`."""
    db.create_table("t", {"k": "int64", "a": "int64", "b": "int64"}, "k", history="forever")
    recorded = Recorded(db)
    recorded.write("insert", {"k": [1, 2], "a": [0, 0], "b": [0, 0]})
    db.flush()
    for round_ in range(1, 7):
        recorded.write("update", {"k": [1, 2], "a": [round_, -round_]})
        recorded.write("update", {"k": [1], "b": [round_]})
        db.flush()
        major(db, *(("a", "b") if round_ in (3, 6) else ("a",)))
    assert len(rowsets(db)[0].undo) == 7
    return recorded


@pytest.mark.parametrize(("first", "second"), in_turns([0, 2, 3, 5], [slice(0, 2), slice(1, 3)]))
def test_x2_undo_files_merged_in_any_order_keep_every_moment(db: Database, first: int, second: slice) -> None:
    """If an UNDO file is between two others in time, all three must be merged, or reads of some
    moments would be wrong.
    """
    recorded = undo_files(db)
    assert minor(db, slice(first, first + 2), "undo")
    recorded.check()
    newest = [file.timestamp_max for file in rowsets(db)[0].undo]
    assert newest == sorted(newest, reverse=True) and len(newest) in (5, 6)
    minor(db, second, "undo")
    recorded.check()
    db.close()
    with open_database(db.path) as again:
        recorded.check(again)
        minor(again, slice(0, 2), "undo")
        recorded.check(again)
        assert minor(again, slice(0, 9), "undo") or len(rowsets(again)[0].undo) == 1
        recorded.check(again)
        assert len(rowsets(again)[0].undo) == 1


# --- cost ---------------------------------------------------------------------------------------


class _Opened(PosixFiles):
    """Records which files were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    def open(self, path: str) -> RandomFile:
        self.paths.append(path)
        return super().open(path)

    def take(self) -> set[str]:
        """Return the endings of the data files that were opened since the last call."""
        paths, self.paths = self.paths, []
        return {path.rsplit(".", 1)[1] for path in paths if "/data/" in path}


def test_scans_open_only_the_delta_files_that_they_need(folder: Path) -> None:
    """Neither UNDO files for the present, nor files whose records are all older than the moment."""
    with open_database(folder / "s") as db:
        recorded = two_rowsets(db)
        merge(db)
        recorded.write("update", {"k": [0], "a": [5]})
        db.flush()
        major(db)
    files = _Opened()
    with open_database(folder / "s", files=files) as db:
        files.take()
        assert rows(db["t"]) == recorded.moments[-1][1]
        assert db["t"].count() == 6
        assert files.take() == {"base", "part"}
        assert rows(db["t"], at=recorded.moments[-2][0]) == recorded.moments[-2][1]
        assert files.take() == {"undo"}
        assert len([file for file in rowsets(db)[0].undo if file.relevant(recorded.moments[-2][0])]) == 1


def test_a_scan_keeps_its_files(db: Database) -> None:
    """Earlier scans and snapshots can be read after their files were replaced."""
    recorded = two_rowsets(db)
    moment, expected = recorded.moments[3]
    scan, snapshot = db["t"].scan(at=moment, order_by_key=True), db.snapshot()
    now = rows(db["t"])
    old = set(rowsets(db)[0].paths) | set(rowsets(db)[1].paths)
    major(db)
    merge(db, phase=at("written", lambda: recorded.write("delete", {"k": [0]})))
    db._writer().collect_garbage()
    assert old <= data_files(db.path)
    assert [tuple(row.values()) for row in scan.to_arrow().to_pylist()] == expected
    assert rows(snapshot["t"]) == now
    del scan
    snapshot.close()
    db._writer().collect_garbage()
    assert not old & data_files(db.path)
    recorded.check()


def test_n3_other_calls_do_not_wait_for_a_compaction(db: Database) -> None:
    """The compaction reads and writes files without a lock that a write, a scan or a flush needs."""
    recorded = two_rowsets(db)
    done = []

    def others() -> None:
        def work() -> None:
            recorded.write("upsert", {"k": [0, 60], "a": [1, 1]})
            db.flush()
            done.append(True)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20)

    for phase in ("reserved", "written"):
        assert merge(db, phase=at(phase, others))
        recorded.check()
    assert done == [True, True]


# --- failures ---------------------------------------------------------------------------------------------


def table_with_work(db: Database, work: str) -> Recorded:
    """Create a table with something to do for this kind of work."""
    recorded = two_rowsets(db)
    if work == "undo":
        major(db, "b")
    return recorded


FAILING: dict[str, Callable[..., Any]] = {
    "merge": lambda db, **options: merge(db, 2, **options),
    "major": lambda db, **options: major(db, "a", **options),
    "minor": minor,
    "undo": lambda db, **options: minor(db, kind="undo", **options),
}


@pytest.mark.parametrize(("work", "kind"), in_turns(FAILING, ["eio", "enospc"]))
def test_c4_after_a_failed_write_nothing_changes_and_no_file_stays(
    folder: Path, work: str, kind: Any
) -> None:
    """After a full disk or a bad sector, the inputs can be reserved again, and the next try succeeds."""
    files = FaultyFiles(system_files(), kind=kind, only=lambda op: "/data/" in op.path)
    with open_database(folder / "s", files=files) as db:
        recorded = table_with_work(db, work)
        before, version = data_files(db.path), db._writer().state.version
        for fail_at in range(1, 100):
            files.fail_at = len(files.operations) + fail_at

            def tidy(job: Any, reservation: Any) -> Any:
                try:
                    return file_jobs.run(db._writer().env, job)
                except StorageError:
                    assert data_files(db.path) == before, "the job itself removes its files"
                    raise

            try:
                done = FAILING[work](db, runner=tidy)
            except StorageError as error:
                assert error.outcome is None
                files.fail_at = None
                files.heal()
                assert data_files(db.path) == before, f"after {files.failed[-1]}"
                assert db._writer().state.version == version
                assert not any(db._writer().reservations.taken(rowset.id) for rowset in rowsets(db))
                assert rows(db["t"]) == recorded.moments[-1][1]
            else:
                assert done and fail_at > 4
                break
        files.fail_at = None
        recorded.check()
        no_orphan(db)


def test_c4_a_failed_flush_before_a_merge_releases_the_inputs(folder: Path) -> None:
    """If the flush of the inputs fails, their changes stay in memory, and the inputs are released."""
    files = FaultyFiles(system_files(), kind="enospc", only=lambda op: op.path.endswith(".redo"))
    with open_database(folder / "s", files=files) as db:
        recorded = two_rowsets(db)
        recorded.write("update", {"k": [0, 6], "a": [1, 2]})
        files.fail_at = len(files.operations) + 1
        with pytest.raises(StorageError):
            merge(db)
        files.fail_at = None
        files.heal()
        recorded.write("update", {"k": [0], "a": [3]})
        recorded.check()
        assert not any(db._writer().reservations.taken(rowset.id) for rowset in rowsets(db))
        assert merge(db, phase=at("written", lambda: recorded.write("update", {"k": [0], "a": [4]})))
        recorded.check()
        db.close()
        with open_database(folder / "s") as again:
            recorded.check(again)


@pytest.mark.parametrize("work", FAILING)
def test_c4_a_failed_catalogue_change_changes_nothing(
    db: Database, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inputs still have the changes made during the compaction, and the outputs are removed."""
    recorded = table_with_work(db, work)
    store = db._writer()
    before = data_files(db.path)

    def refused(change: Any) -> None:
        raise StorageError("the catalogue cannot be written: raised by the test")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_commit", refused)
        with pytest.raises(StorageError, match="raised by the test"):
            FAILING[work](db)
    assert data_files(db.path) == before
    recorded.check()
    recorded.write("update", {"k": [0], "a": [8]})
    assert FAILING[work](db)
    recorded.check()


def test_c4_files_of_a_killed_worker_are_removed(db: Database) -> None:
    recorded = two_rowsets(db)
    store, before = db._writer(), data_files(db.path)

    def killed_midway(job: Any, reservation: Any) -> Any:
        for name in (f"77-{job.token}-1.base", f"5-{job.token}-1.part"):
            Path(db.path, next(iter(before))).with_name(name).write_bytes(b"half")
        raise JobCancelled("killed by the test")

    for plan in (
        MergePlan(tuple(rowset.id for rowset in rowsets(db)), 1.0),
        MajorPlan(rowsets(db)[0].id, (1,), 1.0),
    ):
        with pytest.raises(JobCancelled):
            carry_out(db, plan, killed_midway)
        assert data_files(db.path) == before
    recorded.check()
    assert not any(store.reservations.taken(rowset.id) for rowset in rowsets(db))


def test_a_store_that_cannot_write_is_not_compacted(db: Database) -> None:
    """W3: after a failure of unknown outcome nothing is installed and no file is removed."""
    two_rowsets(db)
    files = data_files(db.path)

    def broken() -> None:
        db._writer().poison(OSError("the disk is gone"))

    with pytest.raises(StorageError, match="takes no more writes"):
        merge(db, phase=at("written", broken))
    assert data_files(db.path) > files
    with pytest.raises(StorageError, match="takes no more writes"):
        minor(db)


# --- JSON ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", FAILING)
def test_jobs_and_outputs_can_be_sent_as_json(db: Database, work: str) -> None:
    """A worker process opens no catalogue, so the job must contain everything that it needs."""
    recorded = table_with_work(db, work)
    kinds = []

    def elsewhere(store: Any) -> Any:
        def run(job: Any, reservation: Any) -> Any:
            kind, fields = file_jobs.encode_job(job)
            kinds.append(kind)
            there = file_jobs.decode_job(kind, json.loads(json.dumps(fields)))
            assert there == job
            answer = file_jobs.encode_output(file_jobs.run(store.env, there))
            return file_jobs.decode_output(json.loads(json.dumps(answer)))

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "run_here", elsewhere)
        assert FAILING[work](db)
    assert kinds == [work]
    recorded.check()
    db.close()
    with open_database(db.path) as again:
        recorded.check(again)
