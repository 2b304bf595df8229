"""Converts a column's values between the types that the column had in different versions of the
schema.

    stored       file of version 3: int32      file of version 5: int64      change of version 5: int64
                       └──────────────┬───────────────┴─────────────┬────────────────┘
    concat_versions                 int64, the widest type of these
                                      │ adapt
    returned     current schema: int64         schema at T (version 3): int32

An alteration can only make a column's type wider (`nyala.schema.alteration`): int8 to int64, float
to double, a decimal to more digits. So of any two types that a column had, one holds all values of
the other. A varchar and a string have the same Arrow type.

Invariants
    A1  `concat_versions` keeps every value.
    A2  `adapt` to an older, narrower type keeps the values that were written while the column had
        this type. It may change newer values. But only a read of an older moment uses the older
        type, and this read does not return newer values.

Source: Kudu schema changes, "Handling varying schemas at read time". It leaves changes of type to
"type adapters".
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from nyala.errors import CorruptionError

__all__ = ["adapt", "concat_versions", "may_be_one_column"]


def may_be_one_column(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether the same column can have had both types, in different versions of the schema.

    Used to validate files, log records and scan tokens.
    """
    if one == other:
        return True
    if pa.types.is_decimal128(one) and pa.types.is_decimal128(other):
        return bool(one.scale == other.scale)
    return any(kind(one) and kind(other) for kind in (pa.types.is_signed_integer, pa.types.is_floating))


def adapt(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert a column's values to the type that it has in another version of the schema.

    If this type is narrower, values outside its range become other values. Only a read of an older
    moment uses a narrower type. All values at that moment are in its range, so the read returns
    only unchanged values.

    Nothing is copied if the types are equal, or if both are decimals.
    Raises: CorruptionError if the same column cannot have had both types.
    """
    if array.type == wanted:
        return array
    if not may_be_one_column(array.type, wanted):
        raise CorruptionError(f"expected values of type {wanted}, found {array.type}")
    if pa.types.is_decimal128(wanted):
        # A decimal of the same scale has the same 16 bytes for every precision.
        return pa.Array.from_buffers(wanted, len(array), array.buffers(), array.null_count, array.offset)
    return array.cast(wanted, safe=False)


def concat_versions(arrays: Sequence[pa.Array]) -> pa.Array:
    """Concatenate arrays of one column that come from different versions of the schema.

    An alteration may have made the column's type wider between these versions. The result has the
    widest type, so it keeps every value.
    """
    widest = max([array.type for array in arrays], key=_width)
    return pa.concat_arrays([adapt(array, widest) for array in arrays])


def _width(type: pa.DataType) -> tuple[int, int]:
    precision = type.precision if pa.types.is_decimal(type) else 0
    try:
        return type.bit_width, precision
    except ValueError:  # text and binary
        return 0, precision
