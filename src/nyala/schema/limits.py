"""Size limits of tables, columns and values: the specification's defaults, and the greatest allowed settings.

Limits apply to the process that writes, like Kudu's server flags: data written under other limits stays readable.
A decimal's precision and a varchar's length are properties of the types, not limits (`nyala.schema.types`).
Source: Kudu schema design, "Known Limitations"; Kudu's flags max_num_columns, max_cell_size_bytes,
max_encoded_key_size_bytes, max_identifier_length.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from nyala.errors import InvalidArgumentError

__all__ = ["DEFAULT_LIMITS", "LARGEST", "Limits"]

_MOST: Final = {
    "max_columns": 10_000,
    "max_cell_bytes": 16 << 20,  # a block must hold one value, and a log record several
    "max_key_bytes": 65_536,  # the catalogue stores the least and the greatest key of each rowset
    "max_identifier_bytes": 4096,
    "max_comment_bytes": 65_536,
    # An Arrow string array addresses 2 GiB, and a character may take 4 bytes.
    "max_slice_bytes": 1 << 28,
}


@dataclass(frozen=True)
class Limits:
    """Size limits for `nyala.connect(limits=…)`.

    Parameters
    ----------
    max_columns
        Columns per table.
    max_cell_bytes
        Bytes of a string, varchar or binary value, before encoding.
    max_key_bytes
        Bytes of an encoded primary key of several columns, and of an encoded range bound.
    max_identifier_bytes
        UTF-8 bytes of a table or column name.
    max_comment_bytes
        UTF-8 bytes of a table or column comment.
    max_slice_bytes
        Bytes of text that a write converts at a time, per column.

    Raises
    ------
    InvalidArgumentError
        A limit is not a whole number, less than 1 or too large. The message names the limit.

    Examples
    --------
    >>> with nyala.connect(folder, limits=Limits(max_columns=1000)) as wide:
    ...     wide.list_tables()
    []
    """

    max_columns: int = 300
    max_cell_bytes: int = 65_536
    max_key_bytes: int = 16_384
    max_identifier_bytes: int = 256
    max_comment_bytes: int = 256
    max_slice_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        for field in fields(self):
            value, most = getattr(self, field.name), _MOST[field.name]
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise InvalidArgumentError(f"{field.name}={value!r} must be a whole number from 1 to {most}")


DEFAULT_LIMITS: Final = Limits()
LARGEST: Final = Limits(**_MOST)
"""For values that are only compared with stored ones."""
