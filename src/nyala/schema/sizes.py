"""Parses sizes such as '4096', '64KB' and '1.5 GiB', whole numbers and numbers of seconds."""

from __future__ import annotations

import contextlib
import numbers
import operator
import re
from typing import Any, Final

import numpy as np

from nyala.errors import InvalidArgumentError

__all__ = ["SIZE_MAX_BYTES", "seconds_of", "size_in_bytes", "whole_number"]

SIZE_MAX_BYTES: Final = 2**63 - 1
"""The largest size that is accepted. A larger one must be a typing error."""

_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
                 "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip
# At most 19 digits before the point, because SIZE_MAX_BYTES has 19. Only 40 digits after the point
# are used: one byte is 2**-40 TiB, so further digits cannot change the number of bytes.
_SIZE: Final = re.compile(
    r"0*([0-9]{1,19})(?:\.([0-9]{1,40})[0-9]*)?[ \t]*([KMGT]?I?B?)", re.IGNORECASE | re.ASCII
)


def size_in_bytes(text: str) -> int | None:
    """Return the number of bytes that a text such as '64KB' means, rounded down.

    1KB is 1000 bytes, and 1KiB is 1024 bytes. Returns None for text that is not a size, and for a
    size above SIZE_MAX_BYTES.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    whole, fraction, unit = match[1], match[2] or "", match[3].upper()
    unit = unit if unit.endswith("B") or not unit else unit + "B"
    if unit not in _UNITS:
        return None
    size = int(whole + fraction) * _UNITS[unit] // 10 ** len(fraction)
    return size if size <= SIZE_MAX_BYTES else None


def whole_number(given: Any) -> int | None:
    """Return the int for an int or a NumPy integer; None for anything else, also for a bool."""
    if isinstance(given, bool | np.bool_):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None


def seconds_of(name: str, given: Any) -> float:
    """Check a user's number of seconds, and return it as a float: 0 or more, or infinity.

    Raises: InvalidArgumentError; `name` begins the message.
    """
    seconds = -1.0
    if not isinstance(given, bool) and isinstance(given, numbers.Real):
        with contextlib.suppress(OverflowError):
            seconds = float(given)
    if not seconds >= 0:
        raise InvalidArgumentError(f"{name} takes a number of seconds, 0 or more, not {given!r}")
    return seconds
