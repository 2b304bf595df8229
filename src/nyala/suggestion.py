"""Suggestions for error messages ("did you mean …?"): finds the known name that resembles an
unknown name.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that the user probably meant, or None.

    That is a name that differs only in case, else the shortest name that begins with `name`, else a
    similar one.
    """
    folded: dict[str, str] = {}
    for one in known:
        folded.setdefault(one.casefold(), one)
    wanted = name.casefold()
    if wanted in folded:
        return folded[wanted]
    longer = min((one for one in folded if wanted and one.startswith(wanted)), key=len, default=None)
    import difflib

    found = difflib.get_close_matches(wanted, folded, n=1) if longer is None else [longer]
    return folded[found[0]] if found else None
