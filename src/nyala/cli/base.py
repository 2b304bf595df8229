"""Defines what all commands share: their options, their error class, and rules that reword messages
of the library.

A message of the library names Python arguments, such as `at=`. `cli_words` replaces them by
options, such as `--at`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click

__all__ = [
    "EXIT_INTERRUPTED",
    "Command",
    "Failure",
    "Group",
    "Settings",
    "cli_words",
    "program",
    "report",
    "settings",
    "shared_options",
    "storage_options",
]

EXIT_INTERRUPTED: Final = 130  # what shells report after SIGINT: 128 + 2


@dataclass
class Settings:
    """The values of `--json`, `--debug` and `--option`, which a user may write before or after a command."""

    json: bool = False
    debug: bool = False
    storage_options: dict[str, Any] = field(default_factory=dict)


class Failure(Exception):
    """An error of the command line itself, with exit code 1.

    With `--json` the error is printed as a JSON object. kind: its member "type". details: its other
    members, besides "type" and the message.
    """

    def __init__(self, message: str, kind: str = "Failure", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = dict(details or {})


def settings(context: click.Context | None = None) -> Settings:
    """Return the settings of the running program. context: default: the running command."""
    found = (context or click.get_current_context()).find_root().ensure_object(Settings)
    assert isinstance(found, Settings)
    return found


def shared_options() -> list[click.Parameter]:
    """Return the options `--json`, `--debug` and `--option`, as new objects for one command."""
    return [
        click.Option(
            ["--option"],
            metavar="NAME=VALUE",
            multiple=True,
            expose_value=False,
            callback=_note_storage_options,
            help="A storage option of a bucket, such as region=eu-central-1. May be repeated.",
        ),
        _switch("json", "One JSON document on stdout."),
        _switch("debug", "Show the traceback of an error."),
    ]


def _switch(name: str, help: str) -> click.Option:
    def set_it(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            setattr(settings(context), name, True)

    # Eager options are read first. --version, which prints and exits while options are read, needs
    # their values.
    return click.Option(
        [f"--{name}"], is_flag=True, expose_value=False, is_eager=True, callback=set_it, help=help
    )


_CONVERTED: Final[Mapping[str, Callable[[str], Any]]] = {
    "allow_http": lambda text: {"true": True, "false": False}[text],
    "timeout_s": float,
}


def _note_storage_options(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> None:
    settings(context).storage_options.update(storage_options(context, parameter, value))


def storage_options(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> dict[str, Any]:
    """Parse `name=value` words. Refuse secrets, because other users of the machine can see a command line."""
    found: dict[str, Any] = {}
    for word in value:
        name, equals, text = word.partition("=")
        if not equals:
            raise click.BadParameter("expected name=value, such as region=eu-central-1", context, parameter)
        if "secret" in name or "token" in name or name == "account_key":
            raise click.BadParameter(
                f"{name} is a secret: set the provider's variable, such as AWS_SECRET_ACCESS_KEY, or use a profile",
                context,
                parameter,
            )
        try:
            found[name] = _CONVERTED.get(name, str)(text)
        except (KeyError, ValueError):
            raise click.BadParameter(f"{text!r} is not a valid value of {name}", context, parameter) from None
    return found


_SUMMARY_MAX: Final = 200


class Command(click.Command):
    """A command that also has the options `--json`, `--debug` and `--option`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += shared_options()

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the command's line in the help of its group.

        click would shorten it to `limit` characters. This method allows a longer line.
        """
        return super().get_short_help_str(max(limit, _SUMMARY_MAX))


class Group(click.Group):
    """A group of commands, such as `nyala table`. Its commands have the shared options."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises click.UsageError, with advice if the argument is a folder."""
        # Without this check, click before 8.2 takes a path for an option and prints the help.
        if self.get_command(ctx, args[0]) is None and os.path.isdir(args[0]):
            advice = "Write the folder after a command, as in `table list FOLDER`."
            raise click.UsageError(f"No such command {args[0]!r}. {advice}", ctx)
        return super().resolve_command(ctx, args)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the group's line in the help.

        click would shorten it to `limit` characters. This method allows a longer line.
        """
        return super().get_short_help_str(max(limit, _SUMMARY_MAX))


def program() -> str:
    """Return the beginning of commands that messages suggest: `nyala`, or for example `python -m nyala`."""
    called = os.path.basename(sys.argv[0])
    return called if called == "nyala" else f"{os.path.basename(sys.executable)} -m nyala"


# Regular expressions for parts of the library's messages, and what replaces them.
_RULES: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        # the writer's lock
        (r"open it with read_only=True, wait for the writer to close it with lock_timeout=seconds, or end (.*)",
         r"wait until it is closed, or end \1; commands that only read work meanwhile"),
        (r": close\(\) it first", ""),
        (r"\. To only read, open the store with read_only=True$", "; commands that only read work meanwhile"),
        (r"call it there, or close the store there and connect\(\) again", "wait until it is closed there"),
        (r"close it there, open it here with read_only=True, or pass take_over=True; then .* write",
         "wait until it is closed there; commands that only read work meanwhile"),
        (r"(the store is free in \d+ seconds): lock_timeout=\d+ waits", r"\1"),
        (r"; db\.tag\(name\) makes one", ""),
        # buckets
        (r"storage_options, cache_dir, .* are for a store", "--option is for a store"),
        (r"pass storage_options", "give --option NAME=VALUE"),
        # backups
        (r"name the tables to restore with tables=\[…\]", "name the tables to restore with --table"),
        (r"restore under another name, or drop the table first", "restore one table with --table and --as, or drop it"),
        # tables
        (r"; open it with table\('.*'\), or pass exist_ok=True", "; without --create the rows go into it"),
        (r"create the table with (primary_key=|unique=True)", "create the table with --key"),
        (r"create one with create_table\(\)", "`table load --create` creates one from a file"),
        # moments
        # All times end in Z. Text in quotes is the user's own and stays unchanged.
        (r"(?<!['\"\w])(\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)\+00:00(?!['\"\w])", r"\1Z"),
        (r"^at=", "--at "),
        (r"write at=('[^']*'), or pass a datetime", r"write --at \1"),
        (r" \(set by create_table\(history=…\) or set_history\(…\)\)", ""),
        (r"^since=(.*) is later than until=(.*): the changes are those after since, up to until$",
         r"--since \1 is later than --until \2: the changes are those after --since, up to --until"),
        # scans and partitions
        (r"TRUE selects every row", "leave out --where to select every row"),
        (r"^columns names a column twice", "--columns names a column twice"),
        (r"^hash_partition(?:\((.*?)\):)?", lambda found: f"--hash {found[1]}:" if found[1] else "--hash"),
        (r"^range_partition\b", "--range"),
        # change events and conditions
        (r"pass operation='…'", "give --operation FIELD"),
        (r"pass operations=\{'…': 'upsert', 'delete' or 'skip'\}", "give --word WORD=upsert, =delete or =skip"),
        (r"units=\{'([^']*)': 'ms'\}", r"--unit \1=ms"),
        (r"\bunits= gives", "--unit gives"),
        (r"columns=\[…\] names the fields", "--columns names the fields"),
        (r"^columns: ", "--columns: "),
        (r"^units: ", "--unit: "),
        (r"^operations: ", "--word: "),
        (r"^sequence='", "--sequence: '"),
        (r"sequence_column needs sequence=", "--sequence-column needs --sequence"),
        (r"such as add_column\('([^']*)', 'int64'\), or pass sequence_column=",
         r"such as `table alter … 'add \1 int64'`, or give --sequence-column"),
        (r"\bnewest_by=('[^']*')", r"--newest-by \1"),
        (r"\bbut newest_by needs", "but --newest-by needs"),
        # storage of columns
        (r", such as 65536 or '64KiB', or None for the default;",
         ", such as 65536 or 64KiB, or empty (block_size=) for the default;"),
        # failed stores
        (r"close it and connect\(\) again to see", "the next command that writes shows"),
        (r"check the disk, or raise memory_limit", "check the disk"),
    )
)  # fmt: skip


def cli_words(message: str) -> str:
    """Replace Python arguments and calls in a message of the library by options and commands: `at=`
    by `--at`.
    """
    for pattern, words in _RULES:
        message = pattern.sub(words, message)
    return message


def report(error: Exception, as_json: bool | None = None, words: Callable[[str], str] = cli_words) -> None:
    """Print an error on stderr.

    as_json: whether to print JSON. Default: the value of `--json`. words: a function that rewords
    the library's message for the user.
    """
    from nyala.errors import bounded

    message = bounded(words(str(error) or type(error).__name__))
    if not (settings().json if as_json is None else as_json):
        click.echo(f"Error: {message}", err=True)
        return
    kind, details = (error.kind, error.details) if isinstance(error, Failure) else (type(error).__name__, {})
    document = {"error": {"type": kind, "message": message, **details}}
    click.echo(json.dumps(document, ensure_ascii=False), err=True)
