"""Random workloads of all operations, with power cuts anywhere in them and in the recovery.

After reopening, every acknowledged write exists at every moment, no batch exists in part, and
`check` finds nothing. A failure prints its seed and the workload; `--hypothesis-seed=N` runs it
again. A found fault becomes a script in `tests/scripts/recovery`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.env import system_files
from nyala.testing.recording_files import RecordingFiles
from nyala.wal.writer import Durability
from tests.crash.operations import DIRECT_COMMIT_BYTES, OPERATIONS, create_tables
from tests.crash.workload import State, check_everything, state_of
from tests.figures import counted
from tests.support import folder_in_memory, open_database

WORKLOADS = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 2**16)), min_size=3, max_size=14
)
RECOVERIES = 3


@dataclass
class Recorded:
    """A run: after operation i there were `events[i]` events, and the store had `states[i]` at
    `moments[i]`.
    """

    recording: RecordingFiles
    events: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    moments: list[int] = field(default_factory=list)

    def acknowledged(self, event: int) -> int:
        """Return the last operation that had ended at the event; -1: the tables did not exist yet."""
        return sum(count <= event for count in self.events) - 1


def record(folder: Path, workload: list[tuple[str, int]], durability: Durability) -> Recorded:
    folder.mkdir()
    recording = RecordingFiles(system_files(), str(folder))
    run = Recorded(recording)
    db = open_database(
        folder / "s", files=recording, durability=durability, direct_commit_bytes=DIRECT_COMMIT_BYTES,
        log_limit_bytes=4000,
    )  # fmt: skip
    for name, seed in [("", 0), *workload]:
        if name:
            OPERATIONS[name](db, random.Random(seed))
        else:
            create_tables(db)
        if durability != "commit":
            db._writer().log_sync_all()  # the background does this within 100 ms
        run.events.append(len(recording.events))
        run.states.append(state_of(db))
        run.moments.append(db.now())
    db.close()
    return run


def reopened_state(folder: Path, recording: RecordingFiles) -> State:
    """Open the store, check it, and close it. Return its content."""
    with open_database(folder / "s", files=recording, direct_commit_bytes=DIRECT_COMMIT_BYTES) as db:
        check_everything(db)
        return state_of(db)


def cut_and_compare(run: Recorded, event: int, chance: random.Random, folder: Path, recoveries: int) -> int:
    """Cut the power once in the workload, then several times in the recovery. Return the number of
    opened images.
    """
    run.recording.crash_image(event, chance, str(folder / "0"))
    last = run.acknowledged(event)
    allowed = [run.states[last] if last >= 0 else {}]
    allowed += run.states[last + 1 : last + 2]
    if last < 0:  # not all tables exist yet
        allowed += [{name: run.states[0][name] for name in ["t", "u", "r"][:count]} for count in (1, 2)]
    images = 1
    first: State | None = None
    for depth in range(recoveries):
        recording = RecordingFiles(system_files(), str(folder / str(depth)))
        found = reopened_state(folder / str(depth), recording)
        assert found in allowed, f"after event {event} of {len(run.recording.events)}, operation {last + 1}"
        first = found if first is None else first
        assert found == first, f"power cut {depth} in the recovery changed what is there"
        recording.crash_image(
            chance.randrange(len(recording.events) + 1), chance, str(folder / str(depth + 1))
        )
        images += 1
    at = folder / str(recoveries)
    db = open_database(at / "s", direct_commit_bytes=DIRECT_COMMIT_BYTES)
    found = state_of(db)
    assert found in allowed, f"after event {event} of {len(run.recording.events)}, operation {last + 1}"
    assert first in (None, found), "a power cut in the recovery changed rows"
    check_everything(db)
    for earlier in range(max(0, last - 4), last + 1):
        for name, columns in (("t", ["k", "v", "s"]), ("u", ["a", "b", "v"])):  # other tables have no history
            rows = db[name].scan(columns, at=run.moments[earlier], order_by_key=True).to_arrow().to_pylist()
            before = [{column: row[column] for column in columns} for row in run.states[earlier][name]]
            assert rows == before, "rows at an earlier moment changed"
    if "t" in db:  # the store takes writes
        db["t"].upsert({"k": [-5], "v": [5]})
        db.flush()
        assert db["t"].get({"k": -5})["v"] == 5
    db.close()
    return images


def power_cuts(
    workload: list[tuple[str, int]], chance: random.Random, images: int, durability: Durability
) -> int:
    print(f"workload {workload}, durability {durability}")
    tried = 0
    with folder_in_memory() as folder:
        run = record(folder / "recorded", workload, durability)
        while tried < images:
            event = chance.randrange(len(run.recording.events) + 1)
            recoveries = RECOVERIES if tried == 0 else 0
            tried += cut_and_compare(run, event, chance, folder / "images", recoveries)
            shutil.rmtree(folder / "images")
    return tried


@given(
    workload=WORKLOADS,
    chance=st.randoms(use_true_random=False),
    durability=st.sampled_from(["commit", "group"]),
)
@settings(max_examples=8)
def test_a_power_cut_anywhere_in_any_workload_and_in_its_recovery(
    workload: list[tuple[str, int]], chance: random.Random, durability: Durability
) -> None:
    """Hypothesis chooses the workload, the moment and what the disk keeps, and reduces a failure."""
    power_cuts(workload, chance, 6, durability)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_power_cuts(part: int, request: pytest.FixtureRequest) -> None:
    """250 workloads with 40 images each."""
    chance = random.Random(f"{request.config.getoption('hypothesis_seed')} {part}")
    names = sorted(OPERATIONS)
    with counted("power cuts in chosen workloads, with their recoveries", "images") as tried:
        for _ in range(25):
            workload = [
                (chance.choice(names), chance.randrange(2**16)) for _ in range(3 + chance.randrange(14))
            ]
            tried.append(power_cuts(workload, chance, 40, chance.choice(["commit", "group"])))


# Operations whose effect shows in their result. Others change the store's version or time.
HAS_DONE: dict[str, Callable[[Any], object]] = {
    "minor compaction": lambda report: report,
    "UNDO compaction": lambda report: report,
    "major compaction": lambda report: report,
    "merging compaction": lambda report: report,
    "vacuum": lambda tables: any(said.files or said.rowsets_rewritten for said in tables),
    "collection": lambda files: files,
}


def test_the_workloads_reach_every_operation() -> None:
    with (
        folder_in_memory() as folder,
        open_database(folder / "s", direct_commit_bytes=DIRECT_COMMIT_BYTES) as db,
    ):
        create_tables(db)
        chance = random.Random(7)
        missed = set(OPERATIONS)
        for _ in range(1000):
            name = chance.choice(sorted(OPERATIONS))
            before = db._writer().state.version, db.now()
            said = OPERATIONS[name](db, chance)
            changed = (db._writer().state.version, db.now()) != before
            if HAS_DONE[name](said) if name in HAS_DONE else changed:
                missed.discard(name)
            if not missed:
                return
        raise AssertionError(f"these have done nothing in 1,000 operations: {sorted(missed)}")
