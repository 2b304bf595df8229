"""All code that uses Spark's private classes, for speed that PySpark's public calls do not offer.

    available(spark)                          whether this session may use them
    arrays_wanted(spark, schema)              whether rows of this schema can travel as arrays
    as_arrays(batch)                          in a task: the rows of a batch as a few rows of arrays
    rows_of_arrays(frame, schema, …)          in the driver: the DataFrame with those rows again
    looks_small(df, max_bytes)                in the driver: whether Spark estimates the result as small

No other module of Nyala uses py4j, a private attribute of PySpark, or a class of Spark's that is not public
(`tests/unit/spark/test_internals.py`). The setting `spark.nyala.internals.enabled=false` switches all of this off.

Invariants
    J1  Public calls give the same results as each function here, more slowly. The callers use public calls if the
        setting is off, with Spark Connect, in versions of Spark that are not in KNOWN_IN, and if a class or parameter
        does not exist.
"""

from __future__ import annotations

from nyala.spark.internals.arrays import as_arrays
from nyala.spark.internals.plans import (
    SETTING,
    arrays_wanted,
    available,
    looks_small,
    rows_of_arrays,
)

__all__ = [
    "SETTING",
    "arrays_wanted",
    "as_arrays",
    "available",
    "looks_small",
    "rows_of_arrays",
]
