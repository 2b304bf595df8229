"""`FolderObjects` gives the guarantees of a bucket after power cuts and disk errors, and on NFS."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import folder_in_memory
from tests.unit.objects.buckets import quick_env

from nyala.env import SYSTEM, Files, PosixFiles
from nyala.errors import StorageError
from nyala.objects.folder import FolderObjects
from nyala.objects.settle import settle
from nyala.testing import FaultyFiles, RecordingFiles
from nyala.testing.file_wrapper import FileWrapper


def over(files: Files, path: Path) -> FolderObjects:
    return FolderObjects(str(path), replace(quick_env(), files=files))


def contents(path: Path) -> dict[str, bytes]:
    """Return the objects that another client finds."""
    objects = FolderObjects(str(path))
    found = {info.key: objects.get(info.key) for info in objects.list("")}
    return {key: body for key, body in found.items() if body is not None}


@given(seed=st.integers(0, 2**32 - 1))
def test_acknowledged_changes_survive_a_power_cut_at_any_moment(seed: int) -> None:
    """Two clients change objects in the same folders. After a power cut no object has a part of its bytes."""
    chance = random.Random(seed)
    with folder_in_memory() as root:
        recording = RecordingFiles(PosixFiles(), str(root))
        clients = [over(recording, root / "bucket") for _ in range(2)]
        begun: dict[str, set[bytes]] = {}
        acknowledged: list[tuple[int, str, bytes | None]] = []  # (events recorded, key, body)
        for number in range(8):
            objects, key = chance.choice(clients), f"{chance.choice('ab')}/{chance.choice('xyz')}"
            body = b"%d" % number * chance.randrange(1, 700)
            verb = chance.choice(["create", "create", "put", "upload", "delete"])
            begun.setdefault(key, set()).add(body)
            if verb == "create":
                if objects.create(key, body):
                    acknowledged.append((len(recording.events), key, body))
            elif verb == "delete":
                objects.delete([key])
                acknowledged.append((len(recording.events), key, None))
            else:
                objects.put(key, body) if verb == "put" else objects.upload(key, [body[:3], body[3:]])
                acknowledged.append((len(recording.events), key, body))
            # If the power is cut during a call, the object may have its old or its new state.
        for number, cut in enumerate(
            sorted(chance.sample(range(len(recording.events)), min(10, len(recording.events))))
        ):
            image = root / f"image-{number}"
            recording.crash_image(cut, chance, str(image))
            found = contents(image / "bucket")
            for key, bodies in begun.items():
                assert found.get(key) is None or found[key] in bodies, (
                    "the object has a part of its bytes, or bytes of another key"
                )
                settled = [body for at, of, body in acknowledged if of == key and at <= cut]
                later = [body for at, of, body in acknowledged if of == key and at > cut]
                if settled:
                    assert found.get(key) in [settled[-1], *later[:1]], (key, cut)


@pytest.mark.parametrize("create", [True, False], ids=["create", "put"])
def test_the_outcome_says_whether_the_object_may_exist(create: bool) -> None:
    """Each operation of the disk fails in turn. If the outcome is None, nothing was changed."""
    outcomes = set()
    for fail_at in range(1, 40):
        with folder_in_memory() as root:
            files = FaultyFiles(PosixFiles(), fail_at)
            objects = over(files, root / "bucket")
            try:
                if create:
                    assert objects.create("log/0", b"mine")
                else:
                    objects.put("log/0", b"mine")
            except StorageError as error:
                outcomes.add(error.outcome)
                if error.outcome is None:
                    assert contents(root / "bucket") == {}, files.failed
            else:
                assert contents(root / "bucket") == {"log/0": b"mine"}
                if not files.failed:
                    break
    else:
        raise AssertionError("no run without a fault")
    assert outcomes == {None, "unknown"}


def test_after_a_failed_sync_the_outcome_stays_unknown() -> None:
    """`settle` finds its bytes, but must not report success: a power cut may remove them."""
    with folder_in_memory() as root:
        FolderObjects(str(root / "bucket")).create("log/0", b"")  # creates the folders

        class BrokenSync(FileWrapper):
            def sync_dir(self, path: str) -> None:
                raise StorageError("cannot sync: I/O error", path=path, errno=errno.EIO)

        broken = over(BrokenSync(PosixFiles()), root / "bucket")
        broken._durable.add(str(root / "bucket" / "log"))
        with pytest.raises(StorageError, match="an earlier sync failed") as raised:
            settle(quick_env(), broken, "log/2", b"mine")
        assert raised.value.outcome == "unknown"
        assert contents(root / "bucket")["log/2"] == b"mine"
        with pytest.raises(StorageError, match="an earlier sync failed") as raised:
            settle(quick_env(), broken, "log/3", b"mine")
        assert raised.value.outcome is None
        assert "log/3" not in contents(root / "bucket")


def test_a_refused_create_makes_the_other_object_durable() -> None:
    """`create` returns False for an object whose creator did not sync its name, and syncs the name."""
    with folder_in_memory() as root:
        recording = RecordingFiles(PosixFiles(), str(root))
        objects = over(recording, root / "bucket")
        objects.put("log/0", b"")
        os.link(root / "bucket/log/0", root / "bucket/log/1")
        recording.record("link", str(root / "bucket/log/0"), new_path=str(root / "bucket/log/1"))
        assert not objects.create("log/1", b"mine")
        for seed in range(8):
            recording.crash_image(len(recording.events), random.Random(seed), str(root / f"image-{seed}"))
            assert "log/1" in contents(root / f"image-{seed}" / "bucket")


def test_folders_of_another_client_become_durable() -> None:
    """Another client created the folders without syncing their names. `create` syncs them."""
    with folder_in_memory() as root:
        recording = RecordingFiles(PosixFiles(), str(root))
        for folder in ("bucket", "bucket/data", "bucket/data/tablet"):
            os.mkdir(root / folder)
            recording.record("mkdir", str(root / folder))
        assert over(recording, root / "bucket").create("data/tablet/0", b"mine")
        for seed in range(8):
            recording.crash_image(len(recording.events), random.Random(seed), str(root / f"image-{seed}"))
            assert contents(root / f"image-{seed}" / "bucket") == {"data/tablet/0": b"mine"}


def test_a_link_that_nfs_repeats_succeeds(tmp_path: Path) -> None:
    """NFS repeats a link whose answer was lost, and then reports that the name exists."""

    class Repeating(FileWrapper):
        def link(self, old: str, new: str) -> bool:
            super().link(old, new)
            return super().link(old, new)

    objects = over(Repeating(PosixFiles()), tmp_path / "bucket")
    assert objects.create("log/0", b"mine")
    assert not objects.create("log/0", b"theirs")


def test_a_file_server_that_does_not_answer_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    class Silent(FileWrapper):
        def link(self, old: str, new: str) -> bool:
            super().link(old, new)
            raise StorageError("cannot link: timed out", path=old, errno=errno.ETIMEDOUT)

    silent = over(Silent(PosixFiles()), tmp_path / "bucket")
    with pytest.raises(StorageError) as raised:
        silent.create("log/0", b"mine")
    assert raised.value.outcome == "unknown"
    assert settle(quick_env(), silent, "log/0", b"mine") is None


def test_a_file_system_without_links_is_rejected(tmp_path: Path) -> None:
    class WithoutLinks(FileWrapper):
        def link(self, old: str, new: str) -> bool:
            return False

    objects = over(WithoutLinks(PosixFiles()), tmp_path / "bucket")
    with pytest.raises(StorageError, match="has no hard links, which put-if-absent needs"):
        objects.create("log/0", b"mine")
    assert contents(tmp_path / "bucket") == {}


def test_old_temporary_files_are_removed(tmp_path: Path) -> None:
    """A later client removes temporary files that are older than a day, and no others."""
    objects = FolderObjects(str(tmp_path))
    objects.put("a", b"")
    temporary = tmp_path / ".tmp"
    (temporary / "old").write_bytes(b"x")
    (temporary / "young").write_bytes(b"x")
    day_before = os.stat(temporary / "young").st_mtime - 25 * 3600
    os.utime(temporary / "old", (day_before, day_before))
    assert [info.key for info in objects.list("")] == ["a"]
    FolderObjects(str(tmp_path)).put("b", b"")
    assert os.listdir(temporary) == ["young"]


def test_a_folder_that_was_replaced_is_not_written(tmp_path: Path) -> None:
    """After the folder was moved, a client does not write to another folder at its path."""
    objects = FolderObjects(str(tmp_path / "bucket"))
    assert objects.create("log/0", b"")
    os.rename(tmp_path / "bucket", tmp_path / "moved")
    os.mkdir(tmp_path / "bucket")
    with pytest.raises(StorageError, match="was moved, removed or replaced"):
        objects.create("log/1", b"")
    assert os.listdir(tmp_path / "bucket") == []


def test_reading_creates_no_folder(tmp_path: Path) -> None:
    objects = FolderObjects(str(tmp_path / "bucket"))
    assert objects.list("") == [] and objects.get("a") is None
    assert not (tmp_path / "bucket").exists()
    FolderObjects(str(tmp_path / "bucket")).put("a", b"")
    assert objects.get("a") == b""  # although the folder did not exist when `objects` was created


def test_files_of_other_programs_are_not_listed(tmp_path: Path) -> None:
    objects = FolderObjects(str(tmp_path))
    objects.put("a", b"")
    for name in (".hidden", "with blank", "é"):
        (tmp_path / name).write_bytes(b"")
    assert [info.key for info in objects.list("")] == ["a"]


def test_a_file_at_the_path_of_a_folder_is_an_error_only_for_writers(tmp_path: Path) -> None:
    objects = FolderObjects(str(tmp_path))
    objects.put("a", b"")
    assert objects.get("a/b") is None and objects.head("a/b") is None and objects.list("a/b/") == []
    objects.delete(["a/b"])
    with pytest.raises(StorageError, match="cannot create the folder"):
        objects.create("a/b", b"")
    objects.put("c/d", b"")
    assert objects.get("c") is None and objects.head("c") is None


def test_the_url_is_escaped(tmp_path: Path) -> None:
    assert FolderObjects(str(tmp_path / "my store%")).url == f"file://{tmp_path}/my%20store%25"
    assert SYSTEM.files.exists(str(tmp_path))
