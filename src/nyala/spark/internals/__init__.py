"""All code that uses Spark's private classes, which are faster than PySpark's public calls.

    available(spark)                   whether this session may use private classes
    can_use_arrays(spark, schema)      whether tasks may return rows of this schema as arrays
    as_arrays(batch)                   in a task: converts the rows of a batch to a few rows of
                                       arrays
    rows_of_arrays(frame, schema, …)   in the driver: converts a DataFrame of such arrays to one of
                                       rows
    looks_small(df, max_bytes)         in the driver: whether Spark estimates the result as small

No other module of Nyala uses py4j, a private attribute of PySpark, or a class of Spark that is not
public (`tests/unit/spark/test_internals.py`). The setting `spark.nyala.internals.enabled=false`
switches all of this off.

Invariants
    J1  Every caller also has a slower way with public calls, which gives the same result. It takes
        this way if the setting is off, with Spark Connect, and in versions of Spark that are not in
        KNOWN_IN. It also does so if a class or parameter does not exist.
"""

from __future__ import annotations

from nyala.spark.internals.arrays import as_arrays
from nyala.spark.internals.plans import (
    SETTING,
    available,
    can_use_arrays,
    looks_small,
    rows_of_arrays,
)

__all__ = [
    "SETTING",
    "as_arrays",
    "available",
    "can_use_arrays",
    "looks_small",
    "rows_of_arrays",
]
