"""Bitshuffle: the thread that reads decodes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from numcodecs import blosc

from nyala.cfile.encoding.bitshuffle import shuffle_bits, unshuffle_bits


@pytest.mark.parametrize("asked", [None, True, False])
def test_blosc_starts_no_threads_of_its_own(asked: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a block take less time than waking a thread for them; and what a program has asked numcodecs for,
    it finds unchanged."""
    frame = shuffle_bits(np.arange(1000, dtype="<i8"))
    monkeypatch.setattr(blosc, "use_threads", asked)
    seen = []
    original = blosc.decompress

    def noted(*arguments: object) -> object:
        seen.append(blosc.use_threads)
        return original(*arguments)

    monkeypatch.setattr(blosc, "decompress", noted)
    values = np.frombuffer(unshuffle_bits(frame, 1000, 8), "<i8")
    assert values.tolist() == list(range(1000))
    assert seen == [False] and blosc.use_threads is asked
    with pytest.raises(ValueError, match="Blosc cannot read"):
        unshuffle_bits(pa.py_buffer(frame.slice(0, 16).to_pybytes() + b"\xff" * (frame.size - 16)), 1000, 8)
    assert blosc.use_threads is asked
