"""Runs dot commands such as `.tables`, and the same commands of other shells, such as `\\d`.

Source: docs/how-to/shell.md, "Dot commands".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from nyala.errors import InvalidArgumentError
from nyala.mvcc.timestamp import to_datetime
from nyala.presentation.cells import text_value
from nyala.shell.console import Console
from nyala.shell.formats import FORMATS, STREAMED
from nyala.shell.moments import parse_moment
from nyala.sql.define.table_text import create_table_text
from nyala.sql.names import spelled
from nyala.suggestion import nearest

__all__ = ["DOT_COMMANDS", "DotCommand", "Quit", "at_text", "is_dot_command", "run_dot_command"]


class Quit(Exception):
    """`.quit` ends the shell."""


@dataclass(frozen=True)
class DotCommand:
    """A dot command and its help.

    usage: the names of the arguments; those in brackets are optional. help: what the command does.
    run:   runs the command with a console and the arguments. It returns the text of statements that
           the shell must run next, or None.
    """

    usage: str
    help: str
    run: Callable[[Console, Sequence[str]], str | None]

    def check(self, name: str, arguments: Sequence[str]) -> None:
        """Raise InvalidArgumentError for too few or too many arguments. name: the command's name."""
        parameters = self.usage.split()
        required = sum(not word.startswith("[") for word in parameters)
        if not required <= len(arguments) <= len(parameters):
            raise InvalidArgumentError(f"write {f'{name} {self.usage}'.strip()}: {self.help}")


# Commands of psql, MySQL and DuckDB. One without a backslash must be the whole line.
_OTHER_NAMES: Final = {
    "exit": ".quit",
    "quit": ".quit",
    "help": ".help",
    "\\q": ".quit",
    "\\?": ".help",
    "\\h": ".help",
    "\\d": ".tables",
    "\\dt": ".tables",
}
_PLAIN_WORD: Final = re.compile(r"(?:exit|quit|help)\s*;?\s*", re.IGNORECASE)


def is_dot_command(line: str) -> bool:
    """Whether a line is a dot command, or a command of another shell such as `exit` or `\\d`.

    The caller passes only lines that do not continue a statement.
    """
    return line.startswith((".", "\\")) or _PLAIN_WORD.fullmatch(line) is not None


def run_dot_command(console: Console, line: str) -> str | None:
    """Run a line such as `.mode csv`.

    Returns None, or after `.read` the text of the file, whose statements the caller must run.
    Raises InvalidArgumentError, the errors of the store, and Quit.
    """
    line = line.rstrip("; \t")
    if not line.startswith("."):
        line = _translated(line)
    try:
        name, *arguments = shlex.split(line)
    except ValueError as error:
        raise InvalidArgumentError(f"{line}: a quotation mark is not closed") from error
    command = DOT_COMMANDS.get(name)
    if command is None:
        guess = nearest(name, list(DOT_COMMANDS))
        suggestion = f": did you mean {guess}?" if guess else ""
        raise InvalidArgumentError(f"there is no dot command {name}{suggestion or '; .help lists them'}")
    command.check(name, arguments)
    return command.run(console, arguments)


def _translated(line: str) -> str:
    """Translate a command of another shell to a dot command: `\\d t` becomes `.schema t`.

    Raises InvalidArgumentError for an unknown command.
    """
    word, *rest = line.split(maxsplit=1)
    name = _OTHER_NAMES.get(word.lower().rstrip("+"))
    if name is None:
        raise InvalidArgumentError(f"there is no command {word}: .help lists the dot commands")
    return " ".join([".schema" if rest and name == ".tables" else name, *rest])


def _tables(console: Console, arguments: Sequence[str]) -> None:
    def listed() -> pa.Table:
        with console.database.snapshot(console.settings.at) as moment:
            names = moment.list_tables()
            keys = [", ".join(moment[name].primary_key) for name in names]
        return pa.table({"table": pa.array(names, pa.string()), "key": pa.array(keys, pa.string())})

    console.print_rows(console.runner.call(listed).to_reader())


def _schema(console: Console, arguments: Sequence[str]) -> None:
    """Print the CREATE TABLE statements of tables: as text, or as rows in the modes csv and json."""

    def statements() -> pa.Table:
        database = console.database
        existing = database.list_tables()
        names = [spelled(name, existing) for name in arguments] or existing
        return pa.table(
            {
                "table": pa.array(names, pa.string()),
                "statement": pa.array(
                    [f"{create_table_text(database.table(name))};" for name in names], pa.string()
                ),
            }
        )

    found = console.runner.call(statements)
    if console.settings.mode in STREAMED:
        console.print_rows(found.to_reader())
    else:
        for text in found["statement"].to_pylist():
            console.print_text(text)


def _changes(console: Console, arguments: Sequence[str]) -> None:
    def changed() -> pa.RecordBatchReader:
        table = console.database.table(arguments[0])
        since = parse_moment(arguments[1]) if arguments[1:] else table.stats().oldest_readable
        return table.changes(since, console.settings.at).to_reader()

    console.print_rows(console.runner.call(changed))


def _at(console: Console, arguments: Sequence[str]) -> None:
    settings = console.settings
    if not arguments:
        console.note(
            "SELECT reads the present." if settings.at is None else f"SELECT reads {at_text(settings.at)}."
        )
    elif arguments[0].lower() == "now":
        settings.at = None
    elif console.runner.in_transaction:
        raise InvalidArgumentError(
            ".at is not possible inside a transaction, which reads the moment of its beginning: COMMIT or ROLLBACK "
            "it first"
        )
    else:
        settings.at = console.runner.call(
            lambda: console.database._snapshot(parse_moment(arguments[0])).timestamp
        )


def at_text(timestamp: int) -> str:
    """Return a moment as the prompt shows it."""
    return text_value(to_datetime(timestamp))


def _mode(console: Console, arguments: Sequence[str]) -> None:
    console.settings.mode = _one_of(arguments[0], list(FORMATS))


def _timing(console: Console, arguments: Sequence[str]) -> None:
    console.settings.timing = _one_of(arguments[0], ["on", "off"]) == "on"


def _rows(console: Console, arguments: Sequence[str]) -> None:
    if arguments[0] != "all" and not (arguments[0].isdecimal() and int(arguments[0])):
        raise InvalidArgumentError(f"expected a number from 1 on, or all, got {arguments[0]!r}")
    console.settings.rows = None if arguments[0] == "all" else int(arguments[0])


def _one_of(given: str, choices: Sequence[str]) -> str:
    if given not in choices:
        raise InvalidArgumentError(f"expected {', '.join(choices[:-1])} or {choices[-1]}, got {given!r}")
    return given


def _read(console: Console, arguments: Sequence[str]) -> str:
    """Return the text of a file of statements."""
    try:
        return Path(arguments[0]).expanduser().read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidArgumentError(f".read {arguments[0]}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgumentError(f".read {arguments[0]}: not UTF-8 text ({error})") from error


def _help(console: Console, arguments: Sequence[str]) -> None:
    usages = [f"{name} {command.usage}".rstrip() for name, command in DOT_COMMANDS.items()]
    width = max(map(len, usages))
    for usage, command in zip(usages, DOT_COMMANDS.values(), strict=True):
        console.note(f"{usage:<{width}}  {command.help}")
    console.note("A statement ends with ;. Ctrl-C cancels it, Ctrl-D ends the shell.")
    console.note("These work too: exit, quit, help, \\q, \\?, \\d (.tables), \\d TABLE (.schema TABLE).")


def _quit(console: Console, arguments: Sequence[str]) -> None:
    raise Quit


DOT_COMMANDS: Final = {
    ".tables": DotCommand("", "The tables and their keys.", _tables),
    ".schema": DotCommand("[TABLE]", "The CREATE TABLE statement of a table, or of all.", _schema),
    ".changes": DotCommand(
        "TABLE [SINCE]",
        "The rows that changed since an ISO time, an age (2h, 1d) or a tag. Default: since the oldest "
        "readable moment of the table.",
        _changes,
    ),
    ".at": DotCommand(
        "[TIME]",
        "Read tables as of TIME: an ISO time, an age (2h, 1d) or a tag. `.at now` returns to the present.",
        _at,
    ),
    ".mode": DotCommand("|".join(FORMATS), "How rows are printed.", _mode),
    ".rows": DotCommand("N|all", "How many rows of a result a terminal shows.", _rows),
    ".read": DotCommand("FILE", "Run the statements of a file.", _read),
    ".timing": DotCommand("on|off", "Whether each statement prints its time.", _timing),
    ".help": DotCommand("", "List the dot commands.", _help),
    ".quit": DotCommand("", "End the shell. An open transaction is rolled back.", _quit),
}
