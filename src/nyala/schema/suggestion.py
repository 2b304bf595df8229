"""Which of the names that there are is probably meant by one that is not there."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The same but for case, the shortest that begins so, or one that looks like it; None: no name is near."""
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
