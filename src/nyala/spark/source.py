"""The data source: what Spark calls, and in which process.

Spark makes one of these for every `load()` and `save()`, in a planner worker, and pickles it from there.
`reader`, `writer` and their parameters are called by keyword: their names are Spark's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter

from nyala.errors import InvalidArgumentError
from nyala.spark.options import ReadOptions, WriteOptions
from nyala.spark.reader import NyalaReader, table_schema
from nyala.spark.types import spark_schema
from nyala.spark.writer import NyalaWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NyalaDataSource"]


class NyalaDataSource(DataSource):
    """`format("nyala")`. Options: see `ReadOptions` and `WriteOptions`.

    S1  All reads of one DataFrame see one snapshot: the moment of `load()`, or the option `at`.
    S2  A write is one atomic batch, or nothing.
    """

    # The snapshot of this `load()`, once it is chosen. Spark pickles this object after it called `schema()`.
    _timestamp: int | None = None

    @classmethod
    def name(cls) -> str:
        return "nyala"

    def schema(self) -> StructType:
        options = ReadOptions.parse(self.options)
        schema, self._timestamp = table_schema(options)
        return spark_schema(schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return NyalaReader(ReadOptions.parse(self.options), schema, self._timestamp)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = WriteOptions.parse(self.options)
        if overwrite:
            raise InvalidArgumentError(
                f"a write to table {options.table!r} cannot overwrite it: use .mode('append') with "
                ".option('operation', ...), and delete(where=...) before it if old rows are to go"
            )
        return NyalaWriter(options, schema)
