"""Scans as lazy sources of polars (of DuckDB: `nyala.sql.source`).

polars asks a source for columns, a predicate and a number of rows, and trusts the source to have applied the predicate.
The columns narrow our scan. The predicate is applied here, by polars itself, batch by batch, so it means what it means
in polars. What of it is understood narrows the scan besides: comparisons with constants, IS NULL, between, AND and OR,
where both sides of an OR are understood.

Invariant
    E1  What narrows the scan holds for every row that polars' predicate holds for. It may hold for more rows, so a
        conjunct can be left out, and a bound be taken as inclusive.

polars hands over "dynamic" predicates too, a hint from a top-N above, which it cannot apply itself when asked to: such
a conjunct is left out.
Source: ecosystem notes, interchange; polars' `register_io_source`; on dynamic predicates, DuckDB's polars_io.py.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from nyala.errors import Error
from nyala.schema import nodes
from nyala.schema.literals import normalise
from nyala.schema.nodes import Predicate

if TYPE_CHECKING:
    import polars as pl

    from nyala.scan import Scan


# Older ones take decimals of 4 and 8 bytes for such of 16. Seen: 1.20.0 gives other numbers, 1.33.1 the right ones.
_NARROW_DECIMALS_SINCE: Final = (1, 33)


def takes_narrow_decimals(version: str) -> bool:
    """Whether this version of polars reads Arrow's decimals of 4 and 8 bytes."""
    major, minor, *_ = (int(part) for part in re.findall(r"\d+", f"{version}.0.0"))
    return (major, minor) >= _NARROW_DECIMALS_SINCE


def polars_lazy(scan: Scan) -> pl.LazyFrame:
    """A LazyFrame that reads `scan` when collected, as often as asked, always at the scan's moment."""
    import polars
    from polars.io.plugins import register_io_source

    empty: Any = polars.from_arrow(scan.schema.empty_table())
    lazy: pl.LazyFrame = register_io_source(partial(frames, scan), schema=empty.schema, is_pure=True)
    return lazy


def frames(
    scan: Scan,
    with_columns: list[str] | None,
    predicate: pl.Expr | None,
    n_rows: int | None,
    batch_size: int | None,
) -> Iterator[pl.DataFrame]:
    """What polars asks a source for: these columns of the rows that match, at most so many, in frames so large."""

    wanted = scan.schema.names if with_columns is None else with_columns
    where = None
    if predicate is not None:
        predicate, where = _split(predicate, scan.schema)
    needed = set(wanted) | (set() if predicate is None else set(predicate.meta.root_names()))
    left = n_rows
    columns = [name for name in scan.schema.names if name in needed]
    narrowed = _narrowed(scan, columns, where)
    asked = [name for name in columns if pa.types.is_dictionary(narrowed.schema.field(name).type)]
    for batch in narrowed.with_dictionaries().to_reader():
        frame = _frame(batch, asked)
        if predicate is not None:
            frame = frame.filter(predicate)
        frame = frame.select(wanted)
        if left is not None:
            frame = frame.head(left)
            left -= frame.height
        # Our windows are larger than what polars asks for where its memory is short.
        yield from [frame] if batch_size is None else frame.iter_slices(max(1, batch_size))
        if left == 0:
            return


def _frame(batch: pa.RecordBatch, asked: Sequence[str]) -> Any:
    """The batch as a DataFrame: words that lie in a dictionary are looked up by polars, which points at them and copies
    none; not of the columns that were `asked` for as dictionaries."""
    import polars

    if not batch.num_columns:  # its rows are counted all the same
        return polars.from_arrow(batch)
    made: list[Any] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_dictionary(column.type) and name not in asked:
            words: Any = polars.from_arrow(column.dictionary)
            series = words.gather(polars.from_arrow(column.indices))
        else:
            series = polars.from_arrow(column)
        made.append(series.alias(name))
    return polars.DataFrame(made)


def _narrowed(scan: Scan, columns: list[str], where: Predicate | None) -> Scan:
    """Narrowed by the predicate too where that can be; it need not be (E1)."""
    if where is not None and not scan.limited:
        try:
            return scan.narrowed(columns, where)
        except Error:
            pass  # a constant that the column cannot have: polars knows what that means
    return scan.narrowed(columns)


# ------------------------------------------------------------------------------------------------ predicates

_OPERATORS: Final = {"Eq": "=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_TURNED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EXACT_IN_DOUBLE: Final = 2**53


def _split(predicate: pl.Expr, schema: pa.Schema) -> tuple[pl.Expr | None, Predicate | None]:
    """(the predicate without dynamic conjuncts, what of it narrows a scan)."""
    import polars

    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except (polars.exceptions.PolarsError, ValueError):
        return predicate, None  # an expression that has no text, such as a Python function
    kept = _without_dynamic(tree)
    if kept is None:
        return None, None
    if kept is not tree:
        predicate = polars.Expr.deserialize(io.BytesIO(json.dumps(kept).encode()), format="json")
    try:
        return predicate, _weaker(kept, schema)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError):
        return predicate, None  # the form of the tree is polars' own and changes


def _without_dynamic(tree: Any) -> Any:
    """The tree itself when it has no dynamic conjunct; None when it is one."""
    match tree:
        case {"Display": {"fmt_str": str(text)}} if text.startswith("dynamic_pred"):
            return None
        case {"BinaryExpr": {"left": left, "op": "And", "right": right} as both}:
            kept_left, kept_right = _without_dynamic(left), _without_dynamic(right)
            if kept_left is left and kept_right is right:
                return tree
            if kept_left is None or kept_right is None:
                return kept_right if kept_left is None else kept_left
            return {"BinaryExpr": {**both, "left": kept_left, "right": kept_right}}
    return tree


def _weaker(tree: Any, schema: pa.Schema) -> Predicate | None:
    """A predicate of ours that holds wherever polars' holds (E1); None for none."""
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            parts = [part for part in (_weaker(left, schema), _weaker(right, schema)) if part is not None]
            return nodes.all_of(parts) if parts else None
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            one, other = _weaker(left, schema), _weaker(right, schema)
            return None if one is None or other is None else nodes.any_of((one, other))
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(op), "right": {"Literal": literal}}}:
            return _compare(name, _OPERATORS.get(op), literal, schema)
        case {"BinaryExpr": {"left": {"Literal": literal}, "op": str(op), "right": {"Column": str(name)}}}:
            return _compare(name, _TURNED.get(_OPERATORS.get(op, "")), literal, schema)
        case {
            "Function": {
                "input": [{"Column": str(name)}],
                "function": {"Boolean": "IsNull" | "IsNotNull" as test},
            }
        }:
            return nodes.IsNull(name, negated=test == "IsNotNull")
        case {
            "Function": {
                "input": [{"Column": str(name)}, {"Literal": lower}, {"Literal": upper}],
                "function": {"Boolean": {"IsBetween": _}},
            }
        }:
            bounds = [_compare(name, ">=", lower, schema), _compare(name, "<=", upper, schema)]
            parts = [bound for bound in bounds if bound is not None]
            return nodes.all_of(parts) if parts else None
    return None


def _compare(name: str, op: str | None, literal: Any, schema: pa.Schema) -> Predicate | None:
    """A comparison in which polars and we are sure to mean the same."""
    kind = schema.field(name).type
    ((form, value),) = literal.items()
    if form in ("Dyn", "Scalar"):
        ((form, value),) = value.items()
    if op is None or value is None:
        return None
    if form.startswith(("Int", "UInt")):
        value = int(value)
        exact = pa.types.is_integer(kind) or (pa.types.is_floating(kind) and abs(value) <= _EXACT_IN_DOUBLE)
        if pa.types.is_float32(kind):
            exact = exact and int(np.float32(value)) == value
    elif form in ("Float", "Float32", "Float64"):
        value = float(value)
        # A narrower column is compared after rounding, the constant's or the column's.
        exact = pa.types.is_float64(kind) or (pa.types.is_float32(kind) and float(np.float32(value)) == value)
    elif form in ("String", "StringOwned"):
        exact = pa.types.is_string(kind)
    elif form == "Date":
        value, exact = dt.date(1970, 1, 1) + dt.timedelta(days=value), pa.types.is_date32(kind)
    elif form == "Datetime":
        count, unit, zone = value
        exact = pa.types.is_timestamp(kind) and unit == "Microseconds" and zone is not None
        value = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=count)
    else:
        exact = False
    return nodes.Compare(name, op, normalise(value)) if exact else None
