"""Suggestions: finds the known name that a user probably meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name that differs only in case, else the shortest with this prefix, else a similar one, else None."""
    folded: dict[str, str] = {}
    for one in known:
        folded.setdefault(one.casefold(), one)
    asked = name.casefold()
    if asked in folded:
        return folded[asked]
    longer = min((one for one in folded if asked and one.startswith(asked)), key=len, default=None)
    import difflib

    found = difflib.get_close_matches(asked, folded, n=1) if longer is None else [longer]
    return folded[found[0]] if found else None
