"""Rows of text as aligned lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["aligned"]


def aligned(rows: Sequence[Sequence[str]], widths: list[int], right: Sequence[bool]) -> Iterator[str]:
    """Yield aligned lines; first widen `widths` to fit these rows. right: which columns are aligned right."""
    for index in range(len(widths)):
        widths[index] = max(widths[index], *(len(row[index]) for row in rows))
    for row in rows:
        yield "  ".join(
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        ).rstrip()
