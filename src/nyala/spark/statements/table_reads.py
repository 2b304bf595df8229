"""Finds the columns, the predicate and the applied terms of each Nyala table in a statement.

The input is the statement's syntax tree, with a placeholder such as nyala_0 in place of each Nyala
table. For each placeholder, the output has the columns that the statement needs, a predicate, and
the positions of terms that the predicate replaces:

    SELECT a.v FROM nyala_0 AS a WHERE a.k > 5
        nyala_0: columns v; where k > 5; applied [35, 42), the position of "a.k > 5"

`table_uses` has the rules Q1, Q2 and Q5, which say what a scan may leave out. If the needs of a
table are unclear, the output does not have its placeholder. Then all columns are read, and only
Spark filters, which is slower but never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala.schema.expressions.nodes import Node as Predicate
from nyala.schema.expressions.nodes import all_of, column_names_in
from nyala.spark.statements.constants import PendingTerm
from nyala.spark.statements.parser import Node, scopes_of, sqlglot
from nyala.spark.statements.predicates import implied_parts, translate

__all__ = ["TableRead", "differ_ignoring_case", "table_reads"]

# Kinds of joins that fill no side with NULL.
_NOT_FILLED: Final = ("", "INNER", "CROSS")
# Clauses that use columns of the SELECT list by position, or make the number of rows depend on the list.
_PARTS_OF_LIST: Final = (
    "distinct", "group", "having", "qualify", "laterals", "order", "sort", "cluster", "distribute"
)  # fmt: skip
# The text that must be before and after a term of WHERE, so that the term is not part of a longer one.
_BEFORE_TERM: Final = re.compile(r"(?:\b(?:WHERE|AND)\s|[\s(]\()\s*$", re.IGNORECASE)
_CLOSING: Final = re.compile(r"\s*\)")
_AFTER_TERM: Final = re.compile(
    r"\s*(?:$|[);]|(?:AND|GROUP|HAVING|ORDER|SORT|LIMIT|UNION|INTERSECT|EXCEPT|WINDOW)\b)", re.IGNORECASE
)


@dataclass(frozen=True)
class TableRead:
    """What the scan of one table in a statement must return.

    columns: the columns that the statement needs, in the table's order.
    where:   the predicate of the scan, or None.
    applied: the positions [begin, end) of conditions in the text that every row of the scan
        satisfies.
    pending: comparisons of a column with an expression whose value Spark must compute first. Then
        the scan can use them too.
    """

    columns: tuple[str, ...]
    where: Predicate | None = None
    applied: tuple[tuple[int, int], ...] = ()
    pending: tuple[PendingTerm, ...] = ()


def table_reads(text: str, tree: Node, schemas: Mapping[str, pa.Schema]) -> dict[str, TableRead]:
    """Return the columns and the predicate for the scan of each Nyala table in a statement.

    text:    the statement.
    tree:    its syntax tree. Each Nyala table in it was replaced by a placeholder such as nyala_0.
    schemas: by placeholder, the schema of the table.

    The result is by placeholder. If it lacks a placeholder, the scan of this table must read all
    columns of all rows. Otherwise the scan reads the columns that the statement names.
    """
    glot = sqlglot()
    # Not analysed: piped statements, whose steps have their own columns, and `+ 'a'`, which
    # sqlglot's tree loses.
    if (
        "|>" in text
        or _depends_on_unnamed_columns(tree)
        or _has_unary_plus(text, {name.lower() for schema in schemas.values() for name in schema.names})
    ):
        return {}
    # A table with columns `a` and `A` is read whole, because Spark ignores case. So is `t AS x(a,
    # b)`, which renames all columns by position.
    renamed = {table.name for table in tree.find_all(glot.exp.Table) if table.alias_column_names}
    other_names = _other_names(tree)
    plain = {
        key: schema
        for key, schema in schemas.items()
        if differ_ignoring_case(schema.names)
        and key not in renamed
        and other_names.isdisjoint(name.lower() for name in schema.names)
    }
    described = {
        key: {name.lower(): str(schema.field(name).type) for name in schema.names}
        for key, schema in plain.items()
    }
    try:
        scopes = scopes_of(_qualified(tree, described, expand_stars=False))
        star_columns: dict[str, set[str]] = {}
        stars = [star for scope in scopes for star in _stars(scope)]
        # A star in struct(*) or count(DISTINCT *) needs all columns of the stars below it.
        if stars and all(map(_is_projection, stars)):
            expanded = glot.optimizer.pushdown_projections.pushdown_projections(
                _qualified(tree, described, expand_stars=True)
            )
            star_columns = {
                key: _names(columns) for key, columns, _, _ in _resolved_uses(scopes_of(expanded), plain)
            }
    except Exception:  # sqlglot's optimizer fails on some statements that Spark accepts
        return {}
    reads: dict[str, TableRead] = {}
    for key, columns, alias, scope in _resolved_uses(scopes, plain):
        read = _read_of(text, plain[key], columns, alias, scope, star_columns.get(key))
        if read is not None:
            reads[key] = read
    return reads


def _read_of(
    text: str, schema: pa.Schema, named: Sequence[Node], alias: str, scope: Any, star_columns: set[str] | None
) -> TableRead | None:
    """Return the columns and the predicate that one use of a table needs, or None if unclear.

    text:         the statement.
    schema:       the schema of the table.
    named:        the columns of this use that the statement names.
    alias, scope: the name of the use in its SELECT, and this SELECT.
    star_columns: the names of the table's columns that the statement needs after each `*` is
                  replaced by a list of columns. None if unknown.

    Returns None also for an unknown column, for which Spark then raises the error.
    """
    exp = sqlglot().exp
    terms: list[Predicate] = []
    pending: list[PendingTerm] = []
    applied = []
    replaced: set[int] = set()  # ids of columns in terms that TRUE replaces
    for node, of_where in _filters(scope, alias):
        term = translate(node, alias, schema)
        if term is None:
            for part in implied_parts(node, alias, schema):
                if isinstance(part, PendingTerm):
                    pending.append(part)
                else:
                    terms.append(part)
            continue
        terms.append(term)
        position = _position_of_term(text, node, term, alias, schema) if of_where else None
        if position is not None:
            applied.append(position)
            replaced.update(map(id, node.find_all(exp.Column)))
    names = _names(column for column in named if id(column) not in replaced)
    if _stars(scope) and not _is_exists_of_star(scope):
        # Under UNION a star needs all columns, because the branches are matched by position.
        if star_columns is None or scope.expression.find_ancestor(exp.SetOperation) is not None:
            return None
        names = names | star_columns
    columns = tuple(name for name in schema.names if name.lower() in names)
    if len(columns) != len(names):
        return None
    return TableRead(columns, all_of(terms) if terms else None, tuple(applied), tuple(pending))


def _has_unary_plus(text: str, columns: Collection[str]) -> bool:
    """Whether the text has a unary plus before something other than a number.

    sqlglot's tree does not contain such a plus, so the tree has another meaning than the text.
    columns: all column names, in lower case. In `time + 1`, a column `time` makes the plus binary,
    although `time` is also a keyword.
    """
    if "+" not in text:
        return False
    glot = sqlglot()
    kinds = glot.tokens.TokenType
    ends = (kinds.VAR, kinds.IDENTIFIER, kinds.NUMBER, kinds.STRING, kinds.R_PAREN, kinds.R_BRACKET)
    tokens = [None, *glot.tokenize(text, read="spark"), None]
    return any(
        one is not None
        and one.token_type == kinds.PLUS
        and (before is None or (before.token_type not in ends and before.text.lower() not in columns))
        and (after is None or after.token_type != kinds.NUMBER)
        for before, one, after in zip(tokens, tokens[1:], tokens[2:], strict=False)
    )


def _depends_on_unnamed_columns(tree: Node) -> bool:
    """Whether the result depends on columns that the text does not name: NATURAL JOIN, `* EXCEPT`
    and the like.
    """
    exp = sqlglot().exp
    return any((join.method or "").upper() == "NATURAL" for join in tree.find_all(exp.Join)) or any(
        star.args.get(what)
        for star in tree.find_all(exp.Star)
        for what in ("except_", "except", "replace", "rename")
    )


def _other_names(tree: Node) -> set[str]:
    """Return names in the statement that could be mistaken for columns of its tables, in lower case.

    These are functions without arguments, such as current_date, and columns of a LATERAL VIEW.
    Spark prefers a column to a function of the same name. It raises an error if a table and the
    LATERAL VIEW have columns of the same name.
    """
    exp = sqlglot().exp
    found: set[str] = set()
    for node in tree.walk():
        if isinstance(node, exp.Lateral | exp.UDTF):
            found.update(name.lower() for name in node.alias_column_names)
        elif isinstance(node, exp.Func) and not any(node.args.values()):
            found.update(name.lower() for name in node.sql_names())
    return found


def _qualified(tree: Node, described: Mapping[str, Any], *, expand_stars: bool) -> Node:
    """Return a copy of the tree in which every column names its table, if sqlglot can find it.

    described: the column types of each table. expand_stars: replace `*` by the columns.
    """
    return sqlglot().optimizer.qualify.qualify(
        tree.copy(), schema=described, dialect="spark", validate_qualify_columns=False, identify=False,
        quote_identifiers=False, expand_stars=expand_stars,
    )  # fmt: skip


def _stars(scope: Any) -> list[Node]:
    """Return every `*` in a SELECT, such as in `*`, `t.*` and struct(*), but not in count(*)."""
    exp = sqlglot().exp
    return [star for star in scope.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]


def _is_exists_of_star(scope: Any) -> bool:
    """Whether the scope is the SELECT * in an EXISTS, which needs no columns."""
    exp = sqlglot().exp
    query = scope.expression
    parent = query.parent
    while isinstance(parent, exp.Subquery):
        parent = parent.parent
    return (
        isinstance(parent, exp.Exists)
        and isinstance(query, exp.Select)
        and not any(query.args.get(part) for part in _PARTS_OF_LIST)
        and all(map(_is_projection, _stars(scope)))
    )


def _is_projection(star: Node) -> bool:
    """Whether the star is in the list of a SELECT, as `*` or `t.*`."""
    exp = sqlglot().exp
    parent = star.parent.parent if isinstance(star.parent, exp.Column) else star.parent
    return isinstance(parent, exp.Select)


def _resolved_uses(
    scopes: Sequence[Any], plain: Mapping[str, pa.Schema]
) -> Iterator[tuple[str, list[Node], str, Any]]:
    """Yield (placeholder, columns, alias, scope) for each use of a Nyala table in a statement.

    A SELECT with a column whose table is unknown is skipped.

    scopes: the SELECTs of the statement, in which placeholders replace the names of Nyala tables.
    plain: the schema of each table to find, by its placeholder (nyala_0, nyala_1, …).

    placeholder: the key of the table in `plain`.
    columns: the columns that the SELECT names of this table. A `*` is left out.
    alias: the table's name in the SELECT.
    scope: the SELECT with its tables.
    """
    exp = sqlglot().exp
    for scope in scopes:
        columns = [column for column in scope.columns if not isinstance(column.this, exp.Star)]
        if any(not column.table for column in columns) or _has_unresolved_names(scope):
            continue
        for alias, source in scope.sources.items():
            key = source.name if isinstance(source, exp.Table) else None
            # The scope of a LATERAL also has the sources of the SELECT around it, which are not its tables.
            if key is not None and key in plain and any(source is table for table in scope.tables):
                found = [
                    column for column in _columns_of(scope, alias) if not isinstance(column.this, exp.Star)
                ]
                yield key, found, alias, scope


def _has_unresolved_names(scope: Any) -> bool:
    """Whether HAVING or QUALIFY has a column whose table is unknown.

    A column that is in the SELECT list does not count.
    """
    exp = sqlglot().exp
    query = scope.expression
    parts = [query.args.get(part) for part in ("having", "qualify")] if isinstance(query, exp.Select) else []
    if not any(parts):
        return False
    listed = {name.lower() for name in query.named_selects}
    return any(
        not column.table and column.name.lower() not in listed
        for part in parts
        if part is not None
        for column in part.find_all(exp.Column)
    )


def _names(columns: Iterable[Node]) -> set[str]:
    return {column.name.lower() for column in columns}


def differ_ignoring_case(names: Sequence[str]) -> bool:
    """Whether the names are distinct even if case is ignored, as Spark ignores it."""
    return len({name.lower() for name in names}) == len(names)


def _columns_of(scope: Any, alias: str) -> Iterator[Node]:
    """Yield the columns of one table that a SELECT uses, itself or in its subqueries.

    scope: the SELECT, as sqlglot's scope. alias: the name of the table in it.
    """
    yield from scope.source_columns(alias)
    for inner in scope.subquery_scopes:
        yield from (column for column in inner.external_columns if column.table == alias)


def _filters(scope: Any, alias: str) -> Iterator[tuple[Node, bool]]:
    """Yield the conditions of a SELECT that the scan of a table may apply.

    A row of the table that fails one of them cannot change the result of the SELECT. So conditions
    of WHERE are left out if an outer join fills the table with NULLs.

    scope, alias: the SELECT, and the table's name in it.
    Yields: (condition, True) for WHERE, (condition, False) for the ON of the table's join.
    """
    exp = sqlglot().exp
    select = scope.expression
    if not isinstance(select, exp.Select):
        return
    joins = select.args.get("joins") or []
    sources = [select.args.get("from_") or select.args.get("from"), *joins]
    if not all(source is None or _is_single_source(source.this) for source in sources):
        return
    sides = [(join.side.upper(), join.kind.upper(), join) for join in joins]
    if any(side in ("RIGHT", "FULL") or kind not in ("", "INNER", "CROSS", "SEMI", "ANTI", "OUTER") or
           join.method for side, kind, join in sides):  # fmt: skip
        return
    own = next(
        ((side, kind, join) for side, kind, join in sides if join.this.alias_or_name == alias),
        None,
    )
    filled = own is not None and own[0] == "LEFT" and own[1] not in ("SEMI", "ANTI")
    where = select.args.get("where")
    if where is not None and not filled and (own is None or own[1] in _NOT_FILLED):
        yield from ((term, True) for term in _terms(where.this))
    if own is not None and own[2].args.get("on") is not None:
        # In each kind of join, a row of the joined side that fails ON does not affect the result.
        yield from ((term, False) for term in _terms(own[2].args["on"]))


def _is_single_source(source: Node) -> bool:
    """Whether the source is one table or subquery, and not a join in parentheses."""
    exp = sqlglot().exp
    if source.args.get("joins"):
        return False
    return not isinstance(source, exp.Paren | exp.Subquery) or (
        isinstance(source.this, exp.Query) and not (isinstance(source.this, exp.Subquery | exp.Table))
    )


def _terms(node: Node) -> Iterator[Node]:
    """Split a condition at each AND, and yield its terms in the order of the text."""
    exp = sqlglot().exp
    pending = [node]
    while pending:
        node = pending.pop().unnest()
        if isinstance(node, exp.And):
            pending += (node.right, node.left)
        else:
            yield node


def _position_of_term(
    text: str, node: Node, term: Predicate, alias: str, schema: pa.Schema
) -> tuple[int, int] | None:
    """Return the position [begin, end) of a condition in the text, where TRUE can replace it.

    Returns None if it must stay: for a column of floating point numbers, or if the text at the
    position has another meaning when it is parsed alone.

    node, term: the condition in the syntax tree, and as a predicate.
    alias, schema: the table's name in the SELECT, and its schema.
    """
    if any(pa.types.is_floating(schema.field(name).type) for name in column_names_in(term)):
        return None
    metas = [part.meta for part in node.walk() if "start" in part.meta and "end" in part.meta]
    if not metas:
        return None
    begin, end = min(meta["start"] for meta in metas), max(meta["end"] for meta in metas) + 1
    if isinstance(node, sqlglot().exp.In) and (closing := _CLOSING.match(text, end)):
        end = closing.end()
    if not (_BEFORE_TERM.search(text, 0, begin) and _AFTER_TERM.match(text, end)):
        return None
    glot = sqlglot()
    try:
        alone = glot.parse_one(text[begin:end], dialect="spark")
    except glot.errors.SqlglotError:
        return None
    for column in alone.find_all(glot.exp.Column):
        column.set("table", glot.exp.to_identifier(alias))
    return (begin, end) if translate(alone, alias, schema) == term else None
