"""The twins of PosixFiles: a power cut that is too mild proves nothing, one that is too harsh blames right code."""

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

WHOLE, DROPPED, TORN, ZEROS = range(4)  # a write's fates, as they are drawn (C1)
DONE, UNDONE = range(2)  # a change of names (C2)


class Script:
    """Choices that were made before."""

    def __init__(self, *choices: int) -> None:
        self.choices = list(choices)

    def randrange(self, stop: int, /) -> int:
        choice = self.choices.pop(0)
        assert choice < stop, (choice, stop)
        return choice


def tree(folder: str | Path) -> dict[str, bytes]:
    """Every file below a folder; folders with a slash behind."""
    found = {}
    for here, folders, files in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(here, name), folder) + "/"] = b""
        for name in files:
            found[os.path.relpath(os.path.join(here, name), folder)] = Path(here, name).read_bytes()
    return found


class Disk:
    """A recorded folder, and what a power cut now leaves of it."""

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
        """The tree after a power cut with these choices, all of which must be asked for."""
        script = Script(*choices)
        target = self.images / str(random.random())
        self.files.crash_image(len(self.files.events) if upto is None else upto, script, str(target))
        assert not script.choices, f"{len(script.choices)} choices were not asked for"
        return tree(target)


@pytest.fixture(scope="module", autouse=True)
def no_real_syncs() -> Iterator[None]:
    """The power is only ever cut on recorded files; real syncs would be most of these tests' time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: None)
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


# ── C1: bytes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_c1_synced_bytes_stay(disk: Disk) -> None:
    """Right code would be blamed for losing what it synced."""
    disk.durable_file("f", b"synced")
    assert disk.after() == {"f": b"synced"}


def test_c1_each_unsynced_write_has_a_fate_of_its_own(disk: Disk) -> None:
    """Code that relies on writes reaching the disk in order would pass."""
    file = disk.durable_file("f", b"synced ")
    file.append(b"one ")
    file.append(b"two")
    assert disk.after(WHOLE, WHOLE) == {"f": b"synced one two"}
    assert disk.after(WHOLE, DROPPED) == {"f": b"synced one "}
    assert disk.after(DROPPED, DROPPED) == {"f": b"synced "}
    assert disk.after(DROPPED, WHOLE) == {"f": b"synced \0\0\0\0two"}
    assert disk.after(WHOLE, ZEROS) == {"f": b"synced one \0\0\0"}
    file.sync()
    assert disk.after() == {"f": b"synced one two"}


def test_c1_writes_tear_at_the_files_sectors(disk: Disk) -> None:
    """Code that takes 512 bytes of its own record for atomic would pass."""
    file = disk.durable_file("f", b"s" * 500)
    file.append(b"w" * 1000)  # sectors 0, 1, 2: borders at 512, 1024
    assert disk.after(TORN, 0) == {"f": b"s" * 500}
    assert disk.after(TORN, 1) == {"f": b"s" * 500 + b"w" * 12}
    assert disk.after(TORN, 2) == {"f": b"s" * 500 + b"w" * 524}


def test_c1_writes_in_place_are_writes_too(disk: Disk) -> None:
    """F4: code that trusts the published position after a power cut would pass."""
    disk.files.write_at(disk.path("position"), 0, b"old")
    disk.files.sync_dir(disk.root)
    disk.files.write_at(disk.path("position"), 0, b"new")
    assert disk.after(WHOLE, WHOLE) == {"position": b"new"}
    assert disk.after(WHOLE, DROPPED) == {"position": b"old"}
    assert disk.after(DROPPED, WHOLE) == {"position": b"new"}
    assert disk.after(DROPPED, DROPPED) == {"position": b""}


def test_c1_truncate_is_durable(disk: Disk) -> None:
    """A torn tail that was cut would come back, and right code be blamed."""
    file = disk.durable_file("f", b"good")
    file.append(b"torn")
    file.close()
    disk.files.truncate(disk.path("f"), 5)
    assert disk.after() == {"f": b"goodt"}


# ── C2: names ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_c2_a_file_whose_folder_was_not_synced_may_be_gone(disk: Disk) -> None:
    """Code that forgets to sync the folder would pass; this is the commonest mistake of all."""
    file = disk.files.create(disk.path("f"))
    file.append(b"synced")
    file.sync()
    assert disk.after(DONE) == {"f": b"synced"}
    assert disk.after(UNDONE) == {}
    disk.files.sync_dir(disk.root)
    assert disk.after() == {"f": b"synced"}


def test_c2_a_rename_is_done_or_not(disk: Disk) -> None:
    """Code that renames without a sync of the folder would pass; a file that is nowhere would blame right code."""
    disk.durable_file("a", b"new")
    disk.durable_file("b", b"old")
    disk.files.rename(disk.path("a"), disk.path("b"))
    assert disk.after(DONE) == {"b": b"new"}
    assert disk.after(UNDONE) == {"a": b"new", "b": b"old"}
    disk.files.sync_dir(disk.root)
    assert disk.after() == {"b": b"new"}


def test_c2_a_rename_between_folders_has_two_halves(disk: Disk) -> None:
    """Code that moves a staged file and syncs only one of the folders would pass."""
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


def test_c2_a_second_name_is_there_or_not(disk: Disk) -> None:
    """Code that links a staged file into a folder and does not sync that would pass."""
    disk.files.make_dirs(disk.path("x"))
    disk.durable_file("f", b"1")
    linked = [disk.files.link(disk.path("f"), disk.path("x/f")) for _ in range(2)]
    assert linked == [True, False]
    assert disk.after(DONE) == {"f": b"1", "x/": b"", "x/f": b"1"}
    assert disk.after(UNDONE) == {"f": b"1", "x/": b""}
    disk.files.sync_dir(disk.path("x"))
    assert disk.after() == {"f": b"1", "x/": b"", "x/f": b"1"}


def test_c2_an_unlinked_file_may_come_back(disk: Disk) -> None:
    """Code that takes the absence of a file it removed for granted would pass."""
    disk.durable_file("f", b"1")
    disk.files.unlink(disk.path("f"))
    disk.files.unlink(disk.path("f"), missing_ok=True)
    assert disk.after(DONE) == {}
    assert disk.after(UNDONE) == {"f": b"1"}
    disk.files.sync_dir(disk.root)
    assert disk.after() == {}


def test_c2_a_new_file_under_an_old_name_is_another_file(disk: Disk) -> None:
    """The bytes of one file would appear in the other."""
    disk.durable_file("f", b"old")
    disk.files.unlink(disk.path("f"))
    disk.files.create(disk.path("f")).append(b"new")
    assert disk.after(DONE, DONE, WHOLE) == {"f": b"new"}
    assert disk.after(DONE, UNDONE) == {}
    assert disk.after(UNDONE, UNDONE) == {"f": b"old"}


def test_c2_folders_come_with_their_parents(disk: Disk) -> None:
    """`make_dirs` is durable, and so right code be blamed; a removed tree may come back in part."""
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
    """The folder would hold half of a lease or of a marker, and no test had ever brought it there."""
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
def test_a_process_that_dies_leaves_what_is_there_and_a_power_cut_no_more(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], chance: random.Random
) -> None:
    """The recording would not know what the folder holds, and every image made from it be worth nothing."""
    disk = Disk(tmp_path_factory.mktemp("disk"))
    for step in steps:
        STEPS[step](disk)
    count = len(disk.files.events)
    disk.files.live_image(count, str(disk.images / "live"))
    assert tree(disk.images / "live") == tree(disk.root)
    disk.files.crash_image(chance.randrange(count + 1), chance, str(disk.images / "cut"))
    # Once everything was synced nothing is left to chance.
    for here, _, names in os.walk(disk.root):
        for name in names:
            path = os.path.join(here, name)
            disk.files.truncate(path, os.path.getsize(path))
        disk.files.sync_dir(here)
    disk.files.crash_image(len(disk.files.events), chance, str(disk.images / "synced"))
    assert tree(disk.images / "synced") == tree(disk.root)


# ── failing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_eio_fails_one_operation_and_the_handle(tmp_path: Path) -> None:
    """Code that goes on with a file whose sync failed would pass."""
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
    """Code that tries again at once and believes in the second success would pass."""
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
    """A `finally:` that tidies up would run in the test although in life the power is gone."""
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
        (1, "before", 1, -signal.SIGKILL),  # the temporary file of the first
        (2, "before", 1, -signal.SIGKILL),  # renamed, the folder not synced
        (4, "after", 2, -signal.SIGKILL),
        (7, "before", 3, 0),
    ],
)
def test_the_process_is_killed_for_real(
    tmp_path: Path, kill_at: int, when: str, files: int, returncode: int
) -> None:
    """A `finally:` or an atexit function that tidies up would make every crash test a test of close()."""
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
    """An opening, a piece, a piece into memory, a whole file: each counts as one; writing does not count."""
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
