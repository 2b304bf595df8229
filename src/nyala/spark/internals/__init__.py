"""Everything that uses Spark's private classes: faster ways that no public call of PySpark offers.

    available(spark)                          whether this session may use them
    arrays_wanted(spark, schema)              whether rows of this schema can travel as arrays
    as_arrays(batch)                          in a task: the rows of a batch as a few rows of arrays
    rows_of_arrays(frame, schema, …)          in the driver: the DataFrame with those rows again
    looks_small(df, max_bytes)                in the driver: whether Spark estimates the result as small

No other module of Nyala uses py4j, a private attribute of PySpark, or a class of Spark's that is not public
(`tests/unit/spark/test_internals.py`). The setting `spark.nyala.internals.enabled=false` switches all of this off.

Invariants
    J1  Each function is a shorter or quicker way to what public calls do too. The callers use public calls where the
        setting is off, with Spark Connect, in a version of Spark that is not in KNOWN_IN, and where a class or a
        parameter turns out to be another.
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
