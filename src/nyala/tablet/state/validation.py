"""What comes from outside under a right checksum, and makes no sense all the same: an error of ours.

Tokens, requests to the writer and staged files are made by this program, mostly; their checksums say that they have
come over whole, and not who made them. So what they hold is looked at while it is decoded, and whatever decoding meets
is told as what it is: bytes that nobody of ours wrote.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Iterator
from typing import Any, TypeVar

import pyarrow as pa

from nyala.errors import CorruptionError, Error

__all__ = ["checked", "making_sense", "whole_number"]

_Entry = TypeVar("_Entry")


@contextlib.contextmanager
def making_sense(what: str, path: str | None = None) -> Iterator[None]:
    """Bytes under a right checksum that nobody of ours made raise CorruptionError, not what decoding them met."""
    try:
        yield
    except Error:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, struct.error, OSError,
            pa.ArrowException) as error:  # fmt: skip
        raise CorruptionError(f"the {what} makes no sense: {type(error).__name__}: {error}", path) from error


def whole_number(value: Any) -> bool:
    """Whether it is an int from 0 up that 8 bytes hold."""
    return type(value) is int and 0 <= value < 1 << 63


def checked(entry: _Entry) -> _Entry:
    """A dataclass's object, if its plain fields are of the types that they are declared with. Raises: ValueError."""
    fields: Any = entry
    for field in dataclasses.fields(fields):
        value = getattr(entry, field.name)
        good = {
            "int": lambda value: whole_number(value),
            "str": lambda value: isinstance(value, str) and "\0" not in value,
            "bytes": lambda value: isinstance(value, bytes),
            "bool": lambda value: isinstance(value, bool),
        }.get(str(field.type))
        if good is not None and not good(value):
            raise ValueError(f"{field.name} of {value!r}")
    return entry
