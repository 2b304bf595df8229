"""Reads the tree of a polars expression from polars' binary form.

    polars.col("v") == 5     {"BinaryExpr": {"left": {"Column": "v"}, "op": "Eq", "right": {"Literal": …}}}

A tree consists of dicts, lists, texts, numbers and bytes. polars can also write it as JSON. But JSON
has no NaN and no infinity, and polars writes the bytes of a list of 50,000 values as 400,000 numbers:
`is_in` then takes twice as long. The binary form is MessagePack; this module reads the kinds of
MessagePack values that polars writes.

Source: the MessagePack specification; polars, `Expr.meta.serialize`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import polars as pl

_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS: Final = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
# Kinds with a length, and the format of this length.
_BYTES: Final = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_TEXTS: Final = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LISTS: Final = {0xDC: ">H", 0xDD: ">I"}
_MAPS: Final = {0xDE: ">H", 0xDF: ">I"}


def tree_of(expression: pl.Expr) -> Any:
    """Return the tree of an expression. Integers of 128 bits are 16 bytes, the most significant first.

    Raises: polars' own errors if it cannot be serialised, for instance a Python function; ValueError
    or struct.error for a kind that this module does not know; RecursionError for a very deep tree.
    """
    tree, _ = read_message(expression.meta.serialize(), 0)
    return tree


def read_message(data: bytes, at: int) -> tuple[Any, int]:
    """Return the message that begins at this position of the bytes, and the position after it."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 0x100, at
    if kind < 0x90:
        return _map(data, at, kind & 0x0F)
    if kind < 0xA0:
        return _list(data, at, kind & 0x0F)
    if kind < 0xC0:
        end = at + (kind & 0x1F)
        return data[at:end].decode(), end
    if kind in _CONSTANTS:
        return _CONSTANTS[kind], at
    if kind in _NUMBERS:
        return _number(data, at, _NUMBERS[kind])
    if kind in _BYTES:
        size, at = _number(data, at, _BYTES[kind])
        return data[at : at + size], at + size
    if kind in _TEXTS:
        size, at = _number(data, at, _TEXTS[kind])
        return data[at : at + size].decode(), at + size
    if kind in _LISTS:
        return _list(data, *reversed(_number(data, at, _LISTS[kind])))
    if kind in _MAPS:
        return _map(data, *reversed(_number(data, at, _MAPS[kind])))
    raise ValueError(f"unexpected kind {kind:#x} of MessagePack in a polars expression")


def _number(data: bytes, at: int, form: str) -> tuple[Any, int]:
    (number,) = struct.unpack_from(form, data, at)
    return number, at + struct.calcsize(form)


def _list(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        item, at = read_message(data, at)
        found.append(item)
    return found, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    flat, at = _list(data, at, 2 * count)
    return dict(zip(flat[::2], flat[1::2], strict=True)), at
