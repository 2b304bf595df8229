"""Gives the rows of a scan to polars, as a data frame or as the source of a LazyFrame.

polars passes the columns, the predicate and the row limit of a query to its source, and relies on
the source to apply the predicate. This module divides the predicate at its outermost ANDs, and
translates the terms to Nyala, so that the scan can skip data. It translates comparisons of a column
with a constant or with another column, IN lists, prefixes and suffixes of text, IS NULL, between,
AND and OR.

The scan alone applies the terms that mean exactly the same in Nyala. For the other terms, this
module calls polars to filter each batch that the scan returned.

    threads that read ahead:    decode splits, convert text to views, apply the other terms
    the thread of polars:       yields the frames in order, in the size that polars wants

Invariants
    E1  The predicate of the scan is TRUE in every row in which the predicate of polars is TRUE. It
        may be TRUE in more rows: a term may be left out, and a bound may be wider.
    E2  A term that only the scan applies is TRUE in exactly the same rows as in polars, also for
        NULL, NaN and both zeros.

polars also passes "dynamic" terms: hints that a later step, such as a top-N, gives the source. No
expression of polars can evaluate these terms, so this module drops them.

`text_views` converts text to the views that polars uses. For DuckDB see `nyala.sql.select.source`.
Source: docs/design/sql-and-polars.md, "Polars"; polars' `register_io_source`; on dynamic
predicates, DuckDB's polars_io.py.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import operator
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial, reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import Error
from nyala.interop.polars_expressions import tree_of
from nyala.interop.text_views import VIEW_TYPES, TextViews
from nyala.schema.expressions import nodes
from nyala.schema.expressions.literals import to_literal
from nyala.schema.expressions.nodes import Node

if TYPE_CHECKING:
    import polars as pl

    from nyala.api.engine_scan import EngineScan


def polars_frame(scan: EngineScan) -> pl.DataFrame:
    """Return all rows as a polars data frame with one chunk per scan split."""
    import polars

    narrow = scan.with_narrow_decimals()
    as_text = TextViews.of_all_text(narrow.schema)
    batches = list(narrow.with_stored_dictionaries().batches_ahead(as_text))
    # polars 1.33 cannot read an empty table of narrow decimals (of 4 or 8 bytes).
    table = pa.Table.from_batches(batches, as_text.schema) if batches else scan.schema.empty_table()
    frame: Any = polars.from_arrow(table)
    return frame  # type: ignore[no-any-return]


def polars_lazy(scan: EngineScan) -> pl.LazyFrame:
    """Return a LazyFrame that reads the scan each time it is collected, always at the same moment."""
    from polars.io.plugins import register_io_source

    lazy: pl.LazyFrame = register_io_source(
        partial(frames, scan), schema=_polars_schema(scan.schema), is_pure=True
    )
    return lazy


@lru_cache(maxsize=256)
def _polars_schema(schema: pa.Schema) -> pl.Schema:
    """Return the types that polars gives to columns of these Arrow types."""
    import polars

    empty: Any = polars.from_arrow(schema.empty_table())
    found: pl.Schema = empty.schema
    return found


def frames(
    scan: EngineScan,
    with_columns: list[str] | None,
    predicate: pl.Expr | None,
    n_rows: int | None,
    batch_size: int | None,
) -> Iterator[pl.DataFrame]:
    """Yield data frames with the columns `with_columns` of the scan's rows that match `predicate`.

    polars calls this function to read a Nyala scan.

    n_rows: the number of rows that polars needs before it applies the predicate, as in
    `head(n).filter(…)`. (For `filter(…).head(n)` it passes no number.)
    batch_size: the number of rows that polars wants per frame. A batch is divided into equal frames
    with at least this number of rows. There are at most as many frames as polars has threads,
    because each frame costs 50 to 100 µs.
    """
    import polars

    projection = scan.schema.names if with_columns is None else with_columns
    split = _split(predicate, scan.schema)
    rest = split.rest if n_rows is None else split.whole
    narrowed = _narrow_scan(scan, projection, rest, split.where if n_rows is None else None)
    if narrowed is None:
        rest = split.whole
        narrowed = _narrow_scan(scan, projection, rest, None)
        assert narrowed is not None
    text = TextViews.of_all_text(narrowed.schema)
    make = partial(_frame, rest, projection)
    if n_rows is not None:
        make = partial(_frame, None, narrowed.schema.names)
    narrowed = narrowed.with_stored_dictionaries()
    left = n_rows
    few = left is not None and left <= _FEW_ROWS
    parts_max = polars.thread_pool_size()
    found: Iterator[pl.DataFrame]
    if few:
        found = (make(text(batch)) for batch in narrowed.batches())
    elif _pulls_in_its_pool():
        found = map(make, narrowed.batches_ahead(text))
    else:
        found = narrowed.batches_ahead(lambda batch: make(text(batch)))
    for frame in found:
        if left is not None:
            frame = frame.head(left)
            left -= frame.height
            frame = _filter_frame(frame, rest, projection)
        parts = 1 if batch_size is None else min(frame.height // max(1, batch_size), parts_max)
        yield from [frame] if parts <= 1 else frame.iter_slices(-(-frame.height // parts))
        if left == 0:
            return


@lru_cache(maxsize=1)
def _pulls_in_its_pool() -> bool:
    """Whether polars reads a source in the same threads that run its filters (before polars 2.0).

    If so, Nyala's reading threads must not call a filter of polars. Otherwise a query could wait for
    ever. All threads of polars may wait for rows from Nyala's reading threads. A filter in a reading
    thread would then wait for a thread of polars.
    """
    import polars

    return int(polars.__version__.split(".")[0]) < 2


# Up to this number of rows nothing is read ahead, because the first split may have all of them.
_FEW_ROWS: Final = 1 << 17


def _narrow_scan(
    scan: EngineScan, projection: Sequence[str], rest: pl.Expr | None, where: Node | None
) -> EngineScan | None:
    """Return the scan with the condition `where` and only the columns that polars needs.

    These are the columns `projection` and those of `rest`, the predicate that polars applies.
    Returns None if `where` cannot be added: the scan has a limit, or cannot evaluate it.
    """
    columns = list(dict.fromkeys([*projection, *([] if rest is None else rest.meta.root_names())]))
    if where is None:
        return scan.narrowed(columns)
    if scan.has_limit:
        return None
    try:
        return scan.narrowed(columns, where)
    except Error:
        return None  # the column cannot be compared with a constant, but polars can


# ------------------------------------------------------------------------------------------------ frames


def _frame(rest: pl.Expr | None, projection: Sequence[str], batch: pa.RecordBatch) -> pl.DataFrame:
    """Return the columns `projection` of a batch, for the rows that satisfy `rest`."""
    import polars

    # `DataFrame(batch)` takes the batch through Arrow's C interface in this thread; `from_arrow`
    # would wait for polars' busy threads. A batch without columns keeps its number of rows only as
    # a table.
    frame = polars.DataFrame(batch if batch.num_columns else pa.Table.from_batches([batch]))
    return _filter_frame(frame, rest, projection)


def _filter_frame(frame: pl.DataFrame, rest: pl.Expr | None, projection: Sequence[str]) -> pl.DataFrame:
    if rest is not None:
        frame = frame.filter(rest)
    return frame if frame.columns == projection else frame[projection]


# ------------------------------------------------------------------------------------------------ predicates

_OPERATORS: Final = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_BETWEEN_OPERATORS: Final = {
    "Both": (">=", "<="),
    "Left": (">=", "<"),
    "Right": (">", "<="),
    "None": (">", "<"),
}
_EXACT_IN_DOUBLE: Final = 2**53
# The most digits of a decimal in polars.
_DECIMAL_DIGITS: Final = 38
# The greatest relative error of a decimal that was computed as a double.
_DOUBLE_ERROR: Final = decimal.Decimal(2) ** -48


@dataclass(frozen=True)
class _SplitPredicate:
    """A predicate of polars, divided into a part for polars and a part for the scan."""

    whole: pl.Expr | None = None  # the predicate without dynamic terms
    rest: pl.Expr | None = None  # what polars applies to the rows of the scan
    where: Node | None = None  # what the scan applies


@dataclass(frozen=True)
class _Translation:
    """The translation of a polars condition to a predicate of Nyala.

    predicate: TRUE in every row in which the condition is TRUE, and perhaps in more rows. None: the
        condition cannot be translated.
    exact: whether the predicate and the condition are TRUE in exactly the same rows.
    """

    predicate: Node | None = None
    exact: bool = False


_UNKNOWN: Final = _Translation()


def _split(predicate: pl.Expr | None, schema: pa.Schema) -> _SplitPredicate:
    import polars

    if predicate is None:
        return _SplitPredicate()
    try:
        tree = tree_of(predicate)
    except (polars.exceptions.PolarsError, ValueError, struct.error, RecursionError):
        return _SplitPredicate(
            predicate, predicate
        )  # polars cannot serialise it, for instance a Python function
    conjuncts = list(_conjuncts(predicate, tree))
    static = [one for one in conjuncts if not _is_dynamic(one.tree)]
    whole = predicate if len(static) == len(conjuncts) else _and_of(static)
    translations = [_try_translate(one.tree, schema) for one in static]
    parts = [translation.predicate for translation in translations if translation.predicate is not None]
    if not parts:
        return _SplitPredicate(whole, whole)
    others = [one for one, translation in zip(static, translations, strict=True) if not translation.exact]
    rest = whole if len(others) == len(static) else _and_of(others)
    return _SplitPredicate(whole, rest, nodes.all_of(parts))


class _Conjunct(NamedTuple):
    """One term of an AND: the expression, and its tree as `tree_of` returns it."""

    expression: pl.Expr
    tree: Any


def _conjuncts(predicate: pl.Expr, tree: Any) -> Iterator[_Conjunct]:
    """Divide a predicate at its outermost ANDs, and yield the terms from left to right.

    tree: the predicate as `tree_of` returns it.
    """
    pending = [_Conjunct(predicate, tree)]
    while pending:
        one = pending.pop()
        match one.tree:
            case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
                operands = one.expression.meta.pop()
                first, second = reversed(operands) if _pops_backwards() else operands
                pending += (_Conjunct(second, right), _Conjunct(first, left))
            case _:
                yield one


@cache
def _pops_backwards() -> bool:
    """Whether `Expr.meta.pop` of this version of polars returns the right operand first."""
    import polars

    return (polars.col("left") & polars.col("right")).meta.pop()[0].meta.output_name() == "right"


def _and_of(conjuncts: Sequence[_Conjunct]) -> pl.Expr | None:
    return reduce(operator.and_, (one.expression for one in conjuncts)) if conjuncts else None


def _is_dynamic(tree: Any) -> bool:
    match tree:
        case {"Display": {"fmt_str": str(text)}}:
            return text.startswith("dynamic_pred")
    return False


def _try_translate(tree: Any, schema: pa.Schema) -> _Translation:
    try:
        return _translate(tree, schema)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        pa.ArrowException,
    ):
        return _UNKNOWN  # polars may change the form of its trees at any time


def _translate(tree: Any, schema: pa.Schema) -> _Translation:
    match tree:
        case {"Column": str(name)} if pa.types.is_boolean(schema.field(name).type):
            return _Translation(nodes.Column(name), True)
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            both = _translate(left, schema), _translate(right, schema)
            parts = [part.predicate for part in both if part.predicate is not None]
            return _Translation(nodes.all_of(parts), all(part.exact for part in both)) if parts else _UNKNOWN
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            one, other = _translate(left, schema), _translate(right, schema)
            if one.predicate is None or other.predicate is None:
                return _UNKNOWN
            return _Translation(nodes.any_of((one.predicate, other.predicate)), one.exact and other.exact)
        case {"BinaryExpr": {"left": {"Literal": literal}, "op": str(op), "right": column}}:
            return _translate_comparison(column, nodes.FLIPPED.get(_OPERATORS.get(op, "")), literal, schema)
        case {"BinaryExpr": {"left": column, "op": str(op), "right": {"Literal": literal}}}:
            return _translate_comparison(column, _OPERATORS.get(op), literal, schema)
        case {"BinaryExpr": {"left": {"Column": str(left)}, "op": str(op), "right": {"Column": str(right)}}}:
            return _translate_column_comparison(left, _OPERATORS.get(op), right, schema)
        case {"Function": {"input": [column, {"Literal": literal}], "function": {"StringExpr": test}}}:
            return _translate_like(_name(column, schema), test, literal, schema)
        case {"Function": {"input": [column, *values], "function": {"Boolean": test}}}:
            return _translate_test(column, values, test, schema)
    return _UNKNOWN


def _translate_test(column: Any, values: Sequence[Any], test: Any, schema: pa.Schema) -> _Translation:
    match test, values:
        case "IsNull" | "IsNotNull", []:
            return _Translation(
                nodes.IsNull(nodes.Column(_name(column, schema)), negated=test == "IsNotNull"), True
            )
        case "Not", []:
            part = _translate(column, schema)
            if part.predicate is None or not part.exact:
                return _UNKNOWN  # if the part is TRUE in too many rows, its NOT is TRUE in too few
            return _Translation(nodes.Not(part.predicate), True)
        case {"IsBetween": {"closed": str(closed)}}, [{"Literal": lower}, {"Literal": upper}]:
            ops = _BETWEEN_OPERATORS[closed]
            bounds = [
                _translate_comparison(column, op, v, schema)
                for op, v in zip(ops, (lower, upper), strict=True)
            ]
            parts = [bound.predicate for bound in bounds if bound.predicate is not None]
            return (
                _Translation(nodes.all_of(parts), all(bound.exact for bound in bounds)) if parts else _UNKNOWN
            )
        case {"IsIn": {"nulls_equal": False}}, [{"Alias": [literal, _]} | ({"Literal": _} as literal)]:
            return _translate_in_list(_name(column, schema), literal["Literal"], schema)
    return _UNKNOWN


def _translate_column_comparison(left: str, op: str | None, right: str, schema: pa.Schema) -> _Translation:
    """Translate a comparison of two columns of the same type. Not for floats, because of NaN."""
    kind = schema.field(left).type
    plain = pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_decimal(kind)
    if op is None or kind != schema.field(right).type or not (plain or pa.types.is_string(kind)):
        return _UNKNOWN
    return _Translation(nodes.compare(left, op, nodes.Column(right)), True)


def _translate_like(name: str, test: Any, literal: Any, schema: pa.Schema) -> _Translation:
    """Return the LIKE predicate for a polars test whether a text begins or ends with a constant.

    Returns `_UNKNOWN` (not translated) for another test, or if the column or the constant is no text.

    name: the tested column.
    test: polars' name of the test, such as "StartsWith".
    literal: the constant, as a part of polars' expression tree.
    """
    ((form, value),) = literal["Scalar"].items() if "Scalar" in literal else literal.items()
    if form not in ("String", "StringOwned") or not pa.types.is_string(schema.field(name).type):
        return _UNKNOWN
    text = "".join("\\" + char if char in "%_\\" else char for char in value)
    pattern = {"StartsWith": text + "%", "EndsWith": "%" + text}.get(test if isinstance(test, str) else "")
    return (
        _UNKNOWN
        if pattern is None
        else _Translation(nodes.Like(nodes.Column(name), pattern, escape="\\"), True)
    )


def _name(column: Any, schema: pa.Schema) -> str:
    """Return the name of the column that a part of polars' expression tree names.

    column: the part, in the form of `tree_of`, such as `{"Column": "a"}`.
    Raises: KeyError if the part is not a column of `schema`.
    """
    name = str(column["Column"])
    schema.field(name)
    return name


def _translate_in_list(name: str, literal: Any, schema: pa.Schema) -> _Translation:
    """Return the IN predicate for a polars test whether a column's value is in a list.

    NULL in the list matches no row. Returns `_UNKNOWN` (not translated) if the list has only NULLs,
    or another type than the column. The sizes of signed integers may differ.

    name: the tested column.
    literal: the list, as a part of polars' expression tree. It contains the bytes of an Arrow IPC
        stream with one column.
    """
    kind = schema.field(name).type
    stream = literal["Series"] if "Series" in literal else literal["Scalar"]["List"]
    (listed,) = pa.ipc.open_stream(stream).read_all().columns
    if pa.types.is_large_list(listed.type) and len(listed) == 1:  # a Series with one list
        listed = pc.list_flatten(listed)
    if pa.types.is_decimal(kind):
        same = pa.types.is_decimal(listed.type) and listed.type.scale == kind.scale
    elif pa.types.is_signed_integer(kind):
        same = pa.types.is_signed_integer(listed.type)
    else:
        plain = pa.types.is_floating(kind) or pa.types.is_temporal(kind) or kind in VIEW_TYPES
        same = plain and listed.type == VIEW_TYPES.get(kind, kind)
    values = listed.drop_null()
    return _Translation(nodes.col(name).isin(values), True) if same and len(values) else _UNKNOWN


def _translate_comparison(column: Any, op: str | None, literal: Any, schema: pa.Schema) -> _Translation:
    """Translate a comparison of a column with a constant, if it has the same result in polars and in Nyala.

    Exception: if polars compares a decimal column as a double, the translation matches slightly more
    rows. It is marked as not exact, so polars checks these rows again.
    """
    ((form, value),) = literal.items()
    if form in ("Dyn", "Scalar"):
        ((form, value),) = value.items()
    if op is None or value is None:
        return _UNKNOWN
    match column:
        case {"Cast": {"expr": {"Column": str(name)}, "dtype": {"Literal": "Float64"}}}:
            rounded = form in ("Float", "Float64") and pa.types.is_decimal(schema.field(name).type)
            return _translate_double_comparison(name, op, float(value)) if rounded else _UNKNOWN
    name = _name(column, schema)
    kind = schema.field(name).type
    if form.startswith(("Int", "UInt")):
        value = _int_of(value)
        exact = pa.types.is_integer(kind) or (pa.types.is_floating(kind) and abs(value) <= _EXACT_IN_DOUBLE)
        if pa.types.is_float32(kind):
            exact = exact and int(np.float32(value)) == value
    elif form in ("Float", "Float32", "Float64"):
        value = float(np.float32(value)) if form == "Float32" else float(value)
        # polars may round the constant to the type of the column, or the column to the type of the
        # constant.
        exact = pa.types.is_float64(kind) or (pa.types.is_float32(kind) and float(np.float32(value)) == value)
    elif form == "Decimal":
        unscaled, _, scale = value
        # polars converts both sides to one scale. If the digits do not fit, its result differs
        # from that of Nyala.
        exact = (
            pa.types.is_decimal(kind)
            and kind.precision - kind.scale + max(scale, kind.scale) <= _DECIMAL_DIGITS
            and len(str(abs(_int_of(unscaled)))) - scale + max(scale, kind.scale) <= _DECIMAL_DIGITS
        )
        value = decimal.Decimal(_int_of(unscaled)).scaleb(-scale, decimal.Context(prec=_DECIMAL_DIGITS + 1))
    elif form in ("String", "StringOwned"):
        exact = pa.types.is_string(kind)
    elif form == "Boolean":
        exact = pa.types.is_boolean(kind)
    elif form == "Date":
        value, exact = dt.date(1970, 1, 1) + dt.timedelta(days=value), pa.types.is_date32(kind)
    elif form == "Datetime":
        count, unit, zone = value
        exact = pa.types.is_timestamp(kind) and unit == "Microseconds" and zone is not None
        value = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=count)
    else:
        exact = False
    return _Translation(nodes.compare(name, op, to_literal(value)), True) if exact else _UNKNOWN


def _translate_double_comparison(name: str, op: str, value: float) -> _Translation:
    """Translate a polars comparison of a decimal column with a double to a predicate of Nyala.

    polars casts the decimals to doubles, which rounds them. The predicate compares the decimals
    without a cast, with bounds slightly beyond `value`. So it loses no row, but may select some rows
    too many. The translation is marked as not exact, so polars checks the selected rows again.
    `<>` and values that are not finite cannot be translated.
    """
    if not math.isfinite(value) or op == "<>":
        return _UNKNOWN
    exact = decimal.Decimal(value)
    room = abs(exact) * _DOUBLE_ERROR
    bounds = [nodes.compare(name, ">=", to_literal(exact - room))] if op in (">", ">=", "=") else []
    bounds += [nodes.compare(name, "<=", to_literal(exact + room))] if op in ("<", "<=", "=") else []
    return _Translation(nodes.all_of(bounds))


def _int_of(number: int | bytes) -> int:
    """Return an integer of polars' tree as an int. Integers of 128 bits are 16 bytes there."""
    return int.from_bytes(number, "big", signed=True) if isinstance(number, bytes) else number
