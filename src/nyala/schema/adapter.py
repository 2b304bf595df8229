"""Type adapters: converts a column's values between the types of different schema versions.

    stored       file of version 3: int32      file of version 5: int64      change of version 5: int64
                       └──────────────┬───────────────┴─────────────┬────────────────┘
    concat_versions                 int64, the widest type of these
                                      │ adapt
    returned     current schema: int64         schema at T (version 3): int32

A column's type only widens (`nyala.schema.alteration`). Of any two types of a column, one therefore holds all values of
the other: wider integers, double over float, decimals of the same scale with higher precision. Varchars of any length
and string have one Arrow type.

Invariants
    A1  `concat_versions` loses nothing.
    A2  `adapt` to a narrower type is correct for every value from the time when the column had that type. Newer values
        become arbitrary values of that type. They are only in rows that a read at that time does not return.

Source: Kudu schema changes, "Handling varying schemas at read time", which leaves type changes to "type adapters".
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from nyala.errors import CorruptionError

__all__ = ["adapt", "concat_versions", "may_be_one_column"]


def may_be_one_column(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether one column can have both types in different versions. Used to validate files, log records and tokens."""
    if one == other:
        return True
    if pa.types.is_decimal128(one) and pa.types.is_decimal128(other):
        return bool(one.scale == other.scale)
    return any(kind(one) and kind(other) for kind in (pa.types.is_signed_integer, pa.types.is_floating))


def adapt(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert the values to another type of the same column (A2). Free for equal types and for decimals.

    Raises: CorruptionError when the types cannot belong to one column.
    """
    if array.type == wanted:
        return array
    if not may_be_one_column(array.type, wanted):
        raise CorruptionError(f"expected values of type {wanted}, found {array.type}")
    if pa.types.is_decimal128(wanted):
        # Equal scales: the same sixteen bytes for every precision.
        return pa.Array.from_buffers(wanted, len(array), array.buffers(), array.null_count, array.offset)
    return array.cast(wanted, safe=False)


def concat_versions(arrays: Sequence[pa.Array]) -> pa.Array:
    """Concatenate arrays of one column, in the widest of their types (A1)."""
    widest = max([array.type for array in arrays], key=_width)
    return pa.concat_arrays([adapt(array, widest) for array in arrays])


def _width(type: pa.DataType) -> tuple[int, int]:
    precision = type.precision if pa.types.is_decimal(type) else 0
    try:
        return type.bit_width, precision
    except ValueError:  # text and binary
        return 0, precision
