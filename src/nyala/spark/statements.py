"""`nyala.spark.sql`: a SELECT of Spark's that reads, of each Nyala table in it, only the columns and rows it needs.

    SELECT a.v FROM t AS a JOIN u ON a.k = u.k WHERE a.k > 5        t, u: Nyala tables
        │ sqlglot parses and qualifies a copy
        ▼
    t AS a   columns k, v   where k > 5      ──►  a scan at one snapshot, to_spark   ──►  DataFrame nyala_0
    u        column k                        ──►  …                                       DataFrame nyala_1
        ▼
    SELECT a.v FROM {nyala_0} AS a JOIN {nyala_1} AS u ON a.k = u.k WHERE a.k > 5

The user's text is Spark's to run, changed only where a table's name stands, and where a term of WHERE stands that all
rows of its scan meet (Q5). Each use of a table is a scan of its own, so one use's predicate cannot be missing from
another. Spark evaluates every other predicate again: what is given to a scan need only keep all rows that Spark would.

Invariants
    Q1  A scan's columns include every column of that use that the statement names, and of a star those that are asked
        for outside, in EXISTS none; they stand in the table's order. Where it cannot be told, all: a name without
        table, NATURAL JOIN, `* EXCEPT`, a star under UNION or in a function.
    Q2  A predicate goes into a scan only where a row that fails it can have no part in the answer: a term of WHERE
        over a table that no outer join fills up with NULL, or a term of ON over a side that ON filters.
    Q3  A term goes into a scan only where Spark's meaning of it is ours: comparisons of a column with a literal that
        the column's type holds exactly, IN, BETWEEN, IS NULL, AND, OR, NOT. A column beside a constant expression, or
        a text that means a time, is left open: Spark says the value (`constants`). Of an OR over several tables, or
        with terms that cannot be told, what each of its branches says of this table. The rest stays Spark's alone.
    Q4  All tables of one store are read at one timestamp.
    Q5  A term of WHERE that a scan has met is TRUE in Spark's text, and its columns are not read for it: Spark would
        translate a filter with other numbers in it anew for each statement. Only where the term's own text, looked at
        alone, has the very meaning that was given to the scan, and stands between words that part terms; floating point
        stays Spark's, whose NaN is above all numbers. A text or a date with a sign before it is no literal: Spark makes
        a number of it, or refuses it.
    Q6  What is said of a column that is only filtered by changes no answer: Spark drops it behind its filter, below
        every join, and is told a size of the scan that is right there.
    Q7  What is told here of a statement is at most too little for Spark, which then refuses it: who gets such an error
        asks again with all columns and every term (`whole_uses`), and what Spark says then is the statement's.

Source: shared contract, "Spark"; the Spark data source study, 1.2 and 1.3.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from nyala.errors import InvalidArgumentError
from nyala.schema.nodes import Compare, InList, IsNull, Predicate, all_of, any_of, names_in, negate
from nyala.spark.constants import OpenTerm, can_be_open, constant_of

__all__ = [
    "TableUse",
    "are_told_apart",
    "find_uses",
    "keep_whole",
    "whole_uses",
    "with_names",
    "with_placeholders",
]

Node: TypeAlias = Any
"""A node of sqlglot's syntax tree: it is imported only when it is needed."""

_COMPARISONS: Final = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_TURNED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NOT_FILLED: Final = ("", "INNER", "CROSS")
# Parts of a SELECT that mean columns of its list by their places, or that have as many rows as these say.
_BY_ITS_LIST: Final = (
    "distinct", "group", "having", "qualify", "laterals", "order", "sort", "cluster", "distribute"
)  # fmt: skip
# What may stand before and after a term of WHERE for it to end there.
_BEFORE_TERM: Final = re.compile(r"(?:\b(?:WHERE|AND)\s|[\s(]\()\s*$", re.IGNORECASE)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOSING: Final = re.compile(r"\s*\)")
_AFTER_TERM: Final = re.compile(
    r"\s*(?:$|[);]|(?:AND|GROUP|HAVING|ORDER|SORT|LIMIT|UNION|INTERSECT|EXCEPT|WINDOW)\b)", re.IGNORECASE
)


# Texts that were looked at, the oldest first: the schemas that they were looked at with, and what was found.
_KNOWN_MAX: Final = 64
_known_lock = threading.Lock()
_known: dict[str, tuple[dict[tuple[str, ...], pa.Schema | None], list[TableUse] | None]] = {}


@dataclass(frozen=True)
class TableUse:
    """One place of a statement where a table of ours stands.

    begin, end: of its name in the text, [begin, end). alias: the name to give it there; None: it has one.
    columns:    those that the statement needs, in the table's order. where: None, or a predicate (Q2, Q3).
    met:        where terms stand that every row of that predicate meets, each [begin, end) in the text (Q5).
    open:       terms that go into the scan when Spark has said their values.
    passing:    those of the columns that only terms over this table alone name (Q6).
    """

    name: tuple[str, ...]
    begin: int
    end: int
    alias: str | None
    columns: tuple[str, ...]
    where: Predicate | None
    met: tuple[tuple[int, int], ...] = ()
    open: tuple[OpenTerm, ...] = ()
    passing: tuple[str, ...] = ()


def find_uses(
    text: str,
    schema_of: Callable[[tuple[str, ...]], pa.Schema | None],
    *,
    double_quoted_names: bool = False,
) -> list[TableUse]:
    """The uses of tables of ours in a statement, in the order of the text.

    schema_of: the Arrow schema of a table by the parts of its name, None when it is not ours.
    double_quoted_names: whether what stands in double quotes is a name to Spark, where sqlglot reads a text. Then
               nothing else is known of the statement: all columns, and no predicate.
    Cost:      some milliseconds; a text that was looked at before costs what `schema_of` does, once for each name.
    Raises:    InvalidArgumentError for what is no single SELECT; ImportError without sqlglot.
    """
    asked, uses = _known.get(text, ({}, None))
    if (
        uses is not None
        and not double_quoted_names
        and all(schema_of(name) == schema for name, schema in asked.items())
    ):
        return uses
    asked = {}

    def ask(name: tuple[str, ...]) -> pa.Schema | None:
        asked[name] = schema_of(name)
        return asked[name]

    uses = _look_for_uses(text, ask)
    if double_quoted_names:
        return whole_uses(uses, asked.__getitem__)
    _keep(text, asked, uses)
    return uses


def whole_uses(
    uses: Sequence[TableUse], schema_of: Callable[[tuple[str, ...]], pa.Schema | None]
) -> list[TableUse]:
    """The same places, with all columns and no predicate: for Spark's own reading of every name."""
    return [
        TableUse(
            use.name, use.begin, use.end, use.alias, tuple((schema_of(use.name) or pa.schema([])).names), None
        )
        for use in uses
    ]


def keep_whole(text: str, uses: list[TableUse]) -> None:
    """Have `find_uses` give these from now on for a text that was looked at."""
    asked, _ = _known.get(text, (None, None))
    if asked is not None:
        _keep(text, asked, uses)


def _keep(text: str, asked: dict[tuple[str, ...], pa.Schema | None], uses: list[TableUse]) -> None:
    with _known_lock:
        if len(_known) >= _KNOWN_MAX and text not in _known:
            del _known[next(iter(_known))]
        _known[text] = (asked, uses)


def _look_for_uses(text: str, schema_of: Callable[[tuple[str, ...]], pa.Schema | None]) -> list[TableUse]:
    glot = _sqlglot()
    exp = glot.exp
    try:
        trees = glot.parse(text, dialect="spark")
    except glot.errors.SqlglotError as error:
        raise InvalidArgumentError(f"the statement does not parse: {_first_line(error)}") from None
    except TypeError as error:  # of sqlglot 28 and 29, at `|> SET`
        raise InvalidArgumentError("the statement does not parse") from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise InvalidArgumentError(
            "nyala.spark.sql takes one SELECT (SELECT * FROM t, where you mean TABLE t): write with "
            "df.write.format('nyala') or nyala.spark.upsert, and give spark.sql what names no table of the store"
        )
    tree = trees[0]
    found: dict[str, tuple[Node, tuple[str, ...], pa.Schema]] = {}
    for scope in _scopes(tree):
        for node in scope.tables:
            name = tuple(part.name for part in node.parts)
            shadowed = len(name) == 1 and node.name.lower() in {key.lower() for key in scope.cte_sources}
            schema = None if shadowed else schema_of(name)
            if schema is not None:
                found[f"nyala_{len(found)}"] = (node, name, schema)
    if not found:
        return []
    places = {key: _place(node, text) for key, (node, _, _) in found.items()}
    for key, (node, _, _) in found.items():
        alias = node.alias or node.name
        node.set("db", None)
        node.set("catalog", None)
        node.set("this", exp.to_identifier(key))
        if isinstance(node.args.get("alias"), exp.TableAlias):
            continue
        node.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    needs = _needs(text, tree, {key: schema for key, (_, _, schema) in found.items()})
    uses = []
    for key, (_, name, schema) in found.items():
        begin, end, alias = places[key]
        needed = needs.get(key, _Need(tuple(schema.names)))
        uses.append(
            TableUse(
                name, begin, end, alias, needed.columns, needed.where, needed.met, needed.open, needed.passing
            )
        )
    return sorted(uses, key=lambda use: use.begin)


def with_placeholders(text: str, uses: Sequence[TableUse]) -> str:
    """The statement with `{nyala_0}`, `{nyala_1}`, … where the uses stand, for the arguments of `spark.sql`."""
    names = [f"{{nyala_{number}}}" for number in range(len(uses))]
    return _replaced(text, uses, names, _braces)


def with_names(text: str, uses: Sequence[TableUse], names: Sequence[str]) -> str:
    """The statement with these names, or subqueries, where the uses stand."""
    return _replaced(text, uses, names, str)


def _replaced(text: str, uses: Sequence[TableUse], names: Sequence[str], rest: Callable[[str], str]) -> str:
    """The text with what the uses say of it changed, and the rest through `rest`."""
    changes = []
    for use, name in zip(uses, names, strict=True):
        quoted = "" if use.alias is None else " AS `" + use.alias.replace("`", "``") + "`"
        changes.append((use.begin, use.end, name + quoted))
        # `k IN (1)AND` is two words.
        changes += [
            (begin, end, "TRUE " if text[end : end + 1].isalnum() else "TRUE") for begin, end in use.met
        ]
    parts, at = [], 0
    for begin, end, words in sorted(changes):
        parts += [rest(text[at:begin]), words]
        at = end
    return "".join(parts) + rest(text[at:])


def _braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _first_line(error: Exception) -> str:
    """What was expected and where, without the parser's own objects."""
    found: Mapping[str, Any] = next(iter(getattr(error, "errors", ())), {})
    if not {"description", "line", "highlight"} <= found.keys():
        return str(error).splitlines()[0]
    said = str(found["description"]).split(" but got <")[0].rstrip(".")
    # "Required keyword: 'this' missing for <class 'sqlglot.expressions.query.Where'>"
    said = re.sub(r"^Required keyword: .* missing for <class '.*?(\w+)'>$", r"\1 is not complete", said)
    return f"{said}, line {found['line']}, at {found['highlight']!r}"


def _sqlglot() -> Any:
    try:
        import sqlglot
        import sqlglot.errors
        import sqlglot.optimizer.pushdown_projections
        import sqlglot.optimizer.qualify
        import sqlglot.optimizer.scope
    except ImportError as error:
        raise ImportError("nyala.spark.sql needs sqlglot: pip install 'nyala[spark]'") from error
    return sqlglot


def _scopes(tree: Node) -> list[Any]:
    return list(_sqlglot().optimizer.scope.traverse_scope(tree))


def _place(node: Node, text: str) -> tuple[int, int, str | None]:
    """Where the table's name stands, and the alias that it needs. Raises: InvalidArgumentError."""
    metas = [part.meta for part in node.parts]
    if not all("start" in meta and "end" in meta for meta in metas):
        raise InvalidArgumentError(f"cannot tell where the table {node.name!r} stands in {text!r}")
    if any(node.args.get(what) for what in ("sample", "version", "when", "pivots", "changes")):
        raise InvalidArgumentError(
            f"table {node.name!r}: TABLESAMPLE, PIVOT and time travel are not taken here; use a subquery, or at="
        )
    has_alias = bool(node.alias)
    begin, end = min(meta["start"] for meta in metas), max(meta["end"] for meta in metas) + 1
    return begin, end, None if has_alias else node.name


# ------------------------------------------------------------------------------------------------ what is needed


@dataclass(frozen=True)
class _Need:
    columns: tuple[str, ...]
    where: Predicate | None = None
    met: tuple[tuple[int, int], ...] = ()
    open: tuple[OpenTerm, ...] = ()
    passing: tuple[str, ...] = ()


def _needs(text: str, tree: Node, schemas: Mapping[str, pa.Schema]) -> dict[str, _Need]:
    """By key: columns and predicate. A key is missing when it cannot be told: all columns then, and no predicate.

    Spark runs the text as it was written, so the columns are those that it names (Q1), and for a star those of it that
    are asked for outside.
    """
    glot = _sqlglot()
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
        scopes = _scopes(named)
        of_stars: dict[str, set[str]] = {}
        stars = [star for scope in scopes for star in _stars(scope)]
        # What is in struct(*) or count(DISTINCT *), which is no list, is in what a star below it is: then in all of it.
        if stars and all(map(_is_projection, stars)):
            expanded = glot.optimizer.pushdown_projections.pushdown_projections(
                _qualified(tree, described, expand_stars=True)
            )
            of_stars = {key: _names(columns) for key, columns, _, _ in _uses_in(_scopes(expanded), plain)}
    except Exception:  # whatever it is that the optimizer cannot, AssertionError too: Spark may well
        return {}
    needs: dict[str, _Need] = {}
    for key, named_columns, alias, scope in _uses_in(scopes, plain):
        schema = plain[key]
        terms: list[Predicate] = []
        opened: list[OpenTerm] = []
        met = []
        done: set[int] = set()  # columns in terms that are met
        passing: set[int] = set()  # in terms over this table alone
        for node, of_where in _filters(scope, alias):
            if node.find(glot.exp.Query) is None:
                of_term = list(node.find_all(glot.exp.Column))
                if all(column.table == alias for column in of_term):
                    passing.update(map(id, of_term))
            term = _translate(node, alias, schema)
            if term is None:
                for part in _parts(node, alias, schema):
                    if isinstance(part, OpenTerm):
                        opened.append(part)
                    else:
                        terms.append(part)
                continue
            terms.append(term)
            place = _place_of_term(text, node, term, alias, schema) if of_where else None
            if place is not None:
                met.append(place)
                done.update(map(id, node.find_all(glot.exp.Column)))
        names = _names(column for column in named_columns if id(column) not in done)
        staying = _names(column for column in named_columns if id(column) not in passing)
        if _has_star(scope) and not _only_asks_whether(scope):
            # Of a UNION's branches the columns are told apart by their places.
            if key not in of_stars or scope.expression.find_ancestor(glot.exp.SetOperation) is not None:
                continue
            names, staying = names | of_stars[key], staying | of_stars[key]
        columns = tuple(name for name in schema.names if name.lower() in names)
        if len(columns) != len(names):
            continue  # something that is no column of ours: let Spark say so
        needs[key] = _Need(
            columns, all_of(terms) if terms else None, tuple(met), tuple(opened),
            tuple(name for name in columns if name.lower() not in staying),
        )  # fmt: skip
    return needs


def _has_a_plus_of_its_own(text: str, columns: Collection[str]) -> bool:
    """Whether a plus that adds nothing stands before anything but a number: sqlglot's tree is without it.

    columns: in lower case: `time` and `date` are words of SQL's too, and mean the column before a plus.
    """
    if "+" not in text:
        return False
    glot = _sqlglot()
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
    exp = _sqlglot().exp
    return any((join.method or "").upper() == "NATURAL" for join in tree.find_all(exp.Join)) or any(
        star.args.get(what)
        for star in tree.find_all(exp.Star)
        for what in ("except_", "except", "replace", "rename")
    )


def _names_of_others(tree: Node) -> set[str]:
    """Names that Spark may read as a table's column where they stand for something else: functions without parentheses
    (a column comes first), and columns of a LATERAL VIEW (both are meant, which is an error)."""
    exp = _sqlglot().exp
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
    exp = _sqlglot().exp
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
    return _sqlglot().optimizer.qualify.qualify(
        tree.copy(), schema=described, dialect="spark", validate_qualify_columns=False, identify=False,
        quote_identifiers=False, expand_stars=expand_stars,
    )  # fmt: skip


def _stars(scope: Any) -> list[Node]:
    """All but those of count(*)."""
    exp = _sqlglot().exp
    return [star for star in scope.find_all(exp.Star) if not isinstance(star.parent, exp.Count)]


def _has_star(scope: Any) -> bool:
    return bool(_stars(scope))


def _only_asks_whether(scope: Any) -> bool:
    """Whether it is an EXISTS over a list of stars, which has a row or none whatever columns there are."""
    exp = _sqlglot().exp
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
    exp = _sqlglot().exp
    parent = star.parent.parent if isinstance(star.parent, exp.Column) else star.parent
    return isinstance(parent, exp.Select)


def _uses_in(
    scopes: Sequence[Any], plain: Mapping[str, pa.Schema]
) -> Iterator[tuple[str, list[Node], str, Any]]:
    """(key, columns that are named, alias, scope) of each use of which the names can be told."""
    exp = _sqlglot().exp
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
    exp = _sqlglot().exp
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
    exp = _sqlglot().exp
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
    exp = _sqlglot().exp
    if source.args.get("joins"):
        return False
    return not isinstance(source, exp.Paren | exp.Subquery) or (
        isinstance(source.this, exp.Query) and not (isinstance(source.this, exp.Subquery | exp.Table))
    )


def _terms(node: Node) -> Iterator[Node]:
    """The terms that AND joins, in the text's order."""
    exp = _sqlglot().exp
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
    if isinstance(node, _sqlglot().exp.In) and (closing := _CLOSING.match(text, end)):
        end = closing.end()
    if not (_BEFORE_TERM.search(text, 0, begin) and _AFTER_TERM.match(text, end)):
        return None
    glot = _sqlglot()
    try:
        alone = glot.parse_one(text[begin:end], dialect="spark")
    except glot.errors.SqlglotError:
        return None
    for column in alone.find_all(glot.exp.Column):
        column.set("table", glot.exp.to_identifier(alias))
    return (begin, end) if _translate(alone, alias, schema) == term else None


# ------------------------------------------------------------------------------------------------ translation


def _translate(node: Node, alias: str, schema: pa.Schema) -> Predicate | None:
    """The term as a predicate of ours, or None (Q3)."""
    exp = _sqlglot().exp
    node = node.unnest()
    if isinstance(node, exp.And | exp.Or):
        parts = [_translate(part, alias, schema) for part in node.flatten()]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return all_of(known) if isinstance(node, exp.And) else any_of(known)
    if isinstance(node, exp.Not):
        part = _translate(node.this, alias, schema)
        return None if part is None else negate(part)
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        name = _column(node.this, alias, schema)
        return None if name is None else IsNull(name)
    if isinstance(node, exp.Between):
        if node.args.get("symmetric"):
            return None
        parts = [
            _compare(node.this, op, node.args[bound], alias, schema)
            for op, bound in ((">=", "low"), ("<=", "high"))
        ]
        return None if None in parts else all_of(part for part in parts if part is not None)
    if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
        name = _column(node.this, alias, schema)
        if name is None:
            return None
        values = [_value(part, schema.field(name).type) for part in node.expressions]
        return None if None in values else InList(name, tuple(values))
    op = _COMPARISONS.get(type(node).__name__)
    if op is None:
        return None
    found = _compare(node.left, op, node.right, alias, schema)
    return _compare(node.right, _TURNED[op], node.left, alias, schema) if found is None else found


def _parts(node: Node, alias: str, schema: pa.Schema) -> Iterator[Predicate | OpenTerm]:
    """What all rows meet that meet an OR of which a part is not told, or a comparison or BETWEEN with other than
    literals."""
    exp = _sqlglot().exp
    node = node.unnest()
    if isinstance(node, exp.Or):
        implied = _implied(node, alias, schema)
        if implied is not None:
            yield implied
        return
    if isinstance(node, exp.Between):
        sides = [(node.this, ">=", node.args["low"]), (node.this, "<=", node.args["high"])]
        if node.args.get("symmetric"):
            return
    elif (op := _COMPARISONS.get(type(node).__name__)) is not None:
        sides = [(node.left, op, node.right), (node.right, _TURNED[op], node.left)]
    else:
        return
    for left, op, right in sides:
        name = _column(left, alias, schema)
        if name is None or not can_be_open(schema.field(name).type):
            continue
        closed = _compare(left, op, right, alias, schema)
        if closed is not None:
            yield closed
        elif (found := constant_of(right)) is not None and (op in (">", ">=") or not found.present):
            yield OpenTerm(name, op, found.text, schema.field(name).type, found.slack_us)


def _implied(node: Node, alias: str, schema: pa.Schema) -> Predicate | None:
    """What a row meets that meets the term, of a join perhaps: of AND what can be told, of OR each branch; or None."""
    exp = _sqlglot().exp
    node = node.unnest()
    whole = _translate(node, alias, schema)
    if whole is not None or not isinstance(node, exp.And | exp.Or):
        return whole
    parts = [_implied(part, alias, schema) for part in node.flatten()]
    known = [part for part in parts if part is not None]
    if isinstance(node, exp.And):
        return all_of(known) if known else None
    return any_of(known) if len(known) == len(parts) else None


def _compare(left: Node, op: str, right: Node, alias: str, schema: pa.Schema) -> Predicate | None:
    name = _column(left, alias, schema)
    if name is None:
        return None
    value = _value(right, schema.field(name).type)
    return None if value is None else Compare(name, op, value)


def _column(node: Node, alias: str, schema: pa.Schema) -> str | None:
    exp = _sqlglot().exp
    node = node.unnest()
    if not isinstance(node, exp.Column) or node.table != alias:
        return None
    return next((name for name in schema.names if name.lower() == node.name.lower()), None)


def _value(node: Node, type: pa.DataType) -> Any:
    """The literal as a value that a column of the type can hold, or None: then Spark may convert where we do not.

    Left out: timestamps (their text depends on the session's time zone), float (Spark compares it as double).
    """
    exp = _sqlglot().exp
    node = node.unnest()
    sign = 1
    if isinstance(node, exp.Neg):
        sign, node = -1, node.this
        if not isinstance(node, exp.Literal) or node.is_string:
            return None
    if isinstance(node, exp.Cast) and node.to.sql().upper() == "DATE":
        node, dated = node.this, True
    else:
        dated = False
    if not isinstance(node, exp.Literal):
        return None
    text = str(node.this)
    if node.is_string:
        if node.meta.get("end", -1) - node.meta.get("start", 0) != len(text) + 1:
            return None  # what a backslash stands for, Spark's settings say
        if pa.types.is_date32(type):
            if not _DAY.fullmatch(text):
                return None  # Python reads weeks as well
            try:
                return dt.date.fromisoformat(text)
            except ValueError:
                return None
        return text if pa.types.is_string(type) and not dated else None
    if "e" in text.lower() and not pa.types.is_float64(type):
        return None  # Spark's is a double, and so is the comparison
    try:
        number = decimal.Decimal(text) * sign
    except decimal.InvalidOperation:
        return None
    if pa.types.is_integer(type):
        limit = 2 ** (type.bit_width - 1)
        return int(number) if number == int(number) and -limit <= number < limit else None
    if pa.types.is_float64(type):
        return number
    if pa.types.is_decimal(type):
        whole = number.scaleb(type.scale)
        return number if whole == int(whole) and abs(whole) < 10**type.precision else None
    return None
