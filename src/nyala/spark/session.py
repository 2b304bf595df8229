"""For the driver's program: make the format known, and write with a result in hand."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import warnings
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

import nyala
from nyala.env import SYSTEM
from nyala.spark.frames import is_classic, scan_to_spark
from nyala.spark.source import NyalaDataSource
from nyala.spark.statements import find_uses, with_placeholders
from nyala.spark.types import identity_of
from nyala.tablet.result import WriteResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from nyala.database import Snapshot
    from nyala.table import TableView

__all__ = ["register", "sql", "write"]


def register(spark: SparkSession) -> None:
    """Make `format("nyala")` known to this session.

    Not needed where Spark finds the package `pyspark_nyala` by itself: wherever Nyala is installed with pip.
    Warns when Spark's Python workers are not this Python, because they then may not have Nyala at all.
    """
    context = getattr(spark, "sparkContext", None) if is_classic(spark) else None
    if context is not None:
        worker = shutil.which(context.pythonExec) or context.pythonExec
        if os.path.abspath(worker) != os.path.abspath(sys.executable):
            warnings.warn(
                f"Spark's Python workers run {worker}, this program runs {sys.executable}: set the environment "
                "variable PYSPARK_PYTHON to the latter before the session starts, or install nyala[spark] there too",
                stacklevel=2,
            )
    spark.dataSource.register(NyalaDataSource)


def write(
    df: DataFrame,
    path: str | os.PathLike[str],
    table: str,
    *,
    operation: str = "upsert",
    errors: Literal["raise", "collect"] = "raise",
) -> WriteResult:
    """`df.write.format("nyala")…save()` that returns what became of the rows.

    With `errors="collect"` the good rows are applied and `.errors` of the result is an Arrow table of the others
    (row: their place in the order of Spark's partitions). The folder `path` must be visible to the executors.
    """
    with tempfile.TemporaryDirectory(prefix="nyala-spark-") as folder:
        (
            df.write.format("nyala")
            .options(path=os.fspath(path), table=table, operation=operation, errors=errors, result=folder)
            .mode("append")
            .save()
        )
        outcome = json.loads(SYSTEM.files.read_all(os.path.join(folder, "result.json")))
        failed = None
        if outcome.pop("errors"):
            import pyarrow.parquet as pq

            found = SYSTEM.files.read_all(os.path.join(folder, "errors.parquet"))
            failed = pq.read_table(pa.BufferReader(found))
        return WriteResult(**outcome, errors=failed)


def sql(
    spark: SparkSession, text: str, store: str | os.PathLike[str] | None = None, at: Any = None
) -> DataFrame:
    """Spark's answer to a SELECT, which reads of each Nyala table only the columns and rows that it needs.

    store:  the folder whose tables the statement may name; other names are Spark's own. None: only tables of Spark's
            catalogue that were made with `CREATE TABLE … USING nyala`.
    at:     the moment of all tables; None: now. All tables of a store are read at one timestamp.
    Raises: InvalidArgumentError for what is no single SELECT, ColumnNotFoundError, HistoryExpiredError; Spark's
            AnalysisException for what Spark does not accept; ImportError without sqlglot.
    """
    with contextlib.ExitStack() as opened:
        snapshots: dict[str, Snapshot] = {}

        def snapshot_of(path: str) -> Snapshot:
            path = os.path.abspath(path)
            if path not in snapshots:
                database = opened.enter_context(nyala.connect(path, read_only=True))
                snapshots[path] = opened.enter_context(database.snapshot(at=at))
            return snapshots[path]

        def table_of(name: tuple[str, ...]) -> TableView | None:
            if store is not None and len(name) == 1:
                tables = snapshot_of(os.fspath(store))
                if name[0] in tables.list_tables():
                    return tables[name[0]]
            identity = catalog_identity(spark, name)
            return None if identity is None else snapshot_of(identity["path"])[identity["table"]]

        def schema_of(name: tuple[str, ...]) -> pa.Schema | None:
            table = table_of(name)
            return None if table is None else table.schema

        uses = find_uses(text, schema_of)
        frames: dict[str, Any] = {}
        for number, use in enumerate(uses):
            table = table_of(use.name)
            assert table is not None
            # Rows without any column would be no rows to Spark.
            columns = use.columns or (table.primary_key[0],)
            frames[f"nyala_{number}"] = scan_to_spark(spark, table.scan(list(columns), use.where))
        # Without a table of ours nothing in the text is a placeholder.
        return spark.sql(with_placeholders(text, uses), **frames) if frames else spark.sql(text)


def catalog_identity(spark: SparkSession, name: Sequence[str]) -> dict[str, str] | None:
    """Path and table of a table of Spark's catalogue that was made with USING nyala; None: it is none, or a view."""
    try:
        found = spark.catalog.getTable(".".join("`" + part.replace("`", "``") + "`" for part in name))
    except Exception:  # whatever Spark says of a name that it does not know, or cannot: it will say it again
        return None
    if found.isTemporary or found.tableType == "VIEW":
        return None  # its schema may have our mark, and its rows are others
    return identity_of(spark.table(".".join(f"`{part}`" for part in name)).schema)
