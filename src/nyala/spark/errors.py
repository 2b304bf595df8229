"""Finds the Nyala error of a worker in Spark's exception, and raises it in the driver.

    worker     raises a Nyala error; `add_place` adds the table and the tablet to its message
    Spark      raises its own exception in the driver, whose text contains the error below a long
               traceback
    driver     `nyala_error` finds class and message in that text, and `plain_errors` raises the
               error again

`df.write…save()`, `df.collect()` and `query.awaitTermination()` raise Spark's exception. In a block
of `with plain_errors():` they raise Nyala's error. So do the functions of `nyala.spark`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final, TypeVar

import nyala.errors
from nyala.catalog.leases import no_store_here
from nyala.env import SYSTEM, MissingFileError
from nyala.errors import CorruptionError, Error, InvalidArgumentError, StorageError
from nyala.spark.cluster import worker_problem

__all__ = ["add_place", "errors_naming", "nyala_error", "place_text", "plain_errors"]

_ERROR_LINE: Final = re.compile(r"nyala\.errors\.(\w+): ([^\n]*)")
_MESSAGE_MAX: Final = 4000
# The path of a file of a tablet: data/<tablet id>/<name>.
_FILE: Final = re.compile(r"\bdata/(\d+)/[\w.\-]+")
_TABLET: Final = re.compile(r"\btablet \d")
_TABLE: Final = re.compile(r"table (?:'[^']*'|\"[^\"]*\")")

_SAVE_MODE_ERROR: Final = re.compile(r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE\W[^\n]*nyala")
_NO_MODE: Final = (
    "df.write.format('nyala') does not support the modes 'errorifexists' (Spark's default) and 'ignore': use "
    ".mode('append') for any operation (operation='insert-ignore' skips existing keys), or .mode('overwrite') to "
    "replace all rows of the table"
)

_E = TypeVar("_E", bound=Error)


def add_place(error: _E, where: str) -> _E:
    """Put `where` before the error's message, unless the message already names a table.

    where: "table 't'" or "table 't', tablet 5". If neither `where` nor the message names a tablet,
           the tablet is taken from the path of a file in the message.
    """
    text = str(error)
    files = _FILE.findall(text)
    if _TABLE.fullmatch(where) and files and not _TABLET.search(text):
        where = f"{where}, tablet {files[-1]}"
    if where not in text and not _TABLE.match(text):
        error.args = (f"{where}: {text}", *error.args[1:])
    return error


def place_text(table: str, tablet: int | None) -> str:
    """Return the text "table 't', tablet 5", or "table 't'" if `tablet` is None."""
    return f"table {table!r}" + ("" if tablet is None else f", tablet {tablet}")


@contextlib.contextmanager
def errors_naming(where: str) -> Iterator[None]:
    """Add `where` to the messages of Nyala's errors that the `with` block raises.

    where: names a table, or a table and a tablet.
    """
    try:
        yield
    except MissingFileError as error:
        # A missing file may mean that this machine does not see the store's folder at all.
        missing = None if error.path is None else no_store_here(SYSTEM, error.path)
        if missing is None:
            add_place(error, where)
            raise
        raise add_place(missing, where) from error
    except Error as error:
        add_place(error, where)
        raise


def nyala_error(error: BaseException) -> Error | None:
    """Return the Nyala error that the message of Spark's exception contains, or None.

    If the message contains several Nyala errors, return the last one.
    """
    if isinstance(error, Error):
        return error
    found = _ERROR_LINE.findall(str(error))
    if not found:
        return None
    name, message = found[-1]
    cls = getattr(nyala.errors, name, None)
    message = message.strip()[:_MESSAGE_MAX]
    if not (isinstance(cls, type) and issubclass(cls, Error)):
        return Error(message)
    if issubclass(cls, StorageError) and not issubclass(cls, CorruptionError):
        return StorageError(message)  # subclasses need more arguments than a message
    return cls(message)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raise the Nyala errors of workers instead of Spark's exceptions that contain them.

    A context manager for calls of Spark. The message names the table and, if they are known, the
    tablet, the file and the first failing row. Spark's exception is the error's `__context__` and
    is not printed.

    Raises
    ------
    Error
        The error of the worker, with its class (`DuplicateKeyError`, …). If the workers' Python
        lacks Nyala or has another version, the message says how to make Spark use this program's
        Python.
    InvalidArgumentError
        `df.write` has no `.mode(…)`. Spark's own message would suggest `overwrite`, which replaces all rows.

    Notes
    -----
    All other exceptions of Spark pass unchanged.

    Examples
    --------
    ```python
    with nyala.spark.plain_errors():
        df.write.format("nyala").options(path="store", table="flights").mode("append").save()
    ```
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:
        found = nyala_error(error)
        if found is None and _SAVE_MODE_ERROR.search(str(error)) is not None:
            found = InvalidArgumentError(_NO_MODE)
        if found is None and (problem := worker_problem(str(error))) is not None:
            found = Error(problem)
        if found is None:
            raise
        raise found from None
