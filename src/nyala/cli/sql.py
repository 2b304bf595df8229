"""`nyala sql`: runs SQL in a shell on a terminal, or from an argument, a file or a pipe."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, TextIO

import click

from nyala.cli.base import EXIT_INTERRUPTED, Command, Failure, cli_words, report, settings
from nyala.cli.options import folder_argument
from nyala.cli.stores import reader, store_exists, writer

__all__ = ["OPENS_ONLY", "sql"]

OPENS_ONLY: Final = "nyala.cli.sql.opens_only"
"""A key of the context's `meta`: the command was `nyala FOLDER`, which creates no store."""

_MODES = ("table", "csv", "json", "md", "line")


@click.command(cls=Command)
@folder_argument
@click.option(
    "--command",
    "-c",
    "commands",
    metavar="TEXT",
    multiple=True,
    help="Run these statements, then exit. May be repeated.",
)
@click.option(
    "--file",
    "-f",
    "files",
    metavar="FILE",
    type=click.File(encoding="utf-8", lazy=True),
    multiple=True,
    help="Run the statements of a file, then exit. - means stdin. May be repeated.",
)
@click.option(
    "--mode", type=click.Choice(_MODES), help="How rows are printed. Default: table; json with --json."
)
@click.option("--read-only", is_flag=True, help="Refuse statements that write.")
@click.option("--keep-going", is_flag=True, help="Without a terminal: continue after a failed statement.")
@click.pass_context
def sql(
    context: click.Context,
    folder: str,
    commands: Sequence[str],
    files: Sequence[TextIO],
    mode: str | None,
    read_only: bool,
    keep_going: bool,
) -> None:
    """Run SQL on a store. On a terminal it opens a shell; otherwise it runs -c, -f or stdin.

    A missing store is created. `nyala FOLDER` is the same for a store that exists. Other programs
    may have the store open. Statements end with `;`.
    """
    from nyala.shell.console import Settings
    from nyala.shell.dot_commands import Quit
    from nyala.shell.runner import Cancelled
    from nyala.shell.shell import Shell

    if commands and files:
        raise click.UsageError("-c and -f cannot be combined")
    interactive = not commands and not files and sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        from nyala.optional import need

        need("prompt_toolkit", "cli")
    create = not read_only and OPENS_ONLY not in context.meta and not store_exists(folder)
    with ExitStack() as stack:
        if create:
            stack.callback(_echo_if_removed, folder)
        stack.enter_context(_interrupt_handler_restored())
        database = stack.enter_context(reader(folder) if read_only else writer(folder, create=create))
        # Closing the store is short. Ctrl-C during it would print "Stopped." below complete results.
        stack.callback(_ignore_interrupts)
        if create:
            click.echo(f"{database.path} is a new store.", err=True)
        shown = Settings(mode or ("json" if settings().json else "table"))
        shell = stack.enter_context(Shell(database, shown, lambda error: report(error, words=_shell_words)))
        if interactive:
            from nyala.shell.repl import run_repl

            run_repl(shell)
            return
        try:
            for text in commands or map(_read, files or [sys.stdin]):
                shell.check_not_cancelled()
                if not shell.run(text, keep_going=keep_going) and not keep_going:
                    break
        except Cancelled as cancelled:
            click.echo(cancelled, err=True)
            context.exit(EXIT_INTERRUPTED)
        except Quit:
            pass
        if shell.close() or not shell.succeeded:
            context.exit(1)


@contextmanager
def _interrupt_handler_restored() -> Iterator[None]:
    """Restore the handler of SIGINT after the block."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _ignore_interrupts() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _read(file: TextIO) -> str:
    try:
        return file.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise Failure(f"{file.name}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def _echo_if_removed(folder: str) -> None:
    """Print that the new store was removed, if its folder no longer exists.

    Call this after the store was closed. A new store without a table is removed at that moment.
    """
    from nyala.env.paths import is_bucket_url

    if not is_bucket_url(folder) and not os.path.lexists(os.path.expanduser(folder)):
        click.echo(f"{folder} was removed: it had no table.", err=True)


# Regular expressions for parts of messages that `cli_words` returns, and what replaces them in the shell.
_RULES: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        # moments
        (r"use db\.sql\(…\) without at=$", "use .at now first"),
        (r"--at\b", ".at"),
        (r"^since=", "SINCE "),
        (r"--since\b", "SINCE"),
        (r"--until\b", "the moment of .at"),
        # stores and tables
        (r"was opened with read_only=True: connect\(\) without it to write",
         "was opened with --read-only: start the shell without it to write"),
        (r"db\.undrop_table\('(.*?)'\) brings it back, and db\.table\('.*?', at=…\) reads it at an earlier moment",
         r"UNDROP TABLE \1 brings it back, and after .at SELECT reads it at an earlier moment"),
        (r"fill it with update\(set=…\)", "fill it with UPDATE"),
        (r": add one with table\.repartition\(…\)", "; table.repartition(…) of a Python program adds one"),
        (r"rename one, `with table\.alter\(\) as a: a\.rename_column\(old, new\)`, or .*",
         "rename one with `nyala table alter`"),
        (r"^--range\b", "PARTITION BY RANGE"),
        (r"^--hash\b", "PARTITION BY HASH"),
        # rows and transactions
        (r" \(all failing rows are in \.errors\)", ""),
        (r" \(db\.run\(\) does both\)", ""),
        (r"; db\.transaction\(timeout=…\) sets this limit", ""),
        (r"begin another one with db\.transaction\(\)", "begin another one with BEGIN"),
        # what only a program can do
        (r": write a local file, or use db\.sql\(…\)\.to_reader\(\)", ": write a local file"),
        (r", or db\.sql\(…\)\.to_pandas\(\) and pivot there", ""),
        (r"read another database with its own library into a data frame, and name the frame's variable in FROM",
         "write the rows of another database to a file, and read the file"),
        (r"Open the store with a larger limit, such as (connect\(.*?\)), and check",
         r"A Python program can allow more: \1. Check"),
    )
)  # fmt: skip


def _shell_words(message: str) -> str:
    """Replace Python arguments and calls in a message of the library by SQL and commands of the shell."""
    message = cli_words(message)
    for pattern, words in _RULES:
        message = pattern.sub(words, message)
    return message
