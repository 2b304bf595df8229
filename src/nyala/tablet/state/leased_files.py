"""What is said when a file is gone that only a lease had kept.

Tasks in other processes read files of a snapshot: scan tokens, change tokens, the rowsets that a load looks keys up in.
Compactions go on meanwhile, and a lease keeps what they replace; when it is over, the files may go, and whoever comes
later finds none. That is no fault of the store's, so it is `HistoryExpiredError`, not the system's "No such file".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nyala.catalog.leases import no_store_here
from nyala.env import SYSTEM, MissingFileError
from nyala.errors import HistoryExpiredError

__all__ = ["kept_by_lease"]


@contextlib.contextmanager
def kept_by_lease(what: str, again: str) -> Iterator[None]:
    """Around reads of files that a lease keeps.

    what: of whom the files are, "this scan". again: what to do, "load again".
    Raises: HistoryExpiredError when one of them is not there any more; StorageError when this host does not see the
            store at all.
    """
    try:
        yield
    except MissingFileError as error:
        if error.path is not None and (missing := no_store_here(SYSTEM, error.path)) is not None:
            raise missing from error
        raise HistoryExpiredError(
            f"a file of {what} is gone ({error.path}), so the lease that kept it is over: {again}, with a longer "
            "`lease` if it takes that long"
        ) from error
