"""The error for a missing file that only a lease kept alive.

Tasks in other processes read files of a snapshot: those of scan tokens, change tokens, and rowsets
in which a load looks up keys. Meanwhile compactions replace files, and a lease keeps the old ones.
After the lease ends, the files may be deleted. That is not damage of the store, so a reader gets
`HistoryExpiredError` instead of the system's "No such file".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nyala.catalog.leases import no_store_here
from nyala.env import SYSTEM, MissingFileError
from nyala.errors import HistoryExpiredError


@contextlib.contextmanager
def kept_by_lease(what: str, again: str) -> Iterator[None]:
    """Wrap reads of files that a lease keeps.

    what:  the reader, for example "this scan". again: the advice, for example "load again".
    Raises: HistoryExpiredError if a file no longer exists; StorageError if this host cannot see the
    store.
    """
    try:
        yield
    except MissingFileError as error:
        if error.path is not None and (missing := no_store_here(SYSTEM, error.path)) is not None:
            raise missing from error
        raise HistoryExpiredError(
            f"a file of {what} is gone ({error.path}), because the lease that kept it has ended: {again}, with a "
            "longer `lease` if it takes that long"
        ) from error
