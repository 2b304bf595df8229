"""One column's values under several versions of a schema: brought to one type, and given in the type that is asked for.

    stored       file of version 3: int32      file of version 5: int64      change of version 5: int64
                       └──────────────┬───────────────┴─────────────┬────────────────┘
    joined                          int64, the widest of what is there
                                      │ adapt
    asked for    schema of now: int64          schema of T (version 3): int32

Types of one column only ever widen (`nyala.schema.alteration`), so of any two of them one holds all values of the
other: integers by their width, float below double, decimals of one scale by their precision; a varchar, of any length,
and a string are one Arrow type.

Invariants
    A1  `joined` loses nothing.
    A2  `adapt` to a narrower type is right for every value that the column had while it had that type. Others turn into
        something of that type: they stand in rows that are not there at the moment that is read, which nobody sees.

Source: Kudu schema changes, "Handling varying schemas at read time", which leaves type changes to "type adapters".
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from nyala.errors import CorruptionError

__all__ = ["adapt", "are_versions", "joined", "widest"]


def are_versions(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether one column can have had both types in its life. What a file, a record or a token says is not believed."""
    if one == other:
        return True
    if pa.types.is_decimal128(one) and pa.types.is_decimal128(other):
        return bool(one.scale == other.scale)
    return any(kind(one) and kind(other) for kind in (pa.types.is_signed_integer, pa.types.is_floating))


def adapt(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values in another type of the same column (A2). Cost: nothing for equal types, and for decimals.

    Raises: CorruptionError when no column can have had both types.
    """
    if array.type == wanted:
        return array
    if not are_versions(array.type, wanted):
        raise CorruptionError(f"expected values of type {wanted}, found {array.type}")
    if pa.types.is_decimal128(wanted):
        # Of one scale: the same sixteen bytes, whatever the precision says.
        return pa.Array.from_buffers(wanted, len(array), array.buffers(), array.null_count, array.offset)
    return array.cast(wanted, safe=False)


def widest(types: Sequence[pa.DataType]) -> pa.DataType:
    """That of these types of one column that holds all values of the others."""
    return max(types, key=_width)


def joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """The values of several arrays of one column end to end, in the widest of their types (A1)."""
    first = arrays[0].type
    if any(array.type != first for array in arrays):
        wanted = widest([array.type for array in arrays])
        arrays = [adapt(array, wanted) for array in arrays]
    return pa.concat_arrays(arrays)


def _width(type: pa.DataType) -> tuple[int, int]:
    precision = type.precision if pa.types.is_decimal(type) else 0
    try:
        return type.bit_width, precision
    except ValueError:  # text and binary
        return 0, precision
