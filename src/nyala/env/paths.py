"""Validates paths that users give."""

from __future__ import annotations

import os

from nyala.errors import InvalidArgumentError

__all__ = ["utf8_path"]


def utf8_path(path: str | bytes) -> str:
    """Return the absolute path as text. Raises InvalidArgumentError if it is not UTF-8.

    A path that is not UTF-8 could not be named in messages, log lines, JSON documents and Spark
    options.
    """
    text = os.path.abspath(os.fsdecode(path))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"the path {os.fsencode(text)[:400]!r} is not UTF-8: rename it, or use a symbolic link to it whose name "
            "is UTF-8"
        ) from None
    return text
