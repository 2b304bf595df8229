"""Replaces Spark's error about an unknown name in a statement by one sentence with a suggestion.

For `SELECT pric FROM orders`, Spark prints four lines, its plan, and a log record with the trace of
the JVM. This module raises instead: no column 'pric' in the tables of the statement; did you mean
'price'?

Spark cannot suggest the right names. It does not know the tables of the store, and knows only the
columns that a scan returns.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from nyala.errors import ColumnNotFoundError, Error, TableNotFoundError
from nyala.suggestion import nearest

__all__ = ["rewriting_unknown_names"]

_PART: Final = re.compile(r"`((?:[^`]|``)*)`")
_COLUMN: Final = ("UNRESOLVED_COLUMN", "UNRESOLVED_USING_COLUMN_FOR_JOIN")
_SHOWN_MAX: Final = 20
# Before pyspark raises an error, it logs it to this logger, with the trace of the JVM.
_LOGGER: Final = "SQLQueryContextLogger"


@contextlib.contextmanager
def rewriting_unknown_names(
    folder: str | None, tables: Callable[[], Sequence[str]], columns: Iterable[str]
) -> Iterator[list[logging.LogRecord]]:
    """In the block, replace Spark's errors about unknown names by TableNotFoundError or
    ColumnNotFoundError.

    folder:  the store whose tables the statement may name, or None.
    tables:  returns the names of these tables. Called only after an error.
    columns: the columns of the statement's tables. Read only after an error.

    Yields a list to which pyspark's log records of the block are added. They are logged when the
    block ends. A caller that handles Spark's error itself clears the list, so that the error is not
    logged. Spark's AnalysisException is the error's `__context__` and is not printed.
    Other errors of Spark pass unchanged.
    """
    with _withheld_log() as withheld:
        try:
            yield withheld
        except AnalysisException as error:
            found = _nyala_error_of(error, folder, tables, columns)
            if found is None:
                raise
            withheld.clear()
            raise found from None


@contextlib.contextmanager
def _withheld_log() -> Iterator[list[logging.LogRecord]]:
    """Collect this thread's records of pyspark's logger in the yielded list, instead of logging them.

    When the block ends, the records that are still in the list are logged.
    """
    logger = PySparkLogger.getLogger(_LOGGER)
    thread = threading.get_ident()
    withheld: list[logging.LogRecord] = []

    def withhold(record: logging.LogRecord) -> bool:
        if record.thread == thread:
            withheld.append(record)
        return record.thread != thread

    logger.addFilter(withhold)
    try:
        yield withheld
    finally:
        logger.removeFilter(withhold)
        for record in withheld:
            logger.handle(record)


def _nyala_error_of(
    error: AnalysisException, folder: str | None, tables: Callable[[], Sequence[str]], columns: Iterable[str]
) -> Error | None:
    condition = (error.getCondition() or "").partition(".")[0]
    parameters: dict[str, Any] = dict(error.getMessageParameters() or {})
    if condition == "TABLE_OR_VIEW_NOT_FOUND" and "relationName" in parameters:
        return _no_table(_parts(parameters["relationName"]), folder, tables() if folder is not None else ())
    if condition in _COLUMN:
        name = parameters.get("objectName") or parameters.get("colName")
        suggested = _suggested(parameters.get("proposal") or parameters.get("suggestion") or "")
        return None if name is None else _no_column(_parts(name), {*columns, *suggested})
    return None


def _no_table(parts: Sequence[str], folder: str | None, tables: Sequence[str]) -> TableNotFoundError:
    name = ".".join(parts)
    if folder is None:
        return TableNotFoundError(
            f"Spark has no table or view {name!r}; for tables of a store pass store=folder, as in "
            "nyala.spark.sql(spark, text, store='weather')"
        )
    if len(parts) == 1 and name.lower() in [table.lower() for table in tables]:
        return TableNotFoundError(
            f"Spark has no table or view {name!r}; the store's table {name!r} can only be used in FROM: write SELECT * "
            f"FROM {name} instead of TABLE {name}"
        )
    similar = nearest(parts[-1], tables)
    shown = ", ".join(tables[:_SHOWN_MAX]) + (", …" if len(tables) > _SHOWN_MAX else "")
    advice = (
        f"did you mean {similar!r}?"
        if similar
        else f"the store has the tables {shown}"
        if tables
        else "the store has no tables"
    )
    return TableNotFoundError(
        f"no table {name!r} in the store {folder!r}, and no such table or view in Spark; {advice}"
    )


def _no_column(parts: Sequence[str], columns: Iterable[str]) -> ColumnNotFoundError | None:
    name, known = ".".join(parts), sorted(columns)
    same = next((column for column in known if column.lower() == parts[-1].lower()), None)
    if same is not None and len(parts) == 1:
        return None  # the column exists, and Spark's message says why it is not allowed there
    if same is not None:
        return ColumnNotFoundError(
            f"no column {name!r}: {parts[-2]!r} is not a table or alias with column {same!r}"
        )
    similar = nearest(parts[-1], known)
    shown = ", ".join(map(repr, known[:_SHOWN_MAX])) + (", …" if len(known) > _SHOWN_MAX else "")
    advice = f"did you mean {similar!r}?" if similar else f"the columns are {shown}"
    return ColumnNotFoundError(f"no column {name!r} in the tables of the statement; {advice}")


def _parts(name: str) -> list[str]:
    """Split a name with backticks into its parts."""
    return [part.replace("``", "`") for part in _PART.findall(name)] or [name]


def _suggested(text: str) -> Iterator[str]:
    """Yield the columns of Spark's suggestion, such as "`o`.`id`, `c`.`city`"."""
    for name in text.split(", "):
        if _PART.search(name):
            yield _parts(name)[-1]
