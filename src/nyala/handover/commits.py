"""Commits of other processes: staged files, passed to the store's writer.

In a folder, the writer holds a lock and listens on a socket (`channel`). In a bucket, the writer reads
requests from the inbox (`inbox`). If there is no writer, this process becomes the writer for one
request.

    job's processes                              lock holder, or a process that takes the lock
      new_staging()      staging/<key>/
      write files there, sync them
      commit_staged()  ── socket ──────────────► read the files, write one batch under the key
                       ◄─ result or errors ─────
      discard_staging()

Invariants
    H1  A job's key is committed at most once, however often the commit is repeated. The key is
        recorded with the batch (log record or catalogue change), and a second commit returns
        the first one's timestamp and counts.
    H2  If the process that executed a request ended without an answer, the request is sent again,
        to the lock's next holder. A commit still happens once (H1); the begin or end of a load may
        happen twice.
    H3  Staged files are only read. They are removed after the commit, or when their time has passed
        (P3).

Source: docs/design/processes-and-locks.md, "One writer, and commits of others".
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from nyala.catalog.job_leases import JobLease, create_job_lease, open_job_lease
from nyala.catalog.leases import check_remote_name
from nyala.env import SYSTEM, Env, process_mark
from nyala.env.interrupts import Uninterrupted
from nyala.errors import Error, FencedError, InvalidArgumentError, LockedError, StorageError
from nyala.handover.channel import NoWriter, WriterEndedError, send
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

logger = logging.getLogger("nyala.handover.commits")

STAGING_TTL_S: Final = 24 * 3600.0
# The operation for rows of a change feed, which name their own change types.
CHANGES: Final = "changes"
# How long a commit waits for a writer that neither answers nor releases the lock.
_LOCK_WAIT_S: Final = 60.0
_SEND_TIMEOUT_S: Final = 600.0
# How often a request is sent again after its executor ended; limits a request that kills every
# process.
_AGAIN_MAX: Final = 2
# The most characters of a job's description of itself.
_HOLDER_MAX: Final = 200
# A killed task may write for some milliseconds more.
_DISCARD_PAUSES_S: Final = (0.02, 0.1, 0.5, 2.0)


def new_staging(
    path: str,
    ttl_s: float = STAGING_TTL_S,
    env: Env = SYSTEM,
    owner: str | None = None,
    lease: str | None = None,
) -> tuple[str, str]:
    """Create a staging folder in the store at `path` that lives for `ttl_s` seconds.

    owner: mark of the process to which the job belongs (`env.process_mark`); the files are removed
    when that process has ended. lease: name of the job's remote lease; the files are kept while it
    lives.
    Returns: (key, absolute path).
    """
    return make_staging(env, path, ttl_s, owner, lease)


def discard_staging(path: str, key: str, env: Env = SYSTEM) -> None:
    """Remove a job's staged files. May be called twice, also after the commit.

    A cancelled task of the job may still create a file in the folder during the removal, so it is
    repeated. Without the folder no file can be created.
    Raises: StorageError.
    """
    folder = staging_folder(path, key)
    for pause_s in _DISCARD_PAUSES_S:
        try:
            env.files.remove_tree(folder)
            return
        except StorageError:
            env.clock.sleep_s(pause_s)
    env.files.remove_tree(folder)


def remote_lease(path: str, ttl_s: float, env: Env = SYSTEM, owner: str | None = None) -> JobLease:
    """Create a lease for readers in other processes (Spark tasks); it lives until its expiry.

    Create it *before* planning the scan. owner: mark of the process whose end also ends the lease.
    """
    return create_job_lease(env, path, ttl_s, owner)


def renew_lease(path: str, name: str, ttl_s: float, env: Env = SYSTEM) -> None:
    """Let a job's lease live for `ttl_s` seconds from now. Raises: HistoryExpiredError if it has ended."""
    open_job_lease(env, path, name).renew_for(ttl_s)


def commit_staged(path: str, job: dict[str, Any], env: Env = SYSTEM) -> dict[str, Any]:
    """Commit a job's staged files as one batch, through the lock holder if there is one.

    job: a dict of "key", "table", "operation" (one of OPERATION_NAMES, or CHANGES), "errors"
        ("raise" | "collect"), "files" (names in the staging folder of the key, or [key, name] in
        another one) and "columns". Optional: "record_as" (the idempotency key, if it is not the
        job's key), "overwrite" (true: the rows replace the table's content), "message" (stored
        with the commit), and "when" or "newest_by" (`write.conditions`).
    Returns: {"timestamp", "inserted", "updated", "deleted", "ignored", "errors": table of failed
    rows or None}.
    Raises: errors of the write; LockedError if a writer neither answers nor ends within a minute.
    """
    answer, attachments = request_writer(path, {"do": "commit", "job": job}, env)
    return {**answer, "errors": from_ipc(attachments[0]) if attachments[0] else None}


def request_writer(
    path: str, request: dict[str, Any], env: Env = SYSTEM
) -> tuple[dict[str, Any], list[bytes]]:
    """Let the lock holder execute a request; without one take the lock and execute it here (H2).

    Raises: errors of the request; LockedError if a writer neither answers nor ends within a minute;
            StorageError with outcome "unknown" if the holder ended during the request, and it could
            not be found out whether the request was executed.
    """
    path = path if bucket_of(env) else os.path.abspath(path)
    layout.require_store(env, path)  # a mistyped path must not become a store
    try:
        return _request_once(path, request, env)
    except WriterEndedError as error:
        lost = error
    for _ in range(_AGAIN_MAX):
        logger.info("%s: sending the %r again", lost, request.get("do"))
        try:
            return _request_once(path, request, env)
        except WriterEndedError as error:
            lost = error
        except (StorageError, LockedError) as error:
            # These are errors of the request or of opening the store; the first attempt stays
            # unknown.
            raise StorageError(
                f"{lost} (sending it again failed: {error})", path=path, outcome="unknown"
            ) from error
    raise StorageError(
        f"{lost} (it was sent again {_AGAIN_MAX} times)", path=path, outcome="unknown"
    ) from lost


def _request_once(path: str, request: dict[str, Any], env: Env) -> tuple[dict[str, Any], list[bytes]]:
    """One attempt of `request_writer`. Raises: WriterEndedError if the holder ended meanwhile."""
    deadline_s = env.clock.monotonic_s() + _LOCK_WAIT_S
    while True:
        try:
            with contextlib.suppress(NoWriter):
                return _sent(path, request, env)
            return _executed_here(path, request, env)
        except (LockedError, FencedError):
            # A writer is starting or ending: soon it answers, or this process can become it.
            # What a fenced process wanted to write was certainly not written.
            if env.clock.monotonic_s() > deadline_s:
                raise
            env.clock.sleep_s(0.1)


def _sent(path: str, request: dict[str, Any], env: Env) -> tuple[dict[str, Any], list[bytes]]:
    """Let another process, or another part of this one, execute the request. Raises: NoWriter."""
    bucket = bucket_of(env)
    if bucket is None:
        return send(env, path, request, [], _SEND_TIMEOUT_S)
    here = serving(bucket)
    if here is None:
        return ask(env, bucket, request, _SEND_TIMEOUT_S)
    answer, attachments = here.answer_here(request)
    return answer, list(attachments)


def _executed_here(path: str, request: dict[str, Any], env: Env) -> tuple[dict[str, Any], list[bytes]]:
    """Become the writer for this request, and for those that come meanwhile.

    Raises: LockedError, FencedError beside another writer; errors of the request.
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
            with contextlib.suppress(Error):  # the next writer takes what is left
                InboxServer(env, bucket, lambda other, _: answer_request(store, other)).serve()
        return answer
    finally:
        store.close()


def answer_request(store: Store, request: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """Execute a request of another process, or of this one, in the lock holder.

    Returns: (answer, attachments).
    Raises: errors of the request; InvalidArgumentError, CorruptionError for an invalid request;
        then nothing is changed.
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
        raise InvalidArgumentError(f"unknown request to the writer: {what!r}")
    return figures(result), [_errors_ipc(result.errors)]


def _check_fields(fields: dict[str, Any], /, **kinds: Any) -> None:
    """Raises: InvalidArgumentError if a field of the request is missing or has a wrong type."""
    for name, kind in kinds.items():
        if name not in fields or not isinstance(fields[name], kind):
            raise InvalidArgumentError(
                f"a request to the writer has an invalid {name}: {fields.get(name)!r}. Use the same version of Nyala "
                "in both processes"
            )


def _check_job(job: dict[str, Any]) -> None:
    """Raises: InvalidArgumentError if the job is not as `commit_staged` describes it."""
    _check_fields({"record_as": job.get("key"), "errors": None, "columns": [], "overwrite": False, "when": None,
                   "newest_by": None, **job},
                  key=str, table=str, operation=str, files=list | tuple, record_as=str, errors=str | None,
                  columns=list | tuple, overwrite=bool | None, when=str | None,
                  newest_by=str | None)  # fmt: skip
    for named in job["files"]:
        whose = named if isinstance(named, list | tuple) and len(named) == 2 else [named]
        if not all(isinstance(part, str) for part in whose):
            raise InvalidArgumentError(
                f"a staged file needs a name, or its job's key and its name: got {named!r}"
            )
    for name in job.get("columns", ()):
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a column of staged rows needs a name: got {name!r}")


@contextlib.contextmanager
def loading(
    path: str, table: str, ttl_s: float, *, reserve: bool, what: str = "a load", env: Env = SYSTEM
) -> Iterator[tuple[LoadPlan, str]]:
    """Run a load from its beginning to its end; yield its plan, and the name of its lease.

    Tasks renew the lease, which is released at the end in any case.

    reserve: whether existing rows will be changed.
    what:    a description of the job for users who wait for its end.
    Raises: as `request_writer`, and as `begin_load`.
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
        lease.announce(plan.version)  # before this, the lease keeps everything
        try:
            yield plan, lease.name
        finally:
            if reserve:
                with contextlib.suppress(Error):  # the end of the lease also ends the load
                    request_writer(path, {"do": "end load", "lease": lease.name}, env)
    finally:
        lease.release()


def commit_load_files(path: str, job: LoadCommit, env: Env = SYSTEM) -> dict[str, Any]:
    """Commit the staged files of a load's tasks: see `commit_load`. Returns as `commit_staged`."""
    answer, attachments = request_writer(path, {"do": "commit load", "job": job.to_json()}, env)
    return {**answer, "errors": from_ipc(attachments[0]) if attachments[0] else None}


def apply_job(store: Store, job: dict[str, Any]) -> WriteResult:
    """Write a job's staged files as one batch under its key (H1). Called in the lock holder."""
    _check_job(job)
    operation = job["operation"]
    if operation not in (*OPERATION_NAMES, CHANGES):
        raise InvalidArgumentError(
            f"unknown operation {operation!r}: use one of {', '.join((*OPERATION_NAMES, CHANGES))}"
        )
    key, collect = job.get("record_as", job["key"]), job.get("errors") == "collect"
    if (earlier := find_committed(store, key)) is not None:
        return earlier  # even if its files or its table no longer exist
    message = check_message(job.get("message"))
    name, _, ignore = operation.partition("-")
    condition = condition_of(job.get("when"), None, job.get("newest_by"))
    if condition is not None:
        check_operation(condition, operation)
        if job.get("overwrite"):
            raise InvalidArgumentError("overwriting all rows takes no when and no newest_by")
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


def figures(result: WriteResult) -> dict[str, Any]:
    """A result as plain numbers, for sending."""
    return {
        "timestamp": result.timestamp,
        "inserted": result.inserted,
        "updated": result.updated,
        "deleted": result.deleted,
        "ignored": result.ignored,
    }


def _errors_ipc(errors: pa.Table | None) -> bytes:
    """The failed rows for sending; empty if there are none."""
    return bytes(to_ipc(errors)) if errors else b""
