"""Loads the catalogue: reads the newest checkpoint, and applies the later changes in the log.

    checkpoint of version 40, changes 40 (skipped), 41, 42 of the log  ──►  version 42

A process that opens a store calls `apply_changes`. A process that only needs the catalogue, such as
a task of a Spark job, calls `read_catalogue`.

Source: docs/format/catalog.md; docs/design/log-and-recovery.md, "The catalogue".
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterable, Iterator
from typing import Final

from nyala.catalog.checkpoint import checkpoint_versions, newest_checkpoint, read_identity
from nyala.catalog.codec import decode_change
from nyala.catalog.format import CHECKPOINTS_NAME, IDENTITY_NAME, LEASES_NAME, LOCK_NAME, SOCKET_NAME
from nyala.catalog.model import CatalogState, apply
from nyala.env import Env, MissingFileError
from nyala.errors import CorruptionError, Error, StorageError
from nyala.wal.objects.format import COPYING_KEY
from nyala.wal.position import LogPosition
from nyala.wal.reader import LogReader, missing_segment, segment_numbers
from nyala.wal.record import ChangeRecord

# Files that an interrupted creation of a store may leave.
_FORERUNNERS: Final = frozenset({LOCK_NAME, LEASES_NAME, SOCKET_NAME, ".DS_Store"})
_LOADS_MAX: Final = 20
_INVALID: Final = "a change of the catalogue is invalid: "


def find_store(env: Env, directory: str) -> bool:
    """Return whether this folder is a store. If the result is False, a store can be created in it.

    Raises: StorageError if the folder has other files, or if it is not a folder.
    """
    if env.files.exists(os.path.join(directory, IDENTITY_NAME)):
        return True
    if not env.files.exists(directory):
        return False
    foreign = [
        name
        for name in env.files.list_dir(directory)
        if name not in _FORERUNNERS and not name.startswith(IDENTITY_NAME + ".")
    ]
    if not foreign:
        return False
    if "catalog.sqlite" in foreign:
        raise StorageError(
            f"the store {directory} has a format that was never released: export its tables with the version of Nyala "
            "that wrote them, and load them into a new store",
            path=directory,
        )
    if COPYING_KEY in foreign:
        raise StorageError(
            f"there is an unfinished copy of a store at {directory!r}: wait for `nyala fs copy`, or run it again if it "
            "was interrupted",
            path=directory,
        )
    if {"wal", "data", CHECKPOINTS_NAME} & set(foreign):
        raise StorageError(
            f"{directory} looks like a store, but {IDENTITY_NAME} is missing, and without it nothing can be read: "
            "restore it from a backup",
            path=directory,
        )
    named = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
    raise StorageError(
        f"{directory} is not a Nyala store: it has no {IDENTITY_NAME}, but other files ({named}). Give the store's "
        "own folder, or an empty or new one to create a store",
        path=directory,
    )


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Pause Python's garbage collector while a large catalogue is loaded.

    The collector would check the new entries again and again. This takes as long as to create them,
    and finds no garbage.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def apply_changes(state: CatalogState, changes: Iterable[ChangeRecord]) -> CatalogState:
    """Return the catalogue after these changes, which are in the order of the log.

    Changes up to the version of `state` are skipped.
    Raises: CorruptionError if a change is invalid, or if a version is missing.
    """
    last: ChangeRecord | None = None
    for record in changes:
        try:
            version, change = decode_change(record.data)
            if version <= state.version:
                continue
            if version != state.version + 1:
                raise ValueError(f"change {version} follows version {state.version}: changes are missing")
            state = apply(state, change)
        except (ValueError, AssertionError, Error) as error:
            raise CorruptionError(_INVALID + f"{error!s:.500}", *record.location) from error
        last = record
    problem = None if last is None else next(state.problems(), None)
    if last is not None and problem is not None:
        raise CorruptionError(_INVALID + problem, *last.location)
    return state


def check_log_exists(env: Env, directory: str, wal: str, state: CatalogState) -> None:
    """Raise CorruptionError if the log is missing although the store has changes or data files.

    The log always keeps the last change. So only a store without changes may have no log file.
    """
    if segment_numbers(env.files, wal):
        return
    data = os.path.join(directory, "data")
    if state.version > 1 or any(
        env.files.list_dir(os.path.join(data, name)) for name in env.files.list_dir(data)
    ):
        raise CorruptionError(
            "the log is missing: without it nothing says which rows and files the store has. Nothing was changed: "
            "put the folder of the log back, or restore the store from a backup",
            wal,
        )


def version_of(record: ChangeRecord) -> int:
    """Return the catalogue's version after the change in this record. Raises: CorruptionError."""
    try:
        return decode_change(record.data)[0]
    except ValueError as error:
        raise CorruptionError(_INVALID + f"{error!s:.500}", *record.location) from error


@without_collector()
def read_catalogue(
    env: Env, directory: str, wal: str, upto: LogPosition | None
) -> tuple[CatalogState, LogPosition]:
    """Return the catalogue at a position of the log, and the position up to which the log was read.

    directory: the store's folder.
    wal: the folder of its log.
    upto: the position. None: read up to the last intact record. The caller then checks that
        the returned position is not before the published one.
    Raises: CorruptionError; StorageError, also if there is no store.
    Cost: reads the checkpoint (0.8 s for 10,000 rowsets of 20 columns) and the log's bytes once.
    """
    identity = read_identity(env.files, directory)
    for _ in range(_LOADS_MAX):
        before = checkpoint_versions(env.files, directory)
        failure: Error | None = None
        state = newest_checkpoint(env.files, directory, identity)
        reader = LogReader(env, wal, state.wal_start, state.store_id)
        try:
            check_log_exists(env, directory, wal, state)
            state = apply_changes(state, reader.changes(upto))
        except (MissingFileError, CorruptionError) as error:
            failure = error
        if checkpoint_versions(env.files, directory) == before:
            if isinstance(failure, MissingFileError):
                raise missing_segment(failure.path or wal) from failure
            if failure is not None:
                raise failure
            return state, reader.position
        # The writer wrote a checkpoint meanwhile, and may have removed log segments: try again.
    raise StorageError(
        f"the writer of {directory!r} writes checkpoints faster than this process can read them: try again",
        path=directory,
    )
