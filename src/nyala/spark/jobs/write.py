"""`nyala.spark.write`: `df.write.format("nyala")` for the driver's program, with a result."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from nyala.env import SYSTEM, process_mark
from nyala.errors import Error, InvalidArgumentError, StorageError, WriteError
from nyala.handover import commits as handover
from nyala.spark.arguments import check_frame, folder_of
from nyala.spark.cluster import is_classic
from nyala.spark.errors import named, plain_errors
from nyala.spark.jobs.progress import watching
from nyala.tablet.state.result import WriteResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


__all__ = ["write"]

# The folder for a write's outcome, which its driver removes when it has read it.
_RESULT_TTL_S: Final = 24 * 3600


def write(
    df: DataFrame,
    path: str | os.PathLike[str],
    table: str,
    *,
    operation: str = "upsert",
    errors: Literal["raise", "collect"] = "raise",
) -> WriteResult:
    """`df.write.format("nyala")…save()` that returns what became of the rows.

    With `errors="collect"` the good rows are applied and `.errors` of the result is an Arrow table of the others
    (row: their place in the order of Spark's partitions). The folder `path` must be visible to the executors.
    Raises: as `Table.insert` and its like, also what a task raised; WriteError with all failing rows in `.errors`.
    """
    check_frame(df, "nyala.spark.write")
    store = os.path.abspath(folder_of(path, "nyala.spark.write"))
    if not isinstance(table, str):
        raise InvalidArgumentError(f"nyala.spark.write takes the table's name, not {table!r}")
    with named(f"table {table!r}"):
        return _write(df, store, table, operation, errors)


def _write(df: DataFrame, store: str, table: str, operation: str, errors: str) -> WriteResult:
    try:
        key, folder = handover.new_staging(store, _RESULT_TTL_S, owner=process_mark())
    except StorageError as error:
        if is_classic(df.sparkSession):
            raise
        raise StorageError(
            f"{error}. With Spark Connect, nyala.spark.write needs the store's folder where this program runs too; "
            "df.write.format('nyala') needs it only where the server and its executors run",
            path=store,
        ) from error
    job = (
        df.write.format("nyala")
        .options(path=store, table=table, operation=operation, errors=errors, result=folder)
        .mode("append")
    )
    try:
        try:
            with watching(df.sparkSession, f"{operation} into {table}"), plain_errors():
                job.save()
        except WriteError as error:
            error.errors = _failed_rows(folder)
            raise
        outcome = json.loads(SYSTEM.files.read_all(os.path.join(folder, "result.json")))
        failed = _failed_rows(folder) if outcome.pop("errors") else None
        return WriteResult(**outcome) if failed is None else WriteResult(**outcome, errors=failed)
    finally:
        with contextlib.suppress(Error):  # what stays goes when its time is over
            handover.discard_staging(store, key)


def _failed_rows(folder: str) -> pa.Table | None:
    """What a commit left there of rows that failed."""
    import pyarrow.parquet as pq

    path = os.path.join(folder, "errors.parquet")
    if not SYSTEM.files.exists(path):
        return None
    return pq.read_table(pa.BufferReader(SYSTEM.files.read_all(path)))
