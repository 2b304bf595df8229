"""Memory for decoded values is used again: pages that went back to the system cost more than decoding into them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nyala.cfile import memory

# In a process of its own: which thread was the first to allocate is settled once.
_PROGRAM = """
import os, resource, sys, threading, time
import numpy as np
from nyala.cfile.memory import allocate

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def fill():
    buffers = [allocate(1 << 20) for _ in range(50)]
    for buffer in buffers:
        np.frombuffer(buffer, np.uint8)[::4096] = 1

def again():
    fill()
    time.sleep(float(sys.argv[1]))
    before = faults()
    fill()
    print(faults() - before)

again()
for _ in range(int(sys.argv[2])):  # stay until all have been: so none gets another's arena
    done = threading.Event()
    threading.Thread(target=lambda: (again(), done.set(), threading.Event().wait()), daemon=True).start()
    done.wait()
os._exit(sys.stdout.flush() or 0)
"""


@pytest.mark.skipif(memory.pool().backend_name != "jemalloc", reason="this build of Arrow has no jemalloc")
@pytest.mark.parametrize(("later_s", "threads"), [(0, 4 * (os.cpu_count() or 1)), (1.5, 0)])
def test_what_was_freed_is_used_again_without_page_faults(later_s: float, threads: int) -> None:
    """In the first thread that allocates as in others, as many as there are arenas: there jemalloc gave everything back
    at once. And some time after, as long as queries take that join: Arrow gives back what was not used for a second."""
    command = [sys.executable, "-c", _PROGRAM, str(later_s), str(threads)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    pages = 50 * (1 << 20) // 4096
    assert all(int(faults) < pages / 10 for faults in ran.stdout.split()), ran.stdout
    assert len(ran.stdout.split()) == 1 + threads
