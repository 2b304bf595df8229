"""Names for the types of arguments that the public methods accept, for type checkers and editors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from nyala.schema.expressions.nodes import Expr


class ArrowStream(Protocol):
    """A table with Arrow's C stream protocol: of pyarrow, polars, pandas, DuckDB, ADBC and others."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class ArrowArray(Protocol):
    """A record batch with Arrow's C data protocol."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


class _Timestamped(Protocol):
    """An object with a `timestamp` that is accepted as a moment, for instance a `WriteResult` or a `Scan`."""

    @property
    def timestamp(self) -> int: ...


DataLike: TypeAlias = pa.RecordBatchReader | ArrowStream | ArrowArray | Mapping[str, Any] | Sequence[Any]
"""Rows for a write: anything with Arrow's stream protocol, a dict of columns, or a list of dicts, of
tuples in the order of the table's columns, or of dataclasses."""

KeyLike: TypeAlias = Any
"""One key: a dict, a tuple in the order of the key columns, or a bare value if the key has one column."""

Moment: TypeAlias = int | str | dt.datetime | _Timestamped
"""A moment: a timestamp of Nyala, ISO text, a tag, a datetime, or a result with a `timestamp`."""

PredicateLike: TypeAlias = str | Expr | pc.Expression
"""A condition on rows: text in the expression language, `nyala.col(…)`, `nyala.expr(…)` or a pyarrow expression."""
