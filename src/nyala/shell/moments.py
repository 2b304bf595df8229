"""Parses the moment of an option or of a dot command."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

__all__ = ["parse_moment"]

_AGO: Final = re.compile(r"(\d{1,5})\s*(s|m|h|d|w)")
_UNITS: Final = {
    "s": dt.timedelta(seconds=1),
    "m": dt.timedelta(minutes=1),
    "h": dt.timedelta(hours=1),
    "d": dt.timedelta(days=1),
    "w": dt.timedelta(weeks=1),
}


def parse_moment(text: str) -> str | dt.datetime:
    """Convert an age such as `2h` to a time.

    Other text is returned unchanged: an ISO time, a tag, or a timestamp.
    """
    match = _AGO.fullmatch(text.strip().lower())
    return text if match is None else dt.datetime.now(dt.UTC) - int(match[1]) * _UNITS[match[2]]
