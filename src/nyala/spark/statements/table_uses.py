"""`nyala.spark.sql`: a SELECT of Spark's that reads, of each Nyala table in it, only the columns and rows it needs.

    SELECT a.v FROM t AS a JOIN u ON a.k = u.k WHERE a.k > 5        t, u: Nyala tables
        │ sqlglot parses and qualifies a copy
        ▼
    t AS a   columns k, v   where k > 5      ──►  a scan at one snapshot, to_spark   ──►  DataFrame nyala_0
    u        column k                        ──►  …                                       DataFrame nyala_1
        ▼
    SELECT a.v FROM {nyala_0} AS a JOIN {nyala_1} AS u ON a.k = u.k WHERE a.k > 5

    parser       sqlglot itself
    predicates   what a term means as a predicate of ours (Q3)
    table_reads  columns, predicate and met terms of each use (Q1, Q2, Q5)
    here         where the uses stand in the text, and the text that Spark runs

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
    Q6  What is told here of a statement is at most too little for Spark, which then refuses it: who gets such an error
        asks again with all columns and every term (`whole_uses`), and what Spark says then is the statement's.

Source: docs/how-to/spark.md; docs/design/spark.md, "What a statement reads".
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala.errors import InvalidArgumentError
from nyala.schema.expressions.nodes import Node as Predicate
from nyala.spark.statements.constants import OpenTerm
from nyala.spark.statements.parser import Node, scopes_of, sqlglot
from nyala.spark.statements.table_reads import TableRead, table_reads

__all__ = [
    "TableUse",
    "find_uses",
    "keep_whole",
    "whole_uses",
    "with_placeholders",
]

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
    """

    name: tuple[str, ...]
    begin: int
    end: int
    alias: str | None
    columns: tuple[str, ...]
    where: Predicate | None
    met: tuple[tuple[int, int], ...] = ()
    open: tuple[OpenTerm, ...] = ()


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
    glot = sqlglot()
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
    for scope in scopes_of(tree):
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
    needs = table_reads(text, tree, {key: schema for key, (_, _, schema) in found.items()})
    uses = []
    for key, (_, name, schema) in found.items():
        begin, end, alias = places[key]
        needed = needs.get(key, TableRead(tuple(schema.names)))
        uses.append(TableUse(name, begin, end, alias, needed.columns, needed.where, needed.met, needed.open))
    return sorted(uses, key=lambda use: use.begin)


def with_placeholders(text: str, uses: Sequence[TableUse]) -> str:
    """The statement with `{nyala_0}`, `{nyala_1}`, … where the uses stand, for the arguments of `spark.sql`."""
    changes = []
    for number, use in enumerate(uses):
        quoted = "" if use.alias is None else " AS `" + use.alias.replace("`", "``") + "`"
        changes.append((use.begin, use.end, f"{{nyala_{number}}}" + _braces(quoted)))
        # `k IN (1)AND` is two words.
        changes += [
            (begin, end, "TRUE " if text[end : end + 1].isalnum() else "TRUE") for begin, end in use.met
        ]
    parts, at = [], 0
    for begin, end, words in sorted(changes):
        parts += [_braces(text[at:begin]), words]
        at = end
    return "".join(parts) + _braces(text[at:])


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
