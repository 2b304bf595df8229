"""`nyala.spark.sql`: runs a SELECT in Spark that reads only the needed columns and rows of each table."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException

from nyala.errors import InvalidArgumentError
from nyala.objects.address import Address
from nyala.schema.expressions.nodes import Node as Predicate
from nyala.schema.expressions.nodes import all_of
from nyala.schema.expressions.parser import parse_predicate
from nyala.spark import internals
from nyala.spark.arguments import address_of_store
from nyala.spark.frames import leased_frame
from nyala.spark.source.options import LEASE_DEFAULT_S, STORAGE, ReadOptions, lease_seconds, reads_changes
from nyala.spark.statements.constants import with_values
from nyala.spark.statements.shared_readers import shared_frame, shared_reader
from nyala.spark.statements.table_uses import (
    TableUse,
    find_uses,
    remember_uses,
    uses_of_all_columns,
    with_placeholders,
)
from nyala.spark.statements.unknown_names import rewriting_unknown_names
from nyala.spark.types import check_unaltered, identity_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from nyala.api.database import Database, Snapshot
    from nyala.api.readable import TableView

__all__ = ["sql"]

# The options of a table in Spark's catalogue that define its rows.
_TABLE_OPTIONS: Final = ("path", "table", "where", "at")


def sql(
    spark: SparkSession,
    text: str,
    store: str | os.PathLike[str] | Database | None = None,
    at: Any = None,
    *,
    lease: float = LEASE_DEFAULT_S,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Run a SELECT in Spark that reads only the needed columns and rows of each Nyala table.

    Parameters
    ----------
    spark
        The SparkSession.
    text
        One SELECT statement in Spark's SQL.
    store
        The store's folder or URL, or an open Database. The statement may use its tables by name, in
        upper or lower case. Other names are tables of Spark's catalogue, which may be Nyala tables
        too (`CREATE TABLE … USING nyala`). Default: only tables of Spark's catalogue.
    at
        Read all tables as of this moment. Default: now, or the moment with which a table of Spark's
        catalogue was created. All tables of a store are read at one timestamp.
    lease
        Seconds for which the files are kept after the last read of the DataFrame. A read renews the
        lease when a quarter of it has passed.
    storage_options
        For a URL: options of `nyala.connect`, without credentials.

    Returns
    -------
    DataFrame
        The result of the SELECT.

    Raises
    ------
    InvalidArgumentError
        `text` is not one SELECT statement.
    TableNotFoundError, ColumnNotFoundError
        Neither the store nor Spark has the name. The message suggests a similar one.
    HistoryExpiredError
        `at` is older than the table's history.
    pyspark.errors.AnalysisException
        Spark rejects the statement for another reason.
    ImportError
        sqlglot is not installed.

    Examples
    --------
    ```python
    late = nyala.spark.sql(
        spark, "SELECT origin, avg(delay) FROM flights WHERE day >= '2026-01-01' GROUP BY origin", store="store"
    )
    late.show()
    ```
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(
            "nyala.spark.sql expects the Spark session and the text of a SELECT: sql(spark, 'SELECT …', store=folder)"
        )
    lease_s = lease_seconds(lease, "nyala.spark.sql: ")
    address = None if store is None else address_of_store(store, "nyala.spark.sql(store=…)", storage_options)
    with contextlib.ExitStack() as opened:
        databases: dict[Address, Database] = {}
        snapshots: dict[tuple[Address, str], Snapshot] = {}

        def snapshot_of(place: Address, moment: Any) -> Snapshot:
            key = place, str(moment)
            if place not in databases:
                databases[place] = opened.enter_context(shared_reader(place))
            if key not in snapshots:
                snapshots[key] = opened.enter_context(databases[place].snapshot(at=moment))
            return snapshots[key]

        def table_of(name: tuple[str, ...]) -> tuple[TableView, Predicate | None] | None:
            """Find the Nyala table of a name, and the predicate of its option `where`.

            Only a table of Spark's catalogue can have this option; otherwise the predicate is None.
            Returns None if the name is not a Nyala table.
            """
            if address is not None and len(name) == 1:
                tables = snapshot_of(address, at)
                known = tables.list_tables()
                # As in Spark, the case of a name does not matter, unless several names differ only in case.
                alike = [name[0]] if name[0] in known else [t for t in known if t.lower() == name[0].lower()]
                if len(alike) == 1:
                    return tables[alike[0]], None
            identity = catalog_identity(spark, name)
            if identity is None or reads_changes(identity):
                return None
            own = ReadOptions.parse(
                {
                    what: value
                    for what, value in identity.items()
                    if what in _TABLE_OPTIONS or what.startswith(STORAGE)
                }
            )
            rows = None if own.where is None else parse_predicate(own.where)
            return snapshot_of(own.address, own.at if at is None else at)[own.table], rows

        def schema_of(name: tuple[str, ...]) -> pa.Schema | None:
            found = table_of(name)
            return None if found is None else found[0].schema

        names = '"' in text and spark.conf.get("spark.sql.ansi.doubleQuotedIdentifiers") == "true"
        uses = find_uses(text, schema_of, double_quoted_names=names)

        def frames_of(uses: Sequence[TableUse], arrays: bool) -> dict[str, Any]:
            frames: dict[str, DataFrame] = {}
            values = iter(with_values(spark, [term for use in uses for term in use.pending]))
            for number, use in enumerate(uses):
                found = table_of(use.name)
                assert found is not None
                table, rows = found
                # A scan needs at least one column, or Spark would not see its rows.
                columns = use.columns or (table.primary_key[0],)
                constants = [next(values) for _ in use.pending]
                terms = [term for term in (rows, use.where, *constants) if term is not None]
                scan = table.scan(list(columns), all_of(terms) if terms else None)
                make = functools.partial(leased_frame, spark, scan, lease_s, arrays=arrays)
                request = (columns, repr(terms), lease_s, arrays)
                frames[f"nyala_{number}"] = shared_frame(spark, scan, request, make).frame
            return frames

        def run(uses: Sequence[TableUse], arrays: bool) -> DataFrame:
            if not uses:
                return spark.sql(text)  # without arguments, so that braces in the text have no meaning
            return spark.sql(with_placeholders(text, uses), **frames_of(uses, arrays))

        columns = (name for use in uses for name in (schema_of(use.name) or pa.schema([])).names)

        def tables_of_store() -> Sequence[str]:
            return [] if address is None else snapshot_of(address, at).list_tables()

        path = None if address is None else address.path
        with rewriting_unknown_names(path, tables_of_store, columns) as withheld:
            try:
                return run(uses, internals.available(spark))
            except AnalysisException as error:
                if not uses or not _may_succeed_with_all_columns(error):
                    raise
                # The analysis may have missed a column, or Spark may not accept arrays in this
                # statement (Q6).
                withheld.clear()
                whole = uses_of_all_columns(uses, schema_of)
                result = run(whole, False)
                remember_uses(text, whole)
                return result


def _may_succeed_with_all_columns(error: AnalysisException) -> bool:
    """Whether the statement might succeed if its scans returned all columns.

    Returns False for syntax errors and unknown tables.
    """
    if isinstance(error, ParseException):
        return False
    return not (error.getCondition() or "").startswith("TABLE_OR_VIEW_NOT_FOUND")


def catalog_identity(spark: SparkSession, name: Sequence[str]) -> dict[str, str] | None:
    """Return the options of a table of Spark's catalogue that was created with USING nyala.

    Returns None for other tables, for views, and for unknown names.
    """
    try:
        found = spark.catalog.getTable(".".join("`" + part.replace("`", "``") + "`" for part in name))
    except Exception:  # Spark raises this error again when it runs the statement
        return None
    if found.isTemporary or found.tableType == "VIEW":
        return None  # the schema of a view may have the options of a table, but a view has other rows
    schema = spark.table(".".join(f"`{part}`" for part in name)).schema
    check_unaltered(schema)
    return identity_of(schema)
