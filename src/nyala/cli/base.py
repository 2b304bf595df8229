"""What every command is made of: the shared options, and an error of the command line's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

__all__ = [
    "Command",
    "Failure",
    "Group",
    "Settings",
    "program",
    "settings",
    "shared_options",
]


@dataclass
class Settings:
    """What `--json` and `--debug` say, wherever on the line they stand."""

    json: bool = False
    debug: bool = False


class Failure(Exception):
    """An error of the command line's own: exit code 1. `kind` and `details` go into its JSON form."""

    def __init__(self, message: str, kind: str = "Failure", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = dict(details or {})


def settings(context: click.Context | None = None) -> Settings:
    """Those of a command; None: of the one that runs."""
    found = (context or click.get_current_context()).find_root().ensure_object(Settings)
    assert isinstance(found, Settings)
    return found


def shared_options() -> list[click.Parameter]:
    """`--json` and `--debug`: on every command, and before it."""
    return [
        _switch("json", "One JSON document on stdout."),
        _switch("debug", "Show the traceback of an error."),
    ]


def _switch(name: str, help: str) -> click.Option:
    def set_it(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            setattr(settings(context), name, True)

    # Eager: what prints and exits while options are read, such as --version, already knows.
    return click.Option(
        [f"--{name}"], is_flag=True, expose_value=False, is_eager=True, callback=set_it, help=help
    )


_SUMMARY_MAX: Final = 200


class Command(click.Command):
    """A command with the shared options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += shared_options()

    def get_short_help_str(self, limit: int = 45) -> str:
        """A line of its group's help, which is wrapped there and not cut."""
        return super().get_short_help_str(max(limit, _SUMMARY_MAX))


# Words that other programs have for commands, and what does it here.
_SQL: Final = (
    "SQL is asked in Python: nyala.connect(FOLDER, read_only=True).sql('SELECT …'); `table scan FOLDER TABLE --where` "
    "reads rows here"
)
_MEANT: Final = {
    **dict.fromkeys(("sql", "shell", "query", "repl"), _SQL),
    **dict.fromkeys(("ls", "show", "tables"), "`table list FOLDER` lists the tables"),
    **dict.fromkeys(
        ("head", "select", "cat", "rows", "get", "read", "preview"), "`table scan FOLDER TABLE --limit 10` shows rows"
    ),
    **dict.fromkeys(("count", "size", "du"), "`table stats FOLDER` counts rows and bytes"),
    **dict.fromkeys(("info", "schema", "columns"), "`table describe FOLDER TABLE` shows the columns"),
    **dict.fromkeys(("import", "insert", "upsert", "write", "copy"), "`table load FOLDER TABLE FILE` loads a file"),
    **dict.fromkeys(
        ("create", "new", "make"), "`table load --create` makes a table from a file, db.create_table(…) in Python"
    ),
    **dict.fromkeys(("remove", "rm"), "`table drop FOLDER TABLE` drops a table"),
    **dict.fromkeys(("delete", "truncate"), "rows are deleted in Python: table.delete(where=…)"),
    **dict.fromkeys(("dump", "save", "unload"), "`table export FOLDER TABLE FILE` writes a file"),
    **dict.fromkeys(("diff", "log", "history"), "`table changes FOLDER TABLE --since TIME` tells what changed"),
    "rename": "`table alter FOLDER TABLE 'rename-table NAME'` renames a table",
    **dict.fromkeys(("repair", "verify", "fsck"), "`fs check FOLDER` looks for damage"),
}  # fmt: skip


def _with_meant(error: click.UsageError, word: str) -> click.UsageError:
    """The error for an unknown command, with what does what it probably means."""
    if os.path.isdir(word):
        meant = "A folder comes behind a command, as in `table list FOLDER`."
    elif word in _MEANT:
        meant = f"{_MEANT[word][0].upper()}{_MEANT[word][1:]}."
    else:
        return error
    return click.UsageError(f"{error.format_message()} {meant}", error.ctx)


class Group(click.Group):
    """A noun; its verbs are commands with the shared options."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises: click.UsageError, which says of some words what does that here."""
        # Before 8.2 click takes a path for an option, because of its first letter, and shows the help.
        if self.get_command(ctx, args[0]) is None and os.path.isdir(args[0]):
            raise _with_meant(click.UsageError(f"No such command {args[0]!r}.", ctx), args[0])
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise _with_meant(error, args[0]) from error

    def get_short_help_str(self, limit: int = 45) -> str:
        """As of `Command`."""
        return super().get_short_help_str(max(limit, _SUMMARY_MAX))


def program() -> str:
    """How this program was called, for lines that a person is to type."""
    called = sys.argv[0]
    if os.path.basename(called) != "nyala":
        return f"{os.path.basename(sys.executable)} -m nyala"
    import shutil

    found = shutil.which("nyala")
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return "nyala"
    shown = os.path.relpath(called)
    return shown if not shown.startswith("..") else called
