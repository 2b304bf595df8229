"""After a power cut the end of the log is damaged, with a change of the catalogue (R6).

The change was a batch that was committed as files, or a new column. The durable position record
proves that the change existed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import nyala
from nyala.env import system_files
from nyala.errors import CorruptionError
from nyala.testing.file_wrapper import FileWrapper
from tests.corruption.seeded import copy_store, files_of
from tests.support import key_value_table, open_database, rows

LARGE = {"k": range(100, 160), "v": range(60)}


class Durable(FileWrapper):
    """The oldest position record that a power cut may leave: its bytes at the last sync."""

    position = b""

    def sync_file(self, path: str) -> None:
        super().sync_file(path)
        assert Path(path).name == "position"
        self.position = Path(path).read_bytes()


def add_a_column(db: nyala.Database) -> None:
    with db["t"].alter() as change:
        change.add_column("w", "int64")


STEPS: dict[str, Callable[[nyala.Database], object]] = {
    "a batch committed as files": lambda db: db["t"].upsert(LARGE),
    "a new table": lambda db: key_value_table(db, "new"),
    "a new column": add_a_column,
    "a table dropped": lambda db: db.drop_table("other"),
    "a flush": lambda db: db.flush(),
}


@pytest.mark.parametrize("step", STEPS)
def test_r6_a_lost_change_of_the_catalogue_is_damage(
    tmp_path: Path, step: str, request: pytest.FixtureRequest
) -> None:
    """It is not a torn tail, and its files are not removed as orphans."""
    files = Durable(system_files())
    db = open_database(tmp_path / "s", files=files, direct_commit_bytes=400)
    table = key_value_table(db)
    key_value_table(db, "other")
    table.insert({"k": [1], "v": [1]})
    STEPS[step](db)
    expected, names = rows(table), db.list_tables()
    killed = copy_store(tmp_path / "s", tmp_path / "killed")
    db.close()
    (killed / "wal" / "position").write_bytes(files.position)
    chance = random.Random(int(request.config.getoption("hypothesis_seed")))
    segment = max((killed / "wal").glob("wal-*"))
    log = segment.read_bytes()
    for number in range(6):
        damaged = bytearray(log)
        damaged[-1 - chance.randrange(200)] ^= 1 << chance.randrange(8)
        one = copy_store(killed, tmp_path / f"damaged{number}")
        (one / "wal" / segment.name).write_bytes(damaged)
        before = {name: (one / name).read_bytes() for name in files_of(one)}
        for read_only in (False, True):
            with pytest.raises(CorruptionError):
                nyala.connect(one, read_only=read_only)
        assert {name: (one / name).read_bytes() for name in files_of(one)} == before
    with open_database(killed) as db:
        assert (rows(db["t"]), db.list_tables()) == (expected, names)
