"""`Files` whose files are the objects of a bucket, with a cache on a local disk.

The path of a file is the bucket's URL, "/" and the object's key.

    create    writes a local file; `sync` uploads it and keeps it in the cache
    open      reads chunks of 256 KiB from the cache, and fetches those that it does not have

A data file has a name that no other file ever has (`tablet.state.store_folder`). So it is written
once and never changes. A bucket has no locks, renames, and changes in place: these operations raise
StorageError.

Invariants
    R1  An object appears when `AppendFile.sync` returns, or not at all.
    R2  If an object is missing, the first read raises MissingFileError. `open` sends no request.

Threads: any, but not in a forked child, which does not have the threads of the cache.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, NoReturn

from nyala.env import AppendFile, Bytes, Env, Files, MissingFileError, RandomFile
from nyala.env.files import FileStatus
from nyala.errors import Error, StorageError
from nyala.objects.base import ObjectInfo, Objects
from nyala.objects.chunk_cache import CachedObject, ChunkCache
from nyala.objects.settle import persist

# An upload reads this many bytes from the local file at a time.
_PART_BYTES: Final = 8 << 20
# A longer read checks the object's size first, because its length may come from a damaged file.
_UNCHECKED_MAX_BYTES: Final = 1 << 20


def _unsupported(what: str) -> Callable[..., NoReturn]:
    """Return a method that raises StorageError: an object cannot be `what`, such as "renamed"."""

    def method(self: RemoteFiles, path: str, *_: object, **__: object) -> NoReturn:
        raise StorageError(
            f"{path} is an object of a bucket and cannot be {what}: use a folder on a local disk for this",
            path=path,
            errno=errno.ENOTSUP,
        )

    return method


class RemoteFiles:
    """The files of a store in a bucket. The caller closes the `objects` after it has closed these files.

    Examples
    --------
    >>> import tempfile
    >>> from nyala.env import SYSTEM
    >>> from nyala.objects.memory import MemoryObjects
    >>> bucket = MemoryObjects("memory://bucket")
    >>> files = RemoteFiles.over(bucket, SYSTEM, tempfile.mkdtemp(), 1 << 20)
    >>> file = files.create("memory://bucket/data/1/7.base")
    >>> file.append(b"rows"), file.sync(), file.close()
    (0, None, None)
    >>> files.open("memory://bucket/data/1/7.base").read(1, 3)
    b'ows'
    >>> files.close()
    """

    is_remote: Final = True

    def __init__(self, cache: ChunkCache, env: Env, vanished: Callable[[str], Error] | None = None) -> None:
        """vanished: returns the error to raise for a missing file. Default: MissingFileError."""
        self.cache: Final = cache
        self._env = env
        self.objects: Final = cache.objects
        self._vanished = vanished

    @staticmethod
    def over(objects: Objects, env: Env, cache_dir: str, cache_bytes: int) -> RemoteFiles:
        """Return the files of a bucket with a new cache.

        env: the environment of this machine.
        cache_dir: a local folder, which other processes may use too.
        cache_bytes: the most bytes of the new cache; 0: no cache.
        Raises: StorageError if the folder cannot be written.
        """
        return RemoteFiles(ChunkCache(objects, env.files, env.randomness, cache_dir, cache_bytes), env)

    def client(self) -> RemoteFiles:
        """Return the same files through a new connection and a new cache. The caller closes them."""
        return RemoteFiles(self.cache.client(), self._env)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def open(self, path: str) -> RandomFile:
        return _RemoteRandomFile(self.cache, path, self.cache.entry(self._key(path)), self._vanished)

    def read_all(self, path: str) -> bytes:
        found = self.objects.get(self._key(path))
        if found is None:
            raise _missing(path)
        return found

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted. Cost: lists every object below the folder."""
        under = self._under(path)
        infos = self.objects.list(under)
        if not infos and under and self.exists(path):
            raise StorageError(f"{path} is not a folder", path=path, errno=errno.ENOTDIR)
        return sorted({info.key[len(under) :].split("/", 1)[0] for info in infos})

    def exists(self, path: str) -> bool:
        """Whether there is a file at `path`; false for a folder."""
        return self.objects.head(self._key(path)) is not None

    def size(self, path: str) -> int:
        return self._head(path).size_bytes

    def status(self, path: str) -> FileStatus:
        info = self._head(path)
        return FileStatus(info.size_bytes, info.modified_us, False)

    def identity(self, path: str) -> Hashable:
        """Return the path, which identifies the file, because no name is used twice."""
        return path

    def free_bytes(self, path: str) -> int:
        """Return a very large number, because a bucket has no limit."""
        return 1 << 62

    def _head(self, path: str) -> ObjectInfo:
        info = self.objects.head(self._key(path))
        if info is None:
            raise _missing(path)
        return info

    # ── changing ─────────────────────────────────────────────────────────────────────────────────

    def create(self, path: str) -> AppendFile:
        """Create a new file. Does not check that the name is new: an existing object would be replaced."""
        return _RemoteAppendFile(self.objects, self.cache, path, self._key(path))

    def write_atomic(self, path: str, data: bytes) -> None:
        self.objects.put(self._key(path), data)

    def link(self, old: str, new: str) -> bool:
        """Copy the object inside the bucket, because an object has only one name. Return True.

        If the bucket does not answer, the copy is repeated, because an error would end a long job.
        """
        old_key, new_key = self._key(old), self._key(new)
        persist(self._env, lambda: self.objects.copy(old_key, new_key))
        return True

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        if not missing_ok:
            self._head(path)
        self._remove([self._key(path)])

    def remove_tree(self, path: str) -> None:
        self._remove([info.key for info in self.objects.list(self._under(path))])

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            self.cache.drop(self.cache.entry(key))
        if keys:
            self.objects.delete(keys)

    def make_dirs(self, path: str) -> None:
        """Do nothing: keys need no folders."""

    def sync_dir(self, path: str) -> None:
        """Do nothing, for any path: a bucket stores an object's name together with its bytes."""

    # ── the store's folder ───────────────────────────────────────────────────────────────────────

    def bind(self, folder: str) -> Files:
        return self

    def watch(self, path: str) -> None:
        pass

    def check_bound(self) -> None:
        pass

    def without_lease(self, vanished: Callable[[str], Error]) -> Files:
        return RemoteFiles(self.cache, self._env, vanished)

    def close(self) -> None:
        """Remove the cache. Later reads raise StorageError. May be called twice."""
        self.cache.close()

    # ── what a bucket does not have ──────────────────────────────────────────────────────────────

    write_at = sync_file = _unsupported("changed in place")
    truncate = _unsupported("truncated")
    rename = _unsupported("renamed")
    preallocate = _unsupported("reserved")
    inode = _unsupported("identified by an inode")
    lock = read_lock_content = _unsupported("locked")

    # ── paths and keys ───────────────────────────────────────────────────────────────────────────

    def _key(self, path: str) -> str:
        prefix = f"{self.objects.url}/"
        if not path.startswith(prefix):
            raise StorageError(
                f"{path!r} is not in the bucket {self.objects.url!r}: a store in a bucket has all of its files there",
                path=path,
            )
        return path[len(prefix) :]

    def _under(self, path: str) -> str:
        """Return the prefix of the keys of all objects in the folder `path`."""
        folder = path.rstrip("/")
        return "" if folder == self.objects.url else f"{self._key(folder)}/"


class _RemoteRandomFile:
    def __init__(
        self,
        cache: ChunkCache,
        path: str,
        entry: CachedObject,
        vanished: Callable[[str], Error] | None,
    ) -> None:
        self._cache = cache
        self._path = path
        self._entry = entry
        self._vanished = vanished

    @property
    def path(self) -> str:
        return self._path

    def size_bytes(self) -> int:
        info = self._cache.objects.head(self._entry.key)
        if info is None:
            raise self._gone()
        return info.size_bytes

    def prefetch(self, places: Iterable[tuple[int, int]]) -> None:
        self._cache.prefetch(self._entry, places)

    def forget(self, offset: int, length: int) -> bool:
        return self._cache.forget(self._entry, offset, length)

    def read(self, offset: int, length: int) -> bytes:
        if length > _UNCHECKED_MAX_BYTES:
            length = max(0, min(length, self.size_bytes() - offset))
        memory = bytearray(length)
        found = self.read_into(offset, memory)
        return bytes(memoryview(memory)[:found])

    def read_into(self, offset: int, memory: Any) -> int:
        view = memoryview(memory).cast("B")
        if not len(view):
            return 0
        try:
            return self._read_into(offset, view)
        except MissingFileError as error:
            raise self._gone() from error

    def _read_into(self, offset: int, view: memoryview) -> int:
        for _ in range(2):
            file = self._cache.file_with(self._entry, offset, len(view))
            if file is None:
                break
            try:
                return file.read_into(offset, view)
            except StorageError:  # the cache dropped the file, or the local disk fails
                self._cache.drop(self._entry, file)
        data = memoryview(self._cache.read(self._entry, offset, len(view)))
        view[: data.nbytes] = data
        return data.nbytes

    def _gone(self) -> Error:
        return _missing(self._path) if self._vanished is None else self._vanished(self._path)

    def close(self) -> None:
        pass  # the cache closes its files


class _RemoteAppendFile:
    """A local file. `sync` uploads it as an object, which appears as a whole or not at all."""

    def __init__(self, objects: Objects, cache: ChunkCache, path: str, key: str) -> None:
        cache.check()
        self._objects = objects
        self._cache = cache
        self._path = path
        self._key = key
        self._local_path = cache.new_path()
        self._local = cache.files.create(self._local_path)
        self._state = "open"  # then "uploaded" or "dead"

    @property
    def path(self) -> str:
        return self._path

    @property
    def size_bytes(self) -> int:
        return self._local.size_bytes

    def append(self, *parts: Bytes) -> int:
        self._check_usable("written")
        return self._local.append(*parts)

    def sync(self) -> None:
        if self._state == "uploaded":
            return
        self._check_usable("synced")
        self._state = "dead"
        self._objects.upload(self._key, self._parts())
        self._state = "uploaded"
        self._local.close()
        self._cache.adopt(self._key, self._local_path, self._local.size_bytes)

    def _parts(self) -> Iterator[bytes]:
        local = self._cache.files.open(self._local_path)
        try:
            for offset in range(0, self._local.size_bytes, _PART_BYTES):
                yield local.read(offset, _PART_BYTES)
        finally:
            local.close()

    def _check_usable(self, done: str) -> None:
        if self._state != "open":
            why = (
                "it was uploaded, and objects do not grow"
                if self._state == "uploaded"
                else "its upload failed"
            )
            raise StorageError(f"{self._path} cannot be {done}: {why}", path=self._path)

    def close(self) -> None:
        self._local.close()
        if self._state != "uploaded":
            self._state = "dead"
            with contextlib.suppress(Error):
                self._cache.files.unlink(self._local_path, missing_ok=True)


def _missing(path: str) -> MissingFileError:
    return MissingFileError(f"{path} does not exist", path=path, errno=errno.ENOENT)
