"""RowErrors: collects the failed rows of a batch with their codes and messages, and returns them as
an Arrow table.

The steps of a write add their errors one after the other: conversion, key encoding, routing,
look-up of the keys.

    errors.add([4, 9], OUT_OF_RANGE, ["column 'n': 300 does not fit …", …])
    errors.add([9, 2], NULL, "column 'k': …")        # row 9 keeps its first error
    errors.failed_mask(10)                           # True at 2, 4, 9
    errors.to_arrow("insert", {"k": keys})           # row, operation, code, message, k

Invariants
    E1  A row has one error: the first that was added.
    E2  `rows` is ascending without duplicates; `codes` and `messages` have the same order.
    E3  Adding an error has no cost per row. Rows are sorted when they are read for the first time.
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
        self._sorted: tuple[npt.NDArray[np.int64], list[str], list[str]] | None = None

    def add(self, rows: Any, code: str, message: str | Sequence[str]) -> None:
        """Add failed `rows`, given as positions in any order. `message` is one text for all rows,
        or a text per row.
        """
        assert code in ROW_ERROR_CODES, f"unknown row error code {code!r}"
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) == 0:
            return
        assert isinstance(message, str) or len(message) == len(rows), "one message, or one for each row"
        self._added.append((rows, code, message))
        self._sorted = None

    def extend(self, other: RowErrors, begin: int = 0) -> None:
        """Add all errors of `other`, a part of the batch that begins at row `begin`."""
        self._added += [(rows + begin, code, message) for rows, code, message in other._added]
        self._sorted = None

    def __bool__(self) -> bool:
        return bool(self._added)

    def __len__(self) -> int:
        """The number of failed rows."""
        return len(self.rows)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The failed rows, ascending."""
        return self._in_order()[0]

    @property
    def codes(self) -> list[str]:
        """The error code of each failed row, in the order of `rows`."""
        return self._in_order()[1]

    @property
    def messages(self) -> list[str]:
        """The error message of each failed row, in the order of `rows`."""
        return self._in_order()[2]

    def _in_order(self) -> tuple[npt.NDArray[np.int64], list[str], list[str]]:
        if self._sorted is None:
            if not self._added:
                return np.empty(0, np.int64), [], []
            # `np.unique` sorts and returns the first position of each row (E1, E2).
            rows, firsts = np.unique(np.concatenate([rows for rows, _, _ in self._added]), return_index=True)
            codes: list[str] = []
            messages: list[str] = []
            for added, code, message in self._added:
                codes += [code] * len(added)
                messages += [message] * len(added) if isinstance(message, str) else message
            positions = firsts.tolist()
            self._sorted = (
                rows,
                [codes[position] for position in positions],
                [messages[position] for position in positions],
            )
        return self._sorted

    def failed_mask(self, row_count: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the failed rows of a batch of `row_count` rows."""
        mask = np.zeros(row_count, dtype=bool)
        for rows, _, _ in self._added:
            mask[rows] = True
        return mask

    def to_arrow(self, operation: str | Sequence[str], key_columns: Mapping[str, Column]) -> pa.Table:
        """Return the table that users see as `WriteError.errors` and `WriteResult.errors`.

        operation:   the name of the operation for all failed rows, or one name per failed row.
        key_columns: the key columns of the whole batch, as far as they are known. A key that could
                     not be converted is NULL. A key column that has the name of an error column
                     gets the prefix "key_".
        """
        columns = {
            "row": pa.array(self.rows, pa.int64()),
            "operation": pa.array(
                [operation] * len(self) if isinstance(operation, str) else operation, pa.string()
            ),
            "code": pa.array(self.codes, pa.string()),
            "message": pa.array(self.messages, pa.string()),
        }
        for name, array in key_columns.items():
            keys = array.take(columns["row"])
            if isinstance(keys, LongColumn):
                keys = pa.chunked_array([part.array() for part in keys.parts()])
            columns[f"key_{name}" if name in _OWN_COLUMNS else name] = keys
        return pa.table(columns)
