"""Commits that come from other processes: staged files, handed to whoever holds the writer's lock.

    job's processes                              lock holder (or a process that takes the lock for the moment)
      new_staging()      staging/<key>/
      write files there, sync them
      commit_staged()  ── socket ──────────────► read the files, write them as one batch under the key
                       ◄─ result or errors ─────
      discard_staging()

Invariants
    H1  A job's key is committed at most once, whatever is retried: it is recorded with the batch (log record or
        catalogue transaction), and a second commit answers with the first one's timestamp and counts.
    H2  A request whose answer was lost, because the process that carried it out ended, is sent again, to whoever holds
        the lock then: a commit is done once (H1), what begins or ends a load may be done twice.
    H3  Staged files are only read; they are removed after the commit, or when their time to live is over (P3).

Source: docs/design/processes-and-locks.md, "One writer, and commits of others".
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from nyala.catalog.leases import Lease, check_remote_name, create_lease, open_remote_lease
from nyala.env import SYSTEM, Env, process_mark
from nyala.env.interrupts import Uninterrupted
from nyala.errors import Error, InvalidArgumentError, LockedError, StorageError
from nyala.handover.channel import NoWriter, WriterEndedError, send
from nyala.tablet.jobs.staging import make_staging, staging_folder
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.validation import making_sense
from nyala.tablet.store import Store, StoreOptions
from nyala.tablet.write.prepare import OPERATION_NAMES
from nyala.tablet.write.write_path import Request, committed_before, write

# What only some jobs need is imported when one comes: `import nyala` is light.
if TYPE_CHECKING:
    from nyala.tablet.jobs.load_commit import LoadCommit
    from nyala.tablet.jobs.load_job import LoadPlan

logger = logging.getLogger("nyala.handover.commits")

STAGING_TTL_S: Final = 24 * 3600.0
# The rows of a change feed, which say of themselves what is to be done.
CHANGES: Final = "changes"
# How long a commit waits for a writer that neither listens nor lets go of the lock.
_LOCK_WAIT_S: Final = 60.0
_SEND_TIMEOUT_S: Final = 600.0
# Whoever carried out a request ended: it is sent again so often. A request that no process survives ends there.
_AGAIN_MAX: Final = 2
# Of what a job says of itself: characters.
_HOLDER_MAX: Final = 200
# A killed task writes for some milliseconds more.
_DISCARD_PAUSES_S: Final = (0.02, 0.1, 0.5, 2.0)


def new_staging(
    path: str,
    ttl_s: float = STAGING_TTL_S,
    env: Env = SYSTEM,
    owner: str | None = None,
    lease: str | None = None,
) -> tuple[str, str]:
    """A new staging folder in the store at `path`: (its key, its absolute path). It lives for `ttl_s` seconds.

    owner: mark of the process with which the job ends (`env.process_mark`): then its files go when that has ended.
    lease: name of the job's remote lease: the files stay also as long as that lives.
    """
    return make_staging(env, path, ttl_s, owner, lease)


def discard_staging(path: str, key: str, env: Env = SYSTEM) -> None:
    """Remove a job's staged files. May be called twice, also after the commit.

    A task of the job that was told to stop may still be writing, and so make a file in the folder that is being
    removed; once the folder is gone it can make none.
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


def remote_lease(path: str, ttl_s: float, env: Env = SYSTEM, owner: str | None = None) -> Lease:
    """A lease for readers in other processes (Spark tasks), kept by its expiry. Make it *before* planning the scan.

    owner: mark of the process for which they read; the lease ends with it.
    """
    return create_lease(env, path, "remote", expires_us=env.clock.now_us() + int(ttl_s * 1e6), owner=owner)


def renew_lease(path: str, name: str, ttl_s: float, env: Env = SYSTEM) -> None:
    """Raises: HistoryExpiredError when the lease is over: load again."""
    open_remote_lease(env, path, name).renew(env.clock.now_us() + int(ttl_s * 1e6))


def commit_staged(path: str, job: dict[str, Any], env: Env = SYSTEM) -> dict[str, Any]:
    """Commit a job's staged files as one batch, through the lock holder or with the lock taken for the moment.

    job: {"key", "table", "operation" (one of OPERATION_NAMES, or CHANGES), "errors" ("raise" | "collect"), "files"
    (names in the staging folder of the job's key, or [key, name] in another's), "columns"}, and if wanted "record_as"
    (the idempotency key, if it is not the job's key) and "overwrite" (true: the rows become all that the table holds).
    Returns {"timestamp", "inserted", "updated", "deleted", "ignored", "errors": table of the failing rows, or None}.
    Raises: what the write raises; LockedError when a writer neither answers nor ends within a minute.
    """
    answer, attachments = ask(path, {"do": "commit", "job": job}, env)
    return {**answer, "errors": _from_ipc(attachments[0])}


def ask(path: str, request: dict[str, Any], env: Env = SYSTEM) -> tuple[dict[str, Any], list[bytes]]:
    """Have the lock's holder carry out a request, or take the lock for the moment and do it here (H2).

    Raises: what the request raises; LockedError when a writer neither answers nor ends within a minute; StorageError of
            outcome "unknown" when the holder ended at the request, and whether it was done could not be found out.
    """
    path = os.path.abspath(path)
    layout.require_store(env, path)  # a mistyped path shall not become a store
    try:
        return _ask(path, request, env)
    except WriterEndedError as error:
        lost = error
    for _ in range(_AGAIN_MAX):
        logger.info("%s: sending the %r again", lost, request.get("do"))
        try:
            return _ask(path, request, env)
        except WriterEndedError as error:
            lost = error
        except (StorageError, LockedError) as error:
            # Of the request, or of opening the store: neither says what came of the first time.
            raise StorageError(
                f"{lost} (it was, and that failed: {error})", path=path, outcome="unknown"
            ) from error
    raise StorageError(f"{lost} (it was, {_AGAIN_MAX} times)", path=path, outcome="unknown") from lost


def _ask(path: str, request: dict[str, Any], env: Env) -> tuple[dict[str, Any], list[bytes]]:
    """`ask`, once. Raises: WriterEndedError when the holder ended while it carried out the request."""
    deadline_s = env.clock.monotonic_s() + _LOCK_WAIT_S
    while True:
        with contextlib.suppress(NoWriter):
            return send(env, path, request, [], _SEND_TIMEOUT_S)
        try:
            store = Store.open(env, path, StoreOptions(maintenance=False, lock_purpose="commit"))
        except LockedError:
            # A writer is just coming up, or going down: its socket answers soon or its lock is free soon.
            if env.clock.monotonic_s() > deadline_s:
                raise
            env.clock.sleep_s(0.1)
            continue
        try:
            return answer_request(store, request)
        finally:
            store.close()


def answer_request(store: Store, request: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """Carry out a request of another process, or of this one: (answer, attachments). In the lock holder.

    Raises: what the request raises; InvalidArgumentError, CorruptionError for one that nobody of ours made: then
            nothing was changed.
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

        with making_sense("request to commit a load"):
            job = LoadCommit.from_json(request["job"])
        result = commit_load(store, job)
    elif what == "commit":
        _check_fields(request, job=dict)
        result = apply_job(store, request["job"])
    else:
        raise InvalidArgumentError(f"the writer does not know the request {what!r}")
    return figures(result), [_to_ipc(result.errors)]


def _check_fields(fields: dict[str, Any], /, **kinds: Any) -> None:
    """Raises: InvalidArgumentError for a request without one of these fields, or with another kind of it."""
    for name, kind in kinds.items():
        if name not in fields or not isinstance(fields[name], kind):
            raise InvalidArgumentError(
                f"a request to the writer has {name!r} of {fields.get(name)!r}: use the same version of Nyala in both "
                "processes"
            )


def _check_job(job: dict[str, Any]) -> None:
    """Raises: InvalidArgumentError for a job as `commit_staged` does not describe it."""
    _check_fields({"record_as": job.get("key"), "errors": None, "columns": [], "overwrite": False, **job},
                  key=str, table=str, operation=str, files=list | tuple, record_as=str, errors=str | None,
                  columns=list | tuple, overwrite=bool | None)  # fmt: skip
    for named in job["files"]:
        whose = named if isinstance(named, list | tuple) and len(named) == 2 else [named]
        if not all(isinstance(part, str) for part in whose):
            raise InvalidArgumentError(
                f"a staged file is named by its name, or by its job's key and its name, not {named!r}"
            )
    for name in job.get("columns", ()):
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a column of staged rows has a name, not {name!r}")


@contextlib.contextmanager
def loading(
    path: str, table: str, ttl_s: float, *, reserve: bool, what: str = "a load", env: Env = SYSTEM
) -> Iterator[tuple[LoadPlan, str]]:
    """A load from its beginning to its end: the plan, and the name of its lease, which tasks renew.

    reserve: whether rows that are there will be changed. what: what is told of the job to who waits for its end.
    At the end the lease is given back, whatever happened.
    Raises: as `ask`, and as `begin_load`.
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
        _, (attachment,) = ask(path, request, env)
        plan = LoadPlan.from_json(json.loads(attachment))
        lease.announce(plan.version)  # until here it kept everything
        try:
            yield plan, lease.name
        finally:
            if reserve:
                with contextlib.suppress(Error):  # the lease says it too, when it is over
                    ask(path, {"do": "end load", "lease": lease.name}, env)
    finally:
        lease.release()


def commit_load_files(path: str, job: LoadCommit, env: Env = SYSTEM) -> dict[str, Any]:
    """Commit what the tasks of a load have staged: see `commit_load`. Returns as `commit_staged`."""
    answer, attachments = ask(path, {"do": "commit load", "job": job.to_json()}, env)
    return {**answer, "errors": _from_ipc(attachments[0])}


def apply_job(store: Store, job: dict[str, Any]) -> WriteResult:
    """Write a job's staged files as one batch under its key (H1). In the lock holder."""
    _check_job(job)
    operation = job["operation"]
    if operation not in (*OPERATION_NAMES, CHANGES):
        raise InvalidArgumentError(
            f"operation {operation!r} is none of {', '.join((*OPERATION_NAMES, CHANGES))}"
        )
    key, collect = job.get("record_as", job["key"]), job.get("errors") == "collect"
    if (earlier := committed_before(store, key)) is not None:
        return earlier  # whether or not its files and its table are still there
    name, _, ignore = operation.partition("-")
    from nyala.tablet.jobs.staged_files import read_staged

    staged = read_staged(store.env, staging_folder(store.root_path, job["key"]), job)
    if operation == CHANGES:
        from nyala.tablet.jobs.staged_rows import apply_changes

        return apply_changes(store, job["table"], staged, collect=collect, idempotency_key=key)
    request = Request(job["table"], name, staged.data, bool(ignore), staged.numbers, staged.homes)
    if job.get("overwrite"):
        from nyala.tablet.jobs.staged_rows import replace_content

        return replace_content(store, request, collect=collect, idempotency_key=key)
    return write(store, [request], collect=collect, idempotency_key=key)[0]


def figures(result: WriteResult) -> dict[str, Any]:
    """A result as plain numbers, for the wire."""
    return {
        "timestamp": result.timestamp,
        "inserted": result.inserted,
        "updated": result.updated,
        "deleted": result.deleted,
        "ignored": result.ignored,
    }


def _to_ipc(errors: pa.Table | None) -> bytes:
    """The failing rows, for the wire; empty when there are none."""
    if errors is None or not len(errors):
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, errors.schema) as writer:
        writer.write_table(errors)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _from_ipc(data: bytes) -> pa.Table | None:
    if not data:
        return None
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()
