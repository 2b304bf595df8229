"""Accepts rows and keys as plain Python values, and gives them the names of the table's columns.

    [("a", 5, 1.0), ("b", 6, 2.0)]                 rows as tuples: one value per column, in the table's order
    [Reading("a", 5, 1.0)]                         rows as dataclasses: their fields are the columns
    5    ("a", 5)    {"host": "a", "time": 5}      one key
    [5, 6]                                         several keys

The functions return data in all other forms unchanged.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np

from nyala.errors import InvalidArgumentError

__all__ = ["is_condition", "is_value", "key_columns_of", "key_text", "named_key", "with_names"]

_VALUES: Final = (str, bytes, bool, int, float, decimal.Decimal, dt.date, dt.time, np.generic, type(None))
"""The types of single values. (A datetime is a date.)"""


def with_names(data: Any, names: Sequence[str], operation: str) -> Any:
    """Convert rows that are tuples or dataclasses to a dict of columns; return other data unchanged.

    Raises: InvalidArgumentError if a tuple has another length than `names`, or rows have different
    forms.
    """
    if not isinstance(data, list | tuple) or not data:
        return data
    if dataclasses.is_dataclass(data[0]) and not isinstance(data[0], type):
        return _from_dataclasses(data)
    if isinstance(data[0], tuple):
        return _from_tuples(data, names, operation)
    return data


def is_value(key: Any) -> bool:
    """Whether this is a single value, such as the value of a one-column key. None is not."""
    return isinstance(key, _VALUES) and key is not None


def is_condition(data: Any, signs: str = "=<>") -> bool:
    """Whether this is text that is probably a condition, such as "id = 1". signs: characters of conditions."""
    return isinstance(data, str) and any(sign in data for sign in signs)


def key_columns_of(keys: Any, names: Sequence[str], operation: str) -> Any:
    """Convert one key or a list of keys to a dict with a list of values per key column.

    Data in other forms, such as a DataFrame, is returned unchanged.
    Raises: InvalidArgumentError for a key with too few or too many values.
    """
    if is_value(keys):
        return {name: [value] for name, value in named_key(keys, names, operation).items()}
    if isinstance(keys, tuple) and keys and all(isinstance(value, _VALUES) for value in keys):
        return {name: [value] for name, value in named_key(keys, names, operation).items()}
    if isinstance(keys, Mapping) and keys and all(isinstance(value, _VALUES) for value in keys.values()):
        return {name: [value] for name, value in keys.items()}
    if isinstance(keys, list) and keys and is_value(keys[0]):
        if len(names) > 1:
            raise InvalidArgumentError(key_text(keys[0], names, operation))
        if not all(issubclass(kind, _VALUES) for kind in set(map(type, keys))):
            raise InvalidArgumentError(
                f"{operation}: the list of keys mixes single values with tuples or dicts; use one form for all keys"
            )
        return {names[0]: keys}
    return with_names(keys, names, operation)


def named_key(key: Any, names: Sequence[str], operation: str) -> Mapping[str, Any]:
    """Return one key as a dict. A key is a dict, a tuple, a named tuple, or the value of a
    one-column key.

    Raises: InvalidArgumentError for anything else, and for a tuple of another length than `names`.
    """
    if isinstance(key, Mapping):
        return key
    if hasattr(key, "_fields"):  # a named tuple, whose fields may have another order than the key
        return dict(zip(key._fields, key, strict=True))
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(names) or not all(isinstance(value, _VALUES) for value in values):
        raise InvalidArgumentError(key_text(key, names, operation))
    return dict(zip(names, values, strict=True))


def key_text(key: Any, names: Sequence[str], operation: str) -> str:
    """Return the error message for a wrong key: a value that does not have the form of a key.

    key: the wrong value.
    names: the key columns.
    operation: the name of the user's call, such as "delete".
    """
    shown = ", ".join(f"{name!r}: …" for name in names)
    other = f"the value of {names[0]!r}" if len(names) == 1 else f"a tuple ({', '.join(names)})"
    hint = ""
    if is_condition(key, " =<>"):
        hint = f"; for a condition write {operation if operation == 'delete' else 'scan'}(where={key!r})"
    elif isinstance(key, list):
        hint = "; get_many takes a list of keys"
    return f"{operation} expects a key as {other} or a dict {{{shown}}}, got {key!r}{hint}"


def _from_tuples(rows: Sequence[Any], names: Sequence[str], operation: str) -> dict[str, list[Any]]:
    kinds = set(map(type, rows))
    if not all(issubclass(kind, tuple) for kind in kinds):
        position = next(position for position, row in enumerate(rows) if not isinstance(row, tuple))
        raise InvalidArgumentError(
            f"{operation}: item 0 of the list is a tuple, but item {position} is {rows[position]!r}; use tuples for "
            "all rows"
        )
    first = rows[0]
    if len(kinds) == 1 and hasattr(first, "_fields"):
        names = list(first._fields)
    if set(map(len, rows)) != {len(names)}:
        position = next(position for position, row in enumerate(rows) if len(row) != len(names))
        raise InvalidArgumentError(
            f"{operation}: row {position} is a tuple of {len(rows[position])} values, but the columns are "
            f"({', '.join(names)}); give one value per column, with None for NULL, or pass dicts"
        )
    return {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def _from_dataclasses(rows: Sequence[Any]) -> dict[str, list[Any]]:
    kind = type(rows[0])
    if set(map(type, rows)) != {kind}:
        position = next(position for position, row in enumerate(rows) if type(row) is not kind)
        raise InvalidArgumentError(
            f"item 0 of the list has the type {kind.__qualname__}, but item {position} has the type "
            f"{type(rows[position]).__qualname__}; use one dataclass for all rows"
        )
    names = [each.name for each in dataclasses.fields(kind)]
    return {name: list(map(attrgetter(name), rows)) for name in names}
