"""Errors of column files that say how much of the file is lost."""

from __future__ import annotations

from nyala.errors import CorruptionError, StorageError

__all__ = ["KeysError", "SummaryError", "SurplusError"]
__all__ += ["another_file", "refuse_unknown_flags", "unreadable_bloom", "unreadable_keys"]


class SummaryError(CorruptionError):
    """The values are whole, but what the footer says of them (zone map, first keys, counts) is not true of them."""


class KeysError(SummaryError):
    """All columns are whole, the encoded keys of several key columns are not: nothing can be found by its key."""


class SurplusError(CorruptionError):
    """All that was written is whole, and bytes stand behind it that nobody of ours wrote."""


def unreadable_bloom(error: CorruptionError) -> SummaryError:
    """A damaged bloom filter hides no value: it is made anew from the keys."""
    return SummaryError(f"the bloom filter cannot be read: {error.reason}", error.path, error.offset)


def unreadable_keys(error: CorruptionError) -> KeysError:
    """Damaged encoded keys hide none: they are made anew from the key columns."""
    return KeysError(f"the encoded keys cannot be read: {error.reason}", error.path, error.offset)


def another_file(expected: str, found: str, path: str, offset: int) -> CorruptionError:
    """The error for a whole, readable file that is not the one that the catalogue names."""
    return CorruptionError(
        f"another file is in this place: expected file id {expected}, found {found}; put the right file back, or "
        "restore a backup",
        path,
        offset,
    )


def refuse_unknown_flags(flags: int, known: int, path: str) -> None:
    """Stop at a flag that changes the meaning of bytes in a way this version does not know."""
    if unknown := flags & ~known:
        raise StorageError(
            f"{path}: written by a newer version of Nyala (incompatible flags {unknown:#06x}); "
            "open it with that version",
            path=path,
        )
