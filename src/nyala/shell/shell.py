"""Runs texts of SQL statements and dot commands on a store.

A line is a dot command if it begins with `.`, or if it is a command of another shell, such as
`exit` and `\\d`. Other text is SQL. A statement ends with `;`; the last statement may omit it.

Source: docs/how-to/shell.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from nyala.errors import Error, InvalidArgumentError
from nyala.shell.console import Console, Settings
from nyala.shell.dot_commands import is_dot_command, run_dot_command
from nyala.shell.runner import Cancelled
from nyala.sql.tokens import after_space, statement_end, tokens

if TYPE_CHECKING:
    from nyala.api.database import Database

__all__ = ["Shell", "is_complete"]

_READ_DEPTH_MAX: Final = 20


class Shell:
    """Runs SQL statements and dot commands on a store. Close it with `close`, or use it in a `with` block."""

    def __init__(self, database: Database, settings: Settings, report: Callable[[Exception], None]) -> None:
        """report: called with the error of each failed statement, to print it."""
        self.console = Console(database, settings)
        self.succeeded = True
        """Whether all statements so far succeeded."""
        self._report = report
        self._read_depth = 0

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, text: str, *, keep_going: bool = False) -> bool:
        """Run the statements and dot commands of a text. Return whether all succeeded.

        keep_going: whether to run the later statements after one has failed. Raises Cancelled after
        Ctrl-C, and Quit after `.quit`.
        """
        with self.console.runner.interruptible():
            return self._run_all(text, keep_going)

    def _run_all(self, text: str, keep_going: bool) -> bool:
        all_succeeded = True
        for command in _commands(text):
            self.check_not_cancelled()
            try:
                succeeded = self._run_one(command, keep_going)
            except Error as error:
                self.console.flush()
                self._report(error)
                succeeded = self.succeeded = False
            all_succeeded = all_succeeded and succeeded
            if not succeeded and not keep_going:
                break
        return all_succeeded

    def check_not_cancelled(self) -> None:
        """Raise Cancelled if the user pressed Ctrl-C, so that no further statement runs.

        This is needed if the last statement ended before Ctrl-C could interrupt it.
        """
        if self.console.runner.is_cancelled:
            raise Cancelled("Cancelled: the later statements did not run.")

    def _run_file(self, text: str, keep_going: bool) -> bool:
        """Run the statements of a file that `.read` has read.

        Raises InvalidArgumentError if files read each other without end.
        """
        if self._read_depth == _READ_DEPTH_MAX:
            raise InvalidArgumentError(
                f".read is nested {_READ_DEPTH_MAX} files deep: check whether a file reads itself"
            )
        self._read_depth += 1
        try:
            return self._run_all(text, keep_going)
        finally:
            self._read_depth -= 1

    def _run_one(self, command: str, keep_going: bool) -> bool:
        console = self.console
        if is_dot_command(command):
            text = run_dot_command(console, command)
            return text is None or self._run_file(text, keep_going)
        began_s = time.monotonic()
        result = console.runner.execute(command, console.settings.at)
        console.print_result(result, any(token.keyword == "RETURNING" for token in tokens(command)))
        if console.settings.timing:
            console.note(f"Time: {(time.monotonic() - began_s) * 1000:,.1f} ms")
        return True

    def close(self) -> bool:
        """Roll back an open transaction, with a message. Return whether there was one."""
        was_open = self.console.runner.close()
        if was_open:
            self.console.note("The open transaction was rolled back.")
        return was_open


def _commands(text: str) -> Iterator[str]:
    """Yield the statements and dot commands of the text."""
    position = 0
    while True:
        position = after_space(text, position)
        if position == len(text):
            return
        if text[position] == ";":
            position += 1
            continue
        line_end = _line_end(text, position)
        is_command = is_dot_command(text[position:line_end])
        end = line_end if is_command else statement_end(text, position) or len(text)
        yield text[position:end].rstrip()
        position = end


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def is_complete(text: str) -> bool:
    """Whether Enter runs the text, instead of beginning a new line.

    The text is complete if it is empty, if every statement ends with `;`, or if a dot command
    follows such statements.
    """
    position: int | None = after_space(text, 0)
    while position is not None and position < len(text):
        if is_dot_command(text[position : _line_end(text, position)]):
            return True
        end = statement_end(text, position)
        position = None if end is None else after_space(text, end)
    return position is not None
