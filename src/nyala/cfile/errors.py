"""Errors of column files, by what is damaged: values, or data that can be computed from values."""

from __future__ import annotations

from nyala.errors import CorruptionError, StorageError


class SummaryError(CorruptionError):
    """The values are intact, but zone map, first keys or counts in the footer do not match them."""


class KeysError(SummaryError):
    """The columns are intact, but the stored encoded keys are not, so no row can be found by key."""


class TrailingBytesError(CorruptionError):
    """The file is intact, but unknown bytes follow its end."""


def unreadable_bloom(error: CorruptionError) -> SummaryError:
    """Return the error for a damaged bloom filter. The filter can be built again from the keys."""
    return SummaryError(f"the bloom filter cannot be read: {error.reason}", error.path, error.offset)


def unreadable_keys(error: CorruptionError) -> KeysError:
    """Return the error for damaged encoded keys. The key columns suffice to compute them."""
    return KeysError(f"the encoded keys cannot be read: {error.reason}", error.path, error.offset)


def wrong_file(expected: str, found: str, path: str, offset: int) -> CorruptionError:
    """Return the error for an intact file whose id differs from the id in the catalogue."""
    return CorruptionError(
        f"this is a different file: expected file id {expected}, found {found}; put the right file back, or "
        "restore a backup",
        path,
        offset,
    )


def refuse_unknown_flags(flags: int, known: int, path: str) -> None:
    """Raise StorageError if `flags` has an incompatible flag that this version does not know."""
    if unknown := flags & ~known:
        raise StorageError(
            f"{path}: written by a newer version of Nyala (incompatible flags {unknown:#06x}); "
            "open it with that version",
            path=path,
        )
