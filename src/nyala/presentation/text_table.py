"""Aligns rows of text in columns for a terminal.

Chinese, Japanese and Korean characters and most emoji are as wide as two letters in a terminal.
Combining marks have no width.

Source: Unicode Standard Annex 11, "East Asian Width".
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["aligned", "width_of"]

_WIDTH_MAX: Final = 200
"""The greatest width of a column. A longer cell moves only the rest of its own line."""


def aligned(rows: Sequence[Sequence[str]], widths: list[int], right: Sequence[bool]) -> Iterator[str]:
    """Yield aligned lines; first widen `widths` to fit these rows. right: which columns are aligned
    right.
    """
    for index in range(len(widths)):
        widest = max(width_of(row[index]) for row in rows)
        widths[index] = max(widths[index], min(widest, _WIDTH_MAX))
    for row in rows:
        yield "  ".join(
            _padded(cell, width, flush) for cell, width, flush in zip(row, widths, right, strict=True)
        ).rstrip()


def width_of(text: str) -> int:
    """Return the number of columns that a terminal needs for the text."""
    return len(text) if text.isascii() else sum(map(_width, text))


@functools.lru_cache(maxsize=4096)
def _width(sign: str) -> int:
    if unicodedata.combining(sign) or unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _padded(cell: str, width: int, flush: bool) -> str:
    space = " " * (width - width_of(cell))
    return space + cell if flush else cell + space
