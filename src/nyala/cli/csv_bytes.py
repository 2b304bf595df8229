"""A CSV's bytes on their way to Arrow: in blocks that end where its reader can bear it.

CR and LF        no block ends between them: at the beginning of a block Arrow (26.0.1) takes an LF for the rest of
                 a line's end, also in double quotes, and it is lost
the last line    has an end, if the file gives it none: else Arrow takes a NULL that stands last for the empty text,
                 where a field in quotes stands before it
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["CsvBytes"]

_END: Final = 64


class CsvBytes:
    """What Arrow reads a CSV from, and what is known of the file besides.

    Arrow reads many blocks ahead of the rows that it hands out, so the file's own position runs to its end at once. But
    each of its batches is made of one block, in order. Of a packed file, positions are those of the packed bytes.
    """

    closed = False

    def __init__(self, source: Any, raw: Any = None) -> None:
        """raw: the file that `source` reads, if it has positions."""
        self._source = source
        self._raw = raw
        self._ends: list[int] = []
        self._held = b""  # a CR that may have an LF behind it
        self._end = b""  # the last bytes
        self._is_over = False
        self._quotes = 0

    def read(self, size: int) -> bytes:
        """The next block, of `size` bytes or one less; empty at the end. size: two at least."""
        data, self._held = self._held, b""
        while len(data) < size and not self._is_over:
            new: bytes = self._source.read(size - len(data))
            data += new
            self._is_over = not new
        if self._is_over:
            if not (data or self._end).endswith((b"\n", b"\r")) and (data or self._end):
                data += b"\n"
        elif data.endswith(b"\r"):
            data, self._held = data[:-1], b"\r"
        if data:
            self._end = (self._end + data[-_END:])[-_END:]
            self._quotes += data.count(b'"')
            self._ends.append(0 if self._raw is None else self._raw.tell())
        return data

    def end_of(self, block: int) -> int:
        """The position behind the block, counted from 0."""
        return self._ends[min(block, len(self._ends) - 1)]

    @property
    def may_be_open(self) -> bool:
        """Whether one double quote of what was read has no other, and none stands at the end."""
        return self._quotes % 2 == 1 and not self._end.rstrip(b"\r\n").endswith(b'"')
