"""Validates data from outside: tokens, requests, descriptions of staged files.

A right checksum shows that the bytes are undamaged, but not that Nyala wrote them. So each decoder
also checks the content. Every error of a decoder becomes a `CorruptionError`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from nyala.errors import CorruptionError, Error

_Entry = TypeVar("_Entry")


@contextlib.contextmanager
def validating(what: str, path: str | None = None) -> Iterator[None]:
    """Context manager for decoding data: turns the decoder's errors into a CorruptionError.

    what: the name of the data in the message, such as "scan token".
    path: the file with the data, for the message; None: the data is not from a file.
    """
    try:
        yield
    except Error:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, struct.error, OSError,
            pa.ArrowException) as error:  # fmt: skip
        raise CorruptionError(f"the {what} is invalid: {type(error).__name__}: {error}", path) from error


def is_unsigned(value: Any) -> bool:
    """Whether `value` is an int in [0, 2^63)."""
    return type(value) is int and 0 <= value < 1 << 63


_TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": is_unsigned,
    "str": lambda value: isinstance(value, str) and "\0" not in value,
    "bytes": lambda value: isinstance(value, bytes),
    "bool": lambda value: isinstance(value, bool),
}


def checked(entry: _Entry) -> _Entry:
    """Check that the int, str, bytes and bool fields of a dataclass object have these types.

    Returns: the object.
    Raises: ValueError for a wrong type, a negative int, or a text with a NUL character.
    """
    fields: Any = entry
    for field in dataclasses.fields(fields):
        value = getattr(entry, field.name)
        good = _TYPE_CHECKS.get(str(field.type))
        if good is not None and not good(value):
            raise ValueError(f"{field.name} is {value!r}, expected {field.type}")
    return entry
