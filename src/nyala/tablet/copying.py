"""Copies a whole store between folders and buckets, while its writer continues to write.

The source is opened as a reader: the reader's lease keeps the source's files until they are copied.
The copy is written in this order:

    data files  under the same names; a repeated copy skips files that exist already
    catalogue   as a checkpoint, with a new store id
    log         the batches that may not be in files, with their timestamps
    identity       the file `nyala.json`, which marks the destination as a store

Invariants
    C1  Catalogue, files and batches belong to one moment of the source. The copy replays them like
        a writer after a crash, so it has the same rows at every moment up to this moment.
    C2  Until `nyala.json` exists, the destination is not a store. It has the marker `copying`,
        with which `connect` refuses to create a store there.
    C3  The copy has its own store id, which is in its log and checkpoints. So they cannot be
        confused with those of the source. Data files have no store id.
    C4  A data file gets its name only when it is complete, and names are unique. So a file with the
        right name and size is the right file.
    C5  A bucket gets two checkpoints with the same state, because the writer of a bucket expects
        two (S5 of `wal.objects.writer`).

Only one copy at a time writes to a destination. A folder has a lock. In a bucket, a second copy
replaces the marker, and the first copy then ends with an error.

Source: docs/design/object-storage.md, "Copies of a store".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Protocol

from nyala.catalog.checkpoint import StoreIdentity, encode_checkpoint, identity_path, write_checkpoint
from nyala.catalog.codec import encode_change
from nyala.catalog.format import CHECKPOINTS_NAME, IDENTITY_NAME, LOCK_NAME
from nyala.catalog.model import CatalogChange, CatalogState, DeltaEntry, PartEntry, RowSetEntry
from nyala.catalog.store_lock import StoreLock
from nyala.env import SYSTEM, Env
from nyala.env.overlapped import each
from nyala.errors import CorruptionError, StorageError
from nyala.objects.base import Objects
from nyala.objects.settle import persist
from nyala.tablet.media.bucket import BucketLog
from nyala.tablet.media.bucket_reader import BucketReader
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.root import Root
from nyala.wal.objects import format as object_format
from nyala.wal.objects.format import COPYING_KEY
from nyala.wal.objects.take_over import create_identity, take_over
from nyala.wal.reader import LogReader, batches, recover
from nyala.wal.record import ChangeRecord, LogRecord
from nyala.wal.writer import LogWriter

_PART_BYTES: Final = 8 << 20  # read at a time; an object of 5 MB and more is uploaded in parts

Progress = Callable[[int, int], None]
Parts = Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class CopyReport:
    """What a finished copy contains.

    files, bytes: number and size of all data files, including those that an earlier, interrupted
                  copy wrote.
    timestamp:    the moment of the source that was copied.
    """

    files: int
    bytes: int
    log_records: int
    timestamp: int


class Destination(Protocol):
    """The folder or bucket that a copy is written to.

    Call `begin`, then `write` for each data file (by several threads at once), then `finish`.
    """

    def begin(self, directories: Collection[str]) -> None:
        """Create the marker of an unfinished copy, and these folders.

        Raises: StorageError if the destination has other content than an unfinished copy.
        """
        ...

    def write(self, path: str, size_bytes: int, parts: Parts) -> None:
        """Write a data file, unless an earlier copy wrote it. `parts()` yields its bytes."""
        ...

    def finish(self, state: CatalogState, records: Iterable[LogRecord]) -> None:
        """Write the catalogue, the log, and `nyala.json`. Then the destination is a store."""
        ...


def copy_store(
    source: ReaderStore | BucketReader, destination: Destination, progress: Progress
) -> CopyReport:
    """Copy the source's present state to the destination.

    progress: called with the number of copied bytes and their total.
    Raises: StorageError, CorruptionError. Then the destination is not a store, and the copy can be
            repeated.
    """
    root, state, records = _state_of(source)
    entries: list[RowSetEntry | PartEntry | DeltaEntry] = [
        *state.rowsets.values(), *state.parts.values(), *state.deltas.values(),
    ]  # fmt: skip
    sizes = {entry.path: entry.size_bytes for entry in entries}
    total, done, lock = sum(sizes.values()), 0, threading.Lock()
    destination.begin({os.path.dirname(path) for path in sizes})

    def copy_file(path: str) -> None:
        nonlocal done
        destination.write(path, sizes[path], lambda: _parts_of(source, path, sizes[path]))
        with lock:
            done += sizes[path]
            progress(done, total)

    each(SYSTEM.files, copy_file, sizes)
    count, timestamp = 0, state.timestamp_max

    def counted() -> Iterator[LogRecord]:
        nonlocal count, timestamp
        for record in records:
            count, timestamp = count + 1, max(timestamp, record.timestamp)
            yield record

    mine = replace(
        state,
        store_id=source.env.randomness.token_hex(16),
        created_us=source.env.clock.now_us(),
        wal_start=1,
        garbage={},
    )
    destination.finish(mine, counted())
    del root  # until here, its lease kept the files
    return CopyReport(len(sizes), total, count, timestamp)


def _state_of(source: ReaderStore | BucketReader) -> tuple[Root, CatalogState, Iterable[LogRecord]]:
    """Return a root of the source, its catalogue, and the batches that are only in the log.

    The caller must keep a reference to the root until all files are copied. The files of the root
    are not deleted as long as the root is alive.
    """
    if isinstance(source, BucketReader):
        root, state = source.look()
        return root, state, source.unflushed()
    root, state, upto = source.look()
    log = LogReader(source.env, layout.wal_path(source.root_path), state.wal_start, state.store_id)
    return root, state, batches(log.read_to(upto))


def _parts_of(source: ReaderStore | BucketReader, path: str, size_bytes: int) -> Iterator[bytes]:
    where = f"{source.root_path}/{path}"
    with closing(source.env.files.open(where)) as file:
        for offset in range(0, size_bytes, _PART_BYTES):
            memory = bytearray(min(_PART_BYTES, size_bytes - offset))
            if file.read_into(offset, memory) < len(memory):
                raise CorruptionError(
                    f"the file is shorter than {size_bytes} bytes: run `nyala fs check`", where
                )
            yield bytes(memory)


def _check_free(place: str, names: Collection[str]) -> None:
    if IDENTITY_NAME in names:
        raise StorageError(
            f"there is a store at {place!r} already: copy to a new folder or prefix", path=place
        )
    if names and COPYING_KEY not in names:
        found = ", ".join(sorted(names)[:3])
        raise StorageError(
            f"{place!r} is not empty ({found}): copy to a new folder or prefix, or remove what is there",
            path=place,
        )


class FolderDestination:
    """Writes a copy to a folder of this machine. `close` releases the folder's lock."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path
        self._lock = StoreLock(env, path)
        self._directories: list[str] = []

    def _check(self) -> None:
        _check_free(self._path, set(self._env.files.list_dir(self._path)) - {LOCK_NAME})

    def begin(self, directories: Collection[str]) -> None:
        files = self._env.files
        self._check()
        files.make_dirs(self._path)
        self._lock.acquire()
        self._check()  # again: another copy may have created a store before the lock was free
        files.write_atomic(os.path.join(self._path, COPYING_KEY), b"")
        self._directories = [os.path.join(self._path, directory) for directory in directories]
        for directory in self._directories:
            files.make_dirs(directory)

    def write(self, path: str, size_bytes: int, parts: Parts) -> None:
        files = self._env.files
        whole = os.path.join(self._path, path)
        if files.exists(whole) and files.size(whole) == size_bytes:
            return
        partial = whole + ".part"
        files.unlink(partial, missing_ok=True)
        with closing(files.create(partial)) as file:
            for part in parts():
                file.append(part)
            file.sync()
        files.rename(partial, whole)

    def finish(self, state: CatalogState, records: Iterable[LogRecord]) -> None:
        files = self._env.files
        for directory in self._directories:
            files.sync_dir(directory)
        wal, checkpoints = layout.wal_path(self._path), os.path.join(self._path, CHECKPOINTS_NAME)
        for directory in (wal, checkpoints):
            files.remove_tree(directory)
            files.make_dirs(directory)
        write_checkpoint(files, self._path, state)
        with closing(LogWriter(self._env, wal, recover(self._env, wal, 1, state.store_id))) as log:
            # Each store has at least one log record, so that an open notices a lost log.
            log.append_change(ChangeRecord(encode_change(CatalogChange(), state.version + 1)))
            for record in records:
                log.append(record)
            log.sync()
        files.write_atomic(
            identity_path(self._path), StoreIdentity(state.store_id, state.created_us).encode()
        )
        files.unlink(os.path.join(self._path, COPYING_KEY), missing_ok=True)

    def close(self) -> None:
        self._lock.release()


class BucketDestination:
    """Writes a copy under a prefix of a bucket. `close` closes the connection to the bucket."""

    def __init__(self, env: Env, objects: Objects) -> None:
        self._env = env
        self._objects = objects
        self._marker = env.randomness.token_hex(8).encode()
        self._there: dict[str, int] = {}

    def begin(self, directories: Collection[str]) -> None:
        infos = persist(self._env, lambda: self._objects.list(""))
        self._there = {info.key: info.size_bytes for info in infos}
        _check_free(self._objects.url, {key.split("/", 1)[0] for key in self._there})
        persist(self._env, lambda: self._objects.put(COPYING_KEY, self._marker))
        # The log of an unfinished copy has another store id.
        gone = [
            key for key in self._there if not key.startswith(f"{layout.DATA_NAME}/") and key != COPYING_KEY
        ]
        if gone:
            persist(self._env, lambda: self._objects.delete(gone))

    def write(self, path: str, size_bytes: int, parts: Parts) -> None:
        if self._there.get(path) != size_bytes:
            persist(self._env, lambda: self._objects.upload(path, parts()))

    def finish(self, state: CatalogState, records: Iterable[LogRecord]) -> None:
        first = object_format.Epoch(0, self._env.randomness.token_hex(8))
        identity = object_format.StoreIdentity(state.store_id, first)
        body = encode_checkpoint(state)
        with closing(take_over(self._env, self._objects, identity=identity).log) as objects_log:
            objects_log.checkpoint(objects_log.border(), body, None)
            log = BucketLog(objects_log)
            for record in records:
                log.append(record)
            objects_log.checkpoint(objects_log.border(), body, 0)  # C5
        if persist(self._env, lambda: self._objects.get(COPYING_KEY)) != self._marker:
            raise self._refused()
        if create_identity(self._env, self._objects, identity) is not None:
            raise self._refused()
        persist(self._env, lambda: self._objects.delete([COPYING_KEY]))

    def _refused(self) -> StorageError:
        url = self._objects.url
        return StorageError(
            f"another process is copying to {url!r}, or has created a store there: copy to another prefix",
            path=url,
        )

    def close(self) -> None:
        self._objects.close()
