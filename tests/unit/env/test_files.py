"""`PosixFiles`: writes can be read, failures raise, and a lock has one holder."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import tracemalloc
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.env import MissingFileError, PosixFiles, posix_files, system_files
from nyala.errors import Error, StorageError

FILES = PosixFiles()


def test_appended_parts_are_adjacent(tmp_path: Path) -> None:
    """Appended parts are adjacent, so offsets can be computed."""
    file = FILES.create(str(tmp_path / "f"))
    assert file.append(b"ab", bytearray(b"cd"), memoryview(b"ef"), pa.py_buffer(b"gh")) == 0
    assert file.append() == 8
    assert file.append(b"", b"i") == 8
    assert file.append(memoryview(b"jk").cast("H")) == 9
    assert file.size_bytes == 11
    file.sync()
    file.close()
    file.close()
    assert FILES.read_all(str(tmp_path / "f")) == b"abcdefghijk"


def test_more_parts_than_one_system_call_takes(tmp_path: Path) -> None:
    """More parts than IOV_MAX do not fail with EINVAL."""
    file = FILES.create(str(tmp_path / "f"))
    parts = [bytes([number % 256]) * (number % 3) for number in range(5000)]
    file.append(*parts)
    assert FILES.read_all(file.path) == b"".join(parts)


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system writes less than all bytes, the rest is written as well."""
    plain = os.write
    monkeypatch.setattr(os, "writev", lambda fd, parts: plain(fd, b"".join(parts)[:3]))
    file = FILES.create(str(tmp_path / "f"))
    file.append(b"0123456", b"", b"789", b"abcdef")
    assert FILES.read_all(file.path) == b"0123456789abcdef"
    assert file.size_bytes == 16


def test_after_a_failed_write_the_file_refuses_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is appended after a part that was half written."""
    file = FILES.create(str(tmp_path / "f"))

    def writev(fd: int, parts: list[bytes]) -> int:
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(os, "writev", writev)
    with pytest.raises(StorageError, match="the device failed") as failed:
        file.append(b"x")
    assert (failed.value.errno, failed.value.path) == (errno.EIO, file.path)
    monkeypatch.undo()
    for again in (lambda: file.append(b"x"), file.sync):
        with pytest.raises(StorageError, match="an earlier call failed"):
            again()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_to_a_full_disk_is_undone_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A half-written part is removed."""
    file = FILES.create(str(tmp_path / "f"))
    file.append(b"before")
    plain, calls = os.write, []

    def writev(fd: int, parts: list[bytes]) -> int:
        calls.append(fd)
        if len(calls) > 1:
            raise OSError(number, "full")
        return plain(fd, b"".join(parts)[:3])

    monkeypatch.setattr(os, "writev", writev)
    with pytest.raises(StorageError, match="free some") as failed:
        file.append(b"012345")
    assert failed.value.errno == number and FILES.read_all(file.path) == b"before"
    monkeypatch.undo()
    assert file.append(b"after") == 6
    assert FILES.read_all(file.path) == b"beforeafter"


def test_space_is_allocated_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder" / "f"
    FILES.preallocate(str(path), 100_000)
    assert path.stat().st_size == 100_000 and path.stat().st_blocks * 512 >= 100_000

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="free some space"):
        FILES.preallocate(str(tmp_path / "g"), 100)
    assert not (tmp_path / "g").exists()


def test_f3_a_failed_sync_is_never_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux reports a failed write-back once; a second sync would succeed although bytes are lost."""
    file = FILES.create(str(tmp_path / "f"))
    file.append(b"x")
    calls = []

    def fdatasync(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(StorageError, match="cannot sync"):
        file.sync()
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    with pytest.raises(StorageError, match="an earlier call failed"):
        file.sync()
    assert len(calls) == 1


@pytest.mark.parametrize("supported", [True, False])
def test_macos_also_syncs_the_drives_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    """fsync of macOS returns before the bytes are on the medium."""
    calls = []

    def fcntl_(fd: int, command: int) -> int:
        calls.append(command)
        if not supported:
            raise OSError(errno.ENOTSUP, "not on this file system")
        return 0

    file = FILES.create(str(tmp_path / "f"))
    monkeypatch.setattr(posix_files.sys, "platform", "darwin")
    monkeypatch.setattr(posix_files.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(posix_files.fcntl, "fcntl", fcntl_)
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    file.sync()
    assert calls == ([51] if supported else [51, "fsync"])


def test_windows_is_refused_with_an_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, the error names the supported platforms. There is no AttributeError."""
    monkeypatch.setattr(posix_files, "fcntl", None)
    with pytest.raises(StorageError, match="Linux or macOS"):
        system_files().open("store")


def test_creating_an_existing_file_raises(tmp_path: Path) -> None:
    """Two writers never overwrite each other's file."""
    FILES.create(str(tmp_path / "f")).close()
    with pytest.raises(StorageError, match="already") as refused:
        FILES.create(str(tmp_path / "f"))
    assert refused.value.errno == errno.EEXIST


def test_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    """The user's umask decides on access to a store."""
    old = os.umask(0o027)
    try:
        FILES.create(str(tmp_path / "f")).close()
        FILES.write_atomic(str(tmp_path / "g"), b"")
    finally:
        os.umask(old)
    assert {os.stat(tmp_path / name).st_mode & 0o777 for name in ("f", "g")} == {0o640}


def test_a_missing_file_raises_both_error_types(tmp_path: Path) -> None:
    """`except FileNotFoundError` and `except nyala.StorageError` both work, also after pickling."""
    path = str(tmp_path / "none")
    for action in (
        lambda: FILES.open(path),
        lambda: FILES.read_all(path),
        lambda: FILES.size(path),
        lambda: FILES.unlink(path),
        lambda: FILES.truncate(path, 0),
        lambda: FILES.sync_dir(path),
        lambda: FILES.lock(path, create=False),
    ):
        with pytest.raises(MissingFileError) as missing:
            action()  # type: ignore[no-untyped-call]
        again = pickle.loads(pickle.dumps(missing.value))
        for error in (missing.value, again):
            assert isinstance(error, FileNotFoundError | StorageError)
            assert isinstance(error, Error)
            assert (error.errno, error.path) == (errno.ENOENT, path)
            assert path in str(error)


def test_reads_stop_at_the_end_of_the_file(tmp_path: Path) -> None:
    """A read past the end returns fewer bytes, so the reader can report the cut."""
    FILES.write_at(str(tmp_path / "f"), 0, b"0123456789")
    file = FILES.open(str(tmp_path / "f"))
    assert (file.size_bytes(), file.path) == (10, str(tmp_path / "f"))
    assert [file.read(3, 4), file.read(8, 5), file.read(10, 5), file.read(20, 5), file.read(0, 0)] == [
        b"3456",
        b"89",
        b"",
        b"",
        b"",
    ]
    for offset, found in ((3, b"3456"), (8, b"89.."), (10, b"...."), (20, b"....")):
        memory = bytearray(b"....")
        assert file.read_into(offset, memory) == len(found.rstrip(b"."))
        assert memory == found, "bytes beyond the read are unchanged"
    file.close()
    file.close()
    with pytest.raises(StorageError, match="closed"):
        file.read(0, 1)
    with pytest.raises(StorageError, match="closed"):
        file.read_into(0, bytearray(1))


def test_large_reads_and_writes_need_several_system_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One system call moves at most 2 GiB."""
    monkeypatch.setattr(posix_files, "_CALL_MAX_BYTES", 7)
    FILES.write_at(str(tmp_path / "f"), 0, bytes(range(100)))
    file = FILES.open(str(tmp_path / "f"))
    assert file.read(10, 50) == bytes(range(10, 60))
    memory = bytearray(50)
    assert file.read_into(10, memory) == 50 and memory == bytes(range(10, 60))
    plain = os.writev
    requested = []

    def writev(fd: int, parts: list[memoryview]) -> int:
        requested.append(sum(part.nbytes for part in parts))
        return plain(fd, parts)

    monkeypatch.setattr(os, "writev", writev)
    made = FILES.create(str(tmp_path / "g"))
    made.append(bytes(range(20)), bytes(range(20, 60)))
    assert requested == [7] * 8 + [4]
    assert FILES.read_all(made.path) == bytes(range(60))


def test_threads_may_read_one_file_at_once(tmp_path: Path) -> None:
    """Threads that read one file at once get their own bytes."""
    FILES.write_at(str(tmp_path / "f"), 0, bytes(range(256)) * 64)
    file = FILES.open(str(tmp_path / "f"))
    wrong = []

    def read(offset: int) -> None:
        for _ in range(300):
            if file.read(offset * 256, 256) != bytes(range(256)):
                wrong.append(offset)

    threads = [threading.Thread(target=read, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_write_atomic_leaves_the_old_or_the_new_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure, the old file is unchanged and there is no temporary file."""
    path = str(tmp_path / "f")
    FILES.write_atomic(path, b"old")
    FILES.write_atomic(path, b"older")

    def fdatasync(fd: int) -> None:
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(StorageError):
        FILES.write_atomic(path, b"new")
    assert FILES.read_all(path) == b"older"
    assert FILES.list_dir(str(tmp_path)) == ["f"]


def test_truncate_write_at_and_rename(tmp_path: Path) -> None:
    """The log's tail is cut with `truncate`, and the published position is written with `write_at`."""
    path, other = str(tmp_path / "f"), str(tmp_path / "g")
    FILES.write_at(path, 4, b"abcd")
    FILES.write_at(path, 5, b"X")
    assert FILES.read_all(path) == b"\0\0\0\0aXcd"
    FILES.truncate(path, 5)
    assert FILES.size(path) == 5
    FILES.rename(path, other)
    assert (FILES.exists(path), FILES.exists(other)) == (False, True)
    FILES.sync_dir(str(tmp_path))
    FILES.unlink(other)
    FILES.unlink(other, missing_ok=True)
    assert FILES.free_bytes(str(tmp_path)) > 0


def test_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's file has two names for a while; a file system without hard links raises an error."""
    path, other = str(tmp_path / "f"), str(tmp_path / "g")
    FILES.write_at(path, 0, b"abcd")
    assert FILES.link(path, other)
    FILES.unlink(path)
    assert FILES.read_all(other) == b"abcd"
    FILES.write_at(path, 0, b"new")
    assert not FILES.link(path, other) and FILES.read_all(other) == b"abcd"
    with pytest.raises(MissingFileError):
        FILES.link(str(tmp_path / "nothing"), str(tmp_path / "h"))
    for number, refused in (
        (errno.EPERM, True),
        (errno.EXDEV, True),
        (errno.ENOSPC, False),
        (errno.EIO, False),
    ):

        def link(old: str, new: str, number: int = number, **folders: int | None) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "link", link)
        if refused:
            assert not FILES.link(path, str(tmp_path / "h"))
        else:
            with pytest.raises(StorageError, match="cannot link"):
                FILES.link(path, str(tmp_path / "h"))


def test_folders_are_created_listed_and_removed(tmp_path: Path) -> None:
    """Missing parent folders are created, and a removed folder's files are removed."""
    folder = str(tmp_path / "a" / "b" / "c")
    FILES.make_dirs(folder)
    FILES.make_dirs(folder)
    for name in ("2", "10", "1"):
        FILES.create(os.path.join(folder, name)).close()
    assert FILES.list_dir(folder) == ["1", "10", "2"]
    assert FILES.list_dir(folder + "/none") == []
    with pytest.raises(StorageError, match="folder"):
        FILES.make_dirs(os.path.join(folder, "1"))
    with pytest.raises(StorageError):
        FILES.make_dirs(os.path.join(folder, "1", "x"))
    FILES.remove_tree(str(tmp_path / "a"))
    FILES.remove_tree(str(tmp_path / "a"))
    assert FILES.list_dir(str(tmp_path)) == []


def test_removing_a_folder_does_not_follow_links(tmp_path: Path) -> None:
    """A link inside a store does not lead a removal outside of it."""
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "precious").write_text("x")
    gone = tmp_path / "gone"
    gone.mkdir()
    (gone / "link").symlink_to(keep)
    FILES.remove_tree(str(gone))
    assert (keep / "precious").exists()
    assert not gone.exists()


# ── locks ───────────────────────────────────────────────────────────────────────────────────────────────────────────

HOLD_LOCK = """
import sys, time
from nyala.env import PosixFiles
lock = PosixFiles().lock(sys.argv[1])
lock.write(b"child")
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    """Two writers never hold a store's lock at once."""
    path = str(tmp_path / "lock")
    lock = FILES.lock(path)
    assert lock is not None
    assert FILES.lock(path) is None
    lock.write(b"a long content")
    lock.write(b"short")
    assert (lock.read(), FILES.read_lock_content(path), lock.path) == (b"short", b"short", path)
    lock.release()
    lock.release()
    with pytest.raises(StorageError, match="released"):
        lock.read()
    again = FILES.lock(path, create=False)
    assert again is not None
    again.release(unlink=True)
    assert not FILES.exists(path)


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    """After a crash, the store can be opened without removing a file."""
    path = str(tmp_path / "lock")
    child = subprocess.Popen([sys.executable, "-c", HOLD_LOCK, path], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert FILES.lock(path) is None
        assert FILES.read_lock_content(path) == b"child"
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    lock = FILES.lock(path)
    assert lock is not None
    lock.release()


def test_a_removed_lock_file_is_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that locked a file which was removed meanwhile does not hold the lock."""
    path = str(tmp_path / "lock")
    first = FILES.lock(path)
    assert first is not None
    plain = posix_files.fcntl.flock
    raced = []

    def flock(fd: int, operation: int) -> None:
        if not raced:
            raced.append(fd)
            first.release(unlink=True)  # between the other's open and its lock
        plain(fd, operation)

    monkeypatch.setattr(posix_files.fcntl, "flock", flock)
    second = FILES.lock(path)
    monkeypatch.undo()
    assert second is not None
    assert FILES.exists(path)
    assert FILES.lock(path) is None


def test_a_replaced_lock_file_is_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process does not hold the lock if others removed its lock file and locked a new one."""
    path = str(tmp_path / "lock")
    first = FILES.lock(path)
    assert first is not None
    plain = posix_files.fcntl.flock
    third = []

    def flock(fd: int, operation: int) -> None:
        if not third:
            third.append(None)
            first.release(unlink=True)
            third.append(FILES.lock(path))
        plain(fd, operation)

    monkeypatch.setattr(posix_files.fcntl, "flock", flock)
    assert FILES.lock(path) is None
    assert third[1] is not None


def test_a_forked_child_cannot_unlock_its_parent(tmp_path: Path) -> None:
    """A process pool that is started after connect() does not release the lock when a worker ends."""
    path = str(tmp_path / "lock")
    lock = FILES.lock(path)
    assert lock is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork beside threads: the child does nothing but this
        pid = os.fork()
    if pid == 0:
        try:
            lock.release(unlink=True)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert FILES.exists(path)
    assert FILES.lock(path) is None


def test_a_read_allocates_no_more_than_the_file_has(tmp_path: Path) -> None:
    """A read with a forged length allocates no more memory than the size of the file."""
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    file = PosixFiles().open(str(path))
    tracemalloc.start()
    try:
        for length in (1 << 21, 1 << 40, 1 << 62, (1 << 64) - 1):
            assert file.read(4, length) == b"456789"
            assert file.read(10, length) == file.read(1 << 40, length) == b""
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()
        file.close()
