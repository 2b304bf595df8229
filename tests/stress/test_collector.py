"""Scans, gets, writes, flushes and compactions by threads while the garbage collector runs all the time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import folder_in_memory


def test_threads_use_a_store_while_the_collector_interrupts_them() -> None:
    with folder_in_memory() as folder:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("collector.py")), str(folder / "store"), "4"],
            capture_output=True,
            text=True,
            timeout=280,
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100, "the collector hardly ran"
