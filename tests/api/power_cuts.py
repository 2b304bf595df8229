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
    look: Callable[[Database], Any],
    *,
    every: int,
    check: Callable[[Database], object] = lambda db: None,
    **options: Any,
) -> list[Any]:
    """Run the steps, and then open the store as a power cut at each event of its files would have left it.

    The store must then look as before or after the step that was cut, and have no problem.

    every: in the gate, only every n-th event is tested.
    check: called with each store after a power cut.
    options: of the store that runs the steps.
    Returns the results of `look` before the first step and after each one.
    """
    clock = ManualClock()
    (folder / "recorded").mkdir()
    recording = RecordingFiles(system_files(), str(folder / "recorded"))
    with open_database(folder / "recorded" / "s", files=recording, clock=clock, **options) as db:
        make(db)
        states, events = [look(db)], [len(recording.events)]
        for step in steps:
            clock.advance(1)
            step(db)
            states.append(look(db))
            events.append(len(recording.events))
    for number in range(events[0], events[-1] + 1, 1 if is_long_run() else every):
        step_number = next(index for index, end in enumerate(events) if number <= end)
        image = folder / "cut" / str(number)
        recording.crash_image(number, random.Random(number), str(image))
        with open_database(image / "s", clock=clock) as db:
            assert look(db) in states[max(step_number - 1, 0) : step_number + 1], (number, step_number)
            check(db)
            assert db.check().ok
    return states
