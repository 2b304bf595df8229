"""Finds which rows of a table can have a join partner in another table of the same statement.

    statement                                            rows of t that are needed
    SELECT … FROM few JOIN t ON t.k = few.k              t.k is a value of few.k
    SELECT … FROM t WHERE k = (SELECT max(k) FROM few)   t.k is a value of few.k
    SELECT … FROM few LEFT JOIN t USING (a, b)           t.a is a value of few.a, and t.b of few.b

DuckDB reads one side of a join completely before the other side. But it does not pass the keys of
the first side to a table whose rows come from Python. So Nyala keeps the values that DuckDB reads
from the first table. From the other table it then reads only rows that can have a partner
(`ScanSource.reader`).

The input is the tree of the statement that DuckDB's parser returns.

Invariants
    J1  The statement names both tables once, and not in a WITH clause, which DuckDB may read more
        than once.
    J2  A join restricts a table if only its rows with a partner can change the result.
        Inner joins, semi joins and equalities in WHERE restrict both tables. Left joins and anti
        joins restrict only the right table. Right joins restrict only the left table. Full, NATURAL,
        ASOF and POSITIONAL joins restrict no table. A join with a sample, and the WHERE of a SELECT
        with a sample, also restrict no table.
    J3  A subquery returns values of a column if it selects this column, its minimum, its maximum,
        or a function such as `any_value` of it.
    J4  A part of a statement that this module does not know has no partners.

Source: SQL:2016 part 2, 7.10 (joined table) and 8.2 (comparison): NULL and a value without an equal join nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

__all__ = ["Partner", "partners_in"]

# Aggregates that return one of their input values.
_ONE_OF_ALL: Final = frozenset(("min", "max", "first", "last", "any_value", "arbitrary"))
_JOINS: Final = frozenset(("INNER", "LEFT", "RIGHT", "OUTER", "FULL", "SEMI", "ANTI"))
# Whether rows of the left side, and of the right side, need a partner.
_NEED: Final = {
    "INNER": (True, True),
    "SEMI": (True, True),
    "LEFT": (False, True),
    "ANTI": (False, True),
    "RIGHT": (True, False),
}
# Table functions that name tables in a string.
_BY_TEXT: Final = ("query", "query_table")
# A SELECT with only these parts returns exactly the rows that FROM and WHERE leave.
_PLAIN_SELECT: Final = frozenset(
    ("type", "cte_map", "select_list", "from_table", "where_clause", "aggregate_handling")
)
_PLAIN_ITEMS: Final = frozenset(("COLUMN_REF", "VALUE_CONSTANT"))
_PLAIN_TABLE: Final = frozenset(
    ("type", "alias", "table_name", "qualified_name", "query_location", "query_location_length")
)


class Partner(NamedTuple):
    """States that a statement needs only some rows of `table`, because it joins them with `of_table`.

    These are the rows whose value in `column` also occurs in the column `of_column` of `of_table`.
    """

    table: str
    column: str
    of_table: str
    of_column: str


@dataclass(frozen=True)
class _Column:
    """The column of a table from which an expression of the statement takes its values.

    keeps_values: the expression keeps its values if other rows of the table are left out. False for a
        maximum, for example, which depends on all rows.
    """

    table: str
    name: str
    keeps_values: bool


# The tables of a FROM by name: their columns by lower-case name (None: not known), or None if the columns are unknown.
_Scope: TypeAlias = dict[str, dict[str, _Column | None] | None]


_SERIALIZE: Final = (
    "SELECT json_serialize_sql(?, skip_default := true, skip_empty := true, skip_null := true)"
)


def partners_of(cursor: Any, statement: str, tables: Mapping[str, pa.Schema]) -> list[Partner]:
    """Return which rows of the statement's tables the joins need, as `Partner` objects.

    Each object names a column of one table and a column of another table. The statement needs only
    rows whose value in the first column also occurs in the second. So fewer rows have to be read.

    tables: the schemas of the tables that the statement names.
    Cost: half a millisecond, because DuckDB parses the statement; nothing for a single table.
    """
    import duckdb

    if len(tables) < 2:
        return []
    try:
        ((text,),) = cursor.execute(_SERIALIZE, [statement]).fetchall()
    except duckdb.Error:
        return []
    return partners_in(json.loads(text), tables)


def partners_in(tree: Any, tables: Mapping[str, pa.Schema]) -> list[Partner]:
    """Return which rows of a statement's tables its joins need, as `Partner` objects.

    Each object names a column of one table and a column of another table. The statement needs only
    rows whose value in the first column also occurs in the second.

    tree: the statement as DuckDB's function `json_serialize_sql` returns it.
    tables: the schemas of the statement's tables, by name.
    """
    named = Counter(_tables_named(tree, False))
    usable = {
        name.lower() for name in tables if named[name.lower(), False] == 1 and not named[name.lower(), True]
    }
    if any(node.get("function_name") in _BY_TEXT for node, _ in _nodes(tree, False)):
        return []
    reader = _Reader({name: schema for name, schema in tables.items() if name.lower() in usable})
    found = [partner for select in _selects(tree) for partner in reader.of_select(select)]
    return [
        partner
        for partner in dict.fromkeys(found)
        if partner.table != partner.of_table
        and _alike(
            tables[partner.table].field(partner.column), tables[partner.of_table].field(partner.of_column)
        )
    ]


def _alike(a: pa.Field, b: pa.Field) -> bool:
    """Whether the columns have the same type, or are both integers, so that SQL compares them exactly."""
    return bool(a.type == b.type or (pa.types.is_integer(a.type) and pa.types.is_integer(b.type)))


def _tables_named(tree: Any, in_with: bool) -> Iterator[tuple[str, bool]]:
    """Yield (table, whether the name is part of a WITH clause) for each table name in a statement.

    Also yields the names that WITH clauses define.
    tree: the statement, or a part of it, in the form of DuckDB's `json_serialize_sql`.
    in_with: whether `tree` is inside a WITH clause.
    """
    for node, inside in _nodes(tree, in_with):
        if node.get("type") == "BASE_TABLE":
            yield str(node.get("table_name")).lower(), inside
        for entry in node.get("cte_map", {}).get("map", ()):
            yield str(entry.get("key")).lower(), True


def _selects(tree: Any) -> Iterator[Any]:
    return (node for node, _ in _nodes(tree, False) if node.get("type") == "SELECT_NODE")


def _nodes(tree: Any, in_with: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    pending = [(tree, in_with)]
    while pending:
        node, inside = pending.pop()
        if isinstance(node, dict):
            yield node, inside
            pending += [(part, inside or name == "cte_map") for name, part in node.items()]
        elif isinstance(node, list):
            pending += [(part, inside) for part in node]


class _Reader:
    """Finds which rows of its tables a parsed SELECT needs, and yields them as `Partner` objects.

    Each object names a column of one table and a column of another table. The SELECT needs only rows
    whose value in the first column also occurs in the second. Case in names is ignored, as in DuckDB.
    """

    def __init__(self, tables: Mapping[str, pa.Schema]) -> None:
        self._tables = {
            name.lower(): {column.lower(): _Column(name, column, True) for column in schema.names}
            for name, schema in tables.items()
        }

    def of_select(self, select: Any) -> Iterator[Partner]:
        found: list[Partner] = []
        scope = self._scope(select.get("from_table"), found)
        yield from found
        if "sample" in select:
            return
        for term in _terms(select.get("where_clause")):
            if _is_equality(term):
                yield from self._pair(self._value(term["left"], scope), self._value(term["right"], scope))
            elif term.get("type") == "SUBQUERY":
                yield from self._of_subquery(term, scope)

    def _of_subquery(self, term: Any, scope: _Scope) -> Iterator[Partner]:
        inner = term.get("subquery", {}).get("node", {})
        if term["subquery_type"] == "ANY" and term.get("comparison_type") == "COMPARE_EQUAL":
            yield from self._pair(_resolved(term.get("child"), scope), self._selected(inner))
        elif term["subquery_type"] == "EXISTS" and set(inner) <= _PLAIN_SELECT:
            if not all(item["type"] in (*_PLAIN_ITEMS, "STAR") for item in inner["select_list"]):
                return  # an aggregate returns a row even if WHERE leaves none
            own = self._scope(inner.get("from_table"), [])
            for term in filter(_is_equality, _terms(inner.get("where_clause"))):
                sides = [_resolved(term[side], own) for side in ("left", "right")]
                outer = [
                    _resolved(term[side], scope) if _is_outside(term[side], own) else None
                    for side in ("left", "right")
                ]
                yield from self._pair(sides[0] or outer[0], sides[1] or outer[1])

    def _value(self, node: Any, scope: _Scope) -> _Column | None:
        """Return the column from which one side of a comparison takes its values; None: not known."""
        if node.get("type") == "SUBQUERY" and node.get("subquery_type") == "SCALAR":
            found = self._selected(node["subquery"]["node"])
            return None if found is None else _Column(found.table, found.name, False)
        return _resolved(node, scope)

    def _selected(self, select: Any) -> _Column | None:
        """Return the table column from which a SELECT takes the values of its only result column.

        None: this column is not known, or the SELECT returns several columns.
        """
        columns = self._columns(select)
        return next(iter(columns.values())) if columns is not None and len(columns) == 1 else None

    def _columns(self, select: Any) -> dict[str, _Column | None] | None:
        """Return the columns that a SELECT returns, by name; None if their names are not known."""
        if select.get("type") != "SELECT_NODE" or select.get("cte_map", {}).get("map"):
            return None
        scope = self._scope(select.get("from_table"), [])
        items = select["select_list"]
        keeps_values = set(select) <= _PLAIN_SELECT and all(item["type"] in _PLAIN_ITEMS for item in items)
        columns: dict[str, _Column | None] = {}
        for item in items:
            found = _resolved(item, scope)
            name = item.get("alias") or (item["column_names"][-1] if item["type"] == "COLUMN_REF" else "")
            if item["type"] == "FUNCTION" and item.get("function_name") in _ONE_OF_ALL:
                arguments = item.get("arguments", item.get("children", ()))
                if len(arguments) == 1:
                    found = _resolved(arguments[0].get("expression", arguments[0]), scope)
            if item["type"] == "STAR" or name.lower() in columns:
                return None
            columns[name.lower()] = (
                None
                if found is None
                else _Column(found.table, found.name, keeps_values and found.keeps_values)
            )
        return columns

    def _scope(self, node: Any, found: list[Partner]) -> _Scope:
        """Return the tables of a FROM clause with their columns.

        found: receives the columns of these tables that must equal a column of another table because
            of a join in the clause.
        """
        kind = None if node is None else node.get("type")
        if kind == "BASE_TABLE":
            name = node["table_name"].lower()
            known = self._tables.get(name) if set(node) <= _PLAIN_TABLE else None
            return {str(node.get("alias", name)).lower(): None if known is None else dict(known)}
        if kind == "SUBQUERY" and "sample" not in node and "column_name_alias" not in node:
            return {node.get("alias", "").lower(): self._columns(node["subquery"]["node"])}
        if kind != "JOIN":
            return (
                {}
                if kind == "EMPTY"
                else {str(kind if node is None else node.get("alias", "")).lower(): None}
            )
        left, right = self._scope(node["left"], found), self._scope(node["right"], found)
        join = node.get("join_type")
        if (
            join not in _JOINS
            or node.get("ref_type") not in ("REGULAR", "CROSS", "NATURAL")
            or "sample" in node
        ):
            return dict.fromkeys((*left, *right))
        both = {**left, **right}
        if len(both) < len(left) + len(right):
            return dict.fromkeys(both)
        if join in _NEED and node["ref_type"] != "NATURAL":
            found += self._of_join(node, left, right, both)
        return left if join in ("SEMI", "ANTI") else both

    def _of_join(self, node: Any, left: _Scope, right: _Scope, both: _Scope) -> Iterator[Partner]:
        equal = [
            ({"type": "COLUMN_REF", "column_names": [name]},) * 2 for name in node.get("using_columns", ())
        ]
        pairs = [(_resolved(a, left), _resolved(b, right)) for a, b in equal]
        for term in filter(_is_equality, _terms(node.get("condition"))):
            sides = [_resolved(term[side], both) for side in ("left", "right")]
            on_left = [_resolved(term[side], left) is not None for side in ("left", "right")]
            if on_left == [True, False]:
                pairs.append((sides[0], sides[1]))
            elif on_left == [False, True]:
                pairs.append((sides[1], sides[0]))
        for a, b in pairs:
            yield from self._pair(a, b, *_NEED[node["join_type"]])

    @staticmethod
    def _pair(
        a: _Column | None, b: _Column | None, a_needs: bool = True, b_needs: bool = True
    ) -> Iterator[Partner]:
        """Yield the `Partner` objects that follow from the condition `a = b`.

        A `Partner` says that the statement needs only those rows of one table whose value in a column
        also occurs in a column of the other table.

        a, b: the compared columns; None: not known, and then nothing is yielded.
        a_needs: a row of a's table is in the result only if an equal row of b's table exists.
        b_needs: the same with a and b exchanged.
        """
        if a is not None and b is not None:
            if a_needs and a.keeps_values:
                yield Partner(a.table, a.name, b.table, b.name)
            if b_needs and b.keeps_values:
                yield Partner(b.table, b.name, a.table, a.name)


def _terms(condition: Any) -> Iterator[Any]:
    """Divide a condition at its ANDs, and yield the terms."""
    pending = [] if condition is None else [condition]
    while pending:
        term = pending.pop()
        if term.get("type") == "CONJUNCTION_AND":
            pending += term["children"]
        else:
            yield term


def _is_equality(term: Any) -> bool:
    return bool(term.get("type") == "COMPARE_EQUAL")


def _resolved(node: Any, scope: _Scope) -> _Column | None:
    """Return the column that an expression names, if a table in `scope` has it; otherwise None."""
    if node is None or node.get("type") != "COLUMN_REF":
        return None
    match [part.lower() for part in node["column_names"]]:
        case [table, name]:
            return (scope.get(table) or {}).get(name)
        case [name] if None not in scope.values():
            having = [columns[name] for columns in scope.values() if columns is not None and name in columns]
            return having[0] if len(having) == 1 else None
    return None


def _is_outside(node: Any, scope: _Scope) -> bool:
    """Whether an expression names a column that no table in `scope` has."""
    if node.get("type") != "COLUMN_REF":
        return False
    match [part.lower() for part in node["column_names"]]:
        case [table, _]:
            return table not in scope
        case [name]:
            return all(columns is not None and name not in columns for columns in scope.values())
    return False
