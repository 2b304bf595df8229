"""The command `nyala`: what a person types at a shell.

    nyala demo [FOLDER]                    make a small store and show it round
    nyala table list|describe|scan|changes|load|export|stats|compact|vacuum FOLDER [TABLE]
    nyala tablet list FOLDER [TABLE]
    nyala fs check FOLDER                  is the store what it should be?
    nyala cfile dump FILE                  what is in a column file
    nyala wal dump FOLDER                  what is in the log

    app       the root command: options of all commands, errors and exit codes
    demo, tables, load, export, alter, maintenance, dumps          the commands
    options   arguments and options of several commands
    base      what all commands share: options, errors, messages of the library in the words of the command line
    stores    opening a store, finding a table in it
    files     Parquet, CSV and JSON files, read in bounded memory
    output, cells, progress                tables, JSON, values as text, bars, Ctrl-C
    version   what `--version` prints, also without click

Invariants
    L1  stdout has the answer, and with `--json` exactly one JSON document; everything else goes to stderr.
    L2  Exit codes: 0 fine, 1 error, 2 usage, 3 problems found by a check, 130 Ctrl-C.
    L3  Commands that only read open the store read-only: they work beside its writer.
    L4  Modules here import nothing but click and the standard library when they are loaded; the library and
        pyarrow are imported inside commands, so that `--help` answers at once.

click and DuckDB are the extra `cli`. Without click there is one sentence, and `--version`.
Left out: the shell, `perf loadgen`, `serve`.
Source: docs/how-to/command-line.md.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """The console script. Never returns: it ends the process with the command's exit code (L2)."""
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
    """Say the version if that is asked for, else what is missing. Returns the exit code."""
    options = list(itertools.takewhile(lambda word: word.startswith("-"), words))
    if "--version" not in options:
        print("nyala: the commands need click: pip install 'nyala[cli]'", file=sys.stderr)
        return 1
    from nyala.cli.version import version_text
    from nyala.errors import Error

    try:
        print(version_text("--json" in words))
    except Error as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def _end_quietly_if_nobody_reads() -> None:
    """Whoever read our output is gone (`nyala … | head`): the interpreter would complain of what is still buffered."""
    try:
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
    except BrokenPipeError:
        os._exit(0)
