"""The class that Spark calls for `format("nyala")`, to make readers and writers.

Spark creates one object for every `load()` and `save()`, in a Python process on the driver's
machine (a planner worker), and pickles it there.
Spark passes the arguments of `reader` and `writer` by keyword, so their names are fixed.

A table of Spark's catalogue (`CREATE TABLE … USING nyala OPTIONS (…)`) keeps its schema but loses
its options. So `schema()` stores the options in the metadata of the schema's first field, and
`reader` and `writer` read them there. Options of a statement override stored options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter

from nyala.errors import InvalidArgumentError
from nyala.spark.source.changes import NyalaChangeReader, NyalaChangeStream, change_schema
from nyala.spark.source.option_messages import errors_in_options
from nyala.spark.source.options import (
    STORAGE,
    ChangeOptions,
    ReadOptions,
    WriteOptions,
    plain_names,
    reads_changes,
)
from nyala.spark.source.reader import NyalaReader, table_schema
from nyala.spark.source.stream_writer import NyalaStreamWriter
from nyala.spark.source.writer import NyalaWriter
from nyala.spark.types import check_unaltered, identity_of, is_as_read, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter
    from pyspark.sql.types import StructType

__all__ = ["NyalaDataSource"]

# The options that are stored in the schema. Others are only for one statement.
_KEPT: Final = (
    "path", "table", "where", "at", "changes", "startingtimestamp", "endingtimestamp", "versions", "before",
    "partitions", "lease",
)  # fmt: skip
_KEPT_FOR_WRITES: Final = ("path", "table")


def _is_kept(name: str, names: tuple[str, ...]) -> bool:
    return name in names or name.startswith(STORAGE)


class NyalaDataSource(DataSource):
    """The Spark data source `format("nyala")`: batch and streaming reads and writes.

    Use it through Spark. `ReadOptions`, `ChangeOptions` and `WriteOptions` describe the options.

    Examples
    --------
    ```python
    flights = spark.read.format("nyala").options(path="store", table="flights").load()
    df.write.format("nyala").options(path="store", table="flights").mode("append").save()
    ```

    Notes
    -----
    S1  All reads of one DataFrame see one snapshot: the moment of `load()`, or the option `at`. For
        a table of Spark's catalogue, each statement reads the present rows.
    S2  A write is one atomic batch, or nothing.
    S3  A write never goes to another table than its target. For some writes to a table of Spark's
        catalogue, Spark does not pass the metadata that names the target. Such a statement must
        name the target in its options, or it raises an error.
    """

    # The session's number of concurrent tasks. `nyala.spark.register` sets it, because a worker
    # cannot know it.
    cores: int | None = None

    # The options of the store that is used without an option `path`. `nyala.spark.register` sets them.
    default_store: Mapping[str, str] = MappingProxyType({})

    # The timestamp of this `load()`. `schema()` chooses it, and Spark pickles this object afterwards.
    _timestamp: int | None

    def __new__(cls, *_: Any, **__: Any) -> Self:
        source = super().__new__(cls)  # Spark does not allow a data source to override `__init__`
        source._timestamp = None
        return source

    @classmethod
    def name(cls) -> str:
        return "nyala"

    @errors_in_options()
    def schema(self) -> StructType:
        given = self._given()
        kept = {name: value for name, value in given.items() if value and _is_kept(name, _KEPT)}
        if reads_changes(given):
            changes = ChangeOptions.parse(given)
            return spark_schema(change_schema(changes), {**kept, "path": changes.path})
        options = ReadOptions.parse(given)
        schema, key, self._timestamp = table_schema(options)
        # The identity also has the key. In a schema of Spark, other columns than the key's may be
        # NOT NULL too.
        return spark_schema(schema, {**kept, "path": options.path, "key": json.dumps(key)})

    @errors_in_options()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._with_identity(schema, _KEPT)
        if not {"path", "table"} & options.keys():
            raise InvalidArgumentError(
                "format 'nyala' needs .option('path', …) and .option('table', …). CREATE TABLE t (columns) USING nyala "
                "does not create a table in the store, and Spark drops its options: create the table with "
                "db.create_table, then run CREATE TABLE t USING nyala OPTIONS (…) without a list of columns, or write "
                "SELECT … FROM t WITH (`path`='…', `table`='…')"
            )
        if reads_changes(options):
            changes = ChangeOptions.parse(options)
            if changes.max_rows is not None:
                raise InvalidArgumentError(
                    "option maxRowsPerTrigger is only for spark.readStream: remove it, or limit a batch read with "
                    "endingTimestamp"
                )
            return NyalaChangeReader(changes, schema, self.cores)
        return NyalaReader(ReadOptions.parse(options), schema, self._timestamp, self.cores)

    @errors_in_options()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = WriteOptions.parse(self._with_target(schema))
        if overwrite and plain_names(self.options).get("operation", "insert").lower() != "insert":
            raise InvalidArgumentError(
                f"mode('overwrite') replaces all rows of table {options.table!r}, so it cannot be combined with "
                f"operation={options.operation!r}: use mode('append'), or remove the operation"
            )
        if options.transaction is not None:
            raise InvalidArgumentError(
                "option 'transaction' is only for df.writeStream: remove it. To repeat a batch write safely, use "
                "operation='upsert' or operation='insert-ignore'"
            )
        key = None
        if options.operation.startswith("delete") and not is_as_read(schema):
            # For INSERT INTO … WITH (operation = 'delete'), Spark adds omitted columns as NULL.
            # Keep only the key.
            key = json.loads((identity_of(schema) or {}).get("key", "null"))
            if key is not None and options.newest_by is not None:
                key.append(options.newest_by)
        # For a table of its catalogue, Spark writes NULL into columns that INSERT omits.
        filled = identity_of(schema) is not None and not is_as_read(schema)
        return NyalaWriter(options, schema, overwrite, key, filled=filled)

    @errors_in_options()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._with_identity(schema, _KEPT)
        if not reads_changes(options):
            # Without the change feed's columns, a stream could not show that a row was deleted.
            raise InvalidArgumentError(
                "a stream can only read a table's changes: add .option('changes', True)"
            )
        changes = ChangeOptions.parse(options)
        if changes.end is not None:
            raise InvalidArgumentError(
                "option endingTimestamp is only for spark.read; use .trigger(availableNow=True) to end a stream after "
                "the present changes"
            )
        return NyalaChangeStream(changes, schema, self.cores)

    @errors_in_options()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = WriteOptions.parse(self._with_target(schema))
        if overwrite and plain_names(self.options).get("operation", "insert").lower() != "insert":
            raise InvalidArgumentError(
                f"output mode 'complete' replaces all rows of table {options.table!r} by each micro-batch, so it "
                f"cannot be combined with operation={options.operation!r}: remove the operation. To keep the other "
                "rows, use .outputMode('update').foreachBatch(function), and call nyala.spark.upsert(batch, table) in "
                "the function"
            )
        return NyalaStreamWriter(options, schema, overwrite)

    def _given(self) -> dict[str, str]:
        """Return the options of this statement, with names in lower case.

        If the statement has no path, or the path of the default store, the options that
        `nyala.spark.register` stored for this store are added.
        """
        given = plain_names(self.options)
        default = self.default_store
        is_default = "path" not in given or given["path"].rstrip("/") == default.get("path")
        return {**default, **given} if is_default else given

    def _with_identity(self, schema: StructType, names: tuple[str, ...]) -> dict[str, str]:
        """Return the options of this statement. If they name no table, add options from `schema`.

        Nyala stores the options that identify a table, such as its path, in the metadata of a Spark
        schema.

        schema: a schema that may have such metadata.
        names: the stored options that may be added.
        """
        given = self._given()
        remembered: Mapping[str, str] = identity_of(schema) or {}
        if "table" in given:
            return given
        kept = {name: value for name, value in remembered.items() if _is_kept(name, names)}
        if kept and plain_names(self.options).get("path", kept["path"]) == kept["path"]:
            check_unaltered(schema)
            return {**kept, **given}
        return given

    def _with_target(self, schema: StructType) -> dict[str, str]:
        """Return the options of a write, which name the target table.

        If the statement itself names no table, the options come from the metadata of the target
        table's schema.

        schema: the schema that Spark passes for the write. It is the target table's schema, or the
            schema of a table from which the rows were read. The metadata of the second kind is
            ignored, because it names the wrong table. `is_as_read` recognises the second kind.
        Raises InvalidArgumentError if the target table is unknown.
        """
        given = self._given()
        if "table" in given:
            return given
        options = {} if is_as_read(schema) else self._with_identity(schema, _KEPT_FOR_WRITES)
        if not {"path", "table"} & options.keys():
            raise InvalidArgumentError(
                "format 'nyala' needs .option('path', …) and .option('table', …). For a table of Spark's catalogue, "
                "write INSERT INTO t WITH (`path`='…', `table`='…') SELECT …, because Spark does not always pass the "
                "table's options. CREATE TABLE does not create a table in the store: instead of CREATE TABLE … AS "
                "SELECT, create the table with db.create_table, then run CREATE TABLE t USING nyala OPTIONS (…) and "
                "INSERT"
            )
        return options
