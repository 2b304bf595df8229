"""What a path must be that a user gives."""

from __future__ import annotations

import os

from nyala.errors import InvalidArgumentError

__all__ = ["utf8_path"]


def utf8_path(path: str | bytes) -> str:
    """The absolute path as text. Raises: InvalidArgumentError when it is not UTF-8.

    A path that is not UTF-8 could be named in no message, log line, JSON document or Spark option.
    """
    text = os.path.abspath(os.fsdecode(path))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"the path {os.fsencode(text)[:400]!r} is not UTF-8: rename it, or use a symbolic link "
            "to it that has a name in UTF-8"
        ) from None
    return text
