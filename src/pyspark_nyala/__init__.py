"""Makes `format("nyala")` available in Spark without a call of `nyala.spark.register`.

If a program uses any Python data source, Spark imports every top-level package whose name begins
with `pyspark_`, and registers its class `DefaultSource`. So this module must be light: it imports
only PySpark's base class, and loads Nyala when a table is used for the first time.

If one of these packages raises an error on import, Spark finds none of them. So this module never
raises. Without PySpark it has no `DefaultSource`, and `nyala.spark.register(spark)` reports the
reason. If a dependency of Nyala is missing, the first use of a table reports it.

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

# Exception, not ImportError: a broken pyarrow or pandas may raise any error.
with contextlib.suppress(Exception):
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """The class behind `format("nyala")`: passes all calls to a `NyalaDataSource`.

        The `NyalaDataSource` is made at the first call.
        """

        # Pickled with this object, because it has the snapshot that `schema` chose.
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
