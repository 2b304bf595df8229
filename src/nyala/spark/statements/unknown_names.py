"""Turns Spark's error about an unknown name in a statement into one sentence with a suggestion.

    SELECT pric FROM orders
        Spark   four lines, its plan, and a log record in JSON with the JVM's whole trace
        here    there is no column 'pric' in the tables of the statement; did you mean 'price'?

Spark's own suggestions do not know the store's tables, and know only those columns of a table that the scan has.
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

__all__ = ["telling_names"]

_PART: Final = re.compile(r"`((?:[^`]|``)*)`")
_COLUMN: Final = ("UNRESOLVED_COLUMN", "UNRESOLVED_USING_COLUMN_FOR_JOIN")
_SHOWN_MAX: Final = 20
# pyspark logs each error to this logger, with the trace of the JVM, before it raises the error.
_LOGGER: Final = "SQLQueryContextLogger"


@contextlib.contextmanager
def telling_names(
    folder: str | None, tables: Callable[[], Sequence[str]], columns: Iterable[str]
) -> Iterator[list[logging.LogRecord]]:
    """Rewrite Spark's errors about unknown names in the block. Yields the log records of pyspark that it holds back.

    A caller that handles the error and tries again clears the records.
    folder:  the store whose `tables` the statement may name; None: no store.
    columns: the columns of the statement's tables. `tables` and `columns` are read only after an error.
    Raises:  TableNotFoundError or ColumnNotFoundError. Spark's AnalysisException is their `__context__` and is not
             printed. All other errors of Spark pass unchanged.
    """
    with _held_back() as held:
        try:
            yield held
        except AnalysisException as error:
            found = _in_one_sentence(error, folder, tables, columns)
            if found is None:
                raise
            held.clear()
            raise found from None


@contextlib.contextmanager
def _held_back() -> Iterator[list[logging.LogRecord]]:
    """Hold back this thread's records of pyspark's logger until the end; then log those still in the list."""
    logger, me, held = PySparkLogger.getLogger(_LOGGER), threading.get_ident(), list[logging.LogRecord]()

    def hold(record: logging.LogRecord) -> bool:
        if record.thread == me:
            held.append(record)
        return record.thread != me

    logger.addFilter(hold)
    try:
        yield held
    finally:
        logger.removeFilter(hold)
        for record in held:
            logger.handle(record)


def _in_one_sentence(
    error: AnalysisException, folder: str | None, tables: Callable[[], Sequence[str]], columns: Iterable[str]
) -> Error | None:
    condition = (error.getCondition() or "").partition(".")[0]
    parameters: dict[str, Any] = dict(error.getMessageParameters() or {})
    if condition == "TABLE_OR_VIEW_NOT_FOUND" and "relationName" in parameters:
        return _no_table(_parts(parameters["relationName"]), folder, tables() if folder is not None else ())
    if condition in _COLUMN:
        name = parameters.get("objectName") or parameters.get("colName")
        guessed = _guessed(parameters.get("proposal") or parameters.get("suggestion") or "")
        return None if name is None else _no_column(_parts(name), {*columns, *guessed})
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
    near = nearest(parts[-1], tables)
    there = ", ".join(tables[:_SHOWN_MAX]) + (", …" if len(tables) > _SHOWN_MAX else "")
    meant = (
        f"did you mean {near!r}?"
        if near
        else f"the store has the tables {there}"
        if tables
        else "the store has no tables"
    )
    return TableNotFoundError(
        f"no table {name!r} in the store {folder!r}, and no such table or view in Spark; {meant}"
    )


def _no_column(parts: Sequence[str], columns: Iterable[str]) -> ColumnNotFoundError | None:
    name, known = ".".join(parts), sorted(columns)
    same = next((column for column in known if column.lower() == parts[-1].lower()), None)
    if same is not None and len(parts) == 1:
        return None  # the column exists; Spark's own message says why it is not allowed there
    if same is not None:
        return ColumnNotFoundError(
            f"no column {name!r}: {parts[-2]!r} is not a table or alias with column {same!r}"
        )
    near = nearest(parts[-1], known)
    shown = ", ".join(map(repr, known[:_SHOWN_MAX])) + (", …" if len(known) > _SHOWN_MAX else "")
    meant = f"did you mean {near!r}?" if near else f"the columns are {shown}"
    return ColumnNotFoundError(f"no column {name!r} in the tables of the statement; {meant}")


def _parts(name: str) -> list[str]:
    """Split a name into its parts, as Spark quotes them."""
    return [part.replace("``", "`") for part in _PART.findall(name)] or [name]


def _guessed(text: str) -> Iterator[str]:
    """Yield the columns in Spark's suggestion, such as "`o`.`id`, `c`.`city`"."""
    for name in text.split(", "):
        if _PART.search(name):
            yield _parts(name)[-1]
