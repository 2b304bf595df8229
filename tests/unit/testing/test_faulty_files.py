"""Recording and failing files follow their rules.

A simulated power cut that loses too little would hide faults. One that loses too much would report
false ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.env import AppendFile, PosixFiles
from nyala.errors import StorageError
from nyala.testing import (
    FaultyFiles,
    Operation,
    RecordingFiles,
    SimulatedCrash,
    UnreadableFiles,
)

WHOLE, LOST, TORN, ZEROS = range(4)  # the fates of a write, as drawn numbers (C1)
DONE, UNDONE = range(2)  # the fates of a change of names (C2)


class Script:
    """Choices that a test lists in advance."""

    def __init__(self, *choices: int) -> None:
        self.choices = list(choices)

    def randrange(self, stop: int, /) -> int:
        choice = self.choices.pop(0)
        assert choice < stop, (choice, stop)
        return choice


def tree(folder: str | Path) -> dict[str, bytes]:
    """Return the content of every file in a folder, by path. The path of a folder ends with a slash."""
    found = {}
    for here, folders, files in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(here, name), folder) + "/"] = b""
        for name in files:
            found[os.path.relpath(os.path.join(here, name), folder)] = Path(here, name).read_bytes()
    return found


class Disk:
    """A recorded folder. `after` returns what a power cut leaves of it."""

    def __init__(self, folder: Path) -> None:
        self.images = folder / "images"
        self.root = str(folder / "root")
        os.makedirs(self.root)
        self.files = RecordingFiles(PosixFiles(), self.root)

    def path(self, name: str) -> str:
        return os.path.join(self.root, name) if name else self.root

    def durable_file(self, name: str, data: bytes = b"") -> AppendFile:
        file = self.files.create(self.path(name))
        file.append(data)
        file.sync()
        self.files.sync_dir(os.path.dirname(self.path(name)))
        return file

    def after(self, *choices: int, upto: int | None = None) -> dict[str, bytes]:
        """Return the tree after a power cut with these choices. All of them must be used."""
        script = Script(*choices)
        target = self.images / str(random.random())
        self.files.crash_image(len(self.files.events) if upto is None else upto, script, str(target))
        assert not script.choices, f"{len(script.choices)} choices were not used"
        return tree(target)


@pytest.fixture(scope="module", autouse=True)
def no_real_syncs() -> Iterator[None]:
    """Skip real syncs, which would take most of the time. Only recorded files lose their power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: None)
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


# ── C1: bytes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_c1_synced_bytes_stay(disk: Disk) -> None:
    disk.durable_file("f", b"synced")
    assert disk.after() == {"f": b"synced"}


def test_c1_each_unsynced_write_may_be_lost_alone(disk: Disk) -> None:
    """Finds code that relies on writes reaching the disk in order."""
    file = disk.durable_file("f", b"synced ")
    file.append(b"one ")
    file.append(b"two")
    assert disk.after(WHOLE, WHOLE) == {"f": b"synced one two"}
    assert disk.after(WHOLE, LOST) == {"f": b"synced one "}
    assert disk.after(LOST, LOST) == {"f": b"synced "}
    assert disk.after(LOST, WHOLE) == {"f": b"synced \0\0\0\0two"}
    assert disk.after(WHOLE, ZEROS) == {"f": b"synced one \0\0\0"}
    file.sync()
    assert disk.after() == {"f": b"synced one two"}


def test_c1_a_write_may_be_cut_at_a_sector_of_the_file(disk: Disk) -> None:
    """Finds code that believes that 512 bytes at any offset are written as a whole."""
    file = disk.durable_file("f", b"s" * 500)
    file.append(b"w" * 1000)  # sectors 0, 1, 2: borders at 512, 1024
    assert disk.after(TORN, 0) == {"f": b"s" * 500}
    assert disk.after(TORN, 1) == {"f": b"s" * 500 + b"w" * 12}
    assert disk.after(TORN, 2) == {"f": b"s" * 500 + b"w" * 524}


def test_c1_a_write_in_place_may_be_lost(disk: Disk) -> None:
    """Finds code that trusts a published position after a power cut (F4)."""
    disk.files.write_at(disk.path("position"), 0, b"old")
    disk.files.sync_dir(disk.root)
    disk.files.write_at(disk.path("position"), 0, b"new")
    assert disk.after(WHOLE, WHOLE) == {"position": b"new"}
    assert disk.after(WHOLE, LOST) == {"position": b"old"}
    assert disk.after(LOST, WHOLE) == {"position": b"new"}
    assert disk.after(LOST, LOST) == {"position": b""}


def test_c1_truncate_is_durable(disk: Disk) -> None:
    file = disk.durable_file("f", b"good")
    file.append(b"torn")
    file.close()
    disk.files.truncate(disk.path("f"), 5)
    assert disk.after() == {"f": b"goodt"}


# ── C2: names ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_c2_a_file_whose_folder_was_not_synced_may_be_gone(disk: Disk) -> None:
    """Finds code that does not sync the folder of a new file."""
    file = disk.files.create(disk.path("f"))
    file.append(b"synced")
    file.sync()
    assert disk.after(DONE) == {"f": b"synced"}
    assert disk.after(UNDONE) == {}
    disk.files.sync_dir(disk.root)
    assert disk.after() == {"f": b"synced"}


def test_c2_a_rename_is_done_or_not(disk: Disk) -> None:
    """Finds code that renames without a sync of the folder. The file never has no name at all."""
    disk.durable_file("a", b"new")
    disk.durable_file("b", b"old")
    disk.files.rename(disk.path("a"), disk.path("b"))
    assert disk.after(DONE) == {"b": b"new"}
    assert disk.after(UNDONE) == {"a": b"new", "b": b"old"}
    disk.files.sync_dir(disk.root)
    assert disk.after() == {"b": b"new"}


def test_c2_a_rename_between_folders_has_two_halves(disk: Disk) -> None:
    """Finds code that moves a file and syncs only one of the two folders."""
    disk.files.make_dirs(disk.path("x"))
    disk.files.make_dirs(disk.path("y"))
    disk.durable_file("x/f", b"1")
    disk.files.rename(disk.path("x/f"), disk.path("y/f"))
    folders = {"x/": b"", "y/": b""}
    assert disk.after(DONE) == folders | {"y/f": b"1"}
    assert disk.after(UNDONE) == folders | {"x/f": b"1"}
    disk.files.sync_dir(disk.path("y"))
    assert disk.after(DONE) == folders | {"y/f": b"1"}
    assert disk.after(UNDONE) == folders | {"x/f": b"1", "y/f": b"1"}
    disk.files.sync_dir(disk.path("x"))
    assert disk.after() == folders | {"y/f": b"1"}


def test_c2_a_second_name_may_be_lost(disk: Disk) -> None:
    """Finds code that links a file into a folder, and does not sync the folder."""
    disk.files.make_dirs(disk.path("x"))
    disk.durable_file("f", b"1")
    linked = [disk.files.link(disk.path("f"), disk.path("x/f")) for _ in range(2)]
    assert linked == [True, False]
    assert disk.after(DONE) == {"f": b"1", "x/": b"", "x/f": b"1"}
    assert disk.after(UNDONE) == {"f": b"1", "x/": b""}
    disk.files.sync_dir(disk.path("x"))
    assert disk.after() == {"f": b"1", "x/": b"", "x/f": b"1"}


def test_c2_an_unlinked_file_may_come_back(disk: Disk) -> None:
    """Finds code that relies on the absence of a file that it removed."""
    disk.durable_file("f", b"1")
    disk.files.unlink(disk.path("f"))
    disk.files.unlink(disk.path("f"), missing_ok=True)
    assert disk.after(DONE) == {}
    assert disk.after(UNDONE) == {"f": b"1"}
    disk.files.sync_dir(disk.root)
    assert disk.after() == {}


def test_c2_a_new_file_under_an_old_name_is_another_file(disk: Disk) -> None:
    disk.durable_file("f", b"old")
    disk.files.unlink(disk.path("f"))
    disk.files.create(disk.path("f")).append(b"new")
    assert disk.after(DONE, DONE, WHOLE) == {"f": b"new"}
    assert disk.after(DONE, UNDONE) == {}
    assert disk.after(UNDONE, UNDONE) == {"f": b"old"}


def test_c2_make_dirs_is_durable_and_a_removed_tree_may_come_back_in_part(disk: Disk) -> None:
    disk.files.make_dirs(disk.path("a/b"))
    disk.files.make_dirs(disk.path("a/b"))
    disk.durable_file("a/b/1", b"1")
    disk.durable_file("a/b/2", b"2")
    assert disk.after() == {"a/": b"", "a/b/": b"", "a/b/1": b"1", "a/b/2": b"2"}
    disk.files.remove_tree(disk.path("a"))
    assert not os.path.exists(disk.path("a"))
    # In order: 1, 2, b, a.
    assert disk.after(UNDONE, DONE, UNDONE, UNDONE) == {"a/": b"", "a/b/": b"", "a/b/1": b"1"}
    assert disk.after(UNDONE, UNDONE, UNDONE, DONE) == {}
    disk.files.make_dirs(disk.path("a/b"))
    assert disk.after(UNDONE, UNDONE, UNDONE) == {"a/": b"", "a/b/": b""}, "the new folder is not the old one"


def test_c3_write_atomic_may_be_cut_between_its_steps(disk: Disk) -> None:
    disk.files.write_atomic(disk.path("f"), b"old")
    before = len(disk.files.events)
    disk.files.write_atomic(disk.path("f"), b"new")
    seen = set()
    for upto in range(before, len(disk.files.events) + 1):
        for seed in range(30):
            target = disk.images / f"{upto}-{seed}"
            disk.files.crash_image(upto, random.Random(seed), str(target))
            content = tree(target)
            assert content["f"] in (b"old", b"new")
            seen.add((content["f"], len(content)))
    assert seen == {(b"old", 1), (b"old", 2), (b"new", 1)}
    assert disk.after() == {"f": b"new"}


STEPS: Sequence[Callable[[Disk], object]] = (
    lambda disk: disk.files.write_atomic(disk.path("a"), b"x" * 700),
    lambda disk: disk.files.write_at(disk.path("b"), 3, b"y" * 600),
    lambda disk: disk.files.make_dirs(disk.path("d/e")),
    lambda disk: disk.files.remove_tree(disk.path("d")),
    lambda disk: disk.files.exists(disk.path("a")) and disk.files.rename(disk.path("a"), disk.path("c")),
    lambda disk: disk.files.exists(disk.path("c")) and disk.files.truncate(disk.path("c"), 650),
    lambda disk: disk.files.exists(disk.path("a")) and disk.files.link(disk.path("a"), disk.path("g")),
    lambda disk: disk.files.unlink(disk.path("b"), missing_ok=True),
    lambda disk: disk.files.sync_dir(disk.root),
)


@given(st.lists(st.sampled_from(range(len(STEPS))), max_size=12), st.randoms(use_true_random=False))
def test_images_of_random_changes_equal_the_folder_if_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], chance: random.Random
) -> None:
    """A killed process leaves the folder as it is, and so does a power cut after everything was synced."""
    disk = Disk(tmp_path_factory.mktemp("disk"))
    for step in steps:
        STEPS[step](disk)
    count = len(disk.files.events)
    disk.files.live_image(count, str(disk.images / "live"))
    assert tree(disk.images / "live") == tree(disk.root)
    disk.files.crash_image(chance.randrange(count + 1), chance, str(disk.images / "cut"))
    for here, _, names in os.walk(disk.root):
        for name in names:
            path = os.path.join(here, name)
            disk.files.truncate(path, os.path.getsize(path))
        disk.files.sync_dir(here)
    disk.files.crash_image(len(disk.files.events), chance, str(disk.images / "synced"))
    assert tree(disk.images / "synced") == tree(disk.root)


# ── failing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_eio_fails_one_operation_and_the_handle(tmp_path: Path) -> None:
    """Finds code that uses a file after its sync failed."""
    files = FaultyFiles(PosixFiles(), fail_at=3, kind="eio")
    file = files.create(str(tmp_path / "f"))
    file.append(b"x")
    with pytest.raises(StorageError) as failed:
        file.sync()
    assert failed.value.errno == errno.EIO
    for again in (lambda: file.append(b"y"), file.sync):
        with pytest.raises(StorageError):
            again()
    files.create(str(tmp_path / "g")).sync()
    assert [operation.kind for operation in files.failed] == ["sync"]
    assert files.read_all(str(tmp_path / "f")) == b"x"


@pytest.mark.parametrize("kind", ["enospc", "short"])
def test_a_full_disk_stays_full_until_there_is_space(tmp_path: Path, kind: str) -> None:
    """Finds code that repeats a failed write at once and expects success."""
    files = FaultyFiles(PosixFiles(), fail_at=2, kind=kind)  # type: ignore[arg-type]
    file = files.create(str(tmp_path / "f"))
    with pytest.raises(StorageError) as failed:
        file.append(b"0123456789")
    assert failed.value.errno == errno.ENOSPC
    assert files.size(str(tmp_path / "f")) == (5 if kind == "short" else 0)
    assert files.free_bytes(str(tmp_path)) == 0
    for action in (
        lambda: files.create(str(tmp_path / "g")),
        lambda: files.write_at(str(tmp_path / "h"), 0, b"x"),
        lambda: files.write_atomic(str(tmp_path / "i"), b"x"),
        lambda: files.make_dirs(str(tmp_path / "j")),
    ):
        with pytest.raises(StorageError):
            action()  # type: ignore[no-untyped-call]
    files.unlink(str(tmp_path / "f"))
    files.sync_dir(str(tmp_path))
    assert files.list_dir(str(tmp_path)) == []
    files.heal()
    files.write_atomic(str(tmp_path / "i"), b"x")
    assert files.free_bytes(str(tmp_path)) > 0


def test_after_a_crash_nothing_reaches_the_disk(tmp_path: Path) -> None:
    """A `finally:` block cannot clean up, as after a real power cut."""
    files = FaultyFiles(
        PosixFiles(), fail_at=3, kind="crash", only=lambda operation: operation.kind == "append"
    )
    file = files.create(str(tmp_path / "f"))
    file.append(b"1")
    file.append(b"2")
    for action in (
        lambda: file.append(b"3"),
        file.sync,
        lambda: files.unlink(file.path),
        lambda: files.create(str(tmp_path / "g")),
    ):
        with pytest.raises(SimulatedCrash):
            action()
    assert files.read_all(file.path) == b"12"
    assert files.operations == [Operation("append", file.path)] * 3


KILLED = """
import sys
from nyala.env import PosixFiles
from nyala.testing import KillingFiles
files = KillingFiles(PosixFiles(), kill_at=int(sys.argv[2]), when=sys.argv[3])
for number in range(3):
    files.write_atomic(f"{sys.argv[1]}/{number}", b"x")
print("survived")
"""


@pytest.mark.parametrize(
    ("kill_at", "when", "files", "returncode"),
    [
        (1, "before", 1, -signal.SIGKILL),  # the first file still has its temporary name
        (2, "before", 1, -signal.SIGKILL),  # the first file has its name, but the folder is not synced
        (4, "after", 2, -signal.SIGKILL),
        (7, "before", 3, 0),
    ],
)
def test_the_process_is_killed_for_real(
    tmp_path: Path, kill_at: int, when: str, files: int, returncode: int
) -> None:
    """A crash kills the process: no `finally:` block and no atexit function runs."""
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(kill_at), when],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == returncode, run.stderr
    assert run.stdout == ("" if returncode else "survived\n")
    assert len(os.listdir(tmp_path)) == files


@pytest.mark.parametrize("fail_at", [1, 2, 3, 4])
def test_the_nth_read_fails_and_only_that_one(tmp_path: Path, fail_at: int) -> None:
    """Opening, reading a part, reading a part into memory, reading a whole file: each is one read.

    Writes are not.
    """
    path = str(tmp_path / "f")
    files = UnreadableFiles(PosixFiles(), fail_at)
    files.create(path).close()
    failed: list[int] = []

    def tried(number: int, read: Callable[[], object]) -> None:
        try:
            read()
        except StorageError as error:
            assert (error.errno, error.path) == (errno.EIO, path)
            failed.append(number)

    tried(1, lambda: files.open(path).close())
    files.fail_at, fail_at_later = None, files.fail_at
    with contextlib.closing(files.open(path)) as file:
        files.operations.pop()  # this opening is not one of the four
        files.fail_at = fail_at_later
        tried(2, lambda: file.read(0, 3))
        tried(3, lambda: file.read_into(0, bytearray(3)))
        tried(4, lambda: files.read_all(path))
        tried(5, lambda: files.read_all(path))
    assert failed == [fail_at]
    assert files.failed == files.operations[fail_at - 1]
    assert [operation.kind for operation in files.operations] == [
        "open",
        "read",
        "read",
        "read_all",
        "read_all",
    ]
