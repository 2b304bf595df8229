"""Staging folders: where jobs in other processes put files before they are committed (rule P3).

    staging/<key>/entry.json     {"body": {"key", "expires_us"} as text, "crc32c"}: who may still need the folder
    staging/<key>/…              the job's files

A folder whose entry is missing, damaged or over is removed by the writer's next open.
Source: design §6 P3.
"""

from __future__ import annotations

import json
import os
from typing import Final

import google_crc32c

from nyala.env import Env
from nyala.errors import Error, InvalidArgumentError
from nyala.tablet import layout

ENTRY_NAME: Final = "entry.json"


def plain_name(name: str) -> str:
    """`name`, if it is a file's name without folders. Raises: InvalidArgumentError."""
    if os.path.basename(name) != name or name in ("", ".", ".."):
        raise InvalidArgumentError(f"a staged file is named without folders, not {name!r}")
    return name


def staging_folder(path: str, key: str) -> str:
    return os.path.join(path, layout.STAGING_NAME, plain_name(key))


def make_staging(env: Env, path: str, ttl_s: float) -> tuple[str, str]:
    """A new staging folder: (key, absolute path). Raises: StorageError when there is no store."""
    layout.require_store(env, path)
    key = env.randomness.token_hex(16)
    folder = staging_folder(path, key)
    env.files.make_dirs(folder)
    body = json.dumps({"key": key, "expires_us": env.clock.now_us() + int(ttl_s * 1e6)})
    entry = json.dumps({"body": body, "crc32c": google_crc32c.value(body.encode())})
    env.files.write_atomic(os.path.join(folder, ENTRY_NAME), entry.encode())
    return key, folder


def remove_expired_staging(env: Env, path: str) -> int:
    """Remove the staging folders that nobody may need any more; returns how many. For the writer, at open."""
    folder = os.path.join(path, layout.STAGING_NAME)
    removed = 0
    for name in env.files.list_dir(folder):
        if _expires_us(env, os.path.join(folder, name)) <= env.clock.now_us():
            env.files.remove_tree(os.path.join(folder, name))
            removed += 1
    return removed


def _expires_us(env: Env, folder: str) -> int:
    """0 for an entry that cannot be read."""
    try:
        entry = json.loads(env.files.read_all(os.path.join(folder, ENTRY_NAME)))
        if google_crc32c.value(entry["body"].encode()) != entry["crc32c"]:
            return 0
        return int(json.loads(entry["body"])["expires_us"])
    except (Error, ValueError, KeyError, TypeError, AttributeError):
        return 0
