"""A copy of the catalogue in memory, for a process that may not write beside it.

SQLite writes beside a database in WAL mode even to read it: it needs `catalog.sqlite-shm`. On a
read-only medium, or without the right to write, it raises an error. Then this module reads the
pages of `catalog.sqlite` and the frames of `catalog.sqlite-wal`, merges them as SQLite's recovery
would, and returns a connection to the result in memory.

    pages of catalog.sqlite            with the newest version of each page
    + whole transactions of -wal  ──►  that a whole transaction of the -wal holds

Invariants
    Q1  The copy is one committed state. A writer may work meanwhile: SQLite changes the log's
        header before it overwrites frames, so the copy is repeated until that header is the same
        before and after.
    Q2  The pages are read through SQLite (`serialize`), never through a descriptor of our own (K2
        of `store`).

Source: SQLite's file format, sections 1.3 and 4 (WAL-file format, checksum algorithm, reader
algorithm).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import urllib.parse
from collections.abc import Hashable
from typing import Final

from nyala.env import Env, MissingFileError
from nyala.errors import StorageError

__all__ = ["connect_to_copy"]

_LOG_HEADER: Final = struct.Struct(">8I")  # magic, format, page size, sequence, salts, checksums
_FRAME_HEADER: Final = struct.Struct(">6I")  # page, pages after a commit or 0, salts, checksums
_MAGIC: Final = 0x377F0682  # the lowest bit: checksums use big-endian words
_JOURNAL_VERSIONS: Final = slice(18, 20)  # in the database header: 1 for a rollback journal, 2 for WAL
_TRIES_MAX: Final = 20


def connect_to_copy(env: Env, path: str) -> sqlite3.Connection:
    """A connection to a copy in memory of the current catalogue at `path`. Writes nothing.

    Raises: sqlite3.Error, StorageError. Cost: all bytes of both files, in memory.
    """
    log_path = path + "-wal"
    for _ in range(_TRIES_MAX):
        before = _mark(env, path, _read(env, log_path))
        pages = _pages(path)
        log = _read(env, log_path)
        if _mark(env, path, log) == before:
            break
    else:
        raise StorageError(
            f"cannot read {path}: its writer changes it faster than this process can copy it: try again",
            path=path,
        )
    merged = _merged(pages, log)
    merged[_JOURNAL_VERSIONS] = b"\1\1"  # a database in memory cannot be in WAL mode
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        connection.deserialize(bytes(merged))
    except BaseException:
        connection.close()
        raise
    return connection


def _mark(env: Env, path: str, log: bytes) -> Hashable:
    """Differs after pages of `path` were overwritten by anything that is not in `log`."""
    return log[: _LOG_HEADER.size] or env.files.identity(path)


def _read(env: Env, path: str) -> bytes:
    try:
        return env.files.read_all(path)
    except MissingFileError:
        return b""


def _pages(path: str) -> bytes:
    # "immutable": SQLite neither locks the file nor looks for its log.
    uri = f"file:{urllib.parse.quote(os.fsencode(os.path.abspath(path)))}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
        return connection.serialize()


def _merged(pages: bytes, log: bytes) -> bytearray:
    """The pages with all complete transactions of the log."""
    out = bytearray(pages)
    if len(log) < _LOG_HEADER.size:
        return out
    magic, _, page_size, _, *salts_and_sums = _LOG_HEADER.unpack_from(log)
    salts = salts_and_sums[:2]
    words = ">" if magic & 1 else "<"
    sums = _checksum(log[: _LOG_HEADER.size - 8], words, (0, 0))
    if magic & ~1 != _MAGIC or tuple(salts_and_sums[2:]) != sums or page_size == 0:
        return out
    pending: dict[int, int] = {}  # page number to the offset of its bytes in the log
    for at in range(_LOG_HEADER.size, len(log), _FRAME_HEADER.size + page_size):
        body = at + _FRAME_HEADER.size
        if len(log) < body + page_size:
            break
        number, page_count, salt_1, salt_2, sum_1, sum_2 = _FRAME_HEADER.unpack_from(log, at)
        sums = _checksum(log[at : at + 8], words, sums)
        sums = _checksum(log[body : body + page_size], words, sums)
        if [salt_1, salt_2] != salts or (sum_1, sum_2) != sums or number == 0:
            break  # from an earlier use of the log, or torn
        pending[number] = body
        if page_count:
            size = page_count * page_size
            out[size:] = b""
            out.extend(bytes(size - len(out)))
            for page, place in pending.items():
                if page <= page_count:
                    out[(page - 1) * page_size : page * page_size] = log[place : place + page_size]
            pending.clear()
    return out


def _checksum(data: bytes, words: str, sums: tuple[int, int]) -> tuple[int, int]:
    first, second = sums
    for even, odd in struct.iter_unpack(f"{words}II", data):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
