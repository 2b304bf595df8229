"""Any byte of any file of a store is changed, or any file is cut: the right error with the file, or the right rows.

Every row of every table is read at every moment that the store remembers, as a user would, and the store is checked.
The store was closed. (Of one that was not, damage in the last group of the log looks like a torn end: documented in
docs/how-to/durability.md, shown in `tests/unit/wal/test_reader.py`.)
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.corruption.seeded import Contents, contents, copy_store, files_of, make_store, same
from tests.figures import counted
from tests.support import folder_in_memory, open_database

import nyala
from nyala.errors import CorruptionError, StorageError
from nyala.wal.format import FRAME_SIZE_BYTES


@dataclass
class Origin:
    """A whole store, what is in it, and its files."""

    path: Path
    moments: list[int]
    contents: Contents
    files: dict[str, bytes]


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with folder_in_memory() as folder:
        _, moments = make_store(folder / "s")
        copied = copy_store(folder / "s", folder / "copy")
        with open_database(copied) as db:
            whole = contents(db, moments)
        yield Origin(
            folder / "s",
            moments,
            whole,
            {name: (folder / "s" / name).read_bytes() for name in files_of(folder / "s")},
        )


def damage_is_told(origin: Origin, folder: Path, name: str, damaged: bytes) -> str:
    """ "error" or "rows"; fails for wrong rows, for an error that is not ours or names no file, and when rows are right
    but the check is blind to what the error was about."""
    path = copy_store(origin.path, folder / "damaged")
    (path / name).write_bytes(damaged)
    found = nyala.check(path)
    try:
        with open_database(path) as db:
            read = contents(db, origin.moments)
    except CorruptionError as error:
        assert error.path is not None and error.path.startswith(str(path)), f"no file is named: {error}"
        assert not found.ok, f"{name}: a user meets {error}, and the check does not"
        return "error"
    except StorageError as error:  # "of a later version": a number that no release has
        assert "version" in str(error), error
        return "error"
    assert same(read, origin.contents), f"{name}: wrong rows"
    if name.startswith(("data/", "wal/wal-")):
        # Bytes that these reads did not need (the ends of a file, an index): the check looks at every one.
        assert not found.ok, f"{name}: no read and no check has found it"
    return "rows"


def flipped(content: bytes, offset: int, chance: random.Random) -> bytes:
    made = bytearray(content)
    made[offset] ^= 1 << chance.randrange(8)
    return bytes(made)


def test_a_whole_copy_is_read_right(origin: Origin, tmp_path: Path) -> None:
    """The tests below would test nothing: the copy is readable, and holds every kind of file."""
    assert {Path(name).suffix for name in origin.files} >= {".base", ".undo", ".redo", ".part", ".sqlite"}
    assert sum(map(len, origin.contents["t"].values())) > 100
    with pytest.raises(AssertionError, match="no read and no check"):
        name = next(name for name in origin.files if name.endswith(".base"))
        damage_is_told(origin, tmp_path, name, origin.files[name])


def test_bytes_anywhere_changed_and_files_cut_anywhere(
    origin: Origin, request: pytest.FixtureRequest
) -> None:
    """A sample; `make test-long` takes every byte (of the catalogue every fourth) and lengths all over the files."""
    chance = random.Random(str(request.config.getoption("hypothesis_seed")))
    told = {"error": 0, "rows": 0}
    with folder_in_memory() as folder:
        for name, content in origin.files.items():
            many = 1 if name.startswith("data/") else 5
            for offset in chance.sample(range(len(content)), many):
                told[damage_is_told(origin, folder, name, flipped(content, offset, chance))] += 1
        for name in chance.sample(sorted(origin.files), 8):
            if name != "wal/position":  # an empty record is none: the next open makes one
                cut = chance.randrange(len(origin.files[name]))
                told[damage_is_told(origin, folder, name, origin.files[name][:cut])] += 1
    assert told["error"] > 0 and told["rows"] > 0, told


def test_a_damaged_footer_of_the_last_segment_is_told(origin: Origin, tmp_path: Path) -> None:
    """No row is in it, so no read would meet it. Found by `make test-long`."""
    name = max(name for name in origin.files if name.startswith("wal/wal-"))
    content = origin.files[name]
    footer = len(content) - FRAME_SIZE_BYTES
    for damaged in (
        flipped(content, footer + 34, random.Random(1)),
        content[: footer + 34],
        content[:footer],
    ):
        assert damage_is_told(origin, tmp_path, name, damaged) == "error"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(8))
def test_every_byte_changed_and_every_length(origin: Origin, part: int) -> None:
    chance = random.Random(part)
    with (
        counted("bytes of a store's files changed, one at a time", "flips") as flips,
        folder_in_memory() as folder,
    ):
        for name, content in origin.files.items():
            step = 8 * (4 if name.startswith("catalog") else 1)
            for offset in range(part, len(content), step):
                damage_is_told(origin, folder, name, flipped(content, offset, chance))
                flips.append(1)
    with counted("files of a store cut", "lengths") as cuts, folder_in_memory() as folder:
        for name, content in origin.files.items():
            if name != "wal/position":
                for length in range(part, len(content), 64 if name.startswith("catalog") else 16):
                    damage_is_told(origin, folder, name, content[:length])
                    cuts.append(1)
