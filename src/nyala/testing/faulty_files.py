"""Files that remember, fail or kill: how the tests lose power at every moment of a run.

    RecordingFiles   remembers every change and every sync; `crash_image` writes the folder that a power cut at any
                     moment may have left
    FaultyFiles      lets the n-th operation fail (I/O error, full disk, half a write) or stops the world there
    KillingFiles     kills its own process, for real, at the n-th sync, write, rename or unlink

They wrap each other and `PosixFiles`; each is a `Files`.

What a power cut leaves, as POSIX has it and file systems do it (F1 to F4 of `nyala.env.files`):

    C1  Bytes of a file up to its last sync are there. Every later write, each for itself, is there as a whole, is
        not there at all, is there up to some border of 512 bytes, or is zeros (its length came through, its bytes did
        not). A write that is not there before one that is leaves zeros.
    C2  A change of a folder (create, rename, unlink, mkdir, rmdir) is there once the folder was synced; until then
        each may have come through or not, in the order they were made where they touch the same name. A file whose
        name never came through is gone, synced or not. A rename within one folder is there or is not; between two
        folders, each folder has its own half once one of them was synced.
    C3  `write_atomic`, `make_dirs` and `truncate` are made of the same steps and may be cut between them.
    C4  SQLite's database is as it was at its last commit (`external_commit`): its own care is not tested here.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from nyala.env import AppendFile, Bytes, FileLock, Files, RandomFile
from nyala.env.files import write_atomic
from nyala.errors import StorageError

__all__ = [
    "NAMES",
    "SYNCS",
    "WRITES",
    "Choices",
    "Event",
    "FaultKind",
    "FaultyFiles",
    "KillingFiles",
    "Operation",
    "RecordingFiles",
    "SimulatedCrash",
]

SECTOR_SIZE_BYTES: Final = 512

# What SQLite keeps of a database: the file and its journal. The shared memory (-shm) is rebuilt at open.
_SQLITE_SUFFIXES: Final = ("", "-wal", "-journal")


class Choices(Protocol):
    """Where chance comes from: `random.Random`, or what Hypothesis' `st.randoms()` draws."""

    def randrange(self, stop: int, /) -> int: ...


class SimulatedCrash(BaseException):
    """The world has stopped. Not an Exception, so that no handler takes it for an error to be dealt with."""


# ── what all have in common ─────────────────────────────────────────────────────────────────────────────────────────


class _Wrapper:
    """A `Files` that hands everything to another one. What is composed of steps is composed here, of our own."""

    def __init__(self, inner: Files) -> None:
        self._inner = inner

    def create(self, path: str) -> AppendFile:
        return self._inner.create(path)

    def open(self, path: str) -> RandomFile:
        return self._inner.open(path)

    def read_all(self, path: str) -> bytes:
        return self._inner.read_all(path)

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        self._inner.write_at(path, offset, data)

    def write_atomic(self, path: str, data: bytes) -> None:
        write_atomic(self, path, data)

    def truncate(self, path: str, length: int) -> None:
        self._inner.truncate(path, length)

    def rename(self, old: str, new: str) -> None:
        self._inner.rename(old, new)

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        self._inner.unlink(path, missing_ok)

    def remove_tree(self, path: str) -> None:
        self._inner.remove_tree(path)

    def make_dirs(self, path: str) -> None:
        self._inner.make_dirs(path)

    def list_dir(self, path: str) -> list[str]:
        return self._inner.list_dir(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def size(self, path: str) -> int:
        return self._inner.size(path)

    def free_bytes(self, path: str) -> int:
        return self._inner.free_bytes(path)

    def sync_dir(self, path: str) -> None:
        self._inner.sync_dir(path)

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        return self._inner.lock(path, create=create)

    def read_lock_content(self, path: str) -> bytes:
        return self._inner.read_lock_content(path)

    def external_commit(self, path: str) -> None:
        self._inner.external_commit(path)


@dataclass(frozen=True)
class Operation:
    """One change of the outside, about to be made."""

    kind: str
    path: str


class _WatchedFile:
    """An AppendFile whose owner is asked before every step."""

    def __init__(self, inner: AppendFile, owner: _Watcher) -> None:
        self._inner = inner
        self._owner = owner
        self._dead = False

    @property
    def path(self) -> str:
        return self._inner.path

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def _check(self) -> None:
        if self._dead:
            raise StorageError(
                f"cannot use {self.path}: an earlier call failed", path=self.path, errno=errno.EIO
            )

    def append(self, *parts: Bytes) -> int:
        self._check()
        try:
            self._owner.before(Operation("append", self.path))
        except _ShortWrite as short:
            self._dead = True
            data = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
            self._inner.append(data[: len(data) // 2])
            raise short.error from None
        except StorageError:
            self._dead = True
            raise
        offset = self._inner.append(*parts)
        self._owner.after(Operation("append", self.path))
        return offset

    def sync(self) -> None:
        self._check()
        try:
            self._owner.before(Operation("sync", self.path))
        except StorageError:
            self._dead = True
            raise
        self._inner.sync()
        self._owner.after(Operation("sync", self.path))

    def close(self) -> None:
        self._inner.close()


class _Watcher(_Wrapper):
    """Asks `before` and tells `after` every change."""

    def before(self, operation: Operation) -> None:
        raise NotImplementedError

    def after(self, operation: Operation) -> None:
        pass

    def create(self, path: str) -> AppendFile:
        self.before(Operation("create", path))
        file = _WatchedFile(self._inner.create(path), self)
        self.after(Operation("create", path))
        return file

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        try:
            self.before(Operation("write_at", path))
        except _ShortWrite as short:
            self._inner.write_at(path, offset, data[: len(data) // 2])
            raise short.error from None
        self._inner.write_at(path, offset, data)
        self.after(Operation("write_at", path))

    def truncate(self, path: str, length: int) -> None:
        self.before(Operation("truncate", path))
        self._inner.truncate(path, length)
        self.after(Operation("truncate", path))

    def rename(self, old: str, new: str) -> None:
        self.before(Operation("rename", new))
        self._inner.rename(old, new)
        self.after(Operation("rename", new))

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        if missing_ok and not self._inner.exists(path):
            return
        self.before(Operation("unlink", path))
        self._inner.unlink(path, missing_ok)
        self.after(Operation("unlink", path))

    def remove_tree(self, path: str) -> None:
        if not self._inner.exists(path):
            return
        self.before(Operation("remove_tree", path))
        self._inner.remove_tree(path)
        self.after(Operation("remove_tree", path))

    def make_dirs(self, path: str) -> None:
        if self._inner.exists(path):
            return
        self.before(Operation("make_dirs", path))
        self._inner.make_dirs(path)
        self.after(Operation("make_dirs", path))

    def sync_dir(self, path: str) -> None:
        self.before(Operation("sync_dir", path))
        self._inner.sync_dir(path)
        self.after(Operation("sync_dir", path))

    def external_commit(self, path: str) -> None:
        self.before(Operation("external_commit", path))
        self._inner.external_commit(path)
        self.after(Operation("external_commit", path))


# ── failing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FaultKind: TypeAlias = Literal["eio", "enospc", "short", "crash"]

# These need no space: a full disk does not keep them from working.
_WITHOUT_SPACE: Final = frozenset(
    {"sync", "sync_dir", "unlink", "remove_tree", "truncate", "external_commit"}
)


class _ShortWrite(Exception):
    """Half of a write is to be made before `error` is raised."""

    def __init__(self, error: StorageError) -> None:
        super().__init__()
        self.error = error


class FaultyFiles(_Watcher):
    """Fails at the `fail_at`-th operation (counted from 1) among those that `only` accepts; None: only counts.

    eio      that operation, and only that, is not made and raises EIO; an AppendFile is dead after it
    enospc   from there on the disk is full: everything that needs space raises ENOSPC, `free_bytes` is 0; `heal()`
    short    as enospc, but half of the write is made first
    crash    SimulatedCrash, there and at every later operation: nothing more reaches the disk

    Around a RecordingFiles, "crash" and then `crash_image(len(recording.events), …)` is a power cut there.
    Threads: any; the count is over all of them.
    """

    def __init__(
        self,
        inner: Files,
        fail_at: int | None = None,
        kind: FaultKind = "eio",
        only: Callable[[Operation], bool] | None = None,
    ) -> None:
        super().__init__(inner)
        self.fail_at = fail_at
        self.kind: FaultKind = kind
        self.operations: list[Operation] = []
        """Every operation counted so far."""
        self.failed: list[Operation] = []
        """Those that were made to fail."""
        self._only = only
        self._full = False
        self._crashed = False
        self._lock = threading.Lock()

    def fill(self) -> None:
        """The disk is full from now on, until `heal()`."""
        self._full = True

    def heal(self) -> None:
        """Give the disk its space back."""
        self._full = False

    def free_bytes(self, path: str) -> int:
        return 0 if self._full else super().free_bytes(path)

    def before(self, operation: Operation) -> None:
        with self._lock:
            if self._crashed:
                raise SimulatedCrash(operation)
            if self._full and operation.kind not in _WITHOUT_SPACE:
                self.failed.append(operation)
                raise _fault(operation, errno.ENOSPC)
            if operation.kind == "external_commit" and self.kind != "crash":
                return  # SQLite has committed: that cannot fail any more
            if self._only is not None and not self._only(operation):
                return
            self.operations.append(operation)
            if len(self.operations) != self.fail_at:
                return
            self.failed.append(operation)
            if self.kind == "crash":
                self._crashed = True
                raise SimulatedCrash(operation)
            if self.kind == "eio":
                raise _fault(operation, errno.EIO)
            self._full = True
            error = _fault(operation, errno.ENOSPC)
            if self.kind == "short" and operation.kind in ("append", "write_at"):
                raise _ShortWrite(error)
            raise error


def _fault(operation: Operation, number: int) -> StorageError:
    return StorageError(
        f"cannot {operation.kind} {operation.path}: {os.strerror(number)} (a fault that the test asked for)",
        path=operation.path,
        errno=number,
    )


SYNCS: Final = frozenset({"sync", "sync_dir", "truncate", "external_commit"})
"""Kinds of operations that make something durable."""
WRITES: Final = frozenset({"create", "append", "write_at"})
"""Kinds that put bytes or a new file there."""
NAMES: Final = frozenset({"rename", "unlink", "remove_tree", "make_dirs"})
"""Kinds that change names."""


class KillingFiles(_Watcher):
    """SIGKILLs its own process at the `kill_at`-th operation of `kinds` (from 1), "before" or "after" it is made.

    By itself these are the syncs: those of files and folders, `truncate` (which syncs), and SQLite's commits, which can
    only be killed after. For a child process: nothing can be caught, no file is closed, no footer written.
    """

    def __init__(
        self,
        inner: Files,
        kill_at: int | None = None,
        when: Literal["before", "after"] = "before",
        kinds: Collection[str] = SYNCS,
    ) -> None:
        super().__init__(inner)
        self.kill_at = kill_at
        self.when = when
        self.count = 0
        """Operations of these kinds so far."""
        self._kinds = frozenset(kinds)
        self._lock = threading.Lock()
        self._condemned: int | None = None  # the thread that makes the fatal operation

    def before(self, operation: Operation) -> None:
        if operation.kind in self._kinds:
            with self._lock:
                self.count += 1
                if self.count == self.kill_at:
                    self._condemned = threading.get_ident()
                    if self.when == "before":
                        os.kill(os.getpid(), signal.SIGKILL)

    def after(self, operation: Operation) -> None:
        if operation.kind in self._kinds and self._condemned == threading.get_ident():
            os.kill(os.getpid(), signal.SIGKILL)


# ── remembering ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Event:
    """One change that was made. Paths are relative to the recording's root.

    kind         fields
    create       path                       an empty file
    write        path, offset, data         append or write_at
    sync         path                       of a file
    truncate     path, offset               cut to `offset` bytes, and synced
    rename       path → new_path
    unlink       path
    mkdir, rmdir path
    sync_dir     path
    external     path, data                 a file of SQLite's, durable as a whole; data None: not there
    """

    kind: str
    path: str
    offset: int = 0
    data: bytes | None = None
    new_path: str = ""


class _RecordedFile:
    def __init__(self, inner: AppendFile, owner: RecordingFiles) -> None:
        self._inner = inner
        self._owner = owner

    @property
    def path(self) -> str:
        return self._inner.path

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def append(self, *parts: Bytes) -> int:
        offset = self._inner.append(*parts)
        data = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
        self._owner.record("write", self.path, offset, data)
        return offset

    def sync(self) -> None:
        self._inner.sync()
        self._owner.record("sync", self.path)

    def close(self) -> None:
        self._inner.close()


class _RecordedLock:
    """A lock's content is a write like any other, and never synced."""

    def __init__(self, inner: FileLock, owner: RecordingFiles) -> None:
        self._inner = inner
        self._owner = owner

    @property
    def path(self) -> str:
        return self._inner.path

    def write(self, content: bytes) -> None:
        self._inner.write(content)
        self._owner.record("write", self.path, 0, content)

    def read(self) -> bytes:
        return self._inner.read()

    def release(self, unlink: bool = False) -> None:
        there = unlink and self._owner.exists(self.path)
        self._inner.release(unlink)
        if there:
            self._owner.record("unlink", self.path)


class RecordingFiles(_Wrapper):
    """Remembers every change under `root`, from which `crash_image` makes what a power cut may leave.

    What is under `root` when the recording begins counts as durable. All written bytes are kept in memory.
    Threads: any; events stand in the order in which they ended.
    """

    def __init__(self, inner: Files, root: str) -> None:
        super().__init__(inner)
        self.root = os.path.abspath(root)
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._external: dict[str, bytes | None] = {}
        self._before: list[Event] = []
        if os.path.isdir(self.root):
            for folder, folders, files in os.walk(self.root):
                for name in sorted(folders):
                    self._before.append(Event("mkdir", self._relative(os.path.join(folder, name))))
                for name in sorted(files):
                    path = os.path.join(folder, name)
                    with open(path, "rb") as file:
                        self._before.append(Event("external", self._relative(path), data=file.read()))

    def _relative(self, path: str) -> str:
        relative = os.path.relpath(os.path.abspath(path), self.root)
        return "" if relative == "." else relative

    def record(
        self, kind: str, path: str, offset: int = 0, data: bytes | None = None, new_path: str = ""
    ) -> None:
        relative = self._relative(path)
        if relative.startswith(".."):
            return  # a parent of the root, or a file elsewhere
        new = self._relative(new_path) if new_path else ""
        assert not new.startswith(".."), f"{new_path} leaves the recorded folder"
        with self._lock:
            self.events.append(Event(kind, relative, offset, data, new))

    def create(self, path: str) -> AppendFile:
        file = self._inner.create(path)
        self.record("create", path)
        return _RecordedFile(file, self)

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        new = not self._inner.exists(path)
        self._inner.write_at(path, offset, data)
        if new:
            self.record("create", path)
        self.record("write", path, offset, bytes(data))

    def truncate(self, path: str, length: int) -> None:
        self._inner.truncate(path, length)
        self.record("truncate", path, length)

    def rename(self, old: str, new: str) -> None:
        self._inner.rename(old, new)
        self.record("rename", old, new_path=new)

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        there = self._inner.exists(path)
        self._inner.unlink(path, missing_ok)
        if there:
            self.record("unlink", path)

    def remove_tree(self, path: str) -> None:
        if not self._inner.exists(path):
            return
        if not os.path.isdir(path) or os.path.islink(path):
            self.unlink(path)
            return
        for name in self._inner.list_dir(path):
            self.remove_tree(os.path.join(path, name))
        self._inner.remove_tree(path)
        self.record("rmdir", path)

    def make_dirs(self, path: str) -> None:
        missing: list[str] = []
        folder = os.path.abspath(path)
        while not self._inner.exists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        self._inner.make_dirs(path)
        for folder in reversed(missing):
            self.record("mkdir", folder)
            self.record("sync_dir", os.path.dirname(folder))

    def sync_dir(self, path: str) -> None:
        self._inner.sync_dir(path)
        self.record("sync_dir", path or ".")

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        new = not self._inner.exists(path)
        lock = self._inner.lock(path, create=create)
        if new and self._inner.exists(path):
            self.record("create", path)
        return None if lock is None else _RecordedLock(lock, self)

    def external_commit(self, path: str) -> None:
        self._inner.external_commit(path)
        for suffix in _SQLITE_SUFFIXES:
            data: bytes | None = None
            if self._inner.exists(path + suffix):
                with open(path + suffix, "rb") as file:
                    data = file.read()
            if self._external.get(path + suffix, b"?") != data:
                self._external[path + suffix] = data
                self.record("external", path + suffix, data=data)

    def crash_image(self, upto_event: int, choices: Choices | random.Random, target_dir: str) -> None:
        """Write into the new folder `target_dir` what a power cut after `events[:upto_event]` may have left.

        Everything that C1 and C2 leave open is drawn from `choices`; each draw is one `randrange`. Draws of 0 mean
        "came through", so a shrunk Hypothesis example is the mildest crash.
        """
        disk = _Disk()
        for event in self._before:
            disk.apply(event)
        disk.settle()
        for event in self.events[:upto_event]:
            disk.apply(event)
        disk.write_survivors(choices, target_dir)

    def live_image(self, upto_event: int, target_dir: str) -> None:
        """As `crash_image`, but only the process died: everything that it handed to the system is there."""
        self.crash_image(upto_event, _EverythingCameThrough(), target_dir)


class _EverythingCameThrough:
    def randrange(self, stop: int, /) -> int:
        return 0


@dataclass
class _Inode:
    """A file's durable bytes, and the writes since."""

    durable: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)

    def present(self) -> bytes:
        return _overlay(self.durable, self.writes)

    def survivors(self, choices: Choices) -> bytes:
        """C1."""
        kept: list[tuple[int, bytes]] = []
        for offset, data in self.writes:
            fate = choices.randrange(4)
            if fate == 0:
                kept.append((offset, data))
            elif fate == 1:
                continue
            elif fate == 2:
                # Up to a border between sectors of the file, not of the write.
                first = offset // SECTOR_SIZE_BYTES
                last = (offset + len(data) - 1) // SECTOR_SIZE_BYTES if data else first
                border = (first + choices.randrange(last - first + 1)) * SECTOR_SIZE_BYTES
                if border > offset:
                    kept.append((offset, data[: border - offset]))
            else:
                kept.append((offset, bytes(len(data))))
        return _overlay(self.durable, kept)


def _overlay(base: bytes, writes: Iterable[tuple[int, bytes]]) -> bytes:
    content = bytearray(base)
    for offset, data in writes:
        if offset > len(content):
            content += bytes(offset - len(content))
        content[offset : offset + len(data)] = data
    return bytes(content)


@dataclass(eq=False)
class _Folder:
    """A folder's names: as they are, and as they are durably."""

    names: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)


_Node: TypeAlias = "_Inode | _Folder"


@dataclass
class _NameChange:
    """One operation on names: (folder, name, what the name holds afterwards). It came through as a whole or not at
    all, unless one of its two folders was synced (C2)."""

    slots: list[tuple[_Folder, str, _Node | None]]


class _Disk:
    """A file system as POSIX lets it be: names and bytes, each with what is durable and what is not yet."""

    def __init__(self) -> None:
        self.root = _Folder()
        self.pending: list[_NameChange] = []

    def _node(self, path: str) -> _Node:
        node: _Node = self.root
        for name in path.split("/") if path else ():
            assert isinstance(node, _Folder), path
            node = node.names[name]
        return node

    def _inode(self, path: str) -> _Inode:
        node = self._node(path)
        assert isinstance(node, _Inode), f"{path} is a folder"
        return node

    def _slot(self, path: str) -> tuple[_Folder, str]:
        folder = self._node(os.path.dirname(path))
        assert isinstance(folder, _Folder), path
        return folder, os.path.basename(path)

    def _change(self, *changes: tuple[str, _Node | None]) -> None:
        slots = [(*self._slot(path), node) for path, node in changes]
        for folder, name, node in slots:
            _put(folder.names, name, node)
        self.pending.append(_NameChange(slots))

    def apply(self, event: Event) -> None:
        match event.kind:
            case "create":
                self._change((event.path, _Inode()))
            case "write":
                assert event.data is not None
                self._inode(event.path).writes.append((event.offset, event.data))
            case "sync":
                inode = self._inode(event.path)
                inode.durable, inode.writes = inode.present(), []
            case "truncate":
                inode = self._inode(event.path)
                content = inode.present()[: event.offset]
                inode.durable, inode.writes = content + bytes(event.offset - len(content)), []
            case "rename":
                self._change((event.path, None), (event.new_path, self._node(event.path)))
            case "unlink" | "rmdir":
                self._change((event.path, None))
            case "mkdir":
                self._change((event.path, _Folder()))
            case "sync_dir":
                self._sync_dir(self._node(event.path))
            case "external":
                folder, name = self._slot(event.path)
                file = None if event.data is None else _Inode(event.data)
                _put(folder.names, name, file)
                _put(folder.durable, name, file)
            case _:
                raise AssertionError(f"unknown event {event}")

    def _sync_dir(self, synced: _Node) -> None:
        for change in self.pending:
            for folder, name, node in change.slots:
                if folder is synced:
                    _put(folder.durable, name, node)
            change.slots = [slot for slot in change.slots if slot[0] is not synced]
        self.pending = [change for change in self.pending if change.slots]

    def settle(self) -> None:
        """Everything so far is durable."""
        for change in self.pending:
            for folder, name, node in change.slots:
                _put(folder.durable, name, node)
        self.pending = []

    def write_survivors(self, choices: Choices, target_dir: str) -> None:
        through = [change for change in self.pending if choices.randrange(2) == 0]
        contents: dict[int, bytes] = {}  # one inode under two names is one file

        def write(folder: _Folder, target: str) -> None:
            os.makedirs(target)
            names = dict(folder.durable)
            for change in through:
                for changed, name, node in change.slots:
                    if changed is folder:
                        _put(names, name, node)
            for name, node in sorted(names.items()):
                if isinstance(node, _Folder):
                    write(node, os.path.join(target, name))
                    continue
                if id(node) not in contents:
                    contents[id(node)] = node.survivors(choices)
                with open(os.path.join(target, name), "wb") as file:
                    file.write(contents[id(node)])

        write(self.root, target_dir)


def _put(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
