"""After any changed byte, and any cut of a file, reads give the right rows or an error with the file's name.

Each test reads all rows at several moments, and checks the store. Some tests damage a store that was
closed, others a store whose writer was killed. In the second, `wal/position` says how far the log goes.
(After a power cut it may be older, and then damage at the end of the log looks like a torn tail:
docs/reliability.md.)
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.corruption.seeded import Origin, contents, copy_store, files_of, make_origin, make_store, same
from tests.figures import counted
from tests.support import folder_in_memory, open_database

import nyala
from nyala.errors import CorruptionError, StorageError
from nyala.rowset.checking import Finding
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet import check
from nyala.wal.format import FRAME_SIZE_BYTES


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with folder_in_memory() as folder:
        yield make_origin(folder)


@pytest.fixture(scope="module")
def small() -> Iterator[Origin]:
    """A smaller store with one tablet, so that each of its bytes can be tried."""
    with folder_in_memory() as folder:
        yield make_origin(folder, tablets=1)


@pytest.fixture(scope="module")
def killed() -> Iterator[Origin]:
    """A store whose writer was killed. The last segment of its log has no footer."""
    with folder_in_memory() as folder:
        db, moments = make_store(folder / "s", close=False, tablets=1)
        path = copy_store(folder / "s", folder / "killed")
        db.close()
        with open_database(copy_store(path, folder / "copy")) as found:
            whole = contents(found, moments)
        yield Origin(path, moments, whole, {name: (path / name).read_bytes() for name in files_of(path)})


class Copy:
    """A copy of a store, in which one file at a time is damaged.

    It writes only changed files again, which takes a hundredth of the time of a new copy.
    """

    def __init__(self, origin: Origin, path: Path) -> None:
        copy_store(origin.path, path)
        self.path = path
        self._files = {name: (path / name).read_bytes() for name in _all_files(path)}
        self._as_written = {name: _signature(path / name) for name in self._files}

    def damage(self, name: str, content: bytes) -> None:
        """Damage this file, and restore all others."""
        for found in _all_files(self.path):
            if found not in self._files:
                (self.path / found).unlink()
        for other, whole in self._files.items():
            found_as = _signature(self.path / other)
            if other != name and (found_as is None or self._as_written.get(other) != found_as):
                (self.path / other).write_bytes(whole)
                self._as_written[other] = _signature(self.path / other)
        (self.path / name).write_bytes(content)
        self._as_written.pop(name, None)


def _all_files(path: Path) -> list[str]:
    return [
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path)
        for name in names
    ]


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def damage_is_found(origin: Origin, copy: Copy, name: str, damaged: bytes) -> str:
    """Damage a file; return "error" if a read raises an error, "rows" if all rows are right.

    Asserts that rows are never wrong, that the error names the file (and in data and log files an
    offset), and that `check` finds the damage too.
    """
    copy.damage(name, damaged)
    path = copy.path
    found = nyala.check(path)
    try:
        with open_database(path) as db:
            read = contents(db, origin.moments)
    except CorruptionError as error:
        assert error.path is not None and error.path.startswith(str(path)), (
            f"the error names no file: {error}"
        )
        assert error.path == str(path / name), f"{name} is damaged, and the error names another file: {error}"
        if name.startswith(("data/", "wal/")):
            assert error.offset is not None, f"{name}: no offset: {error}"
        assert not found.ok, f"{name}: a read raises {error}, and the check finds nothing"
        return "error"
    except StorageError as error:  # the damaged number of a format version
        assert "version" in str(error), error
        return "error"
    assert same(read, origin.contents), f"{name}: wrong rows"
    if name != "wal/position":
        # The reads did not need these bytes (the ends of a file, or an index). The check reads all bytes.
        assert not found.ok, f"{name}: no read and no check has found it"
        assert any(problem.path == str(path / name) for problem in found.problems), found.problems
    return "rows"


def flipped(content: bytes, offset: int, chance: random.Random) -> bytes:
    made = bytearray(content)
    made[offset] ^= 1 << chance.randrange(8)
    return bytes(made)


def test_an_undamaged_copy_is_read_right(origin: Origin, tmp_path: Path) -> None:
    """The store has every kind of file, and the helper of the tests below notices a missing error."""
    assert {Path(name).suffix for name in origin.files} >= {".base", ".undo", ".redo", ".part", ".json"}
    assert any(name.startswith("checkpoints/") for name in origin.files)
    assert sum(map(len, origin.contents["t"].values())) > 100
    with pytest.raises(AssertionError, match="no read and no check"):
        name = next(name for name in origin.files if name.endswith(".base"))
        damage_is_found(origin, Copy(origin, tmp_path / "copy"), name, origin.files[name])


def test_a_changed_byte_or_a_cut_at_any_place_is_found(origin: Origin) -> None:
    """A sample of bytes and lengths. `make test-long` tries all of them."""
    chance = random.Random(24)
    results = {"error": 0, "rows": 0}
    with folder_in_memory() as folder:
        copy = Copy(origin, folder / "copy")
        for name, content in origin.files.items():
            for offset in chance.sample(range(len(content)), 1):
                results[damage_is_found(origin, copy, name, flipped(content, offset, chance))] += 1
        for name in chance.sample(sorted(origin.files), 5):
            cut = chance.randrange(len(origin.files[name]))
            results[damage_is_found(origin, copy, name, origin.files[name][:cut])] += 1
    assert results["error"] > 0 and results["rows"] > 0, results


def test_a_damaged_footer_of_the_last_segment_is_found(origin: Origin, tmp_path: Path) -> None:
    """The footer has no rows, so no scan reads it. The open must find the damage."""
    name = max(name for name in origin.files if name.startswith("wal/wal-"))
    content = origin.files[name]
    footer = len(content) - FRAME_SIZE_BYTES
    copy = Copy(origin, tmp_path / "copy")
    for damaged in (
        flipped(content, footer + 34, random.Random(1)),
        content[: footer + 34],
        content[:footer],
    ):
        assert damage_is_found(origin, copy, name, damaged) == "error"


def test_damage_in_a_store_that_was_not_closed(killed: Origin) -> None:
    """Most damages are in the last segment of the log, which its writer had not closed."""
    assert "wal/position" in killed.files
    chance = random.Random(24)
    segment = max(name for name in killed.files if name.startswith("wal/wal-"))
    results = {"error": 0, "rows": 0}
    with folder_in_memory() as folder:
        copy = Copy(killed, folder / "copy")
        for name in (
            segment,
            segment,
            "wal/position",
            *chance.sample(sorted(killed.files), 4),
        ):
            content = killed.files[name]
            for place in chance.sample(range(len(content)), 2):
                results[damage_is_found(killed, copy, name, flipped(content, place, chance))] += 1
            cut = content[: chance.randrange(len(content))]
            results[damage_is_found(killed, copy, name, cut)] += 1
        last = len(killed.files[segment]) - 1
        for damaged in (flipped(killed.files[segment], last, chance), killed.files[segment][:last]):
            assert damage_is_found(killed, copy, segment, damaged) == "error", "the last batch is lost"
    assert results["error"] > 0 and results["rows"] > 0, results


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_every_byte_of_a_store_that_was_not_closed(killed: Origin, how: str) -> None:
    """Tries every byte of the log and of `wal/position`. The test below tries all bytes of data files."""
    chance = random.Random(how)
    what = "bytes of a store that was not closed changed" if how == "flipped" else "files of such a store cut"
    with counted_damages(what, how) as tried, folder_in_memory() as folder:
        copy = Copy(killed, folder / "copy")
        for name, content in killed.files.items():
            step = 1 if name.startswith("wal/") else 13 if name.startswith("data/") else 3
            for place in range(chance.randrange(step), len(content), step):
                with count_damage(tried, f"{name}, {how} at {place}"):
                    damage_is_found(killed, copy, name, damaged(how, content, place, chance))


def counted_damages(what: str, how: str) -> AbstractContextManager[list[int]]:
    """Count the tried damages of a `with` block, for the report of `make test-long`."""
    return counted(f"{what}, each in turn", "bytes" if how == "flipped" else "lengths")


@contextmanager
def count_damage(tried: list[int], where: str) -> Iterator[None]:
    """Count one damage. If the `with` block raises an error, add the place of the damage to it."""
    try:
        yield
    except BaseException as error:
        error.add_note(where)
        raise
    tried.append(1)


def damaged(how: str, content: bytes, place: int, chance: random.Random) -> bytes:
    return content[:place] if how == "cut" else flipped(content, place, chance)


def only_of(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let checks read only the rowset of this file, because the other rowsets are known to be right.

    Checks across rowsets and tablets still run.
    """
    findings = check.findings

    def of_the_damaged(rowset: DiskRowSet, history_start: int) -> Iterator[Finding]:
        if name in rowset.paths:
            yield from findings(rowset, history_start)

    patch.setattr(check, "findings", of_the_damaged)


PARTS = 8


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_every_byte_and_every_length(
    small: Origin, part: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flips one bit of every byte of every file, and cuts every file to every length, one at a time."""
    chance = random.Random(f"{part} {how}")
    what = "bytes of a store's files changed" if how == "flipped" else "files of a store cut"
    with counted_damages(what, how) as tried, folder_in_memory() as folder:
        copy = Copy(small, folder / "copy")
        assert nyala.check(copy.path).ok
        for name, content in small.files.items():
            with monkeypatch.context() as patch:
                if name.startswith("data/"):
                    only_of(patch, name)
                for place in range(part, len(content), PARTS):
                    with count_damage(tried, f"{name}, {how} at {place}, part {part}"):
                        content_now = damaged(how, content, place, chance)
                        damage_is_found(small, copy, name, content_now)
