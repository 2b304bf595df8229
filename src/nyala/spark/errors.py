"""Errors on their way from a worker to the user.

    worker        raises an error of ours, its sentence naming table and tablet (`naming`)
    Spark         makes text of it, in an exception of its own, under a traceback of many lines
    driver        `ours` finds the sentence and its class again; the helpers of `nyala.spark` raise that, in one line
                  (`plain_errors`). Where no worker could run, because its Python is another one, it finds that out

`df.write…save()`, `df.collect()` and `query.awaitTermination()` are Spark's: there the user sees Spark's exception,
with our sentence in it, unless they stand in `with plain_errors():`.

A tablet's number is its id everywhere, which `Table.tablets()` shows too; where it is not known, the path of the file
tells it.
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
# A file of a tablet, as `nyala.tablet.state.store_folder` has them.
_FILE: Final = re.compile(r"\bdata/(\d+)/[\w.\-]+")
_TABLET: Final = re.compile(r"\btablet \d")
_TABLE: Final = re.compile(r"table (?:'[^']*'|\"[^\"]*\")")

_NO_MODE_SAID: Final = re.compile(r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE\W[^\n]*nyala")
_NO_MODE: Final = (
    "df.write.format('nyala') has neither the mode 'errorifexists', which Spark takes where none is said, nor "
    "'ignore': say .mode('append'), which is for every operation (operation='insert-ignore' passes over keys that are "
    "there); .mode('overwrite') replaces all rows of the table"
)

_E = TypeVar("_E", bound=Error)


def naming(error: _E, where: str) -> _E:
    """The error with `where` before its sentence, unless it is there already, or the sentence begins with a table.

    where: "table 't'" or "table 't', tablet 5"; without a tablet that of the file is taken which the sentence names,
           unless it names a tablet.
    """
    text = str(error)
    files = _FILE.findall(text)
    if _TABLE.fullmatch(where) and files and not _TABLET.search(text):
        where = f"{where}, tablet {files[-1]}"
    if where not in text and not _TABLE.match(text):
        error.args = (f"{where}: {text}", *error.args[1:])
    return error


def place_of(table: str, tablet: int | None) -> str:
    """What `naming` puts before a sentence. tablet: None where it is not known, or there are several."""
    return f"table {table!r}" + ("" if tablet is None else f", tablet {tablet}")


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """Around what raises errors that do not say where: `naming`."""
    try:
        yield
    except MissingFileError as error:
        # Of a task: its host may not see the store.
        missing = None if error.path is None else no_store_here(SYSTEM, error.path)
        if missing is None:
            naming(error, where)
            raise
        raise naming(missing, where) from error
    except Error as error:
        naming(error, where)
        raise


def ours(error: BaseException) -> Error | None:
    """The error of ours that a worker raised and Spark wrapped, or None. Of several in the text the last."""
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
    """Around calls of Spark's: an error of ours in a worker is raised as what it was, in one line.

        with nyala.spark.plain_errors():
            df.write.format("nyala").options(path="store", table="t").mode("append").save()

    The line names the table, and where they are known the tablet, the file, and the first row that failed. What Spark
    raised is the error's `__context__`, and is not printed. Errors that are not ours stay Spark's, but for those of
    workers whose Python has no Nyala, or another version: of them an `Error` says how to give Spark this program's. And
    a mode that was forgotten: Spark would have `overwrite` tried.
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:
        found = ours(error)
        if found is None and _NO_MODE_SAID.search(str(error)) is not None:
            found = InvalidArgumentError(_NO_MODE)
        if found is None and (unable := missing_in_workers(str(error))) is not None:
            found = Error(unable)
        if found is None:
            raise
        raise found from None
