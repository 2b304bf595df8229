"""What makes `format("nyala")` known to Spark without a call: the package that Spark looks for.

Spark imports every top-level package whose name begins with `pyspark_`, in each program that uses any data source of
Python's, and registers the class that it finds there as `DefaultSource`. So this one is light: it imports nothing but
PySpark's own class, which is there already, and all of Nyala only when a table is asked for.

One such package that raises on import switches this off for *all* of them, so this one never raises: where pyspark is
missing it only has no `DefaultSource`, and `nyala.spark.register(spark)` then says why. What is missing below Nyala is
told when a table is asked for.

Source: pyspark, `pyspark/sql/worker/lookup_data_sources.py`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from nyala.spark.source.data_source import NyalaDataSource

# Exception, not ImportError: a broken pyarrow or pandas raises whatever it likes.
with contextlib.suppress(Exception):
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """`format("nyala")`: loads `NyalaDataSource` when Spark first calls it, and hands everything to it."""

        # Made when it is first asked for something, and pickled along: it keeps the snapshot that `schema` chose.
        _made: NyalaDataSource | None

        def __new__(cls, *_: Any, **__: Any) -> Self:
            source = super().__new__(cls)
            source._made = None
            return source

        @classmethod
        def name(cls) -> str:
            return "nyala"

        def _source(self) -> NyalaDataSource:
            if self._made is None:
                from nyala.spark.source.data_source import NyalaDataSource

                self._made = NyalaDataSource(self.options)
            return self._made

        def schema(self) -> StructType:
            return self._source().schema()

        def reader(self, schema: StructType) -> DataSourceReader:
            return self._source().reader(schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            return self._source().writer(schema, overwrite)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return self._source().streamReader(schema)

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return self._source().streamWriter(schema, overwrite)
