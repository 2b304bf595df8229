"""The definition of a change feed: one table, its columns, and two moments (`changes.feed`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.delta.run import Timestamps
from nyala.errors import InvalidArgumentError
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.schema import ColumnSchema
from nyala.tablet.scan.read_path import SPLIT_ROWS
from nyala.tablet.state.root import TableState

Versions = Literal["net", "all"]
ValuesAt = Literal["since", "until", "both"]
Bools = npt.NDArray[np.bool_]

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
FEED_COLUMNS: Final = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
"""The columns of a feed after those of the table, named as in Delta's change data feed."""

# The most versions that are sorted by time at once. The changes are read again for each slice.
SLICE_VERSIONS: Final = 1 << 19


@dataclass(frozen=True)
class ChangeSpec(LazyValues):
    """The change feed of one table between two moments.

    columns:   the key columns first, then others.
    since:     the feed has the changes after this timestamp.
    until:     the feed has the changes up to this timestamp, inclusive.
    versions:  "net": one row per changed key; "all": one row per change.
    values_at: which values a change has.
               "until": those after the change; deleted rows have NULL outside the key.
               "both":  those before and those after the change, as two rows.
               "since": those at the timestamp `since`, only with versions="net"; inserted rows
                        have NULL outside the key.
    """

    columns: tuple[ColumnSchema, ...]
    key_count: int
    since: int
    until: int
    versions: Versions = "net"
    values_at: ValuesAt = "until"
    split_rows: int = SPLIT_ROWS
    slice_versions: int = SLICE_VERSIONS

    @lazy_value
    def arrow_schema(self) -> pa.Schema:
        """The feed's Arrow schema. Columns outside the key are nullable, for deleted rows."""
        fields = [column.arrow_field() for column in self.columns]
        fields[self.key_count :] = [field.with_nullable(True) for field in fields[self.key_count :]]
        return pa.schema(
            [
                *fields,
                pa.field(CHANGE_TYPE, pa.string(), nullable=False),
                pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
                pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC"), nullable=False),
            ]
        )

    def meets(self, timestamp_min: int | None, timestamp_max: int | None) -> bool:
        """Whether the feed's interval overlaps the time from `timestamp_min` to `timestamp_max`.

        If both are None, there are no changes, and the result is False.
        """
        return (
            timestamp_min is not None
            and timestamp_max is not None
            and timestamp_min <= self.until
            and timestamp_max > self.since
        )

    def inside(self, timestamps: Timestamps) -> Bools:
        """Return whether each timestamp is in the feed's interval."""
        return (timestamps > self.since) & (timestamps <= self.until)


def make_change_spec(
    table: TableState,
    since: int,
    until: int,
    versions: str,
    columns: Sequence[ColumnSchema],
    values_at: ValuesAt = "until",
) -> ChangeSpec:
    """Check a user's arguments for a change feed, and return the definition of the feed.

    versions:  "net": one row per changed key; "all": one row per change.
    columns:   the columns of the feed. The key columns are added if they are missing.
    values_at: whether a change has the values before it, after it, or both (see `ChangeSpec`).
    Raises: InvalidArgumentError.
    """
    if versions not in ("net", "all"):
        raise InvalidArgumentError(f"invalid versions={versions!r}: pass 'net' or 'all'")
    schema = table.schema
    shown = (*schema.key_columns, *(column for column in columns if not schema.is_key(column.name)))
    reserved = next((c.name for c in shown if c.name in FEED_COLUMNS), None)
    if reserved is not None:
        raise InvalidArgumentError(
            f"table {table.name!r} has a column {reserved!r}, a name that change feeds use themselves: "
            "pass columns=[…] without this column"
        )
    kind: Versions = "net" if versions == "net" else "all"
    return ChangeSpec(shown, schema.key_count, since, until, kind, values_at)
