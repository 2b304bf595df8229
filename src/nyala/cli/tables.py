"""`nyala table list|describe|scan|stats|changes|commits`: read a store, also while another process writes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from nyala.cli.base import Group, cli_words, settings
from nyala.cli.options import folder_argument, moment_option, names, scan_options, table_argument
from nyala.cli.output import (
    TERMINAL_ROWS,
    counted,
    echo_facts,
    echo_json,
    echo_list,
    echo_rows,
    echo_stream,
    echo_stream_json,
    is_terminal,
    moment,
    size,
)
from nyala.cli.stores import (
    block_size_text,
    describe_columns,
    echo_why_empty,
    find_table,
    partition_text,
    readable_from,
    reader,
    state_of,
)

if TYPE_CHECKING:
    from nyala.api.database import Database
    from nyala.api.table import Table

__all__ = ["table"]


@click.group(cls=Group)
def table() -> None:
    """Tables: list, describe, stats, scan, alter, load, export, changes, drop, undrop, clone,
    compact, vacuum, ….
    """


@table.command("list")
@folder_argument
@click.option(
    "--dropped", is_flag=True, help="List the dropped tables that `nyala table undrop` can bring back."
)
def list_tables(folder: str, dropped: bool) -> None:
    """List the store's tables: key, partition, rows, size."""
    with reader(folder) as database:
        if dropped:
            _list_dropped(database)
            return
        found = []
        for name in database.list_tables():
            state, stats = state_of(database, name), asdict(database.table(name).stats())
            found.append(
                {
                    "name": name,
                    "key": list(state.schema.key_names),
                    "partition": partition_text(state),
                    "tablets": stats["tablets"],
                    "rows": stats["rows"],
                    "bytes": stats["bytes"],
                    "memory_bytes": stats["memory_bytes"],
                    "comment": state.entry.comment,
                }
            )
        echo_list(
            {"store": database.path, **moment(database.now()), "tables": found},
            "tables",
            {
                "table": lambda one: one["name"],
                "rows": lambda one: f"{one['rows']:,}",
                "size": lambda one: size(one["bytes"] + one["memory_bytes"]),
                "tablets": lambda one: str(one["tablets"]),
                "key": lambda one: ", ".join(one["key"]),
                "partition": lambda one: one["partition"],
            },
            right=("rows", "size", "tablets"),
        )


def _list_dropped(database: Database) -> None:
    from nyala.presentation.cells import json_value

    found = [
        {
            "name": each.name,
            "id": each.id,
            "created": each.created,
            "dropped": each.dropped,
            "dropped_time": moment(each.dropped)["time"],
            "recoverable_until": json_value(each.recoverable_until),
            "bytes": each.bytes,
        }
        for each in database.dropped_tables()
    ]
    echo_list(
        {"store": database.path, **moment(database.now()), "tables": found},
        "tables",
        {
            "table": lambda one: one["name"],
            "dropped": lambda one: one["dropped_time"],
            "recoverable until": lambda one: one["recoverable_until"] or "it is purged",
            "size": lambda one: size(one["bytes"]),
        },
        right=("size",),
    )


@table.command()
@folder_argument
@table_argument
def describe(folder: str, table: str | None) -> None:
    """Show one table: columns, key, partition, history, size."""
    from nyala.tablet.state.history import describe_history

    with reader(folder) as database:
        found = find_table(database, table)
        state, stats = state_of(database, found.name), asdict(found.stats())
        history_us = state.entry.history_us
        columns = describe_columns(state)
        if settings().json:
            echo_json(
                {
                    "store": database.path,
                    "name": found.name,
                    "comment": state.entry.comment,
                    "key": found.primary_key,
                    "partition": partition_text(state),
                    "history_seconds": None if history_us is None else history_us / 1e6,
                    **readable_from(stats["oldest_readable"]),
                    "columns": columns,
                    "tablets": stats["tablets"],
                    "rows": stats["rows"],
                    "bytes": stats["bytes"],
                    "history_bytes": stats["history_bytes"],
                    "tag_bytes": stats["tag_bytes"],
                    "memory_bytes": stats["memory_bytes"],
                    **moment(stats["timestamp"]),
                }
            )
            return
        when = moment(stats["timestamp"])
        facts = {
            "table": found.name,
            "comment": state.entry.comment,
            "key": ", ".join(found.primary_key),
            "partition": partition_text(state),
            "tablets": str(stats["tablets"]),
            "history": describe_history(history_us),
            "readable": f"from {_readable_text(stats)} on",
            "rows": f"{stats['rows']:,}",
            "size": _size_text(stats),
            "the past": _past_text(stats),
            "as of": f"{when['time']} (timestamp {when['timestamp']})",
        }
        echo_facts({name: fact for name, fact in facts.items() if fact})
        click.echo()
        with_blocks = any(one["block_size"] is not None for one in columns)
        blocks = ["block size"] if with_blocks else []
        echo_rows(
            ["column", "type", "key", "null", "default", "encoding", "compression", *blocks, "comment"],
            [
                [
                    one["name"],
                    one["type"],
                    "" if one["key"] is None else str(one["key"]),
                    "yes" if one["nullable"] else "no",
                    "" if one["default"] is None else str(one["default"]),
                    one["encoding"],
                    one["compression"],
                    *(["" if one["block_size"] is None else f"{one['block_size']:,}"] if with_blocks else []),
                    one["comment"],
                ]
                for one in columns
            ],
            right=("key", *blocks),
        )


def _size_text(stats: Mapping[str, Any]) -> str:
    """Return a table's size as text, such as "3 MB in memory and in the log, 1 GB in files"."""
    in_files = f"{size(stats['bytes'])} in files"
    if not stats["memory_bytes"]:
        return in_files
    return f"{size(stats['memory_bytes'])} in memory and in the log, {in_files}"


def _readable_text(stats: Mapping[str, Any]) -> str:
    when = readable_from(stats["oldest_readable"])
    if when["oldest_readable_time"] is None:
        return "its beginning"
    return f"{when['oldest_readable_time']} (timestamp {when['oldest_readable']})"


def _past_text(stats: Mapping[str, Any]) -> str:
    """Return a text with the disk space that the history takes, and its share for tags.

    "" if the history takes no space.
    """
    if not stats["history_bytes"]:
        return ""
    dead = stats["dead_rows"]
    rows = f", with {dead:,} deleted rows" if dead else ""
    tags = f"; {size(stats['tag_bytes'])} of it for tags" if stats["tag_bytes"] else ""
    return f"{size(stats['history_bytes'])} of the files{rows}{tags}"


@table.command()
@folder_argument
@table_argument
@scan_options
def scan(
    folder: str,
    table: str | None,
    columns: list[str] | None,
    where: str | None,
    at: str | dt.datetime | None,
    limit: int | None,
    order: bool,
) -> None:
    """Print rows of one table, as of now or of any moment of its history.

    On a terminal it prints the first 100 rows, or as many as --limit says. To a pipe, to a file or
    as JSON, it prints all rows.
    """
    as_json = settings().json
    limited = limit is None and not as_json and is_terminal()
    with reader(folder) as database:
        found = find_table(database, table)
        limit = TERMINAL_ROWS + 1 if limited else limit
        rows = found.scan(columns=columns, where=where, at=at, limit=limit, order_by_key=order)
        if as_json:
            types = {
                column.name: str(column.type) for column in state_of(database, found.name).schema.columns
            }
            head = {
                "store": database.path,
                "table": found.name,
                **moment(rows.timestamp),
                "columns": [{"name": name, "type": types[name]} for name in rows.schema.names],
            }
            echo_stream_json(head, rows.schema.names, rows.to_reader())
            return
        if not limited:
            count, more = echo_stream(rows.schema, rows.to_reader()), ""
        else:
            whole = rows.to_arrow()
            count = echo_stream(rows.schema, whole.slice(0, TERMINAL_ROWS).to_batches())
            more = "" if whole.num_rows <= TERMINAL_ROWS else "; the table has more rows, --limit N shows N"
        if not count:
            echo_why_empty(rows)
        if is_terminal():
            when = moment(rows.timestamp)
            click.echo(f"{counted(count, 'row')} as of {when['time']} (timestamp {when['timestamp']}){more}")


# For each member of the JSON document of `stats`, the heading of its column.
_FIGURES: Final = {
    "rows": "rows",
    "tablets": "tablets",
    "rowsets": "rowsets",
    "bytes": "in files",
    "base_bytes": "base",
    "redo_bytes": "REDO",
    "undo_bytes": "UNDO",
    "redo_files": "REDO files",
    "history_bytes": "history",
    "dead_rows": "dead rows",
    "memory_bytes": "in memory",
}


@table.command()
@folder_argument
@table_argument
@moment_option(
    "--since",
    "Changes after this time: ISO time, an age (2h, 1d), a tag, or a Nyala timestamp.",
    required=True,
)
@moment_option("--until", "Changes up to this time, in the formats of --since. Default: now.")
@click.option("--versions", type=click.Choice(["net", "all"]), default="net",
              help="net: one row per key with its last state; all: every version in between.")  # fmt: skip
@click.option("--columns", metavar="A,B", callback=names, help="Only these columns besides the key's.")
@click.option(
    "--before",
    is_flag=True,
    help="Also print the values before each change: an update takes two rows, and deleted rows show their values.",
)
def changes(
    folder: str,
    table: str | None,
    since: Any,
    until: Any,
    versions: Any,
    columns: list[str] | None,
    before: bool,
) -> None:
    """Print rows of one table that changed between two moments: key, values, kind of change, and
    time.

    The columns of the key come first. Without --before, the other columns of a deleted row are
    NULL.
    """
    with reader(folder) as database:
        found = find_table(database, table)
        _check_moments(database, since, until)
        feed = found.changes(since, until, versions, columns, before=before)
        if not settings().json:
            echo_stream(feed.schema, feed.to_reader())
            return
        head = {
            "store": database.path,
            "table": found.name,
            "versions": feed.versions,
            "before": feed.before,
            "since": feed.since,
            "since_time": moment(feed.since)["time"],
            "until": feed.until,
            "until_time": moment(feed.until)["time"],
        }
        echo_stream_json(head, feed.schema.names, feed.to_reader())


@table.command()
@folder_argument
@table_argument
@moment_option(
    "--since",
    "Commits after this time, in the formats of `changes --since`. Default: all that can be listed.",
)
@moment_option("--until", "Commits up to this time. Default: now.")
def commits(folder: str, table: str | None, since: Any, until: Any) -> None:
    """List the commits of one table, or of all: time, tables, numbers of changed rows, and the message."""
    with reader(folder) as database:
        _check_moments(database, since, until)
        source = database if table is None else database.table(table)
        rows = source.commits(since, until).to_arrow()
        if settings().json:
            head = {"store": database.path, "table": table}
            echo_stream_json(head, rows.schema.names, rows.to_batches())
            return
        import pyarrow as pa

        from nyala import compute as pc

        index = rows.schema.get_field_index("tables")
        table_names = pc.binary_join(pc.cast(rows.column(index), pa.list_(pa.string())), ", ")
        rows = rows.set_column(index, "tables", table_names)
        echo_stream(rows.schema, rows.to_batches())


def _check_moments(database: Database, since: Any, until: Any) -> None:
    """Raise InvalidArgumentError with the name of the option, if a moment is invalid."""
    from nyala.errors import InvalidArgumentError

    for option, given in (("--since", since), ("--until", until)):
        try:
            database._view_at(given)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(cli_words(str(error)).replace("--at", option)) from error


@table.command()
@folder_argument
@table_argument
@click.option("--columns", "by_column", is_flag=True,
              help="For one table: how each column is stored, and its size.")  # fmt: skip
def stats(folder: str, table: str | None, by_column: bool) -> None:
    """Print the rows, rowsets and bytes of one table, or of all: base data, REDO, UNDO, history, memory."""
    with reader(folder) as database:
        if by_column:
            _column_stats(database, find_table(database, table))
            return
        documents = []
        for name in database.list_tables() if table is None else [table]:
            one = asdict(database.table(name).stats())
            figures = {key: one[key] for key in _FIGURES}
            documents.append(
                {"name": name, **moment(one["timestamp"]), **figures, **readable_from(one["oldest_readable"])}
            )
        columns: dict[str, Callable[[Mapping[str, Any]], str]] = {"table": lambda one: one["name"]}
        for key, heading in _FIGURES.items():
            shown = size if "bytes" in key else "{:,}".format
            columns[heading] = lambda one, key=key, shown=shown: shown(one[key])  # type: ignore[misc]
        document = {"store": database.path, "tables": documents}
        if echo_list(document, "tables", columns, _FIGURES.values()) and any(
            one["memory_bytes"] for one in documents
        ):
            click.echo("Rows in memory are also in the log; a flush writes them to files.", err=True)


def _column_stats(database: Database, table: Table) -> None:
    found, whole = [asdict(each) for each in table.column_stats()], asdict(table.stats())
    if settings().json:
        document = {"store": database.path, "name": table.name, **moment(whole["timestamp"])}
        echo_json({**document, "base_bytes": whole["base_bytes"], "columns": found})
        return
    headings = ["column", "type", "setting", "stored as", "in files", "bits per row"]
    echo_rows(
        headings,
        [
            [
                one["name"],
                one["type"],
                _settings_text(one),
                _encodings_text(one["stored_as"]),
                size(one["bytes"]),
                f"{8 * one['bytes'] / one['rows']:.1f}" if one["rows"] else "",
            ]
            for one in found
        ],
        right=headings[4:],
    )
    if whole["memory_bytes"]:
        click.echo("Rows in memory are also in the log; a flush writes them to files.", err=True)


def _settings_text(column: Mapping[str, Any]) -> str:
    storage = (column["encoding"], column["compression"], block_size_text(column["block_size"]))
    return ", ".join(filter(None, storage))


def _encodings_text(rows: Mapping[str, int]) -> str:
    """Return the encodings of a column with their shares. rows: the number of rows of each
    encoding, sorted.
    """
    total = sum(rows.values())
    if len(rows) == 1:
        return next(iter(rows))
    return ", ".join(f"{encoding} {100 * count / total:.0f} %" for encoding, count in rows.items())
