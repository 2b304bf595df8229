"""`nyala table drop|undrop|purge|clone|compact|vacuum`, `nyala tag list|add|drop`, and `nyala fs
check|copy|probe`.

Only `tag list`, `fs check`, `fs copy` and `fs probe` do not write to the store.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from nyala.cli.base import Command, Failure, Group, cli_words, settings, storage_options
from nyala.cli.options import folder_argument, moment_option, table_argument
from nyala.cli.output import counted, duration, echo_json, echo_list, echo_result, echo_rows, moment, size
from nyala.cli.progress import Bar
from nyala.cli.stores import (
    check_store_path,
    readable_from,
    reader,
    state_of,
    storage_options_of_both,
    writer,
)

if TYPE_CHECKING:
    from nyala.api.database import Database
    from nyala.tablet.check import CheckReport

__all__ = ["EXIT_PROBLEMS", "clone", "compact", "drop", "fs", "purge", "tag", "undrop", "vacuum"]


@click.command(cls=Command)
@folder_argument
@table_argument
def compact(folder: str, table: str | None) -> None:
    """Flush and compact one table, or all, until rowsets do not overlap and no REDO is left."""
    began_s = time.monotonic()
    done: list[dict[str, Any]] = []
    with _maintained_store(folder) as database:
        for name in _table_names(database, table):
            before = asdict(database.table(name).stats())
            with Bar(f"compacting {name}") as bar:
                report = database._writing().compact(name, _TableProgress(bar))
            after = asdict(database.table(name).stats())
            done.append(
                {
                    "name": name,
                    "compactions": report["compactions"],
                    **{
                        key: figure
                        for part in ("rowsets", "redo_bytes", "bytes")
                        for key, figure in ((f"{part}_before", before[part]), (part, after[part]))
                    },
                }
            )
        document = {
            "store": database.path,
            "tables": done,
            "waiting_files": database.stats().garbage_files,
        }
    _echo_tables(
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
@click.option("--purge", is_flag=True, help="Remove rows and history at once; cannot be undone.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def drop(folder: str, table: str, purge: bool, yes: bool) -> None:
    """Drop a table. `nyala table undrop` brings it back as long as its history lasts."""
    with writer(folder, maintenance=False) as database:
        rows = database.table(table).count()
        has_history = database.table(table).description.history != dt.timedelta(0)
        permanently = purge or not (has_history or state_of(database, table).entry.tagged)
        _confirm(f"{'permanently ' if permanently else ''}drop{{}} {table} with {rows:,} rows", yes)
        database.drop_table(table, purge=purge)
        text = f"Dropped {table} with {rows:,} rows."
        if not permanently:
            until = next((each.recoverable_until for each in reversed(database.dropped_tables())), None)
            kept = "you purge it" if until is None else until.strftime("%Y-%m-%dT%H:%M:%SZ")
            text += f" `nyala table undrop` can bring it back until {kept}."
        document = {"store": database.path, "table": table, "rows": rows, "purged": permanently}
        echo_result(document, text)


def _confirm(what: str, yes: bool) -> None:
    """Ask the user for confirmation, unless `yes` is set.

    what: what the command does, such as "drop{} t". The `{}` after the verb marks where the error
        adds an "s". The question is "Drop t?". The error is "this command drops t: add --yes to
        confirm".
    Raises: click.UsageError if there is no terminal on which to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"this command {what.format('s')}: add --yes to confirm")
    sentence = what.format("")
    click.confirm(f"{sentence[0].upper()}{sentence[1:]}?", abort=True)


@click.group(cls=Group)
def tag() -> None:
    """Tags, which name moments that stay readable: list, add, drop."""


@tag.command("list")
@folder_argument
def list_tags(folder: str) -> None:
    """List the store's tags, oldest moment first, and about how many bytes are kept for them."""
    with reader(folder) as database:
        tags = [{"name": each.name, **moment(each.timestamp)} for each in database.tags()]
        kept = database.stats().tag_bytes
        if settings().json:
            echo_json({"store": database.path, "tags": tags, "tag_bytes": kept})
        elif not tags:
            click.echo("The store has no tags.", err=True)
        else:
            names = ["tag", "time", "timestamp"]
            echo_rows(names, [[str(each[key]) for key in ("name", "time", "timestamp")] for each in tags])
            click.echo(f"Kept only for tags: about {size(kept)}.", err=True)


@tag.command("add")
@folder_argument
@click.argument("name")
@moment_option(
    "--at", "The moment: ISO time (default UTC), an age (2h, 1d), a tag, or a Nyala timestamp. Default: now."
)
def add_tag(folder: str, name: str, at: Any) -> None:
    """Name a moment, which then stays readable until the tag is dropped."""
    with writer(folder, maintenance=False) as database:
        made = database.tag(name, at)
        when = moment(made.timestamp)
        echo_result(
            {"store": database.path, "name": made.name, **when},
            f"{made.name} names {when['time']} (timestamp {made.timestamp}).",
        )


@tag.command("drop")
@folder_argument
@click.argument("name")
def drop_tag(folder: str, name: str) -> None:
    """Drop a tag. Moments that only this tag kept cannot be read any more."""
    with writer(folder, maintenance=False) as database:
        database.drop_tag(name)
        echo_result({"store": database.path, "name": name}, f"Dropped the tag {name}.")


@click.command(cls=Command)
@folder_argument
@click.argument("table")
@click.option("--as", "new_name", metavar="NAME", help="A new name for the table.")
@moment_option("--at", "A time at which the table existed, if several dropped tables had its name.")
def undrop(folder: str, table: str, new_name: str | None, at: Any) -> None:
    """Bring back a dropped table, with its rows and its history.

    `nyala table list --dropped` lists the dropped tables.
    """
    with writer(folder, maintenance=False) as database:
        found = database.undrop_table(table, new_name, at=at)
        rows = found.count()
        document = {"store": database.path, "table": found.name, "rows": rows}
        echo_result(document, f"Brought back {found.name} with {rows:,} rows.")


@click.command(cls=Command)
@folder_argument
@click.argument("table")
@click.argument("new_name", metavar="NEW-NAME")
@moment_option(
    "--at",
    "Clone the rows of this time: ISO time (default UTC), an age (2h, 1d), a tag, or a Nyala timestamp. "
    "Default: now.",
)
def clone(folder: str, table: str, new_name: str, at: Any) -> None:
    """Make a new table with the same rows, which shares the files of the first table.

    Later changes of one table do not affect the other.
    """
    with writer(folder, maintenance=False) as database:
        rows = database.clone_table(table, new_name, at).count()
        document = {"store": database.path, "table": table, "clone": new_name, "rows": rows}
        echo_result(document, f"Cloned {table} as {new_name}: {rows:,} rows.")


@click.command(cls=Command)
@folder_argument
@table_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def purge(folder: str, table: str | None, yes: bool) -> None:
    """Remove dropped tables and dropped ranges at once: those of one table, or all. Cannot be undone."""
    with writer(folder, maintenance=False) as database:
        whose = "all dropped tables and ranges" if table is None else f"dropped tables and ranges of {table}"
        _confirm(f"permanently remove{{}} {whose}", yes)
        freed = database.purge_dropped(table)
        document = {"store": database.path, "table": table, "bytes": freed}
        echo_result(document, f"Removed {size(freed)} of {whose}.")


@click.command(cls=Command)
@folder_argument
@table_argument
@click.option(
    "--dry-run", is_flag=True, help="Change nothing; print an estimate of the bytes that could be freed."
)
def vacuum(folder: str, table: str | None, dry_run: bool) -> None:
    """Free the disk space of expired history, dead rows and unused files."""
    began_s = time.monotonic()
    done: list[dict[str, Any]] = []
    with _maintained_store(folder) as database:
        for name in _table_names(database, table):
            with Bar(f"vacuuming {name}") as bar:
                found = database._writing().vacuum(name, dry_run, _TableProgress(bar))
            figures = {key: found[key] for key in ("files", "bytes", "rowsets_rewritten")}
            done.append({"name": name, **figures, **readable_from(found["oldest_readable"])})
        document = {
            "store": database.path,
            "dry_run": dry_run,
            "tables": done,
            "waiting_files": database.stats().garbage_files,
        }
    _echo_tables(
        document,
        time.monotonic() - began_s,
        {
            "table": lambda one: one["name"],
            "files": lambda one: f"{one['files']:,}",
            "would be freed" if dry_run else "freed": lambda one: size(one["bytes"]),
            "rowsets to rewrite" if dry_run else "rewritten": lambda one: f"{one['rowsets_rewritten']:,}",
            "can be read from": lambda one: one["oldest_readable_time"] or "its beginning",
        },
    )


@contextmanager
def _maintained_store(folder: str) -> Iterator[Database]:
    """Open the store to compact or vacuum it by hand, without background maintenance.

    Background maintenance could use the same rowsets. Raises LockedError if another process is the
    store's writer. The message then says that a writer compacts and vacuums by itself.
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


def _table_names(database: Database, name: str | None) -> list[str]:
    return database.list_tables() if name is None else [database.table(name).name]


class _TableProgress:
    """Shows the progress of one table: the finished compactions, and the rows of the running one."""

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
        self._bar.update(self._done + part, self._total, note)


def _echo_tables(
    document: dict[str, Any], seconds: float, columns: Mapping[str, Callable[[Mapping[str, Any]], str]]
) -> None:
    """Print the result of `compact` or `vacuum`: a line for each table of the store.

    document: the result as a JSON object, which is printed if the user passed `--json`.
    seconds: the time that the command took.
    columns: by heading, a function that returns the text under this heading. Its argument is one
        item of `document["tables"]`.
    """
    if not echo_list({**document, "seconds": round(seconds, 3)}, "tables", columns, list(columns)[1:]):
        return
    if document["waiting_files"] and not document.get("dry_run"):
        click.echo(
            f"{document['waiting_files']:,} more files are deleted when their readers have finished.",
            err=True,
        )
    click.echo(f"Done in {duration(seconds)}.", err=True)


EXIT_PROBLEMS: Final = 3


@click.group(cls=Group)
def fs() -> None:
    """Check, copy and test the files of a store."""


@fs.command("check")
@folder_argument
@click.option(
    "--repair", is_flag=True, help="Repair what can be repaired without data loss, and print each repair."
)
@click.pass_context
def check(context: click.Context, folder: str, repair: bool) -> None:
    """Read and verify every byte of a store. The exit code is 3 if there are problems."""
    from nyala.env import SYSTEM
    from nyala.env.paths import is_bucket_url
    from nyala.tablet.check import check_bucket, check_folder
    from nyala.tablet.repair import repair_bucket, repair_folder

    began_s = time.monotonic()
    with Bar("checking rowsets") as bar:

        def step(done: int, total: int) -> None:
            bar.update(done, total, f"{done:,} of {total:,}")

        if is_bucket_url(folder):
            report = (repair_bucket if repair else check_bucket)(folder, settings().storage_options, step)
        else:
            report = (repair_folder if repair else check_folder)(SYSTEM, os.path.abspath(folder), step)
    seconds = time.monotonic() - began_s
    if settings().json:
        document = report.to_dict()
        echo_json({"store": document.pop("path"), **document, "seconds": round(seconds, 3)})
    else:
        _echo_report(report, seconds, repair)
    if not report.ok:
        context.exit(EXIT_PROBLEMS)


def _echo_report(report: CheckReport, seconds: float, repair: bool) -> None:
    for repaired in report.repairs:
        click.echo(f"repaired: {repaired}")
    for problem in report.problems:
        where = "" if problem.table is None else f" (table {problem.table}, tablet {problem.tablet_id})"
        click.echo(f"{problem.kind}: {problem.message}{where}")
    for note in report.notes:
        click.echo(f"note: {note}")
    click.echo(
        f"{counted(report.tables, 'table')}, {counted(report.tablets, 'tablet')}, {counted(report.rowsets, 'rowset')}, "
        f"{counted(report.files, 'file')} with {size(report.bytes)}, {counted(report.rows, 'row')} on disk, "
        f"{counted(report.log_records, 'record')} in the log: "
        + ("no problems" if report.ok else counted(len(report.problems), "problem"))
    )
    click.echo(f"Done in {duration(seconds)}.", err=True)
    if report.ok:
        return
    repairable = sum(problem.repairable for problem in report.problems)
    if repairable and not repair:
        click.echo(f"--repair fixes {repairable:,} of them without data loss.", err=True)
    if repairable < len(report.problems):
        click.echo("Damaged data can only be restored from a backup.", err=True)


@fs.command("copy")
@click.argument("source", type=click.Path(), callback=check_store_path)
@click.argument("destination", type=click.Path(), callback=check_store_path)
@click.option(
    "--to-option",
    "to_options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=storage_options,
    help="A storage option of DESTINATION. Default: the options of --option, if both URLs are of one kind.",
)
def copy(source: str, destination: str, to_options: dict[str, Any]) -> None:
    """Copy a whole store, with its history, to a new folder or prefix of a bucket.

    SOURCE and DESTINATION are folders or URLs. Another process may write to SOURCE meanwhile.
    """
    from nyala.env import SYSTEM
    from nyala.env.paths import is_bucket_url
    from nyala.objects.open import open_objects
    from nyala.tablet.copying import BucketDestination, FolderDestination, copy_store
    from nyala.tablet.store import Store

    began_s = time.monotonic()
    to_options, options = storage_options_of_both("--to-option", to_options, destination, source)
    with (
        reader(source, options) as database,
        closing(
            BucketDestination(SYSTEM, open_objects(destination, to_options))
            if is_bucket_url(destination)
            else FolderDestination(SYSTEM, os.path.abspath(destination))
        ) as target,
        Bar("copying") as bar,
    ):
        store = database._opened()
        assert not isinstance(store, Store), "`reader` opens read-only"
        report = copy_store(
            store,
            target,
            lambda done, total: bar.update(done, total, f"{size(done)} of {size(total)}"),
        )
    seconds, made = time.monotonic() - began_s, asdict(report)
    if settings().json:
        document = {"source": source, "destination": destination, **made, **moment(made["timestamp"])}
        echo_json({**document, "seconds": round(seconds, 3)})
    else:
        click.echo(
            f"{destination} is a copy of {source}: {counted(report.files, 'file')} with {size(report.bytes)}, "
            f"{counted(report.log_records, 'record')} in the log."
        )
        click.echo(f"Done in {duration(seconds)}.", err=True)


@fs.command("probe")
@click.argument("url")
@click.option(
    "--races",
    type=click.IntRange(1, 10_000),
    default=300,
    help="How many times several threads race to create one key. Default: 300.",
)
def probe(url: str, races: int) -> None:
    """Test whether a bucket is suitable for a store.

    For example, of several threads that create one object at the same time, exactly one may succeed
    (--races). URL is s3://BUCKET/PREFIX, gs://, az:// or file:///FOLDER.
    """
    from nyala.env import SYSTEM
    from nyala.objects.open import open_objects
    from nyala.objects.probe import PROMISES
    from nyala.objects.probe import probe as probe_bucket

    began_s, options = time.monotonic(), settings().storage_options
    width = max(map(len, PROMISES))
    findings = []
    with (
        closing(open_objects(url, options)) as first,
        closing(open_objects(url, options)) as second,
    ):
        for finding in probe_bucket(SYSTEM, [first, second], races=races):
            findings.append(finding)
            if not settings().json:
                state = "kept  " if finding.kept else "BROKEN"
                click.echo(
                    f"{state}  {finding.promise:<{width}}  {finding.request} {finding.p50_ms:.1f} ms (p50)"
                )
        shown = first.url
    broken = [finding for finding in findings if not finding.kept]
    seconds = time.monotonic() - began_s
    if settings().json:
        promises = [asdict(finding) for finding in findings]
        echo_json({"url": shown, "kept": not broken, "promises": promises, "seconds": round(seconds, 3)})
    if broken:
        raise Failure(
            f"{shown} is not suitable for a store: " + "; ".join(finding.detail for finding in broken),
            "BrokenPromise",
        )
    if not settings().json:
        click.echo(f"Done in {duration(seconds)}. {shown} is suitable for a store.", err=True)
