"""The command line: `nyala`.

    nyala demo [FOLDER]                    make a small store and show what it can do
    nyala table list|describe|scan|changes|load|export|stats|compact|vacuum FOLDER [TABLE]
    nyala tablet list FOLDER [TABLE]
    nyala fs check FOLDER                  check all files of a store
    nyala fs copy SOURCE DESTINATION       copy a whole store between folders and buckets
    nyala fs probe URL                     test whether a bucket is fit for a store
    nyala backup STORE FOLDER              back up tables; `nyala restore FOLDER STORE` restores
                                           them
    nyala backups list|clean FOLDER        the backups in a folder
    nyala cfile dump FILE                  show the content of a column file
    nyala wal dump FOLDER                  show the content of the log

    app          the root command, and how errors become messages and exit codes
    demo, sql, tables, load, export, alter, maintenance, backups, dumps     the commands
    options      arguments and options that several commands have
    base         what all commands share: options, errors, messages of the library in the terms of
                 the command line
    stores       opening a store, finding a table in it
    files        reading Parquet, CSV and JSON files in bounded memory
    output       printing tables and JSON
    progress     the progress line, and what Ctrl-C does during a write

Invariants
    L1  stdout has only the result; with `--json`, exactly one JSON document. Everything else goes
        to stderr.
    L2  Exit codes: 0 success, 1 error, 2 usage, 3 problems found by a check, 130 Ctrl-C.
    L3  Commands that only read open the store read-only, so they work while another process writes.
    L4  The modules import only click and the standard library when they are loaded. Commands import
        Nyala's other packages and pyarrow when they run, so that `--help` answers at once.

The extra `cli` installs click and DuckDB. Without click, only `--version` works; other commands
print how to install click. Source: docs/how-to/command-line.md.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line, and end the process with the command's exit code."""
    try:
        try:
            import click  # noqa: F401
        except ModuleNotFoundError as error:
            if error.name != "click":
                raise
            sys.exit(_without_click(sys.argv[1:]))
        from nyala.cli.app import app

        try:
            app()
        except SystemExit:
            _end_quietly_if_nobody_reads()
            raise
    except KeyboardInterrupt:  # while modules were still being loaded
        sys.exit(130)
    raise AssertionError("click ends the process")


def _without_click(words: Sequence[str]) -> int:
    """Print the version for `--version`, otherwise how to install click. Return the exit code."""
    options = list(itertools.takewhile(lambda word: word.startswith("-"), words))
    if "--version" not in options:
        print("nyala: the commands need click: pip install 'nyala[cli]'", file=sys.stderr)
        return 1
    from nyala.errors import Error
    from nyala.presentation.version import version_text

    try:
        print(version_text("--json" in words))
    except Error as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def _end_quietly_if_nobody_reads() -> None:
    """Exit without a message if nobody reads stdout any more, as in `nyala … | head`."""
    try:
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
    except BrokenPipeError:
        os._exit(0)
