"""Finds the columns, the predicate and the applied terms of each Nyala table in a statement.

    input     the tree, with a key in place of each Nyala table      SELECT a.v FROM nyala_0 AS a WHERE a.k > 5
    output    by key                                                 columns k, v; where k > 5; met [31, 38)

Keeps Q1, Q2 and Q5 of `table_uses`. If the needs of a table are unclear, its key is missing from the output. All its
columns are then read and Spark alone filters, which is slower but never wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala.schema.expressions.nodes import Node as Predicate
from nyala.schema.expressions.nodes import all_of, column_names_in
from nyala.spark.statements.constants import OpenTerm
from nyala.spark.statements.parser import Node, scopes_of, sqlglot
from nyala.spark.statements.predicates import implied_parts, translate

__all__ = ["TableRead", "are_told_apart", "table_reads"]

_NOT_FILLED: Final = ("", "INNER", "CROSS")
# Parts of a SELECT that refer to columns of its list by position, or whose number of rows depends on the list.
_BY_ITS_LIST: Final = (
    "distinct", "group", "having", "qualify", "laterals", "order", "sort", "cluster", "distribute"
)  # fmt: skip
# The text that must be before and after a term of WHERE so that the term ends there.
_BEFORE_TERM: Final = re.compile(r"(?:\b(?:WHERE|AND)\s|[\s(]\()\s*$", re.IGNORECASE)
_CLOSING: Final = re.compile(r"\s*\)")
_AFTER_TERM: Final = re.compile(
    r"\s*(?:$|[);]|(?:AND|GROUP|HAVING|ORDER|SORT|LIMIT|UNION|INTERSECT|EXCEPT|WINDOW)\b)", re.IGNORECASE
)


@dataclass(frozen=True)
class TableRead:
    """The needs of one use. The fields are those of `TableUse` in `table_uses`."""

    columns: tuple[str, ...]
    where: Predicate | None = None
    met: tuple[tuple[int, int], ...] = ()
    open: tuple[OpenTerm, ...] = ()


def table_reads(text: str, tree: Node, schemas: Mapping[str, pa.Schema]) -> dict[str, TableRead]:
    """Return columns and predicate of each use, by key. A missing key means all columns and no predicate.

    Spark runs the user's text. So the columns are those that the text names and, for a star, those that outer queries
    use (Q1).
    """
    glot = sqlglot()
    # Each step of a piped statement has its own columns, and sqlglot's tree loses the sign of `+ 'a'`.
    if (
        "|>" in text
        or _says_columns_by_what_is_there(tree)
        or _has_a_plus_of_its_own(
            text, {name.lower() for schema in schemas.values() for name in schema.names}
        )
    ):
        return {}
    # Spark ignores the case of names, so a table that has `a` and `A` is read whole. So is `t AS x(a, b)`, which
    # renames all columns by position.
    renamed = {table.name for table in tree.find_all(glot.exp.Table) if table.alias_column_names}
    taken = _names_of_others(tree)
    plain = {
        key: schema
        for key, schema in schemas.items()
        if are_told_apart(schema.names)
        and key not in renamed
        and taken.isdisjoint(name.lower() for name in schema.names)
    }
    described = {
        key: {name.lower(): str(schema.field(name).type) for name in schema.names}
        for key, schema in plain.items()
    }
    try:
        named = _of_one_table(tree, described) or _qualified(tree, described, expand_stars=False)
        scopes = scopes_of(named)
        of_stars: dict[str, set[str]] = {}
        stars = [star for scope in scopes for star in _stars(scope)]
        # A star in struct(*) or count(DISTINCT *) needs all columns of the stars below it.
        if stars and all(map(_is_projection, stars)):
            expanded = glot.optimizer.pushdown_projections.pushdown_projections(
                _qualified(tree, described, expand_stars=True)
            )
            of_stars = {key: _names(columns) for key, columns, _, _ in _uses_in(scopes_of(expanded), plain)}
    except (
        Exception
    ):  # sqlglot's optimizer fails (also by AssertionError) on statements that Spark may accept
        return {}
    needs: dict[str, TableRead] = {}
    for key, columns, alias, scope in _uses_in(scopes, plain):
        need = _need_of(text, plain[key], columns, alias, scope, of_stars.get(key))
        if need is not None:
            needs[key] = need
    return needs


def _need_of(
    text: str, schema: pa.Schema, named: Sequence[Node], alias: str, scope: Any, of_star: set[str] | None
) -> TableRead | None:
    """Return the needs of one use; None if they are unclear, or if a name is unknown, which Spark will report.

    named: the use's columns that the statement names. of_star: the columns that a star must have.
    """
    exp = sqlglot().exp
    terms: list[Predicate] = []
    opened: list[OpenTerm] = []
    met = []
    done: set[int] = set()  # columns in terms that TRUE replaces
    for node, of_where in _filters(scope, alias):
        term = translate(node, alias, schema)
        if term is None:
            for part in implied_parts(node, alias, schema):
                if isinstance(part, OpenTerm):
                    opened.append(part)
                else:
                    terms.append(part)
            continue
        terms.append(term)
        place = _place_of_term(text, node, term, alias, schema) if of_where else None
        if place is not None:
            met.append(place)
            done.update(map(id, node.find_all(exp.Column)))
    names = _names(column for column in named if id(column) not in done)
    if _has_star(scope) and not _only_asks_whether(scope):
        # UNION matches the columns of its branches by position.
        if of_star is None or scope.expression.find_ancestor(exp.SetOperation) is not None:
            return None
        names = names | of_star
    columns = tuple(name for name in schema.names if name.lower() in names)
    if len(columns) != len(names):
        return None
    return TableRead(columns, all_of(terms) if terms else None, tuple(met), tuple(opened))


def _has_a_plus_of_its_own(text: str, columns: Collection[str]) -> bool:
    """Whether the text has a unary plus before anything but a number. sqlglot's tree loses it.

    columns: names in lower case. `time` and `date` are also SQL keywords; before a plus they mean the column.
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


def _says_columns_by_what_is_there(tree: Node) -> bool:
    """Whether the result depends on columns that the text does not name, so that none may be left out."""
    exp = sqlglot().exp
    return any((join.method or "").upper() == "NATURAL" for join in tree.find_all(exp.Join)) or any(
        star.args.get(what)
        for star in tree.find_all(exp.Star)
        for what in ("except_", "except", "replace", "rename")
    )


def _names_of_others(tree: Node) -> set[str]:
    """Return names in the statement that mean something else, but that Spark may resolve to a table's column.

    These are functions without parentheses (Spark prefers a column), and columns of a LATERAL VIEW (the name is then
    ambiguous, which is an error).
    """
    exp = sqlglot().exp
    found: set[str] = set()
    for node in tree.walk():
        if isinstance(node, exp.Lateral | exp.UDTF):
            found.update(name.lower() for name in node.alias_column_names)
        elif isinstance(node, exp.Func) and not any(node.args.values()):
            found.update(name.lower() for name in node.sql_names())
    return found


def _of_one_table(tree: Node, described: Mapping[str, Any]) -> Node | None:
    """Qualify the columns of a SELECT from one table, a fast path for simple statements.

    None if the tree has anything else: a star, or a name that is not a column of the table (it may be an alias).
    A name that is both a column and an alias counts as the column.
    """
    exp = sqlglot().exp
    if not isinstance(tree, exp.Select) or len(described) != 1:
        return None
    tables, columns = [], []
    for node in tree.walk():
        if isinstance(node, exp.Table):
            tables.append(node)
        elif isinstance(node, exp.Column):
            columns.append(node)
        elif isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
            return None
        elif node is not tree and isinstance(node, exp.Query | exp.UDTF | exp.Lateral | exp.With):
            return None
    (known,) = described.values()
    if len(tables) != 1 or tables[0].name not in described:
        return None
    alias = tables[0].alias
    for column in columns:
        if column.name.lower() not in known or column.args.get("db"):
            return None
        if column.table.lower() not in ("", alias.lower()):
            return None
    for column in columns:
        if column.table:
            column.args["table"].set("this", alias)  # keeps its position in the text
        else:
            column.set("table", exp.to_identifier(alias))
    return tree


def _qualified(tree: Node, described: Mapping[str, Any], *, expand_stars: bool) -> Node:
    return sqlglot().optimizer.qualify.qualify(
        tree.copy(), schema=described, dialect="spark", validate_qualify_columns=False, identify=False,
        quote_identifiers=False, expand_stars=expand_stars,
    )  # fmt: skip


def _stars(scope: Any) -> list[Node]:
    """Return all stars but those of count(*)."""
    exp = sqlglot().exp
    return [star for star in scope.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]


def _has_star(scope: Any) -> bool:
    return bool(_stars(scope))


def _only_asks_whether(scope: Any) -> bool:
    """Whether the scope is an EXISTS over stars, whose result does not depend on the columns."""
    exp = sqlglot().exp
    query = scope.expression
    parent = query.parent
    while isinstance(parent, exp.Subquery):
        parent = parent.parent
    return (
        isinstance(parent, exp.Exists)
        and isinstance(query, exp.Select)
        and not any(query.args.get(part) for part in _BY_ITS_LIST)
        and all(map(_is_projection, _stars(scope)))
    )


def _is_projection(star: Node) -> bool:
    """Whether the star is in the list of a SELECT, as `*` or `t.*`."""
    exp = sqlglot().exp
    parent = star.parent.parent if isinstance(star.parent, exp.Column) else star.parent
    return isinstance(parent, exp.Select)


def _uses_in(
    scopes: Sequence[Any], plain: Mapping[str, pa.Schema]
) -> Iterator[tuple[str, list[Node], str, Any]]:
    """Yield (key, named columns, alias, scope) of each use whose names are all resolved."""
    exp = sqlglot().exp
    for scope in scopes:
        columns = [column for column in scope.columns if not isinstance(column.this, exp.Star)]
        if any(not column.table for column in columns) or _has_more_names(scope):
            continue
        for alias, source in scope.sources.items():
            key = source.name if isinstance(source, exp.Table) else None
            # A LATERAL also has the sources of the surrounding SELECT.
            if key is not None and key in plain and any(source is table for table in scope.tables):
                found = [
                    column for column in _columns_of(scope, alias) if not isinstance(column.this, exp.Star)
                ]
                yield key, found, alias, scope


def _has_more_names(scope: Any) -> bool:
    """Whether HAVING or QUALIFY has an unresolved name: neither in the SELECT list nor with a table."""
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


def are_told_apart(names: Sequence[str]) -> bool:
    """Whether the names differ by more than case, which Spark ignores."""
    return len({name.lower() for name in names}) == len(names)


def _columns_of(scope: Any, alias: str) -> Iterator[Node]:
    """Yield the columns of a source, in its own scope and in correlated subqueries."""
    yield from scope.source_columns(alias)
    for inner in scope.subquery_scopes:
        yield from (column for column in inner.external_columns if column.table == alias)


def _filters(scope: Any, alias: str) -> Iterator[tuple[Node, bool]]:
    """Yield the AND terms that every row of the source must satisfy to affect the result (Q2), and if it is WHERE's."""
    exp = sqlglot().exp
    select = scope.expression
    if not isinstance(select, exp.Select):
        return
    joins = select.args.get("joins") or []
    sources = [select.args.get("from_") or select.args.get("from"), *joins]
    if not all(source is None or _stands_alone(source.this) for source in sources):
        return
    sides = [(join.side.upper(), join.kind.upper(), join) for join in joins]
    if any(side in ("RIGHT", "FULL") or kind not in ("", "INNER", "CROSS", "SEMI", "ANTI", "OUTER") or
           join.method for side, kind, join in sides):  # fmt: skip
        return
    mine = next(
        ((side, kind, join) for side, kind, join in sides if join.this.alias_or_name == alias),
        None,
    )
    filled = mine is not None and mine[0] == "LEFT" and mine[1] not in ("SEMI", "ANTI")
    where = select.args.get("where")
    if where is not None and not filled and (mine is None or mine[1] in _NOT_FILLED):
        yield from ((term, True) for term in _terms(where.this))
    if mine is not None and mine[2].args.get("on") is not None:
        # Rows of the joined side that fail ON do not affect the result, for each kind of join.
        yield from ((term, False) for term in _terms(mine[2].args["on"]))


def _stands_alone(source: Node) -> bool:
    """Whether the source is not a join in parentheses, which may fill one side with NULL unnoticed."""
    exp = sqlglot().exp
    if source.args.get("joins"):
        return False
    return not isinstance(source, exp.Paren | exp.Subquery) or (
        isinstance(source.this, exp.Query) and not (isinstance(source.this, exp.Subquery | exp.Table))
    )


def _terms(node: Node) -> Iterator[Node]:
    """Yield the terms that AND joins, in the text's order."""
    exp = sqlglot().exp
    pending = [node]
    while pending:
        node = pending.pop().unnest()
        if isinstance(node, exp.And):
            pending += (node.right, node.left)
        else:
            yield node


def _place_of_term(
    text: str, node: Node, term: Predicate, alias: str, schema: pa.Schema
) -> tuple[int, int] | None:
    """Return the term's position in the text, if its text there is exactly the term; None if unclear (Q5)."""
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
