"""Converts DuckDB's exceptions to Nyala's errors, with DuckDB's message and the place in the statement.

Source: docs/how-to/errors.md.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from nyala.errors import ColumnNotFoundError, Error, InvalidArgumentError, StorageError, TableNotFoundError
from nyala.schema.conversion.array_cast import shorten
from nyala.sql.select.running import StatementInterrupted
from nyala.suggestion import nearest

_INTERRUPTED: Final = "INTERRUPT Error: Interrupted!"
_NO_TABLE: Final = re.compile(r'Table with name "?(.+?)"? does not exist')
_NO_COLUMN: Final = (
    re.compile(r'Referenced column "(.+?)" (?:was )?not found'),
    re.compile(r'does not have a column named "(.+?)"'),
    re.compile(r'Column "(.+?)" does not exist on (?:left|right) side'),
    re.compile(r'Column "(.+?)" in (?:EXCLUDE|REPLACE|RENAME) list not found'),
)
_CSV_LINE: Final = re.compile(r"CSV Error on Line: (\d+)\n(?:Original Line: (.*?)\n)?(.+?)\n", re.DOTALL)
_CSV_FILE: Final = re.compile(r"^\s*file = (.+)$", re.MULTILINE)
_CSV_FORM: Final = re.compile(r'Error when sniffing file "(.+?)"\.\n')

_PLACE: Final = re.compile(r"\n\n(?P<label>LINE \d+: )(?P<line>.*)\n(?P<marks> *\^+)")
_ADVICE: Final = (
    ('use upsert(), or pass on_conflict="ignore"', "use UPSERT, or INSERT OR IGNORE"),
    (", or create the table with primary_key=", ", or create the table with a PRIMARY KEY"),
    (", or create the table with unique=True", ", or create the table with a PRIMARY KEY"),
    ("use upsert(), where the later row wins", "use UPSERT, where the later row wins"),
)
_BEFORE_MARK_CHARS: Final = 60
_PLACES_MAX: Final = 100


def our_error(
    error: Any,
    failures: Iterable[BaseException | None],
    tables: Sequence[str],
    columns: Iterable[str],
    lines_above: int,
) -> BaseException:
    """Return the error to raise for an exception of DuckDB.

    failures: the errors of the statement's scans. If there is one, it is the cause of the
        exception, and is returned.
    tables, columns: existing names, for "did you mean".
    lines_above: the number of lines before the user's text in the text that DuckDB executed.
    """
    import duckdb

    for failure in failures:
        if failure is not None:
            return failure
    message = str(error)
    if isinstance(error, duckdb.InterruptException) or _INTERRUPTED in message:
        return StatementInterrupted()
    text = _with_line(message, -lines_above)
    if isinstance(error, duckdb.CatalogException) and (match := _NO_TABLE.search(message)):
        # DuckDB's own guess names tables of its catalogue.
        place = text[text.index("\n\nLINE") :] if "\n\nLINE" in text else ""
        return TableNotFoundError(f"there is no table {match[1]!r}{_meant(match[1], tables)}{place}")
    if isinstance(error, duckdb.BinderException):
        for pattern in _NO_COLUMN:
            if match := pattern.search(message):
                place = text.partition("\n\n")[2]
                guess = _meant(match[1], sorted(set(columns)))
                if re.search(rf'(?<!\.)"{re.escape(match[1])}"', place):
                    guess += f". A text is written in single quotes: '{match[1]}'"
                return ColumnNotFoundError(
                    f"there is no column {match[1]!r} here{guess}" + (f"\n\n{place}" if place else "")
                )
    if isinstance(error, duckdb.IOException) and "No files found" in message:
        return InvalidArgumentError(f"a file cannot be read: {text}")
    if problem := _csv_problem(message):
        return InvalidArgumentError(problem)
    if "requires the extension" in message or "exists in the" in message:
        return InvalidArgumentError(
            f"this needs an extension of DuckDB, and Nyala does not load any: {text.splitlines()[0]}\nRead the data by "
            "another library, and name it in the statement as a variable"
        )
    if isinstance(error, duckdb.PermissionException):
        return InvalidArgumentError(
            f"these statements may not read files, but only the tables of their store: {text}"
        )
    if isinstance(error, duckdb.ProgrammingError | duckdb.DataError | duckdb.NotSupportedError):
        return InvalidArgumentError(f"DuckDB refused the statement: {text}")
    if isinstance(error, duckdb.OutOfMemoryException):
        return StorageError(
            f"DuckDB has too little memory for the statement: {text.splitlines()[0]}\nOpen the store with a larger "
            'limit, such as connect(path, memory_limit="4GB"), and check that the temporary folder has free space'
        )
    if isinstance(error, duckdb.OperationalError | duckdb.InternalError):
        return StorageError(f"DuckDB could not run the statement: {text}")
    return Error(f"DuckDB could not run the statement: {text}")


def _csv_problem(message: str) -> str | None:
    """Return DuckDB's long message about a CSV file in one sentence; None for any other message."""
    if match := _CSV_LINE.search(message):
        file = _CSV_FILE.search(message)
        where = f" of {file[1]!r}" if file else ""
        line = f": {shorten(repr(match[2]))}" if match[2] else ""
        return f"line {match[1]}{where} cannot be read as CSV: {match[3].rstrip('.')}{line}"
    if match := _CSV_FORM.search(message):
        return (
            f"{match[1]!r} cannot be read as CSV: its lines have different numbers of columns, or another number "
            "than expected. Pass the options DELIM, QUOTE, ESCAPE and HEADER, or add NULL_PADDING for short lines"
        )
    return None


def in_words_of_sql(message: str) -> str:
    """Return the error message with SQL statements in place of the Python methods that it advises."""
    for method, statement in _ADVICE:
        message = message.replace(method, statement)
    return message


def located(message: str, text: str) -> str:
    """Return the error message with its `LINE …` part rewritten for the user's statement.

    DuckDB's message marks words in the text that DuckDB executed, which is a rewritten statement.
    text: the user's statement. If it does not contain the marked words, the `LINE …` part is removed.
    """
    match = _PLACE.search(message)
    if match is None:
        return message
    head, tail = message[: match.start()], message[match.end() :]
    begin = len(match["marks"]) - len(match["marks"].lstrip()) - len(match["label"])
    marked = match["line"][begin : begin + match["marks"].count("^")]
    place = _place_of(marked, match["line"][:begin], text)
    if place is None:
        return head + tail
    before = text.rfind("\n", 0, place) + 1
    label = f"LINE {text.count(chr(10), 0, place) + 1}: "
    line = text[before:].split("\n", 1)[0]
    skipped = max(0, place - before - _BEFORE_MARK_CHARS)
    shown = line[skipped : place - before + len(marked) + _BEFORE_MARK_CHARS]
    marks = " " * (len(label) + place - before - skipped) + "^" * len(marked)
    return f"{head}\n\n{label}{shown}\n{marks}{tail}"


def _place_of(marked: str, before: str, text: str) -> int | None:
    """Return the index in the user's statement of the words that DuckDB's error message marks with `^`.

    marked: the marked words. before: the text before them in the line that DuckDB shows.
    text: the user's statement. If it contains the words several times, the occurrence is chosen whose
        preceding characters agree longest with `before`.
    Returns None if the words do not occur, or if two occurrences agree equally long.
    """
    found: list[tuple[int, int]] = []
    place = text.find(marked) if marked else -1
    while place >= 0 and len(found) < _PLACES_MAX:
        pairs = zip(reversed(before), reversed(text[max(0, place - len(before)) : place]), strict=False)
        alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        found.append((alike, place))
        place = text.find(marked, place + 1)
    found.sort()
    return found[-1][1] if found and (len(found) == 1 or found[-1][0] > found[-2][0]) else None


def missing_table(error: TableNotFoundError) -> str | None:
    """Return the name of the table that an error of `our_error` reports as missing; None for other errors."""
    match = _NO_TABLE.search(str(error.__cause__)) if error.__cause__ is not None else None
    return match[1] if match else None


def _with_line(message: str, by: int) -> str:
    """Return the message with `by` added to its line numbers."""
    return re.sub(
        r"^LINE (\d+):", lambda match: f"LINE {max(1, int(match[1]) + by)}:", message, flags=re.MULTILINE
    )


def _meant(name: str, there: Sequence[str]) -> str:
    guess = nearest(name, there)
    if guess is not None:
        return f": did you mean {guess!r}?"
    shown = ", ".join(repr(known) for known in there[:10])
    return f"; there are {shown}{', …' if len(there) > 10 else ''}" if there else ""
