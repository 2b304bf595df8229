"""Objects as files in a folder, also on NFS, with the guarantees of a bucket.

    <folder>/<key>             an object
    <folder>/.tmp/<token>      an object that is being written; no key begins with "."

`create` writes and syncs a temporary file. Then it gives the file the object's name by a hard link,
which fails if the name is used. `put` and `upload` rename the temporary file instead. At the end the
object's folder is synced. So an object appears whole, and survives a power cut.

Invariants
    P1  When `create`, `put`, `upload` or `delete` returns, its effect survives a power cut. If
        `create` returns False, the object that exists survives a power cut, too.
    P2  After a failed sync of a folder, this client changes nothing more (a rule of
        `nyala.env.files`). A second sync could report success, although a power cut would then
        remove the object.
    P3  If a write or delete fails, but may have taken effect, the error's attribute `outcome` is
        "unknown".

A killed process leaves its temporary file. The first write of a later client removes temporary files
that are older than a day. Empty folders are not removed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import quote

from nyala.env import MAY_NOT_WRITE, SYSTEM, Bytes, Env, MissingFileError
from nyala.errors import StorageError
from nyala.objects.base import ObjectInfo
from nyala.objects.handle import Handle, is_key

_TEMPORARY: Final = ".tmp"
_LEFTOVER_AGE_US: Final = 24 * 3600 * 1_000_000
# After these errors, the system has certainly not changed a name.
_CERTAIN: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR,
     errno.EISDIR, errno.ENAMETOOLONG, errno.EMLINK, errno.ESTALE, errno.EEXIST, errno.ENOTEMPTY}
)  # fmt: skip
# How often a link is tried again because another process deleted the object that had the name.
_LINK_TRIES: Final = 5
_COPIED_BYTES: Final = 8 << 20


class FolderObjects(Handle):
    """`Objects` in a folder. The first write creates the folder.

    Examples
    --------
    >>> import tempfile
    >>> folder = FolderObjects(tempfile.mkdtemp())
    >>> folder.create("log/0", b"mine"), folder.create("log/0", b"theirs")
    (True, False)
    >>> [info.key for info in folder.list("log/")]
    ['log/0']
    """

    def __init__(self, path: str, env: Env = SYSTEM) -> None:
        self._root = os.path.abspath(path)
        super().__init__("file://" + quote(self._root))
        self._env = env
        self._files = env.files
        self._bound = False
        self._durable: set[str] = set()  # folders whose names this client has synced
        self._failed: StorageError | None = None
        self._lock = threading.Lock()
        if env.files.exists(self._root):
            self._bind()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def get(self, key: str) -> bytes | None:
        self.check_key(key)
        try:
            path = self._path(key)
            self.check_whole(key, self._files.size(path))
            return self._files.read_all(path)
        except StorageError as error:
            if _is_absent(error):
                return None
            raise

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        self.check_key(key)
        if self.head(key) is None:
            raise self.missing(key)
        file = self._files.open(self._path(key))
        try:
            return [file.read(lower, upper - lower) for lower, upper in ranges]
        finally:
            file.close()

    def head(self, key: str) -> ObjectInfo | None:
        self.check_key(key)
        try:
            status = self._files.status(self._path(key))
        except StorageError as error:
            if _is_absent(error):
                return None
            raise
        return None if status.is_folder else ObjectInfo(key, status.size_bytes, status.modified_us)

    def list(self, under: str, after: str | None = None) -> list[ObjectInfo]:
        self.check_under(under)
        found = list(self._walk(under.rpartition("/")[0], under, after or ""))
        return sorted(found, key=lambda info: info.key)

    def _walk(self, folder: str, under: str, after: str) -> Iterator[ObjectInfo]:
        try:
            names = self._files.list_dir(self._path(folder))
        except StorageError as error:
            if _is_absent(error):
                return
            raise
        for name in names:
            key = f"{folder}/{name}" if folder else name
            # `wanted`: the key may be listed. `inside`: it may be a folder with keys to list.
            wanted = key.startswith(under) and key > after
            inside = f"{key}/".startswith(under) and (f"{key}/" > after or after.startswith(f"{key}/"))
            if not is_key(key) or not (wanted or inside):
                continue
            try:
                status = self._files.status(self._path(key))
            except MissingFileError:
                continue  # it was deleted meanwhile
            if status.is_folder:
                if inside:
                    yield from self._walk(key, under, after)
            elif wanted:
                yield ObjectInfo(key, status.size_bytes, status.modified_us)

    # ── changing ─────────────────────────────────────────────────────────────────────────────────

    def create(self, key: str, body: Bytes) -> bool:
        path = self._path_for_change(key)
        if self._files.exists(path):
            self._sync([os.path.dirname(path)])  # P1
            return False
        with self._temporary([body]) as (temporary, _), self._naming(path):
            created = self._link(temporary, path)
        self._sync([os.path.dirname(path)])
        return created

    def _link(self, temporary: str, path: str) -> bool:
        for _ in range(_LINK_TRIES):
            if self._files.link(temporary, path):
                return True
            with suppress(MissingFileError):
                # NFS repeats a link after a lost reply, and then refuses it although the first succeeded.
                return self._files.inode(path) == self._files.inode(temporary)
        raise StorageError(
            f"cannot create {path}: this user may not write there, or the file system has no hard links, which "
            "put-if-absent needs; use another file system or a bucket",
            path=path,
            errno=errno.EPERM,
        )

    def put(self, key: str, body: Bytes) -> None:
        self.upload(key, [body])

    def upload(self, key: str, parts: Iterable[Bytes]) -> int:
        path = self._path_for_change(key)
        with self._temporary(parts) as (temporary, size), self._naming(path):
            self._files.rename(temporary, path)
        self._sync([os.path.dirname(path)])
        return size

    def copy(self, key: str, new_key: str) -> None:
        self.check_key(key)
        self.upload(new_key, self._content(key))

    def _content(self, key: str) -> Iterator[Bytes]:
        info = self.head(key)
        if info is None:
            raise self.missing(key)
        for lower in range(0, info.size_bytes, _COPIED_BYTES):
            yield from self.get_ranges(key, [(lower, lower + _COPIED_BYTES)])

    def client(self) -> FolderObjects:
        return FolderObjects(self._root, self._env)

    def delete(self, keys: Sequence[str]) -> None:
        self.check()
        paths = [self._path_for_change(key, make=False) for key in keys]
        folders = set()
        for path in paths:
            try:
                with self._naming(path):
                    self._files.unlink(path)
                folders.add(os.path.dirname(path))
            except StorageError as error:
                if not _is_absent(error):
                    raise
        self._sync(sorted(folders))

    def close(self) -> None:
        super().close()
        if self._bound:
            self._files.close()

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _path_for_change(self, key: str, *, make: bool = True) -> str:
        """Check that the object may be changed; return its path. make: also create its folder
        durably.
        """
        self.check_key(key)
        if self._failed is not None:
            raise StorageError(
                f"cannot change {self.at(key)}: an earlier sync failed ({self._failed}); nothing was written, open "
                "the store again",
                path=self.at(key),
                errno=self._failed.errno,
            )
        path = self._path(key)
        if make:
            self._make_folder(os.path.dirname(path))
        return path

    def _make_folder(self, folder: str) -> None:
        if folder in self._durable:
            return
        if not self._bound:
            self._env.files.make_dirs(self._root)
            self._bind()
        temporary = self._path(_TEMPORARY)
        self._files.make_dirs(temporary)
        if not self._durable:
            self._remove_leftovers(temporary)
            try:
                self._files.sync_dir(os.path.dirname(self._root))
            except StorageError as error:
                if error.errno not in MAY_NOT_WRITE:
                    raise
        self._files.make_dirs(folder)
        # Another process may have created these folders without a sync so far.
        made = folder
        while made != self._root and made not in self._durable:
            made = os.path.dirname(made)
            self._sync([made])
        self._durable.add(folder)

    def _bind(self) -> None:
        """Let later changes fail if another folder is moved to the path of this folder."""
        with self._lock:
            if not self._bound:
                self._files = self._env.files.bind(self._root)
                self._bound = True

    @contextmanager
    def _temporary(self, parts: Iterable[Bytes]) -> Iterator[tuple[str, int]]:
        """Write a durable temporary file; yield its path and size, and then remove it."""
        path = f"{self._path(_TEMPORARY)}/{self._env.randomness.token_hex(12)}"
        file = self._files.create(path)
        try:
            try:
                for part in parts:
                    file.append(part)
                file.sync()
            finally:
                file.close()
            yield path, file.size_bytes
        finally:
            with suppress(StorageError):  # `_remove_leftovers` tries again
                self._files.unlink(path, missing_ok=True)

    def _remove_leftovers(self, temporary: str) -> None:
        """Remove temporary files that are older than a day, by the clock of the file system."""
        names = self._files.list_dir(temporary)
        if not names:
            return
        with self._temporary([]) as (path, _):
            now_us = self._files.status(path).modified_us
        for name in names:
            with suppress(StorageError):
                if now_us - self._files.status(f"{temporary}/{name}").modified_us > _LEFTOVER_AGE_US:
                    self._files.unlink(f"{temporary}/{name}")

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Set `outcome` to "unknown" in errors of the `with` block if the file may have changed.

        path: the file that the block creates, replaces or deletes.
        """
        try:
            yield
        except StorageError as error:
            if error.errno not in _CERTAIN:
                error.outcome = "unknown"
            raise

    def _sync(self, folders: Sequence[str]) -> None:
        """Sync these folders, so that the names of their files survive a power cut."""
        try:
            for folder in folders:
                self._files.sync_dir(folder)
        except StorageError as error:
            error.outcome = "unknown"
            self._failed = error  # P2
            raise


def _is_absent(error: StorageError) -> bool:
    """Whether the error says that no object has the key.

    Then its path does not exist, is a folder, or leads through a file.
    """
    return error.errno in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR)
