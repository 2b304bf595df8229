"""Prints results on stdout, as aligned text or as JSON.

Rows of a scan are printed as they arrive, in bounded memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from nyala.cli.base import settings
from nyala.errors import counted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "TERMINAL_ROWS",
    "counted",
    "duration",
    "echo_facts",
    "echo_json",
    "echo_list",
    "echo_result",
    "echo_rows",
    "echo_stream",
    "echo_stream_json",
    "is_terminal",
    "moment",
    "size",
]

# A scan prints this many rows on a terminal, if --limit does not say another number.
TERMINAL_ROWS: Final = 100
# Rows are aligned in chunks of this many. Columns become wider in a later chunk with wider cells.
_CHUNK_ROWS: Final = 1000


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def moment(timestamp: int) -> dict[str, Any]:
    """Return a timestamp for JSON documents: as the number that --at accepts, and as ISO time."""
    from nyala.mvcc.timestamp import to_datetime
    from nyala.presentation.cells import json_value

    return {"timestamp": timestamp, "time": json_value(to_datetime(timestamp))}


def size(count: float) -> str:
    """Format a number of bytes with decimal units: 6.1 MB."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB"):
        count /= 1000
        if count < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def duration(seconds: float) -> str:
    """Format a duration: 12 ms, 3.4 s."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def echo_json(document: Mapping[str, Any]) -> None:
    click.echo(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))


def echo_result(document: Mapping[str, Any], text: str) -> None:
    """Print the document with `--json`, otherwise the text."""
    if settings().json:
        echo_json(document)
    else:
        click.echo(text)


def echo_facts(facts: Mapping[str, str]) -> None:
    """Print each name with its fact, in two aligned columns. A fact may have several lines."""
    width = max(map(len, facts))
    for name, fact in facts.items():
        lines = fact.split("\n")
        for number, line in enumerate(lines):
            click.echo(f"{name if number == 0 else '':<{width}}  {line}".rstrip())


def echo_rows(names: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[str] = ()) -> None:
    """Print a table of texts. right: names of the columns that are aligned right."""
    from nyala.presentation.text_table import aligned

    flush_right = set(right)
    click.echo("\n".join(aligned([names, *rows], [0] * len(names), [name in flush_right for name in names])))


def echo_list(
    document: Mapping[str, Any],
    what: str,
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]],
    right: Iterable[str],
) -> bool:
    """Print `document` with `--json`, otherwise its list `document[what]` as a table, with one row
    per element.

    columns: for each heading, a function that returns the cell of an element.
    right: headings of the columns that are aligned right.

    Returns whether a table was printed.
    """
    if settings().json:
        echo_json(document)
    elif not document[what]:
        click.echo("The store has no tables.", err=True)
    else:
        rows = [[cell(one) for cell in columns.values()] for one in document[what]]
        echo_rows(list(columns), rows, right)
        return True
    return False


def echo_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Print rows as a table. Return the number of rows."""
    from nyala.presentation.cells import is_number, text_columns
    from nyala.presentation.text_table import aligned

    names, right = schema.names, [is_number(field.type) for field in schema]
    chunks = (
        list(zip(*text_columns(batch.slice(start, _CHUNK_ROWS)), strict=True))
        for batch in batches
        for start in range(0, batch.num_rows, _CHUNK_ROWS)
    )
    count = 0
    widths = [len(name) for name in names]
    first = True
    for chunk in chunks:
        click.echo("\n".join(aligned([names, *chunk] if first else chunk, widths, right)))
        first = False
        count += len(chunk)
    if first:
        click.echo("  ".join(names))
    return count


def echo_stream_json(head: Mapping[str, Any], names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> int:
    """Print one JSON document: the members of `head`, "rows" and "row_count". Return the number of rows."""
    from nyala.presentation.cells import json_columns

    click.echo(json.dumps(head, ensure_ascii=False)[:-1] + ', "rows": [', nl=False)
    count = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            rows = list(zip(*json_columns(batch.slice(start, _CHUNK_ROWS)), strict=True))
            lines = [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows]
            click.echo(("\n" if count == 0 else ",\n") + ",\n".join(lines), nl=False)
            count += len(rows)
    click.echo(f'\n], "row_count": {count}}}')
    return count
