"""The rights of SQL: whether it may read files, other stores and variables of the program.

    ProgramRights    SQL of the embedding program or its shell: everything
    StoreRights      SQL from elsewhere: only the tables of the store

Source: docs/how-to/sql.md, "What is guaranteed".
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Protocol

from nyala.errors import InvalidArgumentError


class Rights(Protocol):
    """What the SQL of a session may reach besides the tables of its store.

    files: whether statements can read and write files.
    """

    files: bool

    def variable(self, name: str) -> Any:
        """Return the value of a variable of the program; None if it does not exist or may not be read."""

    def check_outside(self, what: str) -> None:
        """Check that the session may use files and other stores. Raises: InvalidArgumentError.

        what: the statement's name in the error.
        """


class ProgramRights:
    """The rights of the program that embeds the store.

    frame: the stack frame of the Python code that executes the statement, whose variables can be
        read; None: no variables.
    """

    files = True

    def __init__(self, frame: FrameType | None = None) -> None:
        self._frame = frame

    def variable(self, name: str) -> Any:
        frame = self._frame
        if frame is None:
            return None
        found = frame.f_locals.get(name)
        return frame.f_globals.get(name) if found is None else found

    def check_outside(self, what: str) -> None:
        pass


def of_caller() -> ProgramRights:
    """Return the rights for SQL that a Python program passes to a public method such as `Database.sql`.

    Call this function directly in the public method. With these rights, the SQL may read the Python
    variables of the function that called the public method.
    """
    return ProgramRights(sys._getframe(2))


class StoreRights:
    """The rights of SQL that does not come from the program: only the tables of the store."""

    files = False

    def variable(self, name: str) -> Any:
        return None

    def check_outside(self, what: str) -> None:
        raise InvalidArgumentError(
            f"{what} is not allowed here: this session reaches only the tables of its store"
        )
