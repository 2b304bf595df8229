"""`nyala.spark.write`: writes a DataFrame with `df.write.format("nyala")`, and returns a `WriteResult`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from nyala.env import Env, process_mark
from nyala.errors import Error, InvalidArgumentError, StorageError, WriteError
from nyala.handover import commits as handover
from nyala.objects.address import Address
from nyala.spark.arguments import address_of_store, check_frame, spark_options
from nyala.spark.cluster import is_classic
from nyala.spark.errors import errors_naming, plain_errors
from nyala.spark.jobs.progress import showing_progress
from nyala.tablet.state.messages import check_message
from nyala.tablet.state.result import WriteResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nyala.api.database import Database


__all__ = ["write"]

# If the driver dies before it removes the folder with the result, the folder expires after this time.
_RESULT_TTL_S: Final = 24 * 3600


def write(
    df: DataFrame,
    path: str | os.PathLike[str] | Database,
    table: str,
    *,
    operation: str = "upsert",
    errors: Literal["raise", "collect"] = "raise",
    when: str | None = None,
    newest_by: str | None = None,
    message: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WriteResult:
    """Write a DataFrame into a table as one atomic batch, and return the counts.

    It does the same as `df.write.format("nyala")…save()`, which returns nothing.

    Parameters
    ----------
    df
        The rows.
    path
        The store's folder, which the executors must see; its URL; or an open Database.
    table
        The table's name.
    operation
        "insert", "insert-ignore", "upsert", "update", "update-ignore", "delete", "delete-ignore",
        or "changes" for the rows of a change feed.
    errors
        "raise": one failing row rejects the batch. "collect": the good rows are written, and the
        failing rows are in `.errors` of the result.
    when, newest_by
        As in `Table.upsert`; `newest_by` also for "delete" and "delete-ignore".
    message
        A text of at most 1,000 characters about the commit; `table.commits()` shows it.
    storage_options
        For a URL: options of `nyala.connect`, without credentials. Each machine takes credentials
        from its own environment, or from the `credentials_file`.

    Returns
    -------
    WriteResult
        The counts and the timestamp. In `.errors`, `row` is the row's position in the order of
        Spark's partitions.

    Raises
    ------
    WriteError
        Rows failed and nothing was written; `.errors` has all failing rows. Other errors are those
        of `Table.insert`, `Table.upsert` and so on, also if a task raised them.

    Examples
    --------
    ```python
    result = nyala.spark.write(df, "store", "flights", operation="insert", errors="collect")
    print(result.inserted, len(result.errors))
    ```
    """
    check_frame(df, "nyala.spark.write")
    store = address_of_store(path, "nyala.spark.write", storage_options)
    if not isinstance(table, str):
        raise InvalidArgumentError(f"nyala.spark.write expects the table's name, got {table!r}")
    options = {"table": table, "operation": operation, "errors": errors}
    given = {"message": check_message(message), "when": when, "newest_by": newest_by}
    for name, text in given.items():
        if not isinstance(text, str | None):
            raise InvalidArgumentError(f"nyala.spark.write expects {name} as text, got {text!r}")
    options |= {name: text for name, text in given.items() if text is not None}
    with errors_naming(f"table {table!r}"):
        return _write(df, store, options)


def _write(df: DataFrame, store: Address, options: Mapping[str, str]) -> WriteResult:
    try:
        key, folder = handover.new_staging(store.path, _RESULT_TTL_S, store.env, process_mark())
    except StorageError as error:
        if store.in_bucket or is_classic(df.sparkSession):
            raise
        raise StorageError(
            f"{error}. With Spark Connect, nyala.spark.write also needs the store's folder on this machine; "
            "df.write.format('nyala') needs it only on the machines of the server and its executors",
            path=store.path,
        ) from error
    job = df.write.format("nyala").options(**spark_options(store), **options, result=folder).mode("append")
    try:
        try:
            with (
                showing_progress(df.sparkSession, f"{options['operation']} into {options['table']}"),
                plain_errors(),
            ):
                job.save()
        except WriteError as error:
            error.errors = _failed_rows(store.env, folder)
            raise
        outcome = json.loads(store.env.files.read_all(os.path.join(folder, "result.json")))
        failed = _failed_rows(store.env, folder) if outcome.pop("errors") else None
        return WriteResult(**outcome) if failed is None else WriteResult(**outcome, errors=failed)
    finally:
        with contextlib.suppress(Error):  # a folder that remains is removed when it expires
            handover.discard_staging(store.path, key, store.env)


def _failed_rows(env: Env, folder: str) -> pa.Table | None:
    """Read the failing rows that the commit wrote into the folder. None if no row failed."""
    import pyarrow.parquet as pq

    path = os.path.join(folder, "errors.parquet")
    if not env.files.exists(path):
        return None
    return pq.read_table(pa.BufferReader(env.files.read_all(path)))
