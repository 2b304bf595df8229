"""The tree of a polars expression, as polars serialises it: maps, lists, text, numbers and bytes.

    polars.col("v") == 5     {"BinaryExpr": {"left": {"Column": "v"}, "op": "Eq", "right": {"Literal": …}}}

polars has two forms of it. The one in JSON writes a list of 50,000 values as 400,000 numbers and loses NaN and
infinity; the binary one is MessagePack, of which this module reads what polars writes.

Source: the MessagePack specification; polars' `Expr.meta.serialize`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import polars as pl

__all__ = ["read_message", "tree_of"]

_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS: Final = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
# What has a length, and how that is written.
_BYTES: Final = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_TEXTS: Final = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LISTS: Final = {0xDC: ">H", 0xDD: ">I"}
_MAPS: Final = {0xDE: ">H", 0xDF: ">I"}


def tree_of(expression: pl.Expr) -> Any:
    """The tree of an expression. Integers of 128 bits are 16 bytes, the greatest first.

    Raises: polars' own errors for what cannot be serialised, such as a Python function; ValueError and struct.error for
    a form that is not known here; RecursionError for a very deep tree.
    """
    tree, _ = read_message(expression.meta.serialize(), 0)
    return tree


def read_message(data: bytes, at: int) -> tuple[Any, int]:
    """The message that begins at a place of MessagePack's bytes, and the place after it."""
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
    raise ValueError(f"MessagePack's kind {kind:#x} is not expected in an expression")


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
