"""Errors on their way from a worker to the user.

    worker        raises an error of ours, its sentence naming table and tablet (`naming`)
    Spark         makes text of it, in an exception of its own, under a traceback of many lines
    driver        `ours` finds the sentence and its class again; the helpers of `nyala.spark` raise that (`translated`)

`df.write…save()` and `df.collect()` are Spark's: there the user sees Spark's exception, with our sentence in it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final, TypeVar

import nyala.errors
from nyala.errors import CorruptionError, Error, StorageError, WriteError

__all__ = ["named", "naming", "ours", "translated"]

_SENTENCE: Final = re.compile(r"nyala\.errors\.(\w+): ([^\n]*)")
_LONGEST: Final = 4000

_E = TypeVar("_E", bound=Error)


def naming(error: _E, where: str) -> _E:
    """The error with `where` before its sentence, unless it is there already."""
    text = str(error)
    if where not in text:
        error.args = (f"{where}: {text}", *error.args[1:])
    return error


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """Around what raises errors that do not say where: `naming`."""
    try:
        yield
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
def translated() -> Iterator[None]:
    """Around a call of Spark's: an error of ours in a worker is raised as what it was, in one line."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        found = ours(error)
        if found is None:
            raise
        raise found from error
