"""Tags: names for moments. The history since a tag's moment is kept until the tag is dropped.

    tag "before-load" at 40               the oldest readable moment is 40, not the mark
    ───────────────┼──────────────────────┼───────────────────► time
                   40                     mark (now - history)

A tag is an entry of the catalogue. Each table that existed at the tag's moment also has the moment
in `TableEntry.tagged`. `history.oldest_readable` uses this field, so readers, backups and jobs need
no code for tags.

Invariants
    N1  A table that existed at a tag's moment, and still exists, can be read at that moment and at
        all later ones, until the tag is dropped.
    N2  The name of a tag cannot be read as a moment or a duration.

Source: docs/how-to/time-travel.md, "Tags".
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from nyala.catalog.model import TableEntry, TagEntry
from nyala.errors import InvalidArgumentError
from nyala.suggestion import nearest

TAGS_MAX: Final = 10_000
_NAME_MAX: Final = 128
# Numbers, ISO times and durations begin with a digit or a sign.
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
# Options accept these words instead of a moment.
_RESERVED: Final = frozenset({"now", "latest"})
# The number of tags in an error message.
_SHOWN: Final = 10


def check_tag_name(name: object) -> str:
    """Return `name` if a new tag can have this name. Raises: InvalidArgumentError."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a tag has a name: pass a text such as 'before-load', not {name!r:.100}")
    if len(name) > _NAME_MAX:
        raise InvalidArgumentError(
            f"the tag name {name[:40]!r}… has {len(name):,} characters; at most {_NAME_MAX} are allowed"
        )
    if _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name!r} is not a valid tag name: use letters, digits and the signs _ . - and begin with a letter, for "
            "instance 'before-load'"
        )
    if name.lower() in _RESERVED:
        raise InvalidArgumentError(f"{name!r} cannot be the name of a tag, because it means the present")
    return name


def resolve_tag(at: Any, read_tags: Callable[[], Mapping[str, TagEntry]], name: str) -> Any:
    """Return the timestamp of the tag if `at` is the name of a tag; otherwise return `at`.

    read_tags: returns the present tags; called only if `at` can be the name of a tag.
    name:      the argument's name, for the message.
    Raises: InvalidArgumentError for an unknown tag, and as `read_tags`.
    """
    if not isinstance(at, str) or _NAME.fullmatch(text := at.strip()) is None:
        return at
    tags = read_tags()
    found = tags.get(text)
    if found is None:
        raise InvalidArgumentError(
            f"{name}={at!r} is neither a timestamp nor an ISO time such as '2026-11-20T10:00:00Z', and "
            f"{unknown_tag(text, tags)}"
        )
    return found.timestamp


def unknown_tag(name: str, tags: Mapping[str, TagEntry]) -> str:
    """Return the end of a message about an unknown tag: a suggestion, or a list of all tags."""
    near = nearest(name, tags)
    if near is not None:
        return f"the store has no tag of this name (did you mean {near!r}?)"
    if not tags:
        return "the store has no tags"
    names = sorted(tags)
    more = ", …" if len(names) > _SHOWN else ""
    return f"the store has no tag of this name; its tags are: {', '.join(names[:_SHOWN])}{more}"


def tagged(entry: TableEntry, timestamp: int) -> TableEntry:
    """Return the entry of a table, with `timestamp` added to its tagged moments."""
    return dataclasses.replace(entry, tagged=tuple(sorted({*entry.tagged, timestamp})))


def untagged(entries: Iterable[TableEntry], left: Iterable[TagEntry]) -> Iterator[TableEntry]:
    """Yield the tables' catalogue entries that must change after tags were dropped.

    The yielded entries list only those tagged moments that a remaining tag names. Entries that stay
    the same are left out. The caller stores the yielded entries in the catalogue.

    entries: the entries of all tables.
    left:    the tags that remain.
    """
    moments = {tag.timestamp for tag in left}
    for entry in entries:
        kept = tuple(timestamp for timestamp in entry.tagged if timestamp in moments)
        if kept != entry.tagged:
            yield dataclasses.replace(entry, tagged=kept)
