"""Errors of Spark's workers, raised in the driver as Nyala's own errors.

    worker        raises a Nyala error whose message names table and tablet (`naming`)
    Spark         turns the error into text, inside its own exception, below a long traceback
    driver        `ours` finds class and message in that text; the functions of `nyala.spark` raise the error again,
                  in one line (`plain_errors`). If no worker could start, because its Python differs, the error says so

`df.write…save()`, `df.collect()` and `query.awaitTermination()` raise Spark's exception, which contains our message.
Inside `with plain_errors():` they raise Nyala's error.

Messages name a tablet by its id, as `Table.tablets()` does. If the id is not known, it is taken from the file's path.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final, TypeVar

import nyala.errors
from nyala.catalog.leases import no_store_here
from nyala.env import SYSTEM, MissingFileError
from nyala.errors import CorruptionError, Error, InvalidArgumentError, StorageError, WriteError
from nyala.spark.cluster import missing_in_workers

__all__ = ["named", "naming", "ours", "place_of", "plain_errors"]

_SENTENCE: Final = re.compile(r"nyala\.errors\.(\w+): ([^\n]*)")
_LONGEST: Final = 4000
# The path of a tablet's file (`nyala.tablet.state.store_folder`).
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


def naming(error: _E, where: str) -> _E:
    """Put `where` before the error's message, unless the message contains it or begins with a table.

    where: "table 't'" or "table 't', tablet 5". If neither `where` nor the message names a tablet, the tablet is
           taken from the file path in the message.
    """
    text = str(error)
    files = _FILE.findall(text)
    if _TABLE.fullmatch(where) and files and not _TABLET.search(text):
        where = f"{where}, tablet {files[-1]}"
    if where not in text and not _TABLE.match(text):
        error.args = (f"{where}: {text}", *error.args[1:])
    return error


def place_of(table: str, tablet: int | None) -> str:
    """Return the `where` of `naming`. tablet: None if it is unknown or there are several."""
    return f"table {table!r}" + ("" if tablet is None else f", tablet {tablet}")


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """Apply `naming` to errors that are raised in the block."""
    try:
        yield
    except MissingFileError as error:
        # A task's host may not see the store's folder.
        missing = None if error.path is None else no_store_here(SYSTEM, error.path)
        if missing is None:
            naming(error, where)
            raise
        raise naming(missing, where) from error
    except Error as error:
        naming(error, where)
        raise


def ours(error: BaseException) -> Error | None:
    """Return the Nyala error that a worker raised and Spark wrapped, or None. The last one if the text has several."""
    if isinstance(error, Error):
        return error
    found = _SENTENCE.findall(str(error))
    if not found:
        return None
    name, sentence = found[-1]
    cls = getattr(nyala.errors, name, None)
    sentence = sentence.strip()[:_LONGEST]
    if not (isinstance(cls, type) and issubclass(cls, Error)):
        return Error(sentence)
    if issubclass(cls, WriteError | CorruptionError):
        return cls(sentence)
    return cls(sentence) if not issubclass(cls, StorageError) else StorageError(sentence)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn Spark's exceptions about Nyala errors in workers into those Nyala errors, in one line.

    A context manager for calls of Spark. The message names the table and, if they are known, the tablet,
    the file and the first failing row. Spark's exception is the error's `__context__` and is not printed.

    Raises
    ------
    Error
        The Nyala error of the worker, with its class (`DuplicateKeyError`, …). Or: the workers' Python has no
        Nyala or another version; the message says how to make Spark use this program's Python.
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
        found = ours(error)
        if found is None and _SAVE_MODE_ERROR.search(str(error)) is not None:
            found = InvalidArgumentError(_NO_MODE)
        if found is None and (unable := missing_in_workers(str(error))) is not None:
            found = Error(unable)
        if found is None:
            raise
        raise found from None
