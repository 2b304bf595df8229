"""Finds the table that a name in SQL means: SQL ignores upper and lower case in names.

Source: docs/reference/sql.md.
"""

from __future__ import annotations

from collections.abc import Collection

from nyala.errors import InvalidArgumentError

__all__ = ["spelled"]


def spelled(name: str, names: Collection[str]) -> str:
    """Return the one of `names` that is meant, as it is spelled; `name` itself if there is no such one.

    Raises: InvalidArgumentError if several differ from `name` only in case.
    """
    if name in names:
        return name
    alike = [each for each in names if each.lower() == name.lower()]
    if len(alike) > 1:
        raise InvalidArgumentError(
            f"the name {name!r} may mean one of the tables {sorted(alike)}: write it as it is called"
        )
    return alike[0] if alike else name
