"""The root command, and how errors become messages and exit codes.

    nyala: App ── demo, sql
              ├── table: Group ── list, describe, scan, changes, commits, alter, load, export, drop, undrop, purge, …
              ├── tag: Group ── list, add, drop
              ├── tablet: Group ── list
              ├── backup, restore
              ├── backups: Group ── list, clean
              ├── fs: Group ── check, copy, probe
              └── cfile, wal: Group ── dump

An error of the library is one or two lines on stderr, or one JSON object with `--json`. `--debug`
also prints the traceback. Other exceptions always print their traceback, because they are faults of
Nyala.
"""

from __future__ import annotations

import errno
import os
import shlex
from typing import Any, Final

import click

from nyala.cli.alter import alter
from nyala.cli.backups import backup, backups, restore
from nyala.cli.base import EXIT_INTERRUPTED, Failure, Group, report, settings, shared_options
from nyala.cli.demo import demo
from nyala.cli.dumps import cfile, tablet, wal
from nyala.cli.export import export
from nyala.cli.load import apply_changes, load
from nyala.cli.maintenance import clone, compact, drop, fs, purge, tag, undrop, vacuum
from nyala.cli.sql import OPENS_ONLY, sql
from nyala.cli.stores import is_store
from nyala.cli.tables import table

__all__ = ["app"]

EXIT_ERROR: Final = 1


class App(Group):
    """The root command. It turns exceptions into messages and exit codes."""

    group_class = Group

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += shared_options()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. If FOLDER is a store, `nyala FOLDER` means `nyala sql FOLDER`.

        Raises click.UsageError for an unknown command, with a suggestion: `nyala table list` for
        `nyala list`.
        """
        if self.get_command(ctx, args[0]) is None and is_store(args[0]):
            ctx.meta[OPENS_ONLY] = True
            return "sql", self.commands["sql"], args
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            full = [
                f"{ctx.command_path} {noun} {args[0]}"
                for noun, group in self.commands.items()
                if isinstance(group, click.Group) and args[0] in group.commands
            ]
            if full:
                raise click.UsageError(
                    f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, full))}?", ctx
                ) from error
            if args[0].startswith("-"):
                raise
            create = f"`{ctx.command_path} sql {shlex.quote(args[0])}`"
            raise click.UsageError(
                f"{error.message} There is no store {args[0]!r} either: {create} creates one.",
                ctx,
            ) from error

    def invoke(self, ctx: click.Context) -> Any:
        from nyala.errors import Error, bounded

        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            click.echo("Stopped.", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except click.ClickException as error:
            object.__setattr__(error, "message", bounded(error.message))
            raise
        except (Error, Failure, ImportError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                # The program that read the output has ended, as in `nyala table scan … | head`.
                os._exit(0)
            if isinstance(error.__cause__, KeyboardInterrupt):
                # A second Ctrl-C interrupted a commit. The error says whether the batch was committed.
                click.echo(f"Stopped: {error}", err=True)
                ctx.exit(EXIT_INTERRUPTED)
            if settings(ctx).debug:
                import traceback

                traceback.print_exc()
            report(error, settings(ctx).json)
            ctx.exit(EXIT_ERROR)


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from nyala.errors import Error
    from nyala.presentation.version import version_text

    try:
        click.echo(version_text(settings(context).json))
    except Error as error:  # `App.invoke` does not run, because options are read before it
        report(error, settings(context).json)
        context.exit(EXIT_ERROR)
    context.exit()


@click.group(
    cls=App,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Begin with: nyala demo",
)
@click.option(
    "--version", is_flag=True, expose_value=False, callback=_print_version, help="Print the version and exit."
)
def app() -> None:
    """Work with Nyala stores: query, load, export, back up and check tables.

    FOLDER is the store's folder, or the URL of a store in a bucket. Commands that only read work
    while another process writes.
    """


for _verb in (alter, load, apply_changes, export, drop, undrop, purge, clone, compact, vacuum):
    table.add_command(_verb)
_COMMANDS: Final[tuple[click.Command, ...]] = (
    demo, sql, table, tag, tablet, fs, backup, restore, backups, cfile, wal,
)  # fmt: skip
for _command in _COMMANDS:
    app.add_command(_command)
