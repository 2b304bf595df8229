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
    """Return a SummaryError, which says that only the bloom filter of a file is damaged.

    A repair can build the filter again from the keys.

    error: why the filter cannot be read.
    """
    return SummaryError(f"the bloom filter cannot be read: {error.reason}", error.path, error.offset)


def unreadable_keys(error: CorruptionError) -> KeysError:
    """Return a KeysError, which says that only the stored encoded keys of a file are damaged.

    A repair can compute the keys again from the key columns.

    error: why the keys cannot be read.
    """
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
    """Raise StorageError if a file has a flag that this version does not know.

    flags: the file's "incompatible flags". A newer version of Nyala sets such a flag if older
    versions cannot read the file correctly.
    known: the flags that this version knows, as a bit mask.
    """
    if unknown := flags & ~known:
        raise StorageError(
            f"{path}: written by a newer version of Nyala (incompatible flags {unknown:#06x}); "
            "open it with that version",
            path=path,
        )
