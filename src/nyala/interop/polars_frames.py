"""Scans as data frames and lazy sources of polars. (For DuckDB: `nyala.sql.select.source`.)

polars gives a source columns, a predicate and a number of rows, and relies on the source to apply
the predicate. The columns narrow the scan. The parts of the predicate that Nyala understands narrow
it too: comparisons with constants and of two columns, IN lists, prefixes and suffixes of text, IS
NULL, between, AND and OR. Conjuncts that mean the same in Nyala and in polars are applied by the
scan only. Other conjuncts are applied by polars, batch by batch.

    splits  ──► decoded, text as views, rest of the predicate applied    by the threads that read ahead of polars
                frames in order, of the requested size  ──► polars       by the thread in which polars reads

Invariants
    E1  The predicate that narrows the scan holds for every row for which polars' predicate holds.
        It may hold for more rows, so a conjunct can be left out, and a bound can be inclusive.
    E2  A conjunct that polars does not apply any more holds for the same rows in Nyala, including
        NULL, NaN and both zeros, and narrowed the scan.

polars also passes "dynamic" predicates, hints from a top-N above. It cannot apply them itself, so
such conjuncts are dropped.

Text goes to polars as Arrow views: see `text_views`.
Source: docs/design/sql-and-polars.md, "Polars"; polars' `register_io_source`; on dynamic
predicates, DuckDB's polars_io.py.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial, reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import Error
from nyala.interop.text_views import VIEW_TYPES, TextViews
from nyala.schema.expressions import nodes
from nyala.schema.expressions.literals import to_literal
from nyala.schema.expressions.nodes import Node

if TYPE_CHECKING:
    import polars as pl

    from nyala.api.engine_scan import EngineScan


def polars_frame(scan: EngineScan) -> pl.DataFrame:
    """Return all rows, one chunk per split; decimals of up to 18 digits are handed over as they are
    stored.
    """
    import polars

    narrow = scan.with_narrow_decimals()
    as_text = TextViews.of_all_text(narrow.schema)
    batches = list(narrow.with_stored_dictionaries().batches_ahead(as_text))
    # Without rows polars 1.33 has no type for narrow decimals.
    table = pa.Table.from_batches(batches, as_text.schema) if batches else scan.schema.empty_table()
    frame: Any = polars.from_arrow(table)
    return frame  # type: ignore[no-any-return]


def polars_lazy(scan: EngineScan) -> pl.LazyFrame:
    """Return a LazyFrame that reads the scan each time it is collected, always at the scan's
    moment.
    """
    from polars.io.plugins import register_io_source

    lazy: pl.LazyFrame = register_io_source(
        partial(frames, scan), schema=_polars_schema(scan.schema), is_pure=True
    )
    return lazy


@lru_cache(maxsize=256)
def _polars_schema(schema: pa.Schema) -> pl.Schema:
    """The types that polars gives these columns. Cost: 0.2 ms for 16 columns, the first time."""
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
    """Yield frames for polars: these columns of the matching rows.

    n_rows: a limit before the predicate: polars passes both for `head(n).filter(…)`, and no
    `n_rows` for `filter(…).head(n)`.
    batch_size: the rows that polars wants per frame. A batch below twice this size stays whole. A
    larger one is divided into equal parts, at most one per thread of polars, because each frame
    costs 50 to 100 µs.
    """
    import polars

    projection = scan.schema.names if with_columns is None else with_columns
    split = _split(predicate, scan.schema)
    rest = split.rest if n_rows is None else split.whole
    narrowed = _narrowed(scan, projection, rest, split.where if n_rows is None else None)
    if narrowed is None:
        rest = split.whole
        narrowed = _narrowed(scan, projection, rest, None)
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
            frame = _matching(frame, rest, projection)
        parts = 1 if batch_size is None else min(frame.height // max(1, batch_size), parts_max)
        yield from [frame] if parts <= 1 else frame.iter_slices(-(-frame.height // parts))
        if left == 0:
            return


@lru_cache(maxsize=1)
def _pulls_in_its_pool() -> bool:
    """Whether polars reads a source in the threads that its filters need: true before 2.0.

    Then two sources of one query may occupy all these threads while each waits for a thread of
    ours. So the threads of ours must not call polars' filters.
    """
    import polars

    return int(polars.__version__.split(".")[0]) < 2


# For at most this many rows nothing is read ahead: the first split may have them all.
_FEW_ROWS: Final = 1 << 17


def _narrowed(
    scan: EngineScan, projection: Sequence[str], rest: pl.Expr | None, where: Node | None
) -> EngineScan | None:
    """Narrow the scan to `projection`, the columns of `rest`, and `where`; None if `where` is not
    possible.
    """
    columns = list(dict.fromkeys([*projection, *([] if rest is None else rest.meta.root_names())]))
    if where is None:
        return scan.narrowed(columns)
    if scan.has_limit:
        return None
    try:
        return scan.narrowed(columns, where)
    except Error:
        return None  # a constant that the column cannot have: left to polars


# ------------------------------------------------------------------------------------------------ frames


def _frame(rest: pl.Expr | None, projection: Sequence[str], batch: pa.RecordBatch) -> pl.DataFrame:
    """Return the columns `projection` of the rows of a batch that satisfy `rest`."""
    import polars

    # `DataFrame(batch)` takes the batch through Arrow's C interface in this thread; `from_arrow`
    # would wait for polars' busy threads. A batch without columns keeps its number of rows only as
    # a table.
    frame = polars.DataFrame(batch if batch.num_columns else pa.Table.from_batches([batch]))
    return _matching(frame, rest, projection)


def _matching(frame: pl.DataFrame, rest: pl.Expr | None, projection: Sequence[str]) -> pl.DataFrame:
    if rest is not None:
        frame = frame.filter(rest)
    return frame if frame.columns == projection else frame[projection]


# ------------------------------------------------------------------------------------------------ predicates

_OPERATORS: Final = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_TURNED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_CLOSED: Final = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_EXACT_IN_DOUBLE: Final = 2**53
# Digits of polars' decimals.
_DECIMAL_DIGITS: Final = 38
# The largest relative error of a decimal that was computed as a double.
_DOUBLE_ERROR: Final = decimal.Decimal(2) ** -48


@dataclass(frozen=True)
class _SplitPredicate:
    """A predicate of polars, divided between polars and the scan."""

    whole: pl.Expr | None = None  # without dynamic conjuncts
    rest: pl.Expr | None = None  # what polars applies if `where` narrows the scan (E2)
    where: Node | None = None  # what narrows the scan (E1)


@dataclass(frozen=True)
class _Meaning:
    """A predicate of Nyala that holds wherever the predicate of polars holds (E1), or None."""

    predicate: Node | None = None
    same: bool = False  # whether it holds for exactly the same rows (E2)


_UNKNOWN: Final = _Meaning()


def _split(predicate: pl.Expr | None, schema: pa.Schema) -> _SplitPredicate:
    import polars

    if predicate is None:
        return _SplitPredicate()
    try:
        tree = tree_of(predicate)
    except (polars.exceptions.PolarsError, ValueError, RecursionError):
        return _SplitPredicate(predicate, predicate)  # without JSON, such as a Python function
    conjuncts = list(_conjuncts(predicate, tree))
    static = [one for one in conjuncts if not _is_dynamic(one.tree)]
    whole = predicate if len(static) == len(conjuncts) else _joined(static)
    meanings = [_meaning(one.tree, schema) for one in static]
    parts = [meaning.predicate for meaning in meanings if meaning.predicate is not None]
    if not parts:
        return _SplitPredicate(whole, whole)
    others = [one for one, meaning in zip(static, meanings, strict=True) if not meaning.same]
    rest = whole if len(others) == len(static) else _joined(others)
    return _SplitPredicate(whole, rest, nodes.all_of(parts))


def tree_of(expression: pl.Expr) -> Any:
    """Return an expression as polars writes it in JSON: {"BinaryExpr": {"left": {"Column": "v"},
    "op": "Eq", …}}.

    The JSON has null for NaN and infinities.
    """
    return json.loads(expression.meta.serialize(format="json"))


class _Conjunct(NamedTuple):
    """One term of a chain of AND: the expression and its serialised tree."""

    expression: pl.Expr
    tree: Any


def _conjuncts(predicate: pl.Expr, tree: Any) -> Iterator[_Conjunct]:
    """Yield the terms of a chain of AND, left to right, without recursion. tree: that of the
    predicate.
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
    """Whether `meta.pop()` of this polars returns the right operand before the left one."""
    import polars

    return (polars.col("left") & polars.col("right")).meta.pop()[0].meta.output_name() == "right"


def _joined(conjuncts: Sequence[_Conjunct]) -> pl.Expr | None:
    return reduce(operator.and_, (one.expression for one in conjuncts)) if conjuncts else None


def _is_dynamic(tree: Any) -> bool:
    match tree:
        case {"Display": {"fmt_str": str(text)}}:
            return text.startswith("dynamic_pred")
    return False


def _meaning(tree: Any, schema: pa.Schema) -> _Meaning:
    try:
        return _understood(tree, schema)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        pa.ArrowException,
    ):
        return _UNKNOWN  # the form of the tree is private to polars and changes


def _understood(tree: Any, schema: pa.Schema) -> _Meaning:
    match tree:
        case {"Column": str(name)} if pa.types.is_boolean(schema.field(name).type):
            return _Meaning(nodes.Column(name), True)
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            both = _understood(left, schema), _understood(right, schema)
            parts = [part.predicate for part in both if part.predicate is not None]
            return _Meaning(nodes.all_of(parts), all(part.same for part in both)) if parts else _UNKNOWN
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            one, other = _understood(left, schema), _understood(right, schema)
            if one.predicate is None or other.predicate is None:
                return _UNKNOWN
            return _Meaning(nodes.any_of((one.predicate, other.predicate)), one.same and other.same)
        case {"BinaryExpr": {"left": {"Literal": literal}, "op": str(op), "right": column}}:
            return _compare(column, _TURNED.get(_OPERATORS.get(op, "")), literal, schema)
        case {"BinaryExpr": {"left": column, "op": str(op), "right": {"Literal": literal}}}:
            return _compare(column, _OPERATORS.get(op), literal, schema)
        case {"BinaryExpr": {"left": {"Column": str(left)}, "op": str(op), "right": {"Column": str(right)}}}:
            return _compare_columns(left, _OPERATORS.get(op), right, schema)
        case {"Function": {"input": [column, {"Literal": literal}], "function": {"StringExpr": test}}}:
            return _like(_name(column, schema), test, literal, schema)
        case {"Function": {"input": [column, *values], "function": {"Boolean": test}}}:
            return _tested(column, values, test, schema)
    return _UNKNOWN


def _tested(column: Any, values: Sequence[Any], test: Any, schema: pa.Schema) -> _Meaning:
    match test, values:
        case "IsNull" | "IsNotNull", []:
            return _Meaning(
                nodes.IsNull(nodes.Column(_name(column, schema)), negated=test == "IsNotNull"), True
            )
        case "Not", []:
            part = _understood(column, schema)
            if part.predicate is None or not part.same:
                return _UNKNOWN  # of what holds for more rows the contrary holds for fewer
            return _Meaning(nodes.Not(part.predicate), True)
        case {"IsBetween": {"closed": str(closed)}}, [{"Literal": lower}, {"Literal": upper}]:
            ops = _CLOSED[closed]
            bounds = [_compare(column, op, v, schema) for op, v in zip(ops, (lower, upper), strict=True)]
            parts = [bound.predicate for bound in bounds if bound.predicate is not None]
            return _Meaning(nodes.all_of(parts), all(bound.same for bound in bounds)) if parts else _UNKNOWN
        case {"IsIn": {"nulls_equal": False}}, [{"Alias": [literal, _]} | ({"Literal": _} as literal)]:
            return _in_list(_name(column, schema), literal["Literal"], schema)
    return _UNKNOWN


def _compare_columns(left: str, op: str | None, right: str, schema: pa.Schema) -> _Meaning:
    """Two columns of one type, in which every value is equal to itself."""
    kind = schema.field(left).type
    plain = pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_decimal(kind)
    if op is None or kind != schema.field(right).type or not (plain or pa.types.is_string(kind)):
        return _UNKNOWN
    return _Meaning(nodes.compare(left, op, nodes.Column(right)), True)


def _like(name: str, test: Any, literal: Any, schema: pa.Schema) -> _Meaning:
    """A text that begins or ends with another."""
    ((form, value),) = literal["Scalar"].items() if "Scalar" in literal else literal.items()
    if form not in ("String", "StringOwned") or not pa.types.is_string(schema.field(name).type):
        return _UNKNOWN
    text = "".join("\\" + char if char in "%_\\" else char for char in value)
    pattern = {"StartsWith": text + "%", "EndsWith": "%" + text}.get(test if isinstance(test, str) else "")
    return (
        _UNKNOWN if pattern is None else _Meaning(nodes.Like(nodes.Column(name), pattern, escape="\\"), True)
    )


def _name(column: Any, schema: pa.Schema) -> str:
    """Raises: KeyError for what is no column."""
    name = str(column["Column"])
    schema.field(name)
    return name


def _in_list(name: str, literal: Any, schema: pa.Schema) -> _Meaning:
    """Of lists in the column's own type, and of integers; NULL in the list makes no row match.

    The literal has the list as the bytes of an Arrow IPC stream with one column.
    """
    kind = schema.field(name).type
    stream = literal["Series"] if "Series" in literal else literal["Scalar"]["List"]
    (listed,) = pa.ipc.open_stream(bytes(stream)).read_all().columns
    if pa.types.is_large_list(listed.type) and len(listed) == 1:  # a Series that holds one list
        listed = pc.list_flatten(listed)
    if pa.types.is_decimal(kind):
        same = pa.types.is_decimal(listed.type) and listed.type.scale == kind.scale
    elif pa.types.is_signed_integer(kind):
        same = pa.types.is_signed_integer(listed.type)
    else:
        plain = pa.types.is_floating(kind) or pa.types.is_temporal(kind) or kind in VIEW_TYPES
        same = plain and listed.type == VIEW_TYPES.get(kind, kind)
    values = listed.drop_null()
    return _Meaning(nodes.col(name).isin(values), True) if same and len(values) else _UNKNOWN


def _compare(column: Any, op: str | None, literal: Any, schema: pa.Schema) -> _Meaning:
    """A comparison in which polars and we are sure to mean the same; or of a decimal as a double,
    about the same.
    """
    ((form, value),) = literal.items()
    if form in ("Dyn", "Scalar"):
        ((form, value),) = value.items()
    if op is None or value is None:
        return _UNKNOWN
    match column:
        case {"Cast": {"expr": {"Column": str(name)}, "dtype": {"Literal": "Float64"}}}:
            rounded = form in ("Float", "Float64") and pa.types.is_decimal(schema.field(name).type)
            return _as_double(name, op, float(value)) if rounded else _UNKNOWN
    name = _name(column, schema)
    kind = schema.field(name).type
    if form.startswith(("Int", "UInt")):
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
        # Both are brought to one scale; where that has no room polars has its own answer.
        exact = (
            pa.types.is_decimal(kind)
            and kind.precision - kind.scale + max(scale, kind.scale) <= _DECIMAL_DIGITS
            and len(str(abs(unscaled))) - scale + max(scale, kind.scale) <= _DECIMAL_DIGITS
        )
        value = decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=_DECIMAL_DIGITS + 1))
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
    return _Meaning(nodes.compare(name, op, to_literal(value)), True) if exact else _UNKNOWN


def _as_double(name: str, op: str, value: float) -> _Meaning:
    """A decimal column compared as doubles, rounded twice at most: its own value lies near the
    constant or beyond.
    """
    if not math.isfinite(value) or op == "<>":
        return _UNKNOWN
    exact = decimal.Decimal(value)
    room = abs(exact) * _DOUBLE_ERROR
    bounds = [nodes.compare(name, ">=", to_literal(exact - room))] if op in (">", ">=", "=") else []
    bounds += [nodes.compare(name, "<=", to_literal(exact + room))] if op in ("<", "<=", "=") else []
    return _Meaning(nodes.all_of(bounds))
