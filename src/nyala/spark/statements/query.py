"""`nyala.spark.sql`: runs a SELECT of Spark's that reads of each Nyala table only what it needs."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException

from nyala.errors import InvalidArgumentError
from nyala.schema.expressions.nodes import Node as Predicate
from nyala.schema.expressions.nodes import all_of
from nyala.schema.expressions.parser import parse_predicate
from nyala.spark import internals
from nyala.spark.arguments import folder_of
from nyala.spark.frames import leased_frame
from nyala.spark.source.options import LEASE_DEFAULT_S, ReadOptions, lease_seconds, wants_changes
from nyala.spark.statements.constants import valued
from nyala.spark.statements.shared_readers import reading, task_frame
from nyala.spark.statements.table_uses import TableUse, find_uses, keep_whole, whole_uses, with_placeholders
from nyala.spark.statements.unknown_names import telling_names
from nyala.spark.types import check_unaltered, identity_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from nyala.api.database import Database, Snapshot
    from nyala.api.readable import TableView

__all__ = ["sql"]

# What says which rows a table of Spark's catalogue stands for.
_OF_TABLES: Final = ("path", "table", "where", "at")


def sql(
    spark: SparkSession,
    text: str,
    store: str | os.PathLike[str] | None = None,
    at: Any = None,
    *,
    lease: float = LEASE_DEFAULT_S,
) -> DataFrame:
    """Spark's answer to a SELECT, which reads of each Nyala table only the columns and rows that it needs.

    store:  the folder whose tables the statement may name, in any case; other names are Spark's own. None: only tables
            of Spark's catalogue that were made with `CREATE TABLE … USING nyala`.
    at:     the moment of all tables; None: now, or the one with which a table of Spark's catalogue was made. All tables
            of a store are read at one timestamp.
    lease:  seconds for which the files of that moment are kept after the DataFrame was last read: a read renews it when
            a quarter has gone.
    Raises: InvalidArgumentError for what is no single SELECT, HistoryExpiredError; TableNotFoundError and
            ColumnNotFoundError with the nearest name, where neither the store nor Spark knows one; Spark's
            AnalysisException for what else Spark does not accept; ImportError without sqlglot.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(
            "nyala.spark.sql takes the Spark session and the text of a SELECT: sql(spark, 'SELECT …', store=folder)"
        )
    lease_s = lease_seconds(lease, "nyala.spark.sql: ")
    folder = "" if store is None else folder_of(store, "nyala.spark.sql(store=…)")
    with contextlib.ExitStack() as opened:
        databases: dict[str, Database] = {}
        snapshots: dict[tuple[str, str], Snapshot] = {}

        def snapshot_of(path: str, moment: Any) -> Snapshot:
            key = os.path.abspath(path), str(moment)
            if key[0] not in databases:
                databases[key[0]] = opened.enter_context(reading(key[0]))
            if key not in snapshots:
                snapshots[key] = opened.enter_context(databases[key[0]].snapshot(at=moment))
            return snapshots[key]

        def table_of(name: tuple[str, ...]) -> tuple[TableView, Predicate | None] | None:
            """The table, and which of its rows a table of Spark's catalogue stands for."""
            if store is not None and len(name) == 1:
                tables = snapshot_of(folder, at)
                known = tables.list_tables()
                # As Spark's own names: without heed to case, where that says which.
                alike = [name[0]] if name[0] in known else [t for t in known if t.lower() == name[0].lower()]
                if len(alike) == 1:
                    return tables[alike[0]], None
            identity = catalog_identity(spark, name)
            if identity is None or wants_changes(identity):
                return None
            own = ReadOptions.parse({what: identity[what] for what in _OF_TABLES if what in identity})
            rows = None if own.where is None else parse_predicate(own.where)
            return snapshot_of(own.path, own.at if at is None else at)[own.table], rows

        def schema_of(name: tuple[str, ...]) -> pa.Schema | None:
            found = table_of(name)
            return None if found is None else found[0].schema

        names = '"' in text and spark.conf.get("spark.sql.ansi.doubleQuotedIdentifiers") == "true"
        uses = find_uses(text, schema_of, double_quoted_names=names)

        def frames_of(uses: Sequence[TableUse], arrays: bool) -> dict[str, Any]:
            frames: dict[str, DataFrame] = {}
            values = iter(valued(spark, [term for use in uses for term in use.open]))
            for number, use in enumerate(uses):
                found = table_of(use.name)
                assert found is not None
                table, rows = found
                # Rows without any column would be no rows to Spark.
                columns = use.columns or (table.primary_key[0],)
                said = [next(values) for _ in use.open]
                terms = [term for term in (rows, use.where, *said) if term is not None]
                scan = table.scan(list(columns), all_of(terms) if terms else None)
                make = functools.partial(leased_frame, spark, scan, lease_s, arrays=arrays)
                found_frame = task_frame(spark, scan, (columns, repr(terms), lease_s, arrays), make)
                frames[f"nyala_{number}"] = found_frame.frame
            return frames

        def answer(uses: Sequence[TableUse], arrays: bool) -> DataFrame:
            if not uses:
                return spark.sql(text)  # it may have braces
            return spark.sql(with_placeholders(text, uses), **frames_of(uses, arrays))

        there = (name for use in uses for name in (schema_of(use.name) or pa.schema([])).names)
        with telling_names(folder or None, lambda: snapshot_of(folder, at).list_tables(), there) as held:
            try:
                return answer(uses, internals.available(spark))
            except AnalysisException as error:
                if not uses or not _may_be_of_ours(error):
                    raise
                # Of a statement that is not told rightly Spark misses columns, or stumbles over arrays (Q6).
                held.clear()
                whole = whole_uses(uses, schema_of)
                answered = answer(whole, False)
                keep_whole(text, whole)
                return answered


def _may_be_of_ours(error: AnalysisException) -> bool:
    """Whether Spark might take the statement over whole tables: not what does not parse, nor a table that is none."""
    if isinstance(error, ParseException):
        return False
    return not (error.getCondition() or "").startswith("TABLE_OR_VIEW_NOT_FOUND")


def catalog_identity(spark: SparkSession, name: Sequence[str]) -> dict[str, str] | None:
    """Path and table of a table of Spark's catalogue that was made with USING nyala; None: it is none, or a view."""
    try:
        found = spark.catalog.getTable(".".join("`" + part.replace("`", "``") + "`" for part in name))
    except Exception:  # whatever Spark says of a name that it does not know, or cannot: it will say it again
        return None
    if found.isTemporary or found.tableType == "VIEW":
        return None  # its schema may have our mark, and its rows are others
    schema = spark.table(".".join(f"`{part}`" for part in name)).schema
    check_unaltered(schema)
    return identity_of(schema)
