"""The output modes: each converts the batches of a result to pieces of text.

    table   aligned columns; a text with line breaks takes several lines
    csv     RFC 4180: NULL is an empty field, text has quotes if it needs them, binary is
            hexadecimal
    json    one array, with an object per row in a line of its own
    md      a table in Markdown
    line    one column per line, and an empty line between rows

If two columns have the same name, JSON adds numbers to the names. The other modes repeat the name.

Source: docs/how-to/shell.md, "Output".
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, zip_longest
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.csv as pa_csv

from nyala.presentation.cells import is_number, json_columns, text_columns
from nyala.presentation.text_table import aligned, width_of

__all__ = ["FORMATS", "STREAMED", "Format"]

Format: TypeAlias = Callable[[pa.Schema, Iterable[pa.RecordBatch]], Iterator[str]]

# Rows are converted in chunks of this many. In the mode table, columns become wider in a later
# chunk with wider cells.
_CHUNK_ROWS: Final = 1000


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            yield batch.slice(start, _CHUNK_ROWS)


def _text_rows(batches: Iterable[pa.RecordBatch], *, breaks: bool = False) -> Iterator[list[tuple[str, ...]]]:
    for chunk in _chunks(batches):
        yield list(zip(*text_columns(chunk, breaks=breaks), strict=True))


def _table(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    widths = [0] * len(schema)
    right = [is_number(field.type) for field in schema]
    head: list[Sequence[str]] = [schema.names]
    for rows in _text_rows(batches, breaks=True):
        lines = [line for row in rows for line in _lines_of(row)]
        yield "\n".join(aligned([*head, *lines], widths, right)) + "\n"
        head = []
    if head:
        yield "\n".join(aligned(head, widths, right)) + "\n"


def _lines_of(row: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """Return the lines of a row. A cell may have several lines."""
    if not any("\n" in cell for cell in row):
        return (row,)
    return zip_longest(*(cell.split("\n") for cell in row), fillvalue="")


def _csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    yield _csv_text(pa.Table.from_batches([], schema), True)
    for batch in batches:
        yield _csv_text(pa.Table.from_batches([batch]), False)


def _csv_text(rows: pa.Table, header: bool) -> str:
    columns = [column if _is_plain(column.type) else _texts(column) for column in rows.columns]
    written = io.BytesIO()
    options = pa_csv.WriteOptions(include_header=header, quoting_style="needed")
    pa_csv.write_csv(pa.Table.from_arrays(columns, names=rows.schema.names), written, options)
    return written.getvalue().decode()


def _is_plain(type: pa.DataType) -> bool:
    """Whether Arrow writes values of the type as Nyala shows them."""
    return bool(is_number(type) or pa.types.is_boolean(type) or pa.types.is_string(type))


def _texts(column: pa.ChunkedArray) -> pa.Array:
    """Convert the values to text. NULL stays NULL."""
    (values,) = json_columns(pa.Table.from_arrays([column], names=["value"]))
    texts = [value if value is None or isinstance(value, str) else _json(value) for value in values]
    return pa.array(texts, pa.string())


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_array(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    before = "["
    names = _distinct(schema.names)
    for chunk in _chunks(batches):
        rows = zip(*json_columns(chunk), strict=True)
        yield before + ",\n".join(_json(dict(zip(names, row, strict=True))) for row in rows)
        before = ",\n"
    yield ("[" if before == "[" else "") + "]\n"


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, with a number after each repeated name, as DuckDB does: a, a_1, a_2."""
    out: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1))
        new = (
            name
            if name not in out
            else next(each for each in numbered if each not in out and each not in names)
        )
        out[new] = None
    return list(out)


def _markdown(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    yield _markdown_line(schema.names)
    yield _markdown_line("--:" if is_number(field.type) else "---" for field in schema)
    for rows in _text_rows(batches):
        yield "".join(map(_markdown_line, rows))


def _markdown_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _lines(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    width = max(map(width_of, schema.names))
    names = [" " * (width - width_of(name)) + name for name in schema.names]

    def one(name: str, cell: str) -> str:
        return name + " = " + cell.replace("\n", further) + "\n"

    between, further = "", "\n" + " " * (width + 3)
    for rows in _text_rows(batches, breaks=True):
        texts = ["".join(map(one, names, row)) for row in rows]
        yield between + "\n".join(texts)
        between = "\n"


FORMATS: Final[Mapping[str, Format]] = {
    "table": _table,
    "csv": _csv,
    "json": _json_array,
    "md": _markdown,
    "line": _lines,
}
STREAMED: Final = frozenset({"csv", "json"})
"""Modes for programs. They print all rows, also on a terminal."""
