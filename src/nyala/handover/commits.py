"""Commits of jobs: a job's processes stage files, and the store's writer commits them.

A job is a Spark write, for example. Its processes may run beside the writer or in a cluster.

    processes of the job                         the store's writer
      new_staging()      makes staging/<key>/
      write and sync files in that folder
      commit_staged()    ── request ───────────► read the files, write one batch under the key
                         ◄─ result or errors ───
      discard_staging()

The request travels over a socket if the store is a folder (`channel`), or as an object if it is a
bucket (`inbox`). If no process is the writer, this process becomes the writer for one request.

Invariants
    H1  A job's key is committed at most once, however often the commit is repeated. The batch
        contains the key, in the log or in the catalogue. A second commit returns the timestamp and
        the counts of the first.
    H2  If the writer ends during a request, the request is sent to the next writer. A commit still
        happens once (H1). The begin or the end of a load may happen twice, which is harmless.
    H3  The writer only reads staged files. They are removed after the commit, or when their time
        has passed.

Source: docs/design/processes-and-locks.md, "One writer, and commits of others".
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from nyala.catalog.job_leases import JobLease, create_job_lease, open_job_lease
from nyala.catalog.leases import check_remote_name
from nyala.env import SYSTEM, Env, process_mark
from nyala.env.interrupts import Uninterrupted
from nyala.errors import Error, InvalidArgumentError
from nyala.handover.attempts import with_writer
from nyala.handover.channel import send
from nyala.handover.inbox import InboxServer, ask, serving
from nyala.objects.address import bucket_of
from nyala.objects.remote_files import RemoteFiles
from nyala.schema.arrow_ipc import from_ipc, to_ipc
from nyala.tablet.jobs.staging import make_staging, staging_folder
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.messages import check_message
from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.validation import validating
from nyala.tablet.store import Store, StoreOptions
from nyala.tablet.write.conditions import check_operation, condition_of
from nyala.tablet.write.prepare import OPERATION_NAMES
from nyala.tablet.write.write_path import Request, find_committed, write

# Modules that only some jobs need are imported on use, to keep `import nyala` light.
if TYPE_CHECKING:
    from nyala.tablet.jobs.load_commit import LoadCommit
    from nyala.tablet.jobs.load_job import LoadPlan

STAGING_TTL_S: Final = 24 * 3600.0
# The operation of a job whose rows are a change feed: each row names its own change type.
CHANGES: Final = "changes"
_SEND_TIMEOUT_S: Final = 600.0
# The most characters of the text by which a job describes itself.
_HOLDER_MAX: Final = 200


def new_staging(
    path: str,
    ttl_s: float = STAGING_TTL_S,
    env: Env = SYSTEM,
    owner: str | None = None,
    lease: str | None = None,
) -> tuple[str, str]:
    """Create a staging folder in the store at `path`; return its key and its absolute path.

    ttl_s: the files are removed after this number of seconds.
    owner: the mark (`env.process_mark`) of the process that runs the job. When that process has
        ended, the files are removed.
    lease: the name of the job's lease. While the lease lives, the files are kept.
    """
    return make_staging(env, path, ttl_s, owner, lease)


def discard_staging(path: str, key: str, env: Env = SYSTEM) -> None:
    """Remove a job's staged files. May be called twice, also after the commit. Raises: StorageError."""
    env.remove_busy_tree(staging_folder(path, key))


def remote_lease(path: str, ttl_s: float, env: Env = SYSTEM, owner: str | None = None) -> JobLease:
    """Create a lease that keeps files for readers in other processes, for `ttl_s` seconds.

    Create it *before* the scan is planned.
    owner: a text that identifies a process (`env.process_mark`). When that process has ended, the
        lease ends too.
    """
    return create_job_lease(env, path, ttl_s, owner)


def renew_lease(path: str, name: str, ttl_s: float, env: Env = SYSTEM) -> None:
    """Let a job's lease live for `ttl_s` seconds from now. Raises: HistoryExpiredError if it has ended."""
    open_job_lease(env, path, name).renew_for(ttl_s)


def commit_staged(path: str, job: dict[str, Any], env: Env = SYSTEM) -> dict[str, Any]:
    """Commit a job's staged files as one batch.

    job: a dict with these fields:
        key: the key of the staging folder.
        table: the table's name.
        operation: one of OPERATION_NAMES, or CHANGES.
        errors: "raise": a failing row rejects the batch; "collect": the other rows are written.
        files: names of files in the staging folder, or [key, name] for a file in another folder.
        columns: names of the rows' columns.
        record_as: optional; the idempotency key. Default: `key`.
        overwrite: optional; true: the rows replace the table's content.
        message: optional; stored with the commit.
        when, newest_by: optional; see `write.conditions`.
    Returns: a dict with "timestamp", the counts "inserted", "updated", "deleted" and "ignored", and
        "errors": a table of the failed rows, or None.
    Raises: errors of the write; the errors that `request_writer` raises, such as LockedError.
    """
    return _committed(path, {"do": "commit", "job": job}, env)


def _committed(path: str, request: dict[str, Any], env: Env) -> dict[str, Any]:
    answer, (errors,) = request_writer(path, request, env)
    return {**answer, "errors": from_ipc(errors) if errors else None}


def request_writer(
    path: str, request: dict[str, Any], env: Env = SYSTEM
) -> tuple[dict[str, Any], list[bytes]]:
    """Let the store's writer execute a request. If no process is the writer, execute it here.

    Returns: (answer, attachments).
    Raises: errors of the request; LockedError if a process holds the store's lock but does not
        answer; StorageError if there is no store at `path`, or with outcome "unknown" if it is not
        known whether the request was done.
    """
    path = path if bucket_of(env) else os.path.abspath(path)
    layout.require_store(env, path)  # a mistyped path must not become a store
    return with_writer(
        env,
        path,
        str(request.get("do")),
        lambda: _sent(path, request, env),
        lambda: _executed_here(path, request, env),
    )


def _sent(path: str, request: dict[str, Any], env: Env) -> tuple[dict[str, Any], list[bytes]]:
    """Send a request to the store's writer; return its answer and the answer's attachments.

    The writer may be a `Database` of this process. Raises: NoWriter if no process is the writer;
    errors of the request.
    """
    bucket = bucket_of(env)
    if bucket is None:
        return send(env, path, request, [], _SEND_TIMEOUT_S)
    here = serving(bucket)
    if here is None:
        return ask(env, bucket, request, _SEND_TIMEOUT_S)
    answer, attachments = here.answer_here(request)
    return answer, list(attachments)


def _executed_here(path: str, request: dict[str, Any], env: Env) -> tuple[dict[str, Any], list[bytes]]:
    """Become the writer, execute the request, and close the store again.

    In a bucket, the requests in the inbox are executed too.
    Raises: LockedError, FencedError if another process is the writer; errors of the request.
    """
    bucket = bucket_of(env)
    options = StoreOptions(maintenance=False, lock_purpose="commit")
    if bucket is None:
        store = Store.open(env, path, options)
    else:
        files = cast(RemoteFiles, env.files).client()
        store = Store.open_in_bucket(replace(env, files=files), files.objects, options, 0.0, take_over=False)
    try:
        answer = answer_request(store, request)
        if bucket is not None:
            with contextlib.suppress(Error):  # the next writer executes the rest
                InboxServer(env, bucket, lambda other, _: answer_request(store, other)).serve()
        return answer
    finally:
        store.close()


def answer_request(store: Store, request: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """Execute a request in the writer of `store`; return the answer and its attachments.

    An attachment is bytes: the plan of a load as JSON, or a table of failed rows as Arrow IPC.

    Raises: InvalidArgumentError, CorruptionError if the request is invalid; then the store was not
        changed. Also the errors of the work that the request names, such as ConflictError.
    """
    what = request.get("do")
    if what == "begin load":
        from nyala.tablet.jobs.load_job import begin_load

        _check_fields(request, table=str, lease=str | None, holder=str)
        if request["lease"] is not None:
            check_remote_name(request["lease"])
        holder = " ".join(request["holder"].split())[:_HOLDER_MAX]
        plan = begin_load(store, request["table"], request["lease"], holder)
        return {}, [json.dumps(plan.to_json()).encode()]
    if what == "end load":
        _check_fields(request, lease=str)
        with Uninterrupted(), store.commit_lock:
            store.job_reservations.release(store, request["lease"])
        return {}, []
    if what == "commit load":
        from nyala.tablet.jobs.load_commit import LoadCommit, commit_load

        with validating("request to commit a load"):
            job = LoadCommit.from_json(request["job"])
        result = commit_load(store, job)
    elif what == "commit":
        _check_fields(request, job=dict)
        result = apply_job(store, request["job"])
    else:
        raise InvalidArgumentError(
            f"unknown request to the writer: {what!r}. Use the same version of Nyala in the writer and in the process "
            "that sent the request"
        )
    return figures(result), [bytes(to_ipc(result.errors)) if result.errors else b""]


def _check_fields(fields: dict[str, Any], /, **kinds: Any) -> None:
    """Check that the fields exist and have these types. Raises: InvalidArgumentError."""
    for name, kind in kinds.items():
        if name not in fields or not isinstance(fields[name], kind):
            raise InvalidArgumentError(
                f"a request to the writer has an invalid {name}: {fields.get(name)!r}. Use the same version of Nyala "
                "in the writer and in the process that sent the request"
            )


def _check_job(job: dict[str, Any]) -> None:
    _check_fields({"record_as": job.get("key"), "errors": None, "columns": [], "overwrite": False, "when": None,
                   "newest_by": None, **job},
                  key=str, table=str, operation=str, files=list | tuple, record_as=str, errors=str | None,
                  columns=list | tuple, overwrite=bool | None, when=str | None,
                  newest_by=str | None)  # fmt: skip
    for named in job["files"]:
        parts = named if isinstance(named, list | tuple) and len(named) == 2 else [named]
        if not all(isinstance(part, str) for part in parts):
            raise InvalidArgumentError(
                f"expected the name of a staged file, or a pair of a job's key and the name of a file, got {named!r}"
            )
    for name in job.get("columns", ()):
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a column of staged rows needs a name: got {name!r}")


@contextlib.contextmanager
def loading(
    path: str, table: str, ttl_s: float, *, reserve: bool, what: str = "a load", env: Env = SYSTEM
) -> Iterator[tuple[LoadPlan, str]]:
    """Begin a load, yield its plan and the name of its lease, and end the load after the `with` block.

    The tasks of the load renew the lease. It is released at the end of the block.

    ttl_s: for how many seconds a renewal lets the lease live.
    reserve: whether the load will change existing rows. Then compactions leave the table's rowsets
        alone until the load ends.
    what: describes the job, for messages to users who wait until it ends.
    Raises: TableNotFoundError; LockedError if a process holds the store's lock but does not answer;
        StorageError.
    """
    from nyala.tablet.jobs.load_job import LoadPlan

    lease = remote_lease(path, ttl_s, env, process_mark())
    try:
        holder = f"{what} of process {os.getpid()} on {socket.gethostname()}"
        request = {
            "do": "begin load",
            "table": table,
            "lease": lease.name if reserve else None,
            "holder": holder,
        }
        _, (attachment,) = request_writer(path, request, env)
        plan = LoadPlan.from_json(json.loads(attachment))
        lease.announce(plan.version)  # until now, the lease kept all files
        try:
            yield plan, lease.name
        finally:
            if reserve:
                with contextlib.suppress(Error):  # then the load ends with its lease
                    request_writer(path, {"do": "end load", "lease": lease.name}, env)
    finally:
        lease.release()


def commit_load_files(path: str, job: LoadCommit, env: Env = SYSTEM) -> dict[str, Any]:
    """Commit the files that the tasks of a load have staged.

    Returns: a dict with "timestamp", the counts "inserted", "updated", "deleted" and "ignored", and
        "errors": a table of the failed rows, or None.
    """
    return _committed(path, {"do": "commit load", "job": job.to_json()}, env)


def apply_job(store: Store, job: dict[str, Any]) -> WriteResult:
    """Write a job's staged files as one batch. Call this in the store's writer.

    If a batch with the job's idempotency key was committed before, return its result, and write
    nothing.
    """
    _check_job(job)
    operation = job["operation"]
    if operation not in (*OPERATION_NAMES, CHANGES):
        raise InvalidArgumentError(
            f"unknown operation {operation!r}: use one of {', '.join((*OPERATION_NAMES, CHANGES))}"
        )
    key, collect = job.get("record_as", job["key"]), job.get("errors") == "collect"
    if (earlier := find_committed(store, key)) is not None:
        return earlier  # before any check: the files and the table may no longer exist
    message = check_message(job.get("message"))
    name, _, ignore = operation.partition("-")
    condition = condition_of(job.get("when"), None, job.get("newest_by"))
    if condition is not None:
        check_operation(condition, operation)
        if job.get("overwrite"):
            raise InvalidArgumentError(
                "a job that overwrites all rows cannot have `when` or `newest_by`: leave these out"
            )
    from nyala.tablet.jobs.staged_files import read_staged

    staged = read_staged(store.env, staging_folder(store.root_path, job["key"]), job)
    if operation == CHANGES:
        from nyala.tablet.jobs.staged_rows import apply_changes

        return apply_changes(
            store, job["table"], staged, collect=collect, idempotency_key=key, message=message
        )
    request = Request(job["table"], name, staged.data, bool(ignore), staged.numbers, staged.routed, condition)
    if job.get("overwrite"):
        from nyala.tablet.jobs.staged_rows import replace_content

        return replace_content(store, request, collect=collect, idempotency_key=key, message=message)
    return write(store, [request], collect=collect, idempotency_key=key, message=message)[0]


def figures(result: WriteResult) -> dict[str, int]:
    """Return the timestamp and the counts of a result as a dict for JSON."""
    names = ("timestamp", "inserted", "updated", "deleted", "ignored")
    return {name: getattr(result, name) for name in names}
