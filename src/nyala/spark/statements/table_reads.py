"""What a statement needs of each table of ours: columns, a predicate, and which terms that predicate has met.

    found     the tree, with a key in the place of each table of ours      SELECT a.v FROM nyala_0 AS a WHERE a.k > 5
    needs     by key                                                       columns k, v; where k > 5; met [31, 38)

Keeps Q1, Q2 and Q5 of `table_uses`. Whatever cannot be told is left out, and then all columns are read and Spark
alone filters: never wrong, only slow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala.schema.expressions.nodes import Node as Predicate
from nyala.schema.expressions.nodes import all_of, names_in
from nyala.spark.statements.constants import OpenTerm
from nyala.spark.statements.parser import Node, scopes_of, sqlglot
from nyala.spark.statements.predicates import implied_parts, translate

__all__ = ["TableRead", "are_told_apart", "table_reads"]

_NOT_FILLED: Final = ("", "INNER", "CROSS")
# Parts of a SELECT that mean columns of its list by their places, or that have as many rows as these say.
_BY_ITS_LIST: Final = (
    "distinct", "group", "having", "qualify", "laterals", "order", "sort", "cluster", "distribute"
)  # fmt: skip
# What may stand before and after a term of WHERE for it to end there.
_BEFORE_TERM: Final = re.compile(r"(?:\b(?:WHERE|AND)\s|[\s(]\()\s*$", re.IGNORECASE)
_CLOSING: Final = re.compile(r"\s*\)")
_AFTER_TERM: Final = re.compile(
    r"\s*(?:$|[);]|(?:AND|GROUP|HAVING|ORDER|SORT|LIMIT|UNION|INTERSECT|EXCEPT|WINDOW)\b)", re.IGNORECASE
)


@dataclass(frozen=True)
class TableRead:
    """Of one use: as the fields of `TableUse` in `table_uses`."""

    columns: tuple[str, ...]
    where: Predicate | None = None
    met: tuple[tuple[int, int], ...] = ()
    open: tuple[OpenTerm, ...] = ()


def table_reads(text: str, tree: Node, schemas: Mapping[str, pa.Schema]) -> dict[str, TableRead]:
    """By key: columns and predicate. A key is missing when it cannot be told: all columns then, and no predicate.

    Spark runs the text as it was written, so the columns are those that it names (Q1), and for a star those of it that
    are asked for outside.
    """
    glot = sqlglot()
    # Of a piped statement each step has columns of its own; and of `+ 'a'` the tree has no sign.
    if (
        "|>" in text
        or _says_columns_by_what_is_there(tree)
        or _has_a_plus_of_its_own(
            text, {name.lower() for schema in schemas.values() for name in schema.names}
        )
    ):
        return {}
    # Spark's names do not heed case, so a table that has `a` and `A` is read whole; and `t AS x(a, b)` names all of its
    # columns, by their places.
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
        # What is in struct(*) or count(DISTINCT *), which is no list, is in what a star below it is: then in all of it.
        if stars and all(map(_is_projection, stars)):
            expanded = glot.optimizer.pushdown_projections.pushdown_projections(
                _qualified(tree, described, expand_stars=True)
            )
            of_stars = {key: _names(columns) for key, columns, _, _ in _uses_in(scopes_of(expanded), plain)}
    except Exception:  # whatever it is that the optimizer cannot, AssertionError too: Spark may well
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
    """What one use needs. named: the columns of it that the statement names; of_star: those that a star has to have.

    None: it cannot be told, or something is named that is no column of the table's, which Spark shall say.
    """
    exp = sqlglot().exp
    terms: list[Predicate] = []
    opened: list[OpenTerm] = []
    met = []
    done: set[int] = set()  # columns in terms that are met
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
        # Of a UNION's branches the columns are told apart by their places.
        if of_star is None or scope.expression.find_ancestor(exp.SetOperation) is not None:
            return None
        names = names | of_star
    columns = tuple(name for name in schema.names if name.lower() in names)
    if len(columns) != len(names):
        return None
    return TableRead(columns, all_of(terms) if terms else None, tuple(met), tuple(opened))


def _has_a_plus_of_its_own(text: str, columns: Collection[str]) -> bool:
    """Whether a plus that adds nothing stands before anything but a number: sqlglot's tree is without it.

    columns: in lower case: `time` and `date` are words of SQL's too, and mean the column before a plus.
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
    """Whether columns mean something that no name in the text says: then none may be left out."""
    exp = sqlglot().exp
    return any((join.method or "").upper() == "NATURAL" for join in tree.find_all(exp.Join)) or any(
        star.args.get(what)
        for star in tree.find_all(exp.Star)
        for what in ("except_", "except", "replace", "rename")
    )


def _names_of_others(tree: Node) -> set[str]:
    """Names that Spark may read as a table's column where they stand for something else: functions without parentheses
    (a column comes first), and columns of a LATERAL VIEW (both are meant, which is an error)."""
    exp = sqlglot().exp
    found: set[str] = set()
    for node in tree.walk():
        if isinstance(node, exp.Lateral | exp.UDTF):
            found.update(name.lower() for name in node.alias_column_names)
        elif isinstance(node, exp.Func) and not any(node.args.values()):
            found.update(name.lower() for name in node.sql_names())
    return found


def _of_one_table(tree: Node, described: Mapping[str, Any]) -> Node | None:
    """The tree with its table at each column, where it is a SELECT from one table and no more: soon done.

    None: something else is in it, a star or a name that is no column of the table's (it may be another's alias).
    Of a name that is a column and an alias both are meant.
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
            column.args["table"].set("this", alias)  # and stays where it is in the text
        else:
            column.set("table", exp.to_identifier(alias))
    return tree


def _qualified(tree: Node, described: Mapping[str, Any], *, expand_stars: bool) -> Node:
    return sqlglot().optimizer.qualify.qualify(
        tree.copy(), schema=described, dialect="spark", validate_qualify_columns=False, identify=False,
        quote_identifiers=False, expand_stars=expand_stars,
    )  # fmt: skip


def _stars(scope: Any) -> list[Node]:
    """All but those of count(*)."""
    exp = sqlglot().exp
    return [star for star in scope.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]


def _has_star(scope: Any) -> bool:
    return bool(_stars(scope))


def _only_asks_whether(scope: Any) -> bool:
    """Whether it is an EXISTS over a list of stars, which has a row or none whatever columns there are."""
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
    """Whether it stands in the list of a SELECT, as `*` or `t.*`."""
    exp = sqlglot().exp
    parent = star.parent.parent if isinstance(star.parent, exp.Column) else star.parent
    return isinstance(parent, exp.Select)


def _uses_in(
    scopes: Sequence[Any], plain: Mapping[str, pa.Schema]
) -> Iterator[tuple[str, list[Node], str, Any]]:
    """(key, columns that are named, alias, scope) of each use of which the names can be told."""
    exp = sqlglot().exp
    for scope in scopes:
        columns = [column for column in scope.columns if not isinstance(column.this, exp.Star)]
        if any(not column.table for column in columns) or _has_more_names(scope):
            continue
        for alias, source in scope.sources.items():
            key = source.name if isinstance(source, exp.Table) else None
            # A LATERAL has the sources of the SELECT around it too.
            if key is not None and key in plain and any(source is table for table in scope.tables):
                found = [
                    column for column in _columns_of(scope, alias) if not isinstance(column.this, exp.Star)
                ]
                yield key, found, alias, scope


def _has_more_names(scope: Any) -> bool:
    """Whether HAVING or QUALIFY has a name of which it is not told what it means: not of the list, and no table's."""
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
    """Whether Spark knows columns by these names, whose case it may not heed."""
    return len({name.lower() for name in names}) == len(names)


def _columns_of(scope: Any, alias: str) -> Iterator[Node]:
    """The columns of a source, in its own scope and in subqueries that refer to it from inside."""
    yield from scope.source_columns(alias)
    for inner in scope.subquery_scopes:
        yield from (column for column in inner.external_columns if column.table == alias)


def _filters(scope: Any, alias: str) -> Iterator[tuple[Node, bool]]:
    """Terms, joined by AND, that every row of the source with a part in the answer meets (Q2), and if of WHERE."""
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
        # Of a joined side only rows that meet ON have a part, whatever the join makes of the others.
        yield from ((term, False) for term in _terms(mine[2].args["on"]))


def _stands_alone(source: Node) -> bool:
    """Whether it is no join in parentheses, of which one side may be filled up with NULL where nobody sees it here."""
    exp = sqlglot().exp
    if source.args.get("joins"):
        return False
    return not isinstance(source, exp.Paren | exp.Subquery) or (
        isinstance(source.this, exp.Query) and not (isinstance(source.this, exp.Subquery | exp.Table))
    )


def _terms(node: Node) -> Iterator[Node]:
    """The terms that AND joins, in the text's order."""
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
    """Where the term stands in the text, if nothing else belongs to it there; None: it cannot be told (Q5)."""
    if any(pa.types.is_floating(schema.field(name).type) for name in names_in(term)):
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
