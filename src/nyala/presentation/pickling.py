"""The error for pickling an object that belongs to an open store."""

from __future__ import annotations

__all__ = ["pickle_error"]


def pickle_error(given: object) -> TypeError:
    """Return the error for pickling an object that belongs to an open store.

    `__reduce__` of such objects raises it. The message of pickle would name an inner object that users
    do not know.
    """
    return TypeError(
        f"a {type(given).__name__} belongs to the store that this process has open and cannot be pickled: open the "
        "store where it is needed, nyala.connect(path, read_only=True), or send scan.tokens()"
    )
