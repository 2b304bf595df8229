"""`nyala table drop|compact|vacuum`: a table dropped; and what a program does in the background, at once.

They are writers. Where another process has the store, that one compacts by itself: they say so, and end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from nyala.cli.base import Command, cli_words, settings
from nyala.cli.output import duration, echo_json, echo_rows, size
from nyala.cli.progress import Bar
from nyala.cli.stores import readable_from, writer
from nyala.cli.tables import folder_argument, table_argument

if TYPE_CHECKING:
    from nyala.api.database import Database

__all__ = ["compact", "drop", "vacuum"]


@click.command(cls=Command)
@folder_argument
@table_argument
def compact(folder: str, table: str | None) -> None:
    """Flush and compact one table, or all, until rowsets do not overlap and no REDO is left."""
    from nyala.tablet.compaction.lifecycle import run_here
    from nyala.tablet.manual_maintenance import compact_table

    began_s = time.monotonic()
    done: list[dict[str, Any]] = []
    with _caretaker(folder) as database:
        store = database._writer()
        for name in _wanted(database, table):
            before = database.table(name).stats()
            with Bar(f"compacting {name}", 1.0, quiet=settings().json) as bar:
                work = _Work(bar)
                report = compact_table(store, name, run_here(store, work.rows), work.step)
            after = database.table(name).stats()
            done.append(
                {
                    "name": name,
                    "compactions": report.compactions,
                    **{
                        key: figure
                        for part in ("rowsets", "redo_bytes", "bytes")
                        for key, figure in ((f"{part}_before", before[part]), (part, after[part]))
                    },
                }
            )
        document = {"store": database.path, "tables": done, "waiting_files": len(store.state.garbage)}
    _tell(
        document,
        time.monotonic() - began_s,
        {
            "table": lambda one: one["name"],
            "compactions": lambda one: f"{one['compactions']:,}",
            "rowsets": lambda one: f"{one['rowsets_before']:,} → {one['rowsets']:,}",
            "REDO": lambda one: f"{size(one['redo_bytes_before'])} → {size(one['redo_bytes'])}",
            "in files": lambda one: f"{size(one['bytes_before'])} → {size(one['bytes'])}",
        },
    )


@click.command(cls=Command)
@folder_argument
@click.argument("table")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(folder: str, table: str, yes: bool) -> None:
    """Drop a table with all its rows and its history. Cannot be undone."""
    with writer(folder, maintenance=False) as database:
        rows = database.table(table).count()
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"this drops {table} with {rows:,} rows for good: add --yes")
            click.confirm(f"Drop {table} with {rows:,} rows for good?", abort=True)
        database.drop_table(table)
        if settings().json:
            echo_json({"store": database.path, "table": table, "rows": rows})
        else:
            click.echo(f"{table} is dropped, with {rows:,} rows.")


@click.command(cls=Command)
@folder_argument
@table_argument
@click.option("--dry-run", is_flag=True, help="Change nothing, and say about how much there is.")
def vacuum(folder: str, table: str | None, dry_run: bool) -> None:
    """Give back the disk that only history out of reach, dead rows and forgotten files take."""
    from nyala.tablet.compaction.lifecycle import run_here
    from nyala.tablet.manual_maintenance import vacuum_table

    began_s = time.monotonic()
    done: list[dict[str, Any]] = []
    with _caretaker(folder) as database:
        store = database._writer()
        for name in _wanted(database, table):
            with Bar(f"vacuuming {name}", 1.0, quiet=settings().json) as bar:
                found = vacuum_table(store, name, dry_run=dry_run, runner=run_here(store, _Work(bar).rows))
            figures = {key: found[key] for key in ("files", "bytes", "rowsets_rewritten")}
            done.append({"name": name, **figures, **readable_from(found["oldest_readable"])})
        document = {
            "store": database.path,
            "dry_run": dry_run,
            "tables": done,
            "waiting_files": len(store.state.garbage),
        }
    _tell(
        document,
        time.monotonic() - began_s,
        {
            "table": lambda one: one["name"],
            "files": lambda one: f"{one['files']:,}",
            "would be given back" if dry_run else "given back": lambda one: size(one["bytes"]),
            "rowsets to rewrite" if dry_run else "rewritten": lambda one: f"{one['rowsets_rewritten']:,}",
            "can be read from": lambda one: one["oldest_readable_time"] or "its beginning",
        },
    )


@contextmanager
def _caretaker(folder: str) -> Iterator[Database]:
    """The store for writing, without a background of its own: it would take rowsets that are to be compacted here.

    Raises: LockedError, which says that the process that has it does this work too.
    """
    from nyala.errors import LockedError

    with ExitStack() as stack:
        try:
            database = stack.enter_context(writer(folder, maintenance=False))
        except LockedError as error:
            raise LockedError(
                f"{cli_words(str(error))}. A writer does this work by itself, in the background"
            ) from error
        yield database


def _wanted(database: Database, name: str | None) -> list[str]:
    return database.list_tables() if name is None else [database.table(name).name]


class _Work:
    """Progress of one table: plans that are done, and of the running one the rows."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._done, self._total = 0, 1

    def step(self, done: int, total: int) -> None:
        self._done, self._total = done, max(total, 1)
        self._show(0.0)

    def rows(self, done: int, total: int) -> None:
        self._show(done / max(total, 1))

    def _show(self, part: float) -> None:
        note = f"{self._done} of {self._total}" if self._total > 1 else ""
        self._bar.update((self._done + part) / self._total, note)


def _tell(
    document: dict[str, Any], seconds: float, columns: Mapping[str, Callable[[Mapping[str, Any]], str]]
) -> None:
    if settings().json:
        echo_json({**document, "seconds": round(seconds, 3)})
        return
    if not document["tables"]:
        click.echo("The store has no tables.", err=True)
        return
    echo_rows(
        list(columns),
        [[cell(one) for cell in columns.values()] for one in document["tables"]],
        right=list(columns)[1:],
    )
    if document["waiting_files"] and not document.get("dry_run"):
        click.echo(
            f"{document['waiting_files']:,} more files wait for readers that still have them, and then go.",
            err=True,
        )
    click.echo(f"Done in {duration(seconds)}.", err=True)
