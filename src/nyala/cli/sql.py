"""`nyala sql`: the SQL shell, and SQL from an argument, a file or a pipe."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from typing import Final, TextIO

import click

from nyala.cli.base import Command, cli_words, report, settings
from nyala.cli.options import folder_argument
from nyala.cli.stores import reader, writer

__all__ = ["sql"]

_MODES = ("table", "csv", "json", "md", "line")


@click.command(cls=Command)
@folder_argument
@click.option("--command", "-c", metavar="TEXT", help="Run these statements and end; -c is short for it.")
@click.option(
    "--file",
    "-f",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    help="Run the statements of a file and end; -f is short for it, and - is stdin.",
)
@click.option(
    "--mode", type=click.Choice(_MODES), help="How rows are printed. Default: table; json with --json."
)
@click.option("--read-only", is_flag=True, help="Refuse statements that write.")
@click.option("--keep-going", is_flag=True, help="Without a terminal: go on after a statement that failed.")
@click.pass_context
def sql(
    context: click.Context,
    folder: str,
    command: str | None,
    file: TextIO | None,
    mode: str | None,
    read_only: bool,
    keep_going: bool,
) -> None:
    """SQL on a store: a shell on a terminal, otherwise the statements of -c, -f or stdin.

    `nyala FOLDER` is the same. The shell works beside a program that has the store open. Statements end with `;`.
    """
    from nyala.shell.console import Settings
    from nyala.shell.dot_commands import Quit
    from nyala.shell.runner import Cancelled
    from nyala.shell.shell import Shell

    if command is not None and file is not None:
        raise click.UsageError("-c and -f cannot be combined")
    asks = command is None and file is None and sys.stdin.isatty() and sys.stdout.isatty()
    if asks:
        from nyala.optional import need

        need("prompt_toolkit", "cli")
    with ExitStack() as stack:
        database = stack.enter_context((reader if read_only else writer)(folder))
        chosen = Settings(mode or ("json" if settings().json else "table"))
        shell = stack.enter_context(Shell(database, chosen, lambda error: report(error, words=_words)))
        if asks:
            from nyala.shell.repl import run_repl

            run_repl(shell)
            return
        text = command if command is not None else (file or sys.stdin).read()
        try:
            succeeded = shell.run(text, keep_going=keep_going)
        except Cancelled:
            raise KeyboardInterrupt from None
        except Quit:
            succeeded = True
        if shell.close() or not succeeded:
            context.exit(1)


_RULES: Final = (
    (re.compile(r"use db\.sql\(…\) without at=$"), "use .at now first"),
    (re.compile(r"--at\b"), ".at"),
    (re.compile(r"^since="), "SINCE "),
    (re.compile(r"--since\b"), "SINCE"),
    (re.compile(r"--until\b"), "the moment of .at"),
)


def _words(message: str) -> str:
    """Return a message of the library in the words of the shell."""
    message = cli_words(message)
    for pattern, words in _RULES:
        message = pattern.sub(words, message)
    return message
