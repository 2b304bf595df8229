"""Power cuts during some steps: after the next open, each step is complete or absent."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nyala.api.database import Database
from nyala.env import system_files
from nyala.testing.clock import ManualClock
from nyala.testing.recording_files import RecordingFiles
from tests.sampled import is_long_run
from tests.support import open_database

__all__ = ["cut_power"]


def cut_power(
    folder: Path,
    make: Callable[[Database], object],
    steps: Iterable[Callable[[Database], object]],
    read: Callable[[Database], Any],
    *,
    every: int,
    check: Callable[[Database], object] = lambda db: None,
    **options: Any,
) -> list[Any]:
    """Run the steps. Then open the store as a power cut after each write, sync or rename would have left it.

    `read` must return its result from before or from after the interrupted step, and a check of the store
    must find no problem.

    every: `make test` tests only every n-th event; `make test-long` tests all.
    check: called with each store after a power cut.
    options: settings of the store that runs the steps.
    Returns the results of `read` before the first step and after each one.
    """
    clock = ManualClock()
    (folder / "recorded").mkdir()
    recording = RecordingFiles(system_files(), str(folder / "recorded"))
    with open_database(folder / "recorded" / "s", files=recording, clock=clock, **options) as db:
        make(db)
        states, events = [read(db)], [len(recording.events)]
        for step in steps:
            clock.advance(1)
            step(db)
            states.append(read(db))
            events.append(len(recording.events))
    for number in range(events[0], events[-1] + 1, 1 if is_long_run() else every):
        step_number = next(index for index, end in enumerate(events) if number <= end)
        image = folder / "cut" / str(number)
        recording.crash_image(number, random.Random(number), str(image))
        with open_database(image / "s", clock=clock) as db:
            assert read(db) in states[max(step_number - 1, 0) : step_number + 1], (number, step_number)
            check(db)
            assert db.check().ok
    return states
