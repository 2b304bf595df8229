"""Sizes as people write them: 4096, '64KB', '1.5 GiB'."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["size_in_bytes"]

_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
                 "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


def size_in_bytes(text: str) -> int | None:
    """The bytes that a text says, None when it is no size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)", text.strip().upper())
    if match is None:
        return None
    unit = match[2] if match[2].endswith("B") or not match[2] else match[2] + "B"
    return int(float(match[1]) * _UNITS[unit]) if unit in _UNITS else None
