"""COPY … FROM: executed as an INSERT of the rows that DuckDB reads from files.

    COPY t FROM 'x.parquet'             INSERT INTO t BY NAME SELECT * FROM read_parquet('x.parquet')
    COPY t (b, a) FROM 'x.parquet'      INSERT INTO t (b, a) SELECT b, a FROM read_parquet('x.parquet')
    COPY t FROM 'x.csv' (DELIM '|')     INSERT INTO t (a, b) SELECT * FROM read_csv('x.csv', columns = …, delim = '|')

Columns of Parquet and JSON files are matched by name. A column that the file does not have takes
its default. Columns of CSV files are matched by position, as in PostgreSQL and DuckDB. If the first
line names the columns in another order, this is an error. CSV and JSON are read with the types of
the table: DuckDB guesses no types, so a text "007" stays "007".

Source: DuckDB, "COPY Statement", "COPY … FROM"; PostgreSQL, COPY.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from nyala.errors import InvalidArgumentError
from nyala.schema.schema import AUTO_INCREMENT
from nyala.sql.change import statement as change
from nyala.sql.change.target import Target, find_target
from nyala.sql.context import Context, Source
from nyala.sql.result import FixedResult
from nyala.sql.tokens import TokenReader, quoted, quoted_text
from nyala.sql.types import sql_type

_SUFFIXES: Final = {
    "parquet": "parquet",
    "pq": "parquet",
    "csv": "csv",
    "tsv": "csv",
    "txt": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
}
# Options of COPY that DuckDB's reader calls by another name.
_RENAMED: Final = {"delimiter": "delim", "null": "nullstr"}
# Options that do not apply when only the first line is read, as text.
_OF_COLUMNS: Final = frozenset(("force_not_null", "header"))


def copy_from(
    context: Context, table: str, columns: Sequence[str] | None, path: str, options: Mapping[str, str]
) -> FixedResult:
    """Insert the rows of the files that match `path` as one batch. Raises: as `Database.sql`.

    columns: the columns of the table that the files fill; None: all.
    options: the options of COPY, by names in lower case.
    """
    context.check_writable("COPY … FROM")
    source = context.readable()
    target = find_target(TokenReader(table), source, ())
    names = [target.column(name).name for name in columns] if columns else target.insert_columns
    format, reader_options = _format(path, options)
    into = f"INSERT INTO {quoted(target.table)}"
    listed = ", ".join(map(quoted, names))
    if format == "csv":
        read = _csv(context, source, target, names, path, reader_options)
        text = f"{into} ({listed}) SELECT {listed} FROM {read}"
    else:
        if format == "json":
            read = _json(context, source, target, path, reader_options)
        else:
            read = _call(f"read_{format}", path, reader_options)
        text = f"{into} ({listed}) SELECT {listed} FROM {read}" if columns else f"{into} BY NAME FROM {read}"
    result = change.execute(context, text)
    result.statement = "COPY"
    return result


def _format(path: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return (format, the other options as arguments of DuckDB's reader). Raises: InvalidArgumentError."""
    given = dict(options)
    suffix = re.sub(r"\.(gz|zst)$", "", path.lower()).rpartition(".")[2]
    named = given.pop("format", "").strip("'\"").lower() or _SUFFIXES.get(suffix, "")
    if named not in _SUFFIXES.values():
        raise InvalidArgumentError(
            f"COPY … FROM has no format {named!r}: write (FORMAT csv), (FORMAT json) or (FORMAT parquet)"
            if named
            else f"COPY … FROM reads CSV, JSON and Parquet files, and the ending of {path!r} does not say which of "
            "these formats the file has: add the format, such as (FORMAT csv), or convert a file of another format"
        )
    return named, {_RENAMED.get(name, name): _argument(value) for name, value in given.items()}


def _argument(value: str) -> str:
    """Return the value of an option as an expression: `a` becomes `'a'`, and `(a, b)` becomes `['a', 'b']`."""
    reader = TokenReader(value)
    if reader.at("("):
        return f"[{', '.join(quoted_text(name) for name in reader.names())}]"
    token = reader.next()
    is_name = token.is_identifier and reader.ended and token.keyword not in ("TRUE", "FALSE")
    return quoted_text(token.name) if is_name else value


def _call(function: str, path: str, options: Mapping[str, str]) -> str:
    given = "".join(f", {name} = {value}" for name, value in options.items())
    return f"{function}({quoted_text(path)}{given})"


def _types(target: Target, names: Sequence[str]) -> str:
    """Return the columns with their types as DuckDB's readers take them: `{"a": 'INTEGER', …}`."""
    typed = (f"{quoted(name)}: {quoted_text(sql_type(target.column(name).type))}" for name in names)
    return f"{{{', '.join(typed)}}}"


def _csv(
    context: Context,
    source: Source,
    target: Target,
    names: Sequence[str],
    path: str,
    options: Mapping[str, str],
) -> str:
    """Return the call of `read_csv` that reads these columns.

    Raises: InvalidArgumentError if the first line names other columns, or these in another order.
    """
    wanted = [name.lower() for name in names]
    header = options.get("header", "")
    if header.lower() not in ("false", "0"):
        untyped = {name: value for name, value in options.items() if name not in _OF_COLUMNS}
        untyped |= {"header": "false", "all_varchar": "true"}
        read = _call("read_csv", path, untyped)
        first = context.select(source, f"SELECT * FROM {read} LIMIT 1").fetchone() or ()
        line = [str(cell).strip().lower() for cell in first]
        named = [name for name in line if name != AUTO_INCREMENT or target.schema.auto_increment is None]
        if named == wanted:
            names = [target.column(name).name for name in line]
            options = {**options, "header": "true"}
        elif line and set(line) <= {name.lower() for name in target.columns}:
            raise InvalidArgumentError(
                f"the first line of {path!r} names the columns ({', '.join(line)}), and COPY fills "
                f"({', '.join(names)}): write COPY {target.table} ({', '.join(named)}) FROM …"
            )
    return _call("read_csv", path, {**options, "columns": _types(target, names)})


def _json(context: Context, source: Source, target: Target, path: str, options: Mapping[str, str]) -> str:
    """Return the call of `read_json` that reads the columns of the JSON files with the types of the table.

    Binary values in JSON are texts with escapes such as \\x00. `read_json` does not decode the
    escapes of a BLOB. So it reads text, and a cast converts the text to bytes.
    Raises: ColumnNotFoundError.
    """
    found = context.select(source, f"SELECT * FROM {_call('read_json', path, options)}").columns
    columns = [target.column(name) for name in found]
    typed = (
        f"{quoted(each.name)}: {quoted_text('VARCHAR' if each.type.name == 'binary' else sql_type(each.type))}"
        for each in columns
    )
    read = _call("read_json", path, {**options, "columns": f"{{{', '.join(typed)}}}"})
    casts = [
        f"CAST({quoted(each.name)} AS BLOB) AS {quoted(each.name)}"
        for each in columns
        if each.type.name == "binary"
    ]
    return f"(SELECT * REPLACE ({', '.join(casts)}) FROM {read})" if casts else read
