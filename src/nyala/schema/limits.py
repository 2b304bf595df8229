"""How large things may be: the limits of the specification, which a store may be opened with others of.

    max_columns             300        of a table
    max_cell_bytes       65,536        of a string, varchar or binary value, before encoding
    max_key_bytes        16,384        of a key of several columns, encoded; and of a range bound
    max_identifier_bytes    256        of the name of a table or column, as UTF-8
    max_comment_bytes       256        of the comment of a table or column, as UTF-8
    max_slice_bytes  268,435,456        of text of one column of a batch that a write converts at a time

They are of the process that writes, as Kudu's are of its servers: what was written under other limits stays readable.
Not here, because they are what the types are: a decimal's precision and scale, a varchar's length.
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
    "max_cell_bytes": 16 << 20,  # a block must hold one, and the log's records several
    "max_key_bytes": 65_536,  # the least and the greatest key of a rowset stand in the catalogue
    "max_identifier_bytes": 4096,
    "max_comment_bytes": 65_536,
    "max_slice_bytes": 1
    << 28,  # an Arrow array of strings addresses 2 GiB, and text may have 4 bytes a character
}


@dataclass(frozen=True)
class Limits:
    """Limits for `nyala.connect(limits=…)`. Raises: InvalidArgumentError naming the limit and the value."""

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
                raise InvalidArgumentError(f"{field.name}={value!r} is not a number from 1 to {most}")


DEFAULT_LIMITS: Final = Limits()
LARGEST: Final = Limits(**_MOST)
"""For what is looked up only."""
