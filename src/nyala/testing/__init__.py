"""Test tools, shipped so that users can test programs that use Nyala. Production code never imports this package.

recording_files.py   files that remember every change and sync
power_cut.py         what a power cut leaves of them
faulty_files.py      files that fail or kill: full disks, broken syncs, half writes, broken reads
small_disk.py        files on a small disk that another program may fill
faulty_objects.py    a bucket whose requests fail, arrive late, or end the process
s3_server.py         an S3 server of this process, with faults on the wire
clock.py             time and chance that a test decides
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
