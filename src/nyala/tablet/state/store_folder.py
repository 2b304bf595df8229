"""The layout of a store's folder. Paths in the catalogue are relative to that folder, with "/".

nyala.json                the store's id and format
checkpoints/<version>     the whole catalogue at one version
wal/wal-000000001 …       the log's segments: batches, and changes of the catalogue
wal/position              how far reader processes may read
data/<tablet id>/         rowset and delta files; no name is used twice
staging/<job>/            uncommitted files of running jobs
leases/                   the readers' leases
reserve/                  disk space for work on a full disk (`env/reserve.py`)
lock, writer.sock         the writer's lock, and the socket for commits of other processes

A bucket has the same names below its prefix. Its log consists of objects (`wal.objects.format`),
and it also has

lease-files/<lease>/      files that are kept as long as a job's lease
inbox/                    requests of other processes to the writer
answers/                  the writer's answers to these requests
news                      an object that a process changes after each request, to notify the writer
"""

from __future__ import annotations

import os
import re
from typing import Final

from nyala.catalog.checkpoint import identity_path, write_identity
from nyala.catalog.format import CHECKPOINTS_NAME
from nyala.catalog.loading import find_store
from nyala.env import Env
from nyala.errors import InvalidArgumentError, StorageError
from nyala.wal.format import segment_number

WAL_NAME: Final = "wal"
DATA_NAME: Final = "data"
STAGING_NAME: Final = "staging"
INBOX_PREFIX: Final = "inbox/"
ANSWERS_PREFIX: Final = "answers/"
NEWS_KEY: Final = "news"
POSITION_NAME: Final = "position"


_DRIVE: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):/")


def check_folder_path(text: str) -> None:
    """Raise InvalidArgumentError if `text` is a URL or a Windows path, and not a local folder."""
    if _DRIVE.match(text):
        raise InvalidArgumentError(
            f"{text!r} is a Windows path, but a store needs a folder on Linux or macOS: give its path there, for "
            "example '/mnt/c/store'"
        )
    found = _URL.match(text)
    if found is not None:
        local = "/" + text[found.end() :].lstrip("/")
        raise InvalidArgumentError(
            f"{text!r} is a URL, but not of a kind that can hold a store: "
            + (
                f"write {local!r}"
                if found[1].lower() == "file"
                else "give the path of a folder, or a URL such as s3://bucket/prefix (also gs://, az://, abfss://). "
                "For your own S3 service, give s3://bucket/prefix with the storage option 'endpoint'"
            )
        )


def wal_path(path: str) -> str:
    return os.path.join(path, WAL_NAME)


def position_path(path: str) -> str:
    return os.path.join(path, WAL_NAME, POSITION_NAME)


def tablet_directory(tablet_id: int) -> str:
    return f"{DATA_NAME}/{tablet_id}"


def new_data_path(env: Env, tablet_id: int, number: int, kind: str, job: str = "") -> str:
    """Return the path of a new data file, relative to the store's folder.

    The path is data/<tablet id>/<number>-<random token>.<kind>. The token makes the path unique.
    A former writer may not know yet that it lost the store, and it continues with the same ids as
    the new writer. Without the token, it could overwrite the new writer's file. Caches also
    identify a file by its path.

    number: the id of the rowset or delta file, for people who look into the folder.
    kind:   base, undo, redo or part.
    job:    the token of the compaction that writes the file, to find its files after a failure.
    """
    label = f"{number}-{job}" if job else f"{number}"
    return f"{tablet_directory(tablet_id)}/{label}-{env.randomness.token_hex(8)}.{kind}"


def is_log(relative: str) -> bool:
    """Whether the path, relative to the store's folder, is a segment of the log."""
    return relative.startswith(f"{WAL_NAME}/")


def segment_of(relative: str) -> int:
    """Return the number of a segment of the log, from its path relative to the store's folder."""
    number = segment_number(os.path.basename(relative))
    assert number is not None, relative
    return number


def relative(path: str, inside: str) -> str:
    return os.path.relpath(inside, path).replace(os.sep, "/")


def prepare_folder(env: Env, path: str) -> None:
    """Create the folder if needed. Raises: StorageError if it has other content than a store."""
    if not find_store(env, path):
        env.files.make_dirs(path)


def require_store(env: Env, path: str) -> None:
    """Check that there is a store at `path`. Raises: StorageError, and as `find_store`."""
    if not (find_store(env, path) if env.is_local else env.files.exists(identity_path(path))):
        raise StorageError(
            f"there is no Nyala store at {path!r}: give a store's folder, or connect without read_only to create one",
            path=path,
        )


def create_store(env: Env, path: str) -> None:
    """Create the store's files and folders that do not exist yet. Requires the writer's lock."""
    if not env.files.exists(identity_path(path)):
        write_identity(env, path)
    for name in (WAL_NAME, DATA_NAME, STAGING_NAME, CHECKPOINTS_NAME):
        env.files.make_dirs(os.path.join(path, name))
