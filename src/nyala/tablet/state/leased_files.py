"""The error for a file that was deleted because its lease has ended.

Tasks in other processes read files of a snapshot: for scan tokens, change tokens, and key look-ups
of loads. When compactions replace these files, a lease keeps the old files. After the end of the
lease, they may be deleted. The store is not damaged then, so a reader gets `HistoryExpiredError`
and not the system's "No such file".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nyala.catalog.leases import no_store_here
from nyala.env import SYSTEM, MissingFileError
from nyala.errors import HistoryExpiredError


@contextlib.contextmanager
def kept_by_lease(what: str, again: str) -> Iterator[None]:
    """Context manager for reads of files that a lease keeps: explains why a file is gone.

    what:  the reader in the message, for example "this scan".
    again: the advice in the message, for example "load again".
    Raises: HistoryExpiredError if a file does not exist any more; StorageError if this host finds
            no store in any folder above the file, for example because a disk is not mounted.
    """
    try:
        yield
    except MissingFileError as error:
        if error.path is not None and (missing := no_store_here(SYSTEM, error.path)) is not None:
            raise missing from error
        raise HistoryExpiredError(
            f"a file of {what} is gone ({error.path}), because the lease that kept it has ended: {again}, with a "
            f"`lease` that is longer than {what} takes"
        ) from error
