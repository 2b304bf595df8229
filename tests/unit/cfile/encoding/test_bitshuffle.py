"""Bitshuffle: the calling thread encodes and decodes, without the lock and the threads of numcodecs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from numcodecs import blosc

from nyala.cfile.encoding.bitshuffle import shuffle_bits, unshuffle_bits

TAKEN_LOCK = """
import numpy as np
from numcodecs import blosc
from nyala.cfile.encoding.bitshuffle import shuffle_bits, unshuffle_bits

lock = blosc._MUTEX if not hasattr(blosc, "get_mutex") else blosc.get_mutex()  # of 0.17; of older ones
assert lock.acquire(timeout=10)  # as an interrupt leaves it
values = np.arange(1000, dtype="<i8")
frame = shuffle_bits(values)
assert np.array_equal(np.frombuffer(unshuffle_bits(frame, 1000, 8), "<i8"), values)
lock.release()  # numcodecs 0.17 takes it at the end of the process
"""


@pytest.mark.parametrize("setting", [None, True, False])
def test_blosc_starts_no_threads_of_its_own(setting: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blosc works on the calling thread, and the setting of the program is the same afterwards."""
    monkeypatch.setattr(blosc, "use_threads", setting)
    seen = []
    for name in ("compress", "decompress"):
        original = getattr(blosc, name)

        def recorded(*arguments: object, original: Callable[..., object] = original) -> object:
            seen.append(blosc.use_threads)
            return original(*arguments)

        monkeypatch.setattr(blosc, name, recorded)
    frame = shuffle_bits(np.arange(1000, dtype="<i8"))
    values = np.frombuffer(unshuffle_bits(frame, 1000, 8), "<i8")
    assert values.tolist() == list(range(1000))
    assert seen == [False, False] and blosc.use_threads is setting
    with pytest.raises(ValueError, match="Blosc cannot read"):
        unshuffle_bits(pa.py_buffer(frame.slice(0, 16).to_pybytes() + b"\xff" * (frame.size - 16)), 1000, 8)
    assert blosc.use_threads is setting


def test_the_lock_of_numcodecs_is_not_used() -> None:
    """Nyala never waits for numcodecs' lock.

    Ctrl-C while numcodecs takes it may leave it locked for ever.
    """
    subprocess.run([sys.executable, "-c", TAKEN_LOCK], check=True, timeout=60)
