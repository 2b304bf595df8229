"""Where the transaction between BEGIN and COMMIT of `db.sql` is kept: each thread has its own.

Source: docs/how-to/sql.md, "Transactions".
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nyala.api.opening.open_store import OpenStore
    from nyala.api.transaction import Transaction

__all__ = ["ThreadSlot"]


class ThreadSlot(threading.local):
    """The transaction that this thread has begun by SQL, or None.

    While it is open, the thread's other writes to the store are refused, as in `with db.transaction()`.
    """

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self.transaction: Transaction | None = None

    def open(self, transaction: Transaction) -> None:
        """Keep the transaction. Raises: InvalidArgumentError inside a batch or transaction of the thread."""
        self._store.enter_block("BEGIN")
        self.transaction = transaction

    def clear(self) -> Transaction | None:
        """Return the transaction and forget it."""
        found, self.transaction = self.transaction, None
        if found is not None:
            self._store.leave_block()
        return found
