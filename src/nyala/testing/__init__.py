"""Tools that simulate power cuts, full disks and failing buckets, for tests of programs that use
Nyala.

Production code never imports this package.

    recording_files.py   records every change of files, and builds the folder that a power cut would
                         leave
    power_cut.py         the rules of what a power cut may lose
    faulty_files.py      file access that fails or kills the process: full disk, failing sync, half
                         a write
    small_disk.py        a disk of a few megabytes that another program fills
    faulty_objects.py    a bucket whose requests fail, arrive late, or end the process
    s3_server.py         an S3 server inside the test's process, which can break connections
    clock.py             a clock that only the test moves, and random numbers from a seed
    file_wrapper.py      base classes that pass every call to another object with file access
"""

from __future__ import annotations

from nyala.testing.clock import ManualClock, SeededRandomness
from nyala.testing.faulty_files import (
    FaultyFiles,
    KillingFiles,
    Operation,
    SimulatedCrash,
    UnreadableFiles,
)
from nyala.testing.faulty_objects import FaultyObjects
from nyala.testing.recording_files import RecordingFiles
from nyala.testing.s3_server import S3Server
from nyala.testing.small_disk import SmallDisk

__all__ = [
    "FaultyFiles",
    "FaultyObjects",
    "KillingFiles",
    "ManualClock",
    "Operation",
    "RecordingFiles",
    "S3Server",
    "SeededRandomness",
    "SimulatedCrash",
    "SmallDisk",
    "UnreadableFiles",
]
