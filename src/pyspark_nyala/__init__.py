"""What makes `format("nyala")` known to Spark without a call: the package that Spark looks for.

Spark imports every top-level package whose name begins with `pyspark_` and registers the class that it finds
there as `DefaultSource`. One such package that raises on import switches this off for *all* of them, so this
one never raises: where pyspark (or anything below it) is missing, it only has no `DefaultSource`, and
`nyala.spark.register(spark)` then says why.

Source: pyspark, `pyspark/sql/worker/lookup_data_sources.py`.
"""

from __future__ import annotations

import contextlib

# Exception, not ImportError: a broken pyarrow or pandas raises whatever it likes.
with contextlib.suppress(Exception):
    from nyala.spark.source import NyalaDataSource as DefaultSource  # noqa: F401
