"""Finds the Nyala tables in a SELECT, and makes the text that Spark runs, with a scan in place of
each table. A place where the statement names a table is called a use of the table. A term is a
condition of WHERE or ON that is joined to others by AND.

The statement of the user, in which t and u are Nyala tables:

    SELECT a.v FROM t AS a JOIN u ON a.k = u.k WHERE a.k > 5

It has two uses of tables. Each becomes a scan of its own, as a DataFrame. `table_reads` finds what
each scan must return:

    nyala_0    t AS a    columns k, v    where k > 5
    nyala_1    u         column k

What Spark runs. DataFrames replace the names of tables. TRUE replaces each term that a scan
applies completely:

    SELECT a.v FROM {nyala_0} AS a JOIN {nyala_1} AS `u` ON a.k = u.k WHERE TRUE

Spark evaluates all other terms itself. So a scan may return too many rows, but never too few.

Invariants
    Q1  The columns of a scan are all columns of the table that the statement names in this use. A
        star counts as the columns that outer queries use; a star in EXISTS counts as no column. If
        the needed columns are unclear, the scan has all columns. This happens for a column whose
        table is unknown, NATURAL JOIN, `* EXCEPT`, and a star under UNION or in a function.
    Q2  A scan gets a predicate only if the rows that fail it cannot change the result. This holds
        for a term of WHERE, unless an outer join fills the table with NULLs. It also holds for a
        term of ON about the joined table.
    Q3  A scan gets a term only if the term means the same in Spark and Nyala. So it compares a
        column with a literal that the column's type holds exactly, also with IN, BETWEEN, IS NULL,
        AND, OR and NOT. If the column is compared with a constant expression, or with a text that
        means a time, Spark computes the value (`constants`). An OR may have conditions of several
        tables, or conditions that cannot be translated. Then the scan gets a predicate that returns
        more rows: the OR of what each branch implies for its table.
    Q4  All tables of one store are read at one timestamp.
    Q5  If the scan applies a term of WHERE completely, TRUE replaces the term in the text. Then the
        scan need not return the term's columns, and Spark need not compile a new filter when only
        the numbers in the term change. A term is replaced only if its text, parsed alone, is the
        same predicate. It must also come directly after WHERE, AND or "(", and directly before AND,
        ")" or the next clause. Terms of floating point columns stay, because Spark orders NaN above
        all numbers.
    Q6  If this analysis misses a column, Spark rejects the statement. `sql` then runs it again with
        all columns and all terms (`uses_of_all_columns`), and returns or raises the outcome of this
        second run.

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
from nyala.spark.statements.constants import PendingTerm
from nyala.spark.statements.parser import Node, scopes_of, sqlglot
from nyala.spark.statements.table_reads import TableRead, table_reads

__all__ = [
    "TableUse",
    "find_uses",
    "remember_uses",
    "uses_of_all_columns",
    "with_placeholders",
]

# The schemas and uses of statements that were analysed, oldest statement first.
_KNOWN_MAX: Final = 64
_known_lock = threading.Lock()
_known: dict[str, tuple[dict[tuple[str, ...], pa.Schema | None], list[TableUse] | None]] = {}


@dataclass(frozen=True)
class TableUse:
    """A place where a statement names a Nyala table, and what the scan of the table must return.

    begin, end: the position [begin, end) of the table's name in the text.
    alias:      the alias to add there, or None if the use has one.
    columns:    the columns that the statement needs, in the table's order.
    where:      the predicate of the scan, or None.
    applied:    the positions [begin, end) of terms that every row of the scan satisfies.
    pending:    terms for the scan whose values Spark must compute.
    """

    name: tuple[str, ...]
    begin: int
    end: int
    alias: str | None
    columns: tuple[str, ...]
    where: Predicate | None
    applied: tuple[tuple[int, int], ...] = ()
    pending: tuple[PendingTerm, ...] = ()


def find_uses(
    text: str,
    schema_of: Callable[[tuple[str, ...]], pa.Schema | None],
    *,
    double_quoted_names: bool = False,
) -> list[TableUse]:
    """Return each place where a statement names a Nyala table, in the order of the text.

    schema_of: returns the schema of a table by the parts of its name, or None if it is not a Nyala
        table.
    double_quoted_names: whether Spark reads text in double quotes as a name. If True, each scan
        reads all columns of all rows: the parser sqlglot reads such names as texts, so it misses
        columns.

    Cost: some milliseconds. For a text that was analysed before: one call of `schema_of` per name.
    Raises InvalidArgumentError if the text is not one SELECT, and ImportError without
    sqlglot.
    """
    schemas, uses = _known.get(text, ({}, None))
    if (
        uses is not None
        and not double_quoted_names
        and all(schema_of(name) == schema for name, schema in schemas.items())
    ):
        return uses
    schemas = {}

    def recorded(name: tuple[str, ...]) -> pa.Schema | None:
        schemas[name] = schema_of(name)
        return schemas[name]

    uses = _analyze(text, recorded)
    if double_quoted_names:
        return uses_of_all_columns(uses, schemas.__getitem__)
    _keep(text, schemas, uses)
    return uses


def uses_of_all_columns(
    uses: Sequence[TableUse], schema_of: Callable[[tuple[str, ...]], pa.Schema | None]
) -> list[TableUse]:
    """Return a copy of `uses` in which each use of a table reads all columns and all rows.

    A use is a place where the statement names a table. The copy is for statements whose needed
    columns are unclear, for example because Spark rejected a first run in which a column was
    missing.

    schema_of: returns the schema of a table by the parts of its name.
    """
    return [
        TableUse(
            use.name, use.begin, use.end, use.alias, tuple((schema_of(use.name) or pa.schema([])).names), None
        )
        for use in uses
    ]


def remember_uses(text: str, uses: list[TableUse]) -> None:
    """Store the uses of a statement, so that `find_uses` returns them for the same text."""
    schemas, _ = _known.get(text, (None, None))
    if schemas is not None:
        _keep(text, schemas, uses)


def _keep(text: str, schemas: dict[tuple[str, ...], pa.Schema | None], uses: list[TableUse]) -> None:
    with _known_lock:
        if len(_known) >= _KNOWN_MAX and text not in _known:
            del _known[next(iter(_known))]
        _known[text] = (schemas, uses)


def _analyze(text: str, schema_of: Callable[[tuple[str, ...]], pa.Schema | None]) -> list[TableUse]:
    glot = sqlglot()
    exp = glot.exp
    try:
        trees = glot.parse(text, dialect="spark")
    except glot.errors.SqlglotError as error:
        raise InvalidArgumentError(f"the statement has a syntax error: {_first_line(error)}") from None
    except TypeError as error:  # sqlglot 28 and 29 raise it for `|> SET`
        raise InvalidArgumentError(
            "the statement has a syntax error, or a step |> SET, which is not supported: write it without |>"
        ) from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise InvalidArgumentError(
            "nyala.spark.sql accepts only one SELECT (SELECT * FROM t instead of TABLE t). To write rows, use "
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
    positions = {key: _position(node, text) for key, (node, _, _) in found.items()}
    for key, (node, _, _) in found.items():
        alias = node.alias or node.name
        node.set("db", None)
        node.set("catalog", None)
        node.set("this", exp.to_identifier(key))
        if isinstance(node.args.get("alias"), exp.TableAlias):
            continue
        node.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    reads = table_reads(text, tree, {key: schema for key, (_, _, schema) in found.items()})
    uses = []
    for key, (_, name, schema) in found.items():
        begin, end, alias = positions[key]
        read = reads.get(key, TableRead(tuple(schema.names)))
        uses.append(TableUse(name, begin, end, alias, read.columns, read.where, read.applied, read.pending))
    return sorted(uses, key=lambda use: use.begin)


def with_placeholders(text: str, uses: Sequence[TableUse]) -> str:
    """Return the statement with `{nyala_0}`, `{nyala_1}`, … in place of the tables, as `spark.sql`
    expects.
    """
    changes = []
    for number, use in enumerate(uses):
        quoted = "" if use.alias is None else " AS `" + use.alias.replace("`", "``") + "`"
        changes.append((use.begin, use.end, f"{{nyala_{number}}}" + _braces(quoted)))
        # Add a blank if the term is followed by a word, as in `k IN (1)AND`.
        changes += [
            (begin, end, "TRUE " if text[end : end + 1].isalnum() else "TRUE") for begin, end in use.applied
        ]
    parts, at = [], 0
    for begin, end, words in sorted(changes):
        parts += [_braces(text[at:begin]), words]
        at = end
    return "".join(parts) + _braces(text[at:])


def _braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _first_line(error: Exception) -> str:
    """Return the first line of sqlglot's syntax error, without the names of its classes."""
    found: Mapping[str, Any] = next(iter(getattr(error, "errors", ())), {})
    if not {"description", "line", "highlight"} <= found.keys():
        return str(error).splitlines()[0]
    text = str(found["description"]).split(" but got <")[0].rstrip(".")
    # "Required keyword: 'this' missing for <class 'sqlglot.expressions.query.Where'>"
    text = re.sub(r"^Required keyword: .* missing for <class '.*?(\w+)'>$", r"\1 is incomplete", text)
    return f"{text}, line {found['line']}, at {found['highlight']!r}"


def _position(node: Node, text: str) -> tuple[int, int, str | None]:
    """Return (begin, end, alias) of a table's name in the text.

    alias: the alias to add, or None if the statement gives the table an alias.

    Raises InvalidArgumentError for TABLESAMPLE, PIVOT and time travel.
    """
    metas = [part.meta for part in node.parts]
    if not all("start" in meta and "end" in meta for meta in metas):
        raise InvalidArgumentError(
            f"nyala.spark.sql cannot find the name of table {node.name!r} in {text!r}: write the table's plain name "
            "after FROM or JOIN"
        )
    if any(node.args.get(what) for what in ("sample", "version", "when", "pivots", "changes")):
        raise InvalidArgumentError(
            f"table {node.name!r}: TABLESAMPLE, PIVOT and time travel are not supported here; use a subquery, or at="
        )
    begin, end = min(meta["start"] for meta in metas), max(meta["end"] for meta in metas) + 1
    return begin, end, None if node.alias else node.name
