"""What Spark says of a name in a statement that it does not know, as one sentence with the name that was meant.

    SELECT pric FROM orders
        Spark   four lines, its plan, and a record of pyspark's in JSON with the JVM's whole trace
        here    there is no column 'pric' in the tables of the statement; did you mean 'price'?

Spark guesses too, but of a store's tables it has seen none, and of a table's columns only those that the scan has.
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
from nyala.schema.suggestion import nearest

__all__ = ["telling_names"]

_PART: Final = re.compile(r"`((?:[^`]|``)*)`")
_COLUMN: Final = ("UNRESOLVED_COLUMN", "UNRESOLVED_USING_COLUMN_FOR_JOIN")
_SHOWN_MAX: Final = 20
# pyspark writes each error there before it raises it, with the trace of the JVM.
_LOGGER: Final = "SQLQueryContextLogger"


@contextlib.contextmanager
def telling_names(
    folder: str | None, tables: Callable[[], Sequence[str]], columns: Iterable[str]
) -> Iterator[list[logging.LogRecord]]:
    """Around Spark's analysis of a statement. Gives what pyspark would log of it: who asks again empties that.

    folder:  the store that the statement may name the `tables` of; None: of none. columns: of the tables in it.
             Neither is asked for where all is well.
    Raises:  TableNotFoundError and ColumnNotFoundError for Spark's AnalysisException, which is their `__context__`,
             and is not printed; every other error is Spark's, as it is.
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
    """What this thread writes to pyspark's logger meanwhile is written at the end, if it is in the list then."""
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
    said: dict[str, Any] = dict(error.getMessageParameters() or {})
    if condition == "TABLE_OR_VIEW_NOT_FOUND" and "relationName" in said:
        return _no_table(_parts(said["relationName"]), folder, tables() if folder is not None else ())
    if condition in _COLUMN:
        name = said.get("objectName") or said.get("colName")
        guessed = _guessed(said.get("proposal") or said.get("suggestion") or "")
        return None if name is None else _no_column(_parts(name), {*columns, *guessed})
    return None


def _no_table(parts: Sequence[str], folder: str | None, tables: Sequence[str]) -> TableNotFoundError:
    name = ".".join(parts)
    if folder is None:
        return TableNotFoundError(
            f"Spark has no table or view {name!r}; the tables of a store are named with store=folder, as in "
            "nyala.spark.sql(spark, text, store='weather')"
        )
    if len(parts) == 1 and name.lower() in [table.lower() for table in tables]:
        return TableNotFoundError(
            f"Spark has no table or view {name!r}, and the store's table of that name stands in a FROM only: SELECT * "
            f"FROM {name}, where you mean TABLE {name}"
        )
    near = nearest(parts[-1], tables)
    there = ", ".join(tables[:_SHOWN_MAX]) + (", …" if len(tables) > _SHOWN_MAX else "")
    meant = (
        f"did you mean {near!r}?"
        if near
        else f"the store has the tables {there}"
        if tables
        else "it has none"
    )
    return TableNotFoundError(
        f"there is no table {name!r} in the store {folder!r}, and no table or view of Spark's; {meant}"
    )


def _no_column(parts: Sequence[str], columns: Iterable[str]) -> ColumnNotFoundError | None:
    name, known = ".".join(parts), sorted(columns)
    same = next((column for column in known if column.lower() == parts[-1].lower()), None)
    if same is not None and len(parts) == 1:
        return None  # there is, and Spark may not take it there: it says why
    if same is not None:
        return ColumnNotFoundError(
            f"there is no column {name!r}: {parts[-2]!r} is no table or alias that has {same!r} there"
        )
    near = nearest(parts[-1], known)
    shown = ", ".join(map(repr, known[:_SHOWN_MAX])) + (", …" if len(known) > _SHOWN_MAX else "")
    meant = f"did you mean {near!r}?" if near else f"there are {shown}"
    return ColumnNotFoundError(f"there is no column {name!r} in the tables of the statement; {meant}")


def _parts(name: str) -> list[str]:
    """The parts of a name as Spark quotes it."""
    return [part.replace("``", "`") for part in _PART.findall(name)] or [name]


def _guessed(text: str) -> Iterator[str]:
    """The columns of "`o`.`id`, `c`.`city`"."""
    for name in text.split(", "):
        if _PART.search(name):
            yield _parts(name)[-1]
