"""Cells of a CSV as values of the table's columns, and which are none.

    text of a column ── one cast ──► values
                           │ refused
                           ▼
                     halves, and halves of the halves that are refused ──► the cells that no cast takes

Columns come as text, so that one bad cell is one bad row, told with what it holds, and not a file that cannot be read.
The table judges what a value has to fit: numbers are read as the widest type of their kind. Dates and times stay text,
which is the table's to read.

Cost: a cast of each column. A bad cell costs casts of ever shorter pieces, at most twice the logarithm of the batch's
      rows, and about one where all are bad; Python looks at no other row, but in columns of binary.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.schema.types import ColumnType

__all__ = ["BadCell", "read_cells", "text_at", "why"]

_SHOWN_MAX: Final = 40
# So many cells with a bad one among them are tried one by one.
_FEW: Final = 16
_HEX: Final = re.compile(r"(?:0x|x'|\\x)?((?:[0-9a-fA-F]{2})*)'?")
_NULL_WORDS: Final = frozenset(
    ("na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "unknown", "-", "--", "?", ".", "\\n")
)
_DATE: Final = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}(?:[ T].*)?")
_WHOLE: Final = re.compile(r"[+-]?\d+")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_GROUPED: Final = re.compile(r"[+-]?\d[\d.,' \u00a0\u2009\u202f_]*")
_WITH_UNIT: Final = re.compile(r"[^\w\s]?\s*[+-]?\d[\d.,]*\s*\D{1,4}|[^\w\s]\s*[+-]?\d[\d.,]*")


class BadCell(NamedTuple):
    """A cell that is no value of its column. row: its place in the batch."""

    row: int
    column: str


def read_cells(
    batch: pa.RecordBatch, types: Mapping[str, ColumnType]
) -> tuple[pa.RecordBatch, list[BadCell]]:
    """A batch of texts in the types of their columns; of each row that has a bad cell the first of them, by row.

    types: the table's columns; others stay as they are. A bad cell is NULL in the batch.
    """
    import pyarrow as pa

    arrays, bad = [], dict[int, str]()
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        type = types.get(name)
        cast = None if type is None or not pa.types.is_string(array.type) else _cast_of(type)
        if cast is not None:
            array, rows = _cast(array, cast)
            for row in rows:
                bad.setdefault(row, name)
        arrays.append(array)
    read = pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
    return read, [BadCell(row, bad[row]) for row in sorted(bad)]


def text_at(array: pa.Array, row: int) -> str:
    """What stands in the file, which may be no UTF-8."""
    import pyarrow as pa

    return bytes(array.slice(row, 1).cast(pa.binary())[0].as_py()).decode(errors="replace")


def why(text: str, type: ColumnType, column: str) -> str:
    """What is wrong with a cell, and what it probably means."""
    shown = repr(text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…")
    return f"column {column!r}: {shown} is no {type}; {_hint(text.strip(), type, column)}"


def _cast_of(type: ColumnType) -> Callable[[pa.Array], pa.Array] | None:
    """What makes values of texts, or raises ArrowInvalid; None: they stay texts."""
    import pyarrow as pa

    from nyala import compute as pc

    if type.name == "binary":
        return _from_hex
    if type.is_integer:
        wide = pa.int64()
    elif type.name in ("bool", "float", "double"):
        wide = type.arrow
    elif type.name == "decimal":
        # Wider than any column, so that what is too long for its column is the table's to say.
        wide = pa.decimal256(76, 38)
    else:
        return None
    return lambda array: pc.cast(pc.ascii_trim_whitespace(array), wide)


def _from_hex(array: pa.Array) -> pa.Array:
    import pyarrow as pa

    found = []
    for text in array.to_pylist():
        match = None if text is None else _HEX.fullmatch(text)
        if text is not None and match is None:
            raise pa.ArrowInvalid("no hex")
        found.append(None if match is None else bytes.fromhex(match[1]))
    return pa.array(found, pa.binary())


def _cast(array: pa.Array, cast: Callable[[pa.Array], pa.Array]) -> tuple[pa.Array, list[int]]:
    """The values, NULL where there is none, and the rows where that is so."""
    import numpy as np
    import pyarrow as pa

    from nyala import compute as pc

    def is_good(begin: int, count: int) -> bool:
        try:
            cast(array.slice(begin, count))
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return False
        return True

    try:
        return cast(array), []
    except (pa.ArrowInvalid, UnicodeDecodeError):
        pass
    bad: list[int] = []
    pending = [(0, len(array))]  # each with a bad cell in it
    while pending:
        begin, count = pending.pop()
        if count <= _FEW:
            bad += [row for row in range(begin, begin + count) if not is_good(row, 1)]
            continue
        half = count // 2
        pending += [piece for piece in ((begin, half), (begin + half, count - half)) if not is_good(*piece)]
    good = np.ones(len(array), np.bool_)
    good[bad] = False
    return cast(pc.if_else(pa.array(good), array, pa.scalar(None, array.type))), sorted(bad)


def _hint(text: str, type: ColumnType, column: str) -> str:
    if not text:
        return "an empty field is NULL only where no quotes stand around it"
    if text.lower() in _NULL_WORDS:
        return f"if that means NULL: --null {shlex.quote(text)}"
    if type.name == "bool":
        return "a bool is written true or false, or 1 or 0"
    if type.name == "binary":
        return "binary is written in hex, such as 00ff"
    if _DATE.fullmatch(text):
        return "it looks like a date: are the columns in another order, or is this one of the wrong type?"
    if _NUMBER.fullmatch(text):
        if not type.is_integer:
            return "it has more digits than can be read"
        return "it is beyond 64 bits" if _WHOLE.fullmatch(text) else "the column holds whole numbers only"
    if _GROUPED.fullmatch(text):
        return "a number has a decimal point, no decimal comma, and nothing between its thousands: 1234.5"
    if _WITH_UNIT.fullmatch(text):
        return "a number stands without its unit"
    word = shlex.quote(text) if len(text) <= _SHOWN_MAX else "WORD"
    return (
        f"it is text: --null {word} reads it as NULL, and with --create, --type {shlex.quote(column + '=string')} "
        "makes the column one of text"
    )
