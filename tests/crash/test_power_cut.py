"""After a power cut at any moment of a run, acknowledged batches exist, no batch exists in part,
and no rule is broken.

A recording of every write, sync and rename gives, for each moment, the folders that a power cut can
leave: all synced bytes, and any part of the others, torn or as zeros (`nyala.testing.power_cut`).
Each folder is opened and compared.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.env import system_files
from nyala.testing.recording_files import RecordingFiles
from tests.crash.workload import DIRECT_COMMIT_BYTES, STEPS, State, check_everything, state_of
from tests.figures import counted
from tests.sampled import every_nth
from tests.support import open_database


@dataclass
class Run:
    """A recorded run: after step i there were `events[i]` events, and the store had `states[i]` at
    `moments[i]`.
    """

    recording: RecordingFiles
    events: list[int]
    states: list[State]
    moments: list[int]

    def step_at(self, event: int) -> int:
        """Return the last step that was acknowledged before the event; -1: no step."""
        return sum(1 for count in self.events if count <= event) - 1


@pytest.fixture(scope="module", params=["commit", "group"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("recorded")
    recording = RecordingFiles(system_files(), str(folder))
    run = Run(recording, [], [], [])
    db = open_database(
        folder / "s", files=recording, durability=request.param, direct_commit_bytes=DIRECT_COMMIT_BYTES
    )
    for step in STEPS:
        step(db)
        if request.param == "group":
            db._writer().log_sync_all()  # the background does this within 100 ms
        run.events.append(len(recording.events))
        run.states.append(state_of(db))
        run.moments.append(db.now())
    db.close()
    return run


def crash_and_compare(run: Run, event: int, choices: random.Random, folder: Path) -> None:
    run.recording.crash_image(event, choices, str(folder))
    step = run.step_at(event)
    try:
        db = open_database(folder / "s", direct_commit_bytes=DIRECT_COMMIT_BYTES)
        found = state_of(db)
        allowed = [run.states[step] if step >= 0 else {}]
        if step + 1 < len(run.states):
            allowed.append(run.states[step + 1])
        assert found in allowed, f"after event {event} of {len(run.recording.events)}, in step {step + 1}"
        check_everything(db)
        # Acknowledged rows at earlier moments, of tables that still exist.
        for earlier in range(max(0, step - 6), step + 1):
            if found.keys() == run.states[earlier].keys() and not {22, 23, 24} & set(
                range(earlier, step + 2)
            ):
                assert state_of(db, at=run.moments[earlier]) == run.states[earlier]
        # The store takes writes.
        if "t" in db:
            db["t"].upsert({"k": [-5], "v": [5]})
            db.flush()
            assert db["t"].get({"k": -5})["v"] == 5
        db.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_every_moment(run: Run, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A power cut after each event of the run, with a few choices for unsynced bytes. `make test` takes
    every 36th event.
    """
    events = len(run.recording.events)
    assert events > 200
    first = run.recording.events[0]
    assert first is not None
    for event in every_nth(36, range(events + 1), request):
        crash_and_compare(run, event, random.Random(event), tmp_path / "image")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_every_moment_with_every_seed(run: Run, seed: int, tmp_path: Path) -> None:
    """After each event, with other choices for unsynced bytes."""
    with counted("power cuts after every event of one run", "images") as tried:
        for event in range(len(run.recording.events) + 1):
            crash_and_compare(run, event, random.Random(f"{seed} {event}"), tmp_path / "image")
            tried.append(1)


@given(data=st.data(), chance=st.randoms(use_true_random=False))
@settings(max_examples=settings().max_examples // 2)
def test_any_moment_and_any_unsynced_bytes(
    run: Run, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, chance: random.Random
) -> None:
    """Hypothesis chooses the moment and what the disk keeps."""
    event = data.draw(st.integers(0, len(run.recording.events)))
    crash_and_compare(run, event, chance, tmp_path_factory.mktemp("image") / "i")
