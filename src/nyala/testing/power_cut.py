"""A model of a disk that loses what a power cut may lose, by the rules of POSIX and of real file
systems.

`Disk.apply` takes the recorded changes of a folder. `Disk.write_survivors` writes one folder that
could remain after a power cut. Guarantees F1 to F4 of `nyala.env.files` say what must remain.

    C1  The bytes that a file had at its last sync survive. Each later write has one of four fates.
        It survives as a whole; it is lost; it survives up to a border between sectors of 512 bytes;
        or its bytes become zeros. If a write is lost and a write at a higher offset survives, the
        gap has zeros.
    C2  A change of a folder (create, rename, unlink, mkdir, rmdir) survives if the folder was
        synced after it. Otherwise it may survive or be lost. Surviving changes of one name keep
        their order. A file whose name is lost is lost, even if its bytes were synced. A rename
        survives as a whole or is lost as a whole, with one exception. After a rename between two
        folders, a sync of one folder makes only that folder's half of the rename durable. The other
        half may still be lost.
    C3  `write_atomic` and `make_dirs` consist of several such writes and changes. A power cut may
        come between two of these steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

__all__ = ["Choices", "Disk", "Event", "NothingLost"]

SECTOR_SIZE_BYTES: Final = 512


class Choices(Protocol):
    """A source of random numbers: `random.Random`, or what `st.randoms()` of Hypothesis draws."""

    def randrange(self, stop: int, /) -> int: ...


@dataclass(frozen=True)
class Event:
    """One change in the recorded folder. Paths are relative to this folder.

    kind          fields               meaning
    create        path                 a new empty file
    write         path, offset, data   `append` or `write_at`
    sync          path                 the bytes of a file are durable
    truncate      path, offset         a file is cut to `offset` bytes, and synced
    rename        path, new_path
    link          path, new_path       the file has both names
    unlink        path
    mkdir, rmdir  path
    sync_dir      path                 the names in a folder are durable
    given         path, data           a durable file that existed before the recording
    """

    kind: str
    path: str
    offset: int = 0
    data: bytes | None = None
    new_path: str = ""


class NothingLost:
    """`Choices` that lose nothing, as if only the process was killed."""

    def randrange(self, stop: int, /) -> int:
        return 0


@dataclass
class _Inode:
    """A file: its durable bytes, and the writes after its last sync, as (offset, data)."""

    durable: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)

    def present(self) -> bytes:
        return _overlay(self.durable, self.writes)

    def survivors(self, choices: Choices) -> bytes:
        """Return the file's bytes after a power cut; `choices` decides which writes are lost."""
        kept: list[tuple[int, bytes]] = []
        for offset, data in self.writes:
            fate = choices.randrange(4)
            if fate == 0:
                kept.append((offset, data))
            elif fate == 1:
                continue
            elif fate == 2:
                # The sectors are those of the file. They need not begin where the write begins.
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
    """A folder: its present names, and its durable names."""

    names: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)


_Node: TypeAlias = "_Inode | _Folder"


@dataclass
class _NameChange:
    """One change of names that is not durable yet, such as a rename, which changes two names.

    The change survives as a whole or is lost as a whole.

    slots: for each changed name: its folder, the name, and the file or folder that has this name
        after the change, or None.
    """

    slots: list[tuple[_Folder, str, _Node | None]]


class Disk:
    """A file system that knows which of its names and bytes are durable."""

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
            case "link":
                self._change((event.new_path, self._node(event.path)))
            case "unlink" | "rmdir":
                self._change((event.path, None))
            case "mkdir":
                self._change((event.path, _Folder()))
            case "sync_dir":
                self._sync_dir(self._node(event.path))
            case "given":
                assert event.data is not None
                folder, name = self._slot(event.path)
                _put(folder.names, name, file := _Inode(event.data))
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

    def sync_all(self) -> None:
        """Make all earlier changes of folders durable (create, rename, unlink, mkdir, rmdir).

        Bytes of files that were not synced stay at risk.
        """
        for change in self.pending:
            for folder, name, node in change.slots:
                _put(folder.durable, name, node)
        self.pending = []

    def write_survivors(self, choices: Choices, target_dir: str) -> None:
        """Create the folder `target_dir` with the files that a power cut leaves.

        choices: decides what is lost.
        """
        surviving = [change for change in self.pending if choices.randrange(2) == 0]
        contents: dict[int, bytes] = {}  # by the id of the inode: two names of one file have the same bytes

        def write(folder: _Folder, target: str) -> None:
            os.makedirs(target)
            names = dict(folder.durable)
            for change in surviving:
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
