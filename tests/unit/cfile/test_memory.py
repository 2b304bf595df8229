"""Memory for decoded values is used again: pages that went back to the system cost more than decoding into them."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
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


# A window of as many columns, again and again; how much memory the process had at the most.
_WIDE = """
import resource, sys
import numpy as np
from nyala.cfile.memory import allocate, of_columns

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

before, window = most(), []
for _ in range(60):
    with of_columns(200):
        read = [allocate(1 << 17) for _ in range(200)]
    for buffer in read:
        np.frombuffer(buffer, np.uint8)[::4096] = 1
    window = read
    del read
print(most() - before)
"""


def test_windows_of_very_many_columns_take_the_memory_of_some() -> None:
    """Two of 25 MB are held at once; in jemalloc each lay in pages of its own, and those stayed."""
    ran = subprocess.run([sys.executable, "-c", _WIDE], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 200, f"{ran.stdout} MB"


def test_only_who_reads_very_many_columns_has_them_elsewhere() -> None:
    usual, other = memory.pool().backend_name, pa.default_memory_pool().backend_name
    with memory.of_columns(33):
        assert _backend() == other
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(_backend).result() == usual
        with memory.of_columns(2):
            assert _backend() == usual
        assert _backend() == other
    assert _backend() == usual
    with pytest.raises(KeyError), memory.of_columns(33):
        raise KeyError
    assert _backend() == usual
    with memory.of_columns(32):
        assert _backend() == usual


def _backend() -> str:
    name: str = memory.pool().backend_name
    return name


# Many blocks are decoded, and of each a small part stays, as of windows that are cut.
_HOLES = """
import resource
import numpy as np
import pyarrow as pa
from nyala.cfile.encoding.bitshuffle import shuffle_bits, unshuffle_bits
from nyala.cfile.memory import pool

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

frame = shuffle_bits(np.random.default_rng(1).integers(0, 3, 1 << 16) * 0.1)
before, kept = most(), []
for _ in range(1500):
    block = pa.Array.from_buffers(pa.float64(), 1 << 16, [None, unshuffle_bits(frame, 1 << 16, 8)])
    kept.append(pa.concat_arrays([block[:8192]], memory_pool=pool()))
print(most() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another C library")
def test_what_blosc_takes_for_a_call_does_not_stay() -> None:
    """94 MB stay; with what lay between them the process had grown by 858."""
    ran = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 450, f"{ran.stdout} MB"


def test_a_c_library_that_gives_nothing_back_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_trim", lambda: None)
    memory.took(1 << 40)
    asked: list[int] = []
    monkeypatch.setattr(memory, "_trim", lambda: asked.append)
    memory.took(1 << 20)
    assert not asked
    memory.took(1 << 27)
    assert asked == [0]
