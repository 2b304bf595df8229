"""What scans keep of the blocks that they decode, and how two threads that want one block decode it once.

    asked of a block            `PASSES` times first                  afterwards
    by a look-up                kept in the block cache at once       found there
    by a scan, the whole block  not kept: its memory is used again    kept
    by a scan, in parts         kept until the last part was asked    kept

A table that is read through now and then leaves nothing behind: it neither pushes out what look-ups need, nor pays for
memory that nobody had touched yet. Clearing that, page by page, takes as long as decoding a block into memory that is
used again does three times. So who keeps what is asked for the fourth time never does more than twice what he would
have done, had he known how often it will be asked for: and a statement that reads a table two or three times, which is
as often as most of them do, keeps nothing. Blocks of narrow values hold more rows than a window of a scan has, hence
the parts.

Thread-safety: any thread. Whoever claims a block must land it or fail it; a thread decodes what it claimed before it
waits for what others did, so that two never wait for each other.
Left out: forgetting. A block that was asked for long ago counts as asked for.
Source: decision 0016; R. Karp, "On-line algorithms versus off-line algorithms", 1992 (whether to rent or to buy).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

__all__ = ["PASSES", "Decoding", "FirstPass"]

_Block = TypeVar("_Block")

PASSES: Final = 3
"""So often scans decode a block and keep nothing of it."""


class Decoding(Generic[_Block]):
    """A block that a thread is decoding, for which others may wait. Few do: the event is made when one comes."""

    def __init__(self) -> None:
        self.event: threading.Event | None = None
        self.block: _Block | None = None
        self.error: BaseException | None = None

    def result(self) -> _Block:
        """The block, when it is there. Raises: what its thread raised."""
        assert self.event is not None, "only who claimed in vain waits"
        self.event.wait()
        if self.error is not None:
            raise self.error
        assert self.block is not None
        return self.block


class FirstPass(Generic[_Block]):
    """Of one column: how often scans asked for which blocks, and which are being decoded now. Blocks are named by
    anything that tells them, and the forms they are decoded to, apart."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes: dict[Hashable, int] = {}
        self._decoding: dict[Hashable, Decoding[_Block]] = {}

    def note_pass(self, name: Hashable) -> None:
        """A scan was given all of the block. Threads may lose a pass of another's, which does no harm."""
        self._passes[name] = self._passes.get(name, 0) + 1

    def note_passes(self, names: Iterable[Hashable]) -> None:
        """The same of several."""
        passes = self._passes
        for name in names:
            passes[name] = passes.get(name, 0) + 1

    def note_look_up(self, name: Hashable) -> None:
        """A look-up asked for the block: from now on it is kept."""
        self._passes[name] = PASSES

    def is_kept(self, name: Hashable) -> bool:
        """Whether it was asked for so often that it is worth a place in the cache."""
        return self._passes.get(name, 0) >= PASSES

    def claim(
        self, names: Iterable[Hashable]
    ) -> tuple[dict[Hashable, Decoding[_Block]], dict[Hashable, Decoding[_Block]]]:
        """(those that the caller is to decode, those that another thread is decoding).

        Of the first what has landed is taken out: it may be another's by then.
        """
        mine: dict[Hashable, Decoding[_Block]] = {}
        theirs: dict[Hashable, Decoding[_Block]] = {}
        with self._lock:
            for name in names:
                decoding = self._decoding.get(name)
                if decoding is None:
                    self._decoding[name] = mine[name] = Decoding()
                else:
                    decoding.event = decoding.event or threading.Event()
                    theirs[name] = decoding
        return mine, theirs

    def land(self, mine: dict[Hashable, Decoding[_Block]], name: Hashable, block: _Block) -> None:
        """A block that the caller had claimed is there: for all who wait for it."""
        decoding = mine.pop(name)
        with self._lock:
            del self._decoding[name]
        decoding.block = block
        if decoding.event is not None:
            decoding.event.set()

    def fail(self, mine: dict[Hashable, Decoding[_Block]], error: BaseException) -> None:
        """Those of the caller's blocks that have not landed will not: whoever waits for one gets the error."""
        with self._lock:
            for name in mine:
                del self._decoding[name]
        for decoding in mine.values():
            decoding.error = error
            if decoding.event is not None:
                decoding.event.set()
