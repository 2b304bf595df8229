"""Staging folders: jobs in other processes put their files there before they are committed.

    staging/<expires>-[<owner>-][<lease>-]<token>/…

The name of the folder is the job's key. It has these parts:

    expires   the time until which the job may need its folder: microseconds since 1970, as 14
              hexadecimal digits
    owner     optional: the mark of a process (`env.process_mark`); the job ends with this process
    lease     optional: the name of the job's lease; as long as the lease lives, the folder stays
    token     random

Because the name says when the folder may be removed, no other file is needed, and no crash can
leave a folder without this information.

When the store is opened, and from time to time, the writer removes folders that have expired. It
also removes folders whose owner process has certainly ended. This is never certain for a process on
another machine or in another container. When the store is opened, the writer also removes
everything whose name is not a job's key.

In a bucket the clocks of machines do not count. There the writer removes files that are a day old
by the bucket's clock, unless their lease lives (`tablet.media.bucket.Orphans`).

Source: docs/design/loads-and-jobs.md, "Staging folders"; docs/design/rules.md, P3. A job is not an entry
of the catalogue, so that it can begin without the writer's lock.
"""

from __future__ import annotations

import os
import re
from typing import Final

from nyala.catalog.job_leases import is_living
from nyala.env import Env, is_gone
from nyala.errors import InvalidArgumentError
from nyala.tablet.state import store_folder as layout

_KEY: Final = re.compile(r"([0-9a-f]{14})-(?:([0-9a-f]{40})-)?(?:([0-9a-f]{16})-)?[0-9a-f]{32}")
_LEASE: Final = "remote-"


def plain_name(name: str) -> str:
    """Return `name` if it is a file name without folders. Raises: InvalidArgumentError."""
    if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
        raise InvalidArgumentError(f"the name of a staged file must not contain folders: {name!r}")
    return name


def staging_folder(path: str, key: str) -> str:
    """Return the absolute folder of a job. Raises: InvalidArgumentError if `key` is not a job's key."""
    if _KEY.fullmatch(key) is None:
        raise InvalidArgumentError(f"{key!r} is not the key of a staged job: get one from new_staging()")
    return os.path.join(path, layout.STAGING_NAME, key)


def beside(folder: str, key: str) -> str:
    """Return the staging folder of the job `key`.

    folder: the staging folder of another job of the same store.
    Raises: the errors of `staging_folder`.
    """
    return staging_folder(os.path.dirname(os.path.dirname(folder)), key)


def make_staging(
    env: Env, path: str, ttl_s: float, owner: str | None = None, lease: str | None = None
) -> tuple[str, str]:
    """Create the staging folder of a job; returns (key, absolute path).

    ttl_s: after how many seconds the folder expires.
    owner: a text that identifies the job's process: the folder also expires when this process ends.
           None: the folder expires only by time.
    lease: the name of the job's lease; the folder stays at least as long as the lease.
    Raises: StorageError if `path` is not a store.
    """
    assert lease is None or lease.startswith(_LEASE), lease
    layout.require_store(env, path)
    expires = f"{max(env.clock.now_us() + int(ttl_s * 1e6), 0):014x}"
    held = None if lease is None else lease.removeprefix(_LEASE)
    key = "-".join(part for part in (expires, owner, held, env.randomness.token_hex(16)) if part)
    folder = staging_folder(path, key)
    env.files.make_dirs(folder)
    return key, folder


def is_over(env: Env, path: str, name: str) -> bool:
    """Return whether the staging folder `name` can be removed.

    It can be removed if no job needs it any more, or if its name is not a job's key.
    """
    match = _KEY.fullmatch(name)
    if match is None or (match[2] is not None and is_gone(match[2])):
        return True
    if int(match[1], 16) > env.clock.now_us():
        return False
    return match[3] is None or not is_living(env, path, _LEASE + match[3])


def job_lease_of(key: str) -> str | None:
    """Return the name of the lease that protects an object of a job in a bucket; None: no lease.

    key: the object's key. Without a lease, the object is removed when it is old enough.
    """
    folder, name = key.split("/")[:2]
    if folder != layout.STAGING_NAME:
        return name if name.startswith(_LEASE) else None
    match = _KEY.fullmatch(name)
    return None if match is None or match[3] is None else _LEASE + match[3]


def remove_expired_staging(env: Env, path: str, *, strangers: bool = False) -> int:
    """Remove the staging folders that no job needs, and return their number.

    Only the writer may call it.

    strangers: also remove everything whose name is not a job's key. The writer passes True only
               when it opens the store.
    """
    folder = os.path.join(path, layout.STAGING_NAME)
    removed = 0
    for name in env.files.list_dir(folder):
        if is_over(env, path, name) and (strangers or _KEY.fullmatch(name)):
            env.files.remove_tree(os.path.join(folder, name))
            removed += 1
    return removed
