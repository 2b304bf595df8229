"""What a power cut leaves of the changes made to a folder, as POSIX has it and file systems do it (F1 to F4 of
`nyala.env.files`):

    C1  Bytes of a file up to its last sync are there. Every later write, each for itself, is there as a whole, is
        not there at all, is there up to some border of 512 bytes, or is zeros (its length came through, its bytes did
        not). A write that is not there before one that is leaves zeros.
    C2  A change of a folder (create, rename, unlink, mkdir, rmdir) is there once the folder was synced; until then
        each may have come through or not, in the order they were made where they touch the same name. A file whose
        name never came through is gone, synced or not. A rename within one folder is there or is not; between two
        folders, each folder has its own half once one of them was synced.
    C3  `write_atomic`, `make_dirs` and `truncate` are made of the same steps and may be cut between them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

__all__ = ["Choices", "Disk", "Event", "EverythingCameThrough"]

SECTOR_SIZE_BYTES: Final = 512


class Choices(Protocol):
    """Where chance comes from: `random.Random`, or what Hypothesis' `st.randoms()` draws."""

    def randrange(self, stop: int, /) -> int: ...


@dataclass(frozen=True)
class Event:
    """One change that was made. Paths are relative to the recording's root.

    kind         fields
    create       path                       an empty file
    write        path, offset, data         append or write_at
    sync         path                       of a file
    truncate     path, offset               cut to `offset` bytes, and synced
    rename       path → new_path
    link         path, and new_path as well
    unlink       path
    mkdir, rmdir path
    sync_dir     path
    given        path, data                 a file that existed before the recording, durable
    """

    kind: str
    path: str
    offset: int = 0
    data: bytes | None = None
    new_path: str = ""


class EverythingCameThrough:
    """The `Choices` that lose nothing: as if the process was killed and the machine went on."""

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


class Disk:
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

    def settle(self) -> None:
        """Make every change so far durable."""
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
