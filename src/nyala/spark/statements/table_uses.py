"""Finds the Nyala tables in a SELECT, and makes the text that Spark runs, with a scan in place of each table.

    SELECT a.v FROM t AS a JOIN u ON a.k = u.k WHERE a.k > 5        t, u: Nyala tables
        │ sqlglot parses and qualifies a copy
        ▼
    t AS a   columns k, v   where k > 5      ──►  a scan at one snapshot, to_spark   ──►  DataFrame nyala_0
    u        column k                        ──►  …                                       DataFrame nyala_1
        ▼
    SELECT a.v FROM {nyala_0} AS a JOIN {nyala_1} AS u ON a.k = u.k WHERE a.k > 5

    parser       sqlglot
    predicates   translates a term into a Nyala predicate (Q3)
    table_reads  columns, predicate and applied terms of each use (Q1, Q2, Q5)
    this module  positions of the uses in the text, and the text that Spark runs

Spark runs the user's text with two changes: a placeholder replaces the name of each Nyala table, and TRUE replaces
terms of WHERE that the scan has applied completely (Q5). Each use of a table is its own scan with its own predicate.
Spark evaluates all other terms itself, so a scan only has to keep every row that Spark would keep.

Invariants
    Q1  A scan's columns, in the table's order, include every column of that use that the statement names. For a star
        they include the columns that outer queries use; for a star in EXISTS, none. The scan has all columns if the
        needed ones are unclear: a name without table, NATURAL JOIN, `* EXCEPT`, a star under UNION or in a function.
    Q2  A scan gets a predicate only if a row that fails it cannot affect the result. Such a predicate is a term of
        WHERE over a table that no outer join fills with NULL, or a term of ON over a side that ON filters.
    Q3  A scan gets a term only if Spark and Nyala give it the same meaning: comparisons of a column with a literal that
        the column's type holds exactly, IN, BETWEEN, IS NULL, AND, OR, NOT. If a column is compared with a constant
        expression or with a text that means a time, the term is open: Spark computes the value (`constants`). An OR
        over several tables, or with untranslatable terms, gives the scan the part that every branch implies for its
        table. Spark alone evaluates the rest.
    Q4  All tables of one store are read at one timestamp.
    Q5  TRUE replaces a term of WHERE that the scan has applied, and its columns are not read for it. Otherwise Spark
        would compile a new filter for each statement with other numbers. This is done only if the term's own text,
        parsed alone, gives the same predicate, and stands between words that separate terms. Floating point terms stay,
        because Spark orders NaN above all numbers. A sign before a text or date makes it no literal: Spark converts it
        to a number or rejects it.
    Q6  If this analysis misses a column, Spark rejects the statement. `sql` then runs it again with all columns and all
        terms (`whole_uses`), and Spark's result or error of that run counts.

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

# Analysed statements, the oldest first: the schemas at that time, and the uses.
_KNOWN_MAX: Final = 64
_known_lock = threading.Lock()
_known: dict[str, tuple[dict[tuple[str, ...], pa.Schema | None], list[TableUse] | None]] = {}


@dataclass(frozen=True)
class TableUse:
    """One use of a Nyala table in a statement.

    begin, end: position of its name in the text, [begin, end).
    alias:      the alias to add there; None if the use has one.
    columns:    the columns that the statement needs, in the table's order.
    where:      the predicate of the scan, or None (Q2, Q3).
    met:        positions [begin, end) of terms that every row of the scan satisfies (Q5).
    open:       terms for the scan whose values Spark must compute.
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
    """Return the uses of Nyala tables in a statement, in the order of the text.

    schema_of: returns the Arrow schema of a table by the parts of its name, None if it is not a Nyala table.
    double_quoted_names: whether Spark reads double quotes as names. sqlglot reads them as texts, so the result then
               has all columns and no predicate.
    Cost:      some milliseconds; for a text that was analysed before, one call of `schema_of` per name.
    Raises:    InvalidArgumentError if the text is not one SELECT; ImportError without sqlglot.
    """
    schemas, uses = _known.get(text, ({}, None))
    if (
        uses is not None
        and not double_quoted_names
        and all(schema_of(name) == schema for name, schema in schemas.items())
    ):
        return uses
    schemas = {}

    def ask(name: tuple[str, ...]) -> pa.Schema | None:
        schemas[name] = schema_of(name)
        return schemas[name]

    uses = _look_for_uses(text, ask)
    if double_quoted_names:
        return whole_uses(uses, schemas.__getitem__)
    _keep(text, schemas, uses)
    return uses


def whole_uses(
    uses: Sequence[TableUse], schema_of: Callable[[tuple[str, ...]], pa.Schema | None]
) -> list[TableUse]:
    """Return the same uses with all columns and no predicate, so that Spark resolves every name itself."""
    return [
        TableUse(
            use.name, use.begin, use.end, use.alias, tuple((schema_of(use.name) or pa.schema([])).names), None
        )
        for use in uses
    ]


def keep_whole(text: str, uses: list[TableUse]) -> None:
    """Make `find_uses` return these uses from now on for a text that was analysed before."""
    schemas, _ = _known.get(text, (None, None))
    if schemas is not None:
        _keep(text, schemas, uses)


def _keep(text: str, schemas: dict[tuple[str, ...], pa.Schema | None], uses: list[TableUse]) -> None:
    with _known_lock:
        if len(_known) >= _KNOWN_MAX and text not in _known:
            del _known[next(iter(_known))]
        _known[text] = (schemas, uses)


def _look_for_uses(text: str, schema_of: Callable[[tuple[str, ...]], pa.Schema | None]) -> list[TableUse]:
    glot = sqlglot()
    exp = glot.exp
    try:
        trees = glot.parse(text, dialect="spark")
    except glot.errors.SqlglotError as error:
        raise InvalidArgumentError(f"the statement has a syntax error: {_first_line(error)}") from None
    except TypeError as error:  # sqlglot 28 and 29 raise it for `|> SET`
        raise InvalidArgumentError("the statement has a syntax error") from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise InvalidArgumentError(
            "nyala.spark.sql accepts only one SELECT (for TABLE t write SELECT * FROM t). To write rows, use "
            "df.write.format('nyala') or nyala.spark.upsert; for statements without tables of the store, use spark.sql"
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
    """Return the statement with `{nyala_0}`, `{nyala_1}`, … in place of the tables, for arguments of `spark.sql`."""
    changes = []
    for number, use in enumerate(uses):
        quoted = "" if use.alias is None else " AS `" + use.alias.replace("`", "``") + "`"
        changes.append((use.begin, use.end, f"{{nyala_{number}}}" + _braces(quoted)))
        # `k IN (1)AND` needs a blank before AND.
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
    """Return what the parser expected and where, without its own objects."""
    found: Mapping[str, Any] = next(iter(getattr(error, "errors", ())), {})
    if not {"description", "line", "highlight"} <= found.keys():
        return str(error).splitlines()[0]
    text = str(found["description"]).split(" but got <")[0].rstrip(".")
    # "Required keyword: 'this' missing for <class 'sqlglot.expressions.query.Where'>"
    text = re.sub(r"^Required keyword: .* missing for <class '.*?(\w+)'>$", r"\1 is incomplete", text)
    return f"{text}, line {found['line']}, at {found['highlight']!r}"


def _place(node: Node, text: str) -> tuple[int, int, str | None]:
    """Return the position of the table's name, and the alias that it needs. Raises: InvalidArgumentError."""
    metas = [part.meta for part in node.parts]
    if not all("start" in meta and "end" in meta for meta in metas):
        raise InvalidArgumentError(f"cannot find the position of table {node.name!r} in {text!r}")
    if any(node.args.get(what) for what in ("sample", "version", "when", "pivots", "changes")):
        raise InvalidArgumentError(
            f"table {node.name!r}: TABLESAMPLE, PIVOT and time travel are not supported here; use a subquery, or at="
        )
    has_alias = bool(node.alias)
    begin, end = min(meta["start"] for meta in metas), max(meta["end"] for meta in metas) + 1
    return begin, end, None if has_alias else node.name
