"""Size limits of tables, columns and values: Kudu's defaults, and the greatest values that a user
may set.

The limits apply to the process that writes, like the flags of a Kudu server. Reading does not check
them, so data written under other limits stays readable. The precision of a decimal and the length
of a varchar are not among these limits: they belong to the type (`nyala.schema.types`).
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
    "max_cell_bytes": 16 << 20,  # one block must hold a whole value, and one log record several
    "max_key_bytes": 65_536,  # the catalogue stores two keys per rowset, the least and the greatest
    "max_identifier_bytes": 4096,
    "max_comment_bytes": 65_536,
    # 2 GiB, the most text in one Arrow string array, divided by 4 bytes per character, and by 2 for
    # safety.
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
        Bytes of one string, varchar or binary value, before the column file encodes it.
    max_key_bytes
        Bytes of an encoded primary key of several columns, and of an encoded range bound.
    max_identifier_bytes
        UTF-8 bytes of a table or column name.
    max_comment_bytes
        UTF-8 bytes of a table or column comment.
    max_slice_bytes
        Bytes of text that a write converts at a time, per column. Smaller slices need less memory.

    Raises
    ------
    InvalidArgumentError
        A limit is not a whole number, is less than 1 or is too large. The message names the limit.

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
"""For values that are compared with stored ones and not stored themselves."""
