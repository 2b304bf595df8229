"""Scans as other engines' lazy sources: what the engine asks for is pushed into the scan, and the engine
checks the rest.

polars asks a source for columns, a predicate and a number of rows; it trusts the source to have applied the
predicate. The columns narrow our scan; the predicate is applied here, by polars itself, batch by batch, so
it means what it means in polars.

Left out: pruning by polars' predicate. Give `where` to the scan for that.
Source: ecosystem notes, interchange; polars' `register_io_source`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from nyala.scan import Scan


def polars_lazy(scan: Scan) -> pl.LazyFrame:
    """A LazyFrame that reads `scan` when collected, as often as asked, always at the scan's moment."""
    import polars
    from polars.io.plugins import register_io_source

    def frame_of(batch: Any) -> Any:
        return polars.from_arrow(batch)

    def read(
        with_columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
    ) -> Iterator[Any]:
        del batch_size  # our windows are larger than any that helps polars
        wanted = scan.schema.names if with_columns is None else with_columns
        needed = set(wanted) | (set() if predicate is None else set(predicate.meta.root_names()))
        left = n_rows
        for batch in scan.narrowed([name for name in scan.schema.names if name in needed]).to_reader():
            frame = frame_of(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            frame = frame.select(wanted)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            yield frame
            if left == 0:
                return

    empty = frame_of(scan.schema.empty_table())
    lazy: pl.LazyFrame = register_io_source(read, schema=empty.schema, is_pure=True)
    return lazy
