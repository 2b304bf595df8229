"""RowErrors: collects the failed rows of a batch with their codes and messages, and returns them as an Arrow table.

Every step of a write adds its errors: conversion, key encoding, routing, then the look-up of the keys.

    errors.add([4, 9], OUT_OF_RANGE, ["column 'n': 300 does not fit …", …])
    errors.add([9, 2], NULL, "column 'k': …")        # row 9 keeps its first error
    errors.failed_mask(10)                           # True at 2, 4, 9
    errors.to_arrow("insert", {"k": keys})           # row, operation, code, message, k

Invariants
    E1  A row has one error, the first that was added.
    E2  `rows` ascends strictly; `codes` and `messages` have the same order.
    E3  Adding takes no Python step per row. Rows are sorted when they are first read.
Not thread-safe: one thread processes a batch.
Source: docs/how-to/errors.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.errors import ROW_ERROR_CODES
from nyala.schema.conversion.long_column import Column, LongColumn

__all__ = ["RowErrors"]

_OWN_COLUMNS: Final = ("row", "operation", "code", "message")


class RowErrors:
    """The failed rows of one batch, by their position in the user's data."""

    def __init__(self) -> None:
        self._added: list[tuple[npt.NDArray[np.int64], str, str | Sequence[str]]] = []
        self._settled: tuple[npt.NDArray[np.int64], list[str], list[str]] | None = None

    def add(self, rows: Any, code: str, message: str | Sequence[str]) -> None:
        """Add failed `rows` (int64 positions, in any order) with `code`, and one message for all or one for each."""
        assert code in ROW_ERROR_CODES, f"unknown row error code {code!r}"
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) == 0:
            return
        assert isinstance(message, str) or len(message) == len(rows), "one message, or one for each row"
        self._added.append((rows, code, message))
        self._settled = None

    def extend(self, other: RowErrors, begin: int = 0) -> None:
        """Add all errors of `other`, whose row 0 is row `begin` here."""
        self._added += [(rows + begin, code, message) for rows, code, message in other._added]
        self._settled = None

    def __bool__(self) -> bool:
        return bool(self._added)

    def __len__(self) -> int:
        """The number of failed rows."""
        return len(self.rows)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The failed rows, ascending."""
        return self._settle()[0]

    @property
    def codes(self) -> list[str]:
        """The code of each of `rows`."""
        return self._settle()[1]

    @property
    def messages(self) -> list[str]:
        """The message of each of `rows`."""
        return self._settle()[2]

    def _settle(self) -> tuple[npt.NDArray[np.int64], list[str], list[str]]:
        if self._settled is None:
            if not self._added:
                return np.empty(0, np.int64), [], []
            # `np.unique` sorts and returns the first position of each row (E1, E2).
            rows, firsts = np.unique(np.concatenate([rows for rows, _, _ in self._added]), return_index=True)
            codes: list[str] = []
            messages: list[str] = []
            for added, code, message in self._added:
                codes += [code] * len(added)
                messages += [message] * len(added) if isinstance(message, str) else message
            places = firsts.tolist()
            self._settled = (rows, [codes[place] for place in places], [messages[place] for place in places])
        return self._settled

    def failed_mask(self, row_count: int) -> npt.NDArray[np.bool_]:
        """True for each of a batch's `row_count` rows that failed."""
        mask = np.zeros(row_count, dtype=bool)
        for rows, _, _ in self._added:
            mask[rows] = True
        return mask

    def to_arrow(self, operation: str | Sequence[str], key_columns: Mapping[str, Column]) -> pa.Table:
        """Return the table for `WriteError.errors` and `WriteResult.errors`.

        `operation`: of all failed rows, or one for each. `key_columns`: the known key columns of the whole batch.
        The table has the keys of the failed rows; a key that did not convert is NULL. A key column named like an
        error column gets the prefix "key_".
        """
        columns = {
            "row": pa.array(self.rows, pa.int64()),
            "operation": pa.array(
                [operation] * len(self) if isinstance(operation, str) else operation, pa.string()
            ),
            "code": pa.array(self.codes, pa.string()),
            "message": pa.array(self.messages, pa.string()),
        }
        rows = columns["row"]
        for name, array in key_columns.items():
            found = array.take(rows)
            if isinstance(found, LongColumn):
                found = pa.chunked_array([part.array() for part in found.parts()])
            columns[f"key_{name}" if name in _OWN_COLUMNS else name] = found
        return pa.table(columns)
