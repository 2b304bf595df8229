"""Large loads and upserts in which executors write the files: `nyala.spark.load`,
`nyala.spark.upsert`.

    driver                                                      executors
    take a snapshot S of the table, and a lease on its files
    shuffle the rows by tablet, in Spark's own code      ─────►  sort by key; look up the keys in the files of S;
                                                         ◄─────  stage rowset and delta files (`write_tablet`)
    commit: the store's writer names the files in one
    catalogue change, and resolves again the rows whose
    keys changed after S

Other writes wait only for the commit, which reads no row of the load. The shuffle roughly doubles
the cost of a write, so the rows of a small DataFrame are collected into the driver (`small_frames`).

If a key occurs several times in the DataFrame, its rows are applied in the order of the DataFrame's
partitions, as in every write.

Invariants
    D1  A job that fails, or whose driver dies, changes nothing. The job removes its staged files at
        its end. If the driver dies, the store's writer removes them: when it next opens the
        store on the same machine, or after the time in the name of their folder.
    D2  A task may run twice. Each attempt writes its own files, and the commit names the files of
        one attempt.

Source: docs/design/loads-and-jobs.md, "Executors write the files of a large load";
docs/design/rules.md, W6 and R4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F

from nyala import compute as pc
from nyala.env import process_mark
from nyala.errors import Error, InvalidArgumentError, WriteError, write_error
from nyala.handover import commits as handover
from nyala.objects.address import Address
from nyala.schema.arrow_ipc import from_ipc, to_ipc
from nyala.spark.arguments import address_of_database, check_frame, check_table
from nyala.spark.cluster import cores_of
from nyala.spark.errors import add_place, errors_naming, plain_errors
from nyala.spark.jobs.progress import renewing_lease, showing_progress
from nyala.spark.jobs.routing import key_columns, single_hash, tablet_number
from nyala.spark.jobs.small_frames import PLACE_BITS, small_rows
from nyala.spark.source.option_messages import without_row_positions
from nyala.spark.source.options import LEASE_DEFAULT_S, lease_seconds
from nyala.spark.source.reader import HeldLease, in_task
from nyala.spark.source.writer import check_no_feed, failure_text, failures_text, unique_columns
from nyala.spark.types import arrow_schema
from nyala.tablet.jobs.load_commit import LoadCommit
from nyala.tablet.jobs.load_job import LoadPlan, StagedTablet
from nyala.tablet.jobs.load_write import (
    ROW,
    check_columns,
    check_columns_of,
    check_keys_given,
    write_tablet,
)
from nyala.tablet.jobs.staged_files import TABLET, check_names, with_tablets
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.leased_files import kept_by_lease
from nyala.tablet.state.messages import check_message
from nyala.tablet.state.result import WriteResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nyala.api.table import Table
    from nyala.tablet.state.root import TableState

__all__ = ["load", "upsert"]

TASKS_PER_CORE: Final = 4
# Staged files are kept this much longer than the job's lease, because a commit may wait for the
# store's lock and for other writes.
STAGING_MARGIN_S: Final = 3600
_ANSWER: Final = "tablet int, staged binary, errors binary"
_ANSWER_SCHEMA: Final = pa.schema([("tablet", pa.int32()), ("staged", pa.binary()), ("errors", pa.binary())])

_FEED_ADVICE: Final = "nyala.spark.write(df, store, table, operation='changes') applies them"
LATE: Final = "another write changed this key while the job ran"

Errors = Literal["raise", "collect"]


def load(
    df: DataFrame,
    table: Table,
    *,
    on_conflict: Literal["error", "ignore"] = "error",
    errors: Errors = "raise",
    message: str | None = None,
    tasks: int | None = None,
    lease: float = LEASE_DEFAULT_S,
) -> WriteResult:
    """Insert a large DataFrame as one atomic batch. The executors write the rowset files.

    Parameters
    ----------
    df
        The rows.
    table
        The table, of a database that this program has open. `read_only=True` is enough.
    on_conflict
        "error": a duplicate key is an error. "ignore": rows whose keys exist at the commit are skipped.
    errors
        "raise": one failing row rejects the batch. "collect": the good rows are written, and the
        failing rows are in `.errors` of the result.
    message
        A text of at most 1,000 characters about the commit; `table.commits()` shows it.
    tasks
        The number of tasks that write. Default: one per tablet, but at most four per core. If the
        DataFrame is small and this process is the store's writer, the default is to write without
        tasks.
    lease
        Seconds for which the job's files are kept if the driver dies. The job renews this lease.

    Returns
    -------
    WriteResult
        The counts and the timestamp. `.errors` has the key columns of each failing row, and in
        `row` its `monotonically_increasing_id()` in `df` (2^33 × partition + position). `row` is
        NULL if the row failed because another write changed its key while the job ran.

    Raises
    ------
    WriteError
        Rows failed and nothing was written; `.errors` has all failing rows. Other errors are those
        of `Table.insert`.
    SchemaError
        The table was altered while the job ran. Nothing was written.

    Examples
    --------
    ```python
    df = spark.read.parquet("flights/*.parquet")
    print(nyala.spark.load(df, db["flights"], on_conflict="ignore").inserted)
    ```
    """
    operation = "insert-ignore" if on_conflict == "ignore" else "insert"
    return _run(df, table, operation, errors, message, tasks, lease)


def upsert(
    df: DataFrame,
    table: Table,
    *,
    errors: Errors = "raise",
    message: str | None = None,
    tasks: int | None = None,
    lease: float = LEASE_DEFAULT_S,
    when: str | None = None,
    newest_by: str | None = None,
) -> WriteResult:
    """Upsert a large DataFrame as one atomic batch. The executors write rowset and delta files.

    An existing row keeps the values of columns that the DataFrame does not have. Parameters, result
    and errors are those of `load`. `when` and `newest_by` are not supported and raise
    InvalidArgumentError: use `nyala.spark.write` for them.

    Examples
    --------
    ```python
    corrected = spark.table("corrections").select("flight", "day", "delay")
    print(nyala.spark.upsert(corrected, db["flights"]).updated)
    ```
    """
    for name, value in (("when", when), ("newest_by", newest_by)):
        if value is not None:
            raise InvalidArgumentError(
                f"nyala.spark.upsert takes no {name}, because its tasks write files before the stored rows are "
                f"compared: use nyala.spark.write(df, store, table, {name}={value!r})"
            )
    return _run(df, table, "upsert", errors, message, tasks, lease)


def _run(
    df: DataFrame,
    table: Table,
    operation: str,
    errors: Errors,
    message: str | None,
    tasks: int | None,
    lease: float,
) -> WriteResult:
    if errors not in ("raise", "collect"):
        raise InvalidArgumentError(f"errors must be 'raise' or 'collect', got {errors!r}")
    call = f"nyala.spark.{'upsert' if operation == 'upsert' else 'load'}"
    check_frame(df, call)
    check_table(table, call)
    lease_s = lease_seconds(lease, f"{call}: ")
    check_message(message)
    name = table.name
    check_names(name, unique_columns(name, df.schema))
    with errors_naming(f"table {name!r}"):
        return _run_job(df, table, call, operation, errors, message, tasks, lease_s)


def _run_job(
    df: DataFrame,
    table: Table,
    call: str,
    operation: str,
    errors: Errors,
    message: str | None,
    tasks: int | None,
    lease_s: float,
) -> WriteResult:
    address, name, columns = address_of_database(table._database), table.name, df.columns
    path, env = address.path, address.env
    arrow = arrow_schema(df.schema)
    if tasks is None and not table._database.read_only:
        state = table._database._store.root.table(name)
        check_no_feed(state.schema, name, columns, _FEED_ADVICE)
        check_keys_given(state.schema, name)
        check_columns_of(state, operation, arrow)
        with plain_errors():
            rows = small_rows(df, f"{operation} into {name}")
        if rows is not None:
            return _write_here(rows, table, operation, errors, message)
    with (
        handover.loading(path, name, lease_s, reserve=operation == "upsert", what=call, env=env) as (
            plan,
            lease_name,
        ),
        renewing_lease(address, lease_name, lease_s),
    ):
        check_no_feed(plan.schema, name, columns, _FEED_ADVICE)
        check_keys_given(plan.schema, name)
        check_columns(plan, operation, arrow)
        key, folder = handover.new_staging(path, lease_s + STAGING_MARGIN_S, env, process_mark(), lease_name)
        try:
            held = HeldLease(address, lease_name, lease_s)
            task_plan = _plan_for_tasks(plan, folder, address)
            frame = _by_tablet(df, plan, tasks)
            with showing_progress(df.sparkSession, f"{operation} into {name}"), plain_errors():
                task = _writer(task_plan, operation, held, frame.columns)
                answers = _with_plain_names(frame).mapInArrow(task, _ANSWER).collect()
            staged = [
                StagedTablet.from_json(json.loads(bytes(row.staged)))
                for row in answers
                if row.staged is not None
            ]
            failed = [from_ipc(bytes(row.errors)) for row in answers if row.errors is not None]
            problems = without_row_positions(pa.concat_tables(failed).sort_by("row")) if failed else None
            if problems is not None and errors == "raise":
                raise _rejected(name, problems)
            files = {found.rowset.id: found for tablet in plan.tablets for found in tablet.rowsets}
            touched = {made.rowset_id for tablet in staged for made in tablet.deltas}
            job = LoadCommit(
                key, plan.table_id, plan.schema.version, plan.snapshot, operation, tuple(columns), tuple(staged),
                {number: files[number] for number in touched}, errors == "collect", message,
            )  # fmt: skip
            try:
                outcome = handover.commit_load_files(path, job, env)
            except WriteError as error:
                if error.errors is None:
                    raise
                raise _rejected(name, _errors_at_commit(error.errors, _all_tablets(plan))) from None
        finally:
            with contextlib.suppress(Error):  # files that remain are removed when they expire
                handover.discard_staging(path, key, env)
    late: pa.Table | None = outcome.pop("errors")
    found_errors = [problems, None if late is None else _errors_at_commit(late, _all_tablets(plan))]
    found_errors = [table_ for table_ in found_errors if table_ is not None and table_.num_rows]
    if not found_errors:
        return WriteResult(**outcome)
    return WriteResult(**outcome, errors=pa.concat_tables(found_errors, promote_options="permissive"))


def _write_here(
    rows: pa.Table, table: Table, operation: str, errors: Errors, message: str | None
) -> WriteResult:
    """Write the rows of a small DataFrame in this process. Failing rows get Spark's row numbers."""
    numbers = rows.column(ROW).combine_chunks()
    data = rows.drop_columns([ROW])

    def numbered(found: pa.Table) -> pa.Table:
        at = found.schema.get_field_index("row")
        found = found.set_column(at, found.schema.field(at), numbers.take(found.column(at)))
        return with_tablets(without_row_positions(found), table._database._store.root.table(table.name))

    try:
        if operation == "upsert":
            result = table.upsert(data, errors=errors, message=message)
        else:
            conflict: Literal["error", "ignore"] = "ignore" if operation == "insert-ignore" else "error"
            result = table.insert(data, conflict, errors=errors, message=message)
    except WriteError as error:
        if error.errors is None:
            raise
        raise _rejected(table.name, numbered(error.errors)) from None
    return dataclasses.replace(result, errors=numbered(result.errors)) if len(result.errors) else result


def _rejected(name: str, problems: pa.Table) -> WriteError:
    return write_error(
        set(problems.column("code").unique().to_pylist()),
        f"table {name!r}: {problems.num_rows} rows failed and nothing was written: "
        f"{failure_text(problems, 0, _row_text)} (all of them are in .errors)\n{failures_text(problems, _row_text)}",
        problems,
    )


def _all_tablets(plan: LoadPlan) -> TableState:
    return plan.table_state(None, range(len(plan.tablets)))


def _errors_at_commit(errors: pa.Table, table: TableState) -> pa.Table:
    """Replace the row numbers by NULL in the errors of rows that failed only at the commit.

    The commit does not know Spark's row numbers.
    """
    row_at, message_at = (errors.schema.get_field_index(name) for name in ("row", "message"))
    unknown = pa.nulls(errors.num_rows, errors.schema.field(row_at).type)
    why = pc.binary_join_element_wise(errors.column("message"), pa.scalar(LATE), "; ")
    errors = errors.set_column(row_at, errors.schema.field(row_at), unknown).set_column(
        message_at, "message", why
    )
    return with_tablets(errors, table)


def _row_text(number: int | None) -> str:
    """Format a row number of Spark (`monotonically_increasing_id()`) for a message."""
    if number is None:
        return "unknown row"
    return f"partition {number >> PLACE_BITS}, row {number & ((1 << PLACE_BITS) - 1)}"


def _by_tablet(df: DataFrame, plan: LoadPlan, tasks: int | None) -> DataFrame:
    """Return the rows with tablet and row number, partitioned by tablet, and sorted by tablet and key.

    tasks: the maximum number of partitions. None: four per core.
    """
    keys = key_columns(df, plan)
    frame = df.withColumns({TABLET: tablet_number(plan, keys), ROW: F.monotonically_increasing_id()})
    count = len(plan.tablets)
    partitions = max(1, min(count, tasks or TASKS_PER_CORE * cores_of(df.sparkSession)))
    single = single_hash(plan)
    if partitions == 1:
        frame = frame.coalesce(1)
    elif single is not None and partitions == count:
        # Spark's own hash partitioning puts bucket b into partition b. Each partition is then one
        # tablet, so the rows are sorted by the key alone, whose prefixes Spark compares fast.
        frame = frame.repartition(partitions, *[keys[column] for column in single])
        return frame.sortWithinPartitions(*keys.values(), F.col(ROW))
    else:
        home = F.when(F.col(TABLET) < 0, F.lit(0)).otherwise(F.pmod(F.col(TABLET), F.lit(partitions)))
        frame = frame.repartitionById(partitions, home.cast("int"))
    return frame.sortWithinPartitions(F.col(TABLET), *keys.values(), F.col(ROW))


def _with_plain_names(frame: DataFrame) -> DataFrame:
    """Rename the columns if a name has a dot or backtick. mapInArrow would read `a.b` as field b of
    column a.
    """
    if not any(sign in name for name in frame.columns for sign in ".`"):
        return frame
    return frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))


@dataclasses.dataclass(frozen=True)
class _TaskPlan:
    """What Spark sends to each task of a load.

    plan:   the load's `LoadPlan`, with an empty list of tablets to keep it small.
    folder: the staging folder of the load.
    path:   a file with one `LoadPlan` for each tablet. A task reads those of its tablets.
    ranges: for each tablet of the load, the offset and length of its `LoadPlan` in this file.
    """

    address: Address
    plan: LoadPlan
    folder: str
    path: str
    ranges: tuple[tuple[int, int], ...]

    def for_tablet(self, ordinal: int) -> LoadPlan:
        """Read the plan of one tablet from the file `self.path`, and return it.

        ordinal: the position of the tablet among the tablets of the load, from 0.
        """
        offset, length = self.ranges[ordinal]
        with kept_by_lease(f"the load into table {self.plan.table!r}", "run the job again"):
            file = self.address.env.files.open(self.path)
            try:
                text = file.read(offset, length)
            finally:
                file.close()
        return LoadPlan.from_json(json.loads(text))


def _plan_for_tasks(plan: LoadPlan, folder: str, address: Address) -> _TaskPlan:
    """Write the plans of all tablets to a file, and return the plan that Spark sends to tasks.

    A task reads only the plans of its tablets, so Spark sends little data even for many tablets.
    """
    path = os.path.join(folder, "plan.json")
    ranges, parts, at = [], [], 0
    for ordinal in range(len(plan.tablets)):
        text = json.dumps(plan.only([ordinal]).to_json(), separators=(",", ":")).encode()
        ranges.append((at, len(text)))
        parts.append(text)
        at += len(text)
    file = address.env.files.create(path)
    try:
        if parts:
            file.append(*parts)
        file.sync()
    finally:
        file.close()
    bare = dataclasses.replace(plan, tablets=())
    return _TaskPlan(address, bare, f"{layout.STAGING_NAME}/{os.path.basename(folder)}", path, tuple(ranges))


def _writer(task_plan: _TaskPlan, operation: str, lease: HeldLease, names: Sequence[str]) -> Any:
    """Return the function that a task runs: it stages files with the rows of each tablet.

    names: the names of the columns that the task receives, in their order.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        attempt = f"task-{context.partitionId()}-{context.taskAttemptId()}"
        keep = lease.keeper()

        def kept(rows: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
            for _, batch in rows:
                keep()
                yield batch

        for ordinal, rows in itertools.groupby(_slices(batches, names), key=lambda piece: piece[0]):
            plan = task_plan.plan if ordinal < 0 else task_plan.for_tablet(ordinal)
            try:
                staged, failed = write_tablet(
                    task_plan.address.env,
                    plan,
                    None if ordinal < 0 else 0,
                    operation,
                    kept(rows),
                    task_plan.folder,
                    f"{attempt}-{ordinal}",
                )
            except Error as error:
                of_tablet = f", tablet {plan.tablets[0].id}" if plan.tablets else ""
                add_place(error, f"table {plan.table!r}{of_tablet}")
                raise
            text = None if ordinal < 0 else json.dumps(staged.to_json()).encode()
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([ordinal], pa.int32()),
                    pa.array([text], pa.binary()),
                    pa.array([None if failed is None else bytes(to_ipc(failed))], pa.binary()),
                ],
                schema=_ANSWER_SCHEMA,
            )

    return in_task(write)


def _slices(
    batches: Iterator[pa.RecordBatch], columns: Sequence[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut the batches where the tablet changes; yield (position of the tablet in the plan, rows).

    columns: the names of all columns, in their order.
    """
    for unnamed in batches:
        batch = pa.RecordBatch.from_arrays(unnamed.columns, names=list(columns))
        if not batch.num_rows:
            continue
        index = batch.schema.get_field_index(TABLET)
        ordinals = batch.column(index).to_numpy(zero_copy_only=False)
        names = [name for name in batch.schema.names if name != TABLET]
        rows = batch.select(names)
        cuts = [0, *(np.flatnonzero(ordinals[1:] != ordinals[:-1]) + 1).tolist(), batch.num_rows]
        for begin, end in itertools.pairwise(cuts):
            yield int(ordinals[begin]), rows.slice(begin, end - begin)
