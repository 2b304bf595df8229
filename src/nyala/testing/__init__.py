"""Tools for tests, shipped so that others can test what they build on Nyala. Production code never imports this.

faulty_files.py   files that remember, fail or kill: power cuts, full disks, broken syncs
clock.py          time and chance that a test decides
"""

from __future__ import annotations

from nyala.testing.clock import ManualClock, SeededRandomness
from nyala.testing.faulty_files import (
    FaultyFiles,
    KillingFiles,
    Operation,
    RecordingFiles,
    SimulatedCrash,
)

__all__ = [
    "FaultyFiles",
    "KillingFiles",
    "ManualClock",
    "Operation",
    "RecordingFiles",
    "SeededRandomness",
    "SimulatedCrash",
]
