"""The copy of the catalogue in memory holds what SQLite itself reads from the file and its log."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from nyala.catalog.memory_copy import connect_to_copy
from nyala.env import SYSTEM


def database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def content(connection: sqlite3.Connection) -> list[tuple[int, bytes]]:
    return connection.execute("SELECT * FROM t ORDER BY 1").fetchall()


def copied(path: Path) -> list[tuple[int, bytes]]:
    with contextlib.closing(connect_to_copy(SYSTEM, str(path))) as connection:
        assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        return content(connection)


@pytest.mark.parametrize("seed", range(10))
def test_the_copy_has_what_sqlite_reads(tmp_path: Path, seed: int) -> None:
    """Over commits, rollbacks, checkpoints and a file that shrinks."""
    rng = random.Random(seed)
    path = tmp_path / "c.sqlite"
    with contextlib.closing(database(path)) as connection:
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
        for _ in range(30):
            connection.execute("BEGIN")
            for _ in range(rng.randrange(1, 40)):
                if rng.random() < 0.3:
                    connection.execute("DELETE FROM t WHERE k % 7 = ?", (rng.randrange(7),))
                else:
                    row = (rng.randrange(500), rng.randbytes(rng.randrange(3000)))
                    connection.execute("REPLACE INTO t VALUES (?, ?)", row)
            connection.execute("ROLLBACK" if rng.random() < 0.2 else "COMMIT")
            if rng.random() < 0.15:
                connection.execute(f"PRAGMA wal_checkpoint({rng.choice(['PASSIVE', 'RESTART', 'TRUNCATE'])})")
            if rng.random() < 0.1:
                connection.execute("VACUUM")
            assert copied(path) == content(connection)
    assert copied(path)  # without a log


@pytest.mark.parametrize("seed", range(10))
def test_a_torn_log_ends_where_sqlite_ends_it(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "c.sqlite"
    with contextlib.closing(database(path)) as connection:
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
        for k in range(20):
            connection.execute("INSERT INTO t VALUES (?, ?)", (k, rng.randbytes(2000)))
        for name in ("c.sqlite", "c.sqlite-wal"):
            shutil.copy(tmp_path / name, tmp_path / f"torn.{name}")
    torn = tmp_path / "torn.c.sqlite"
    log = tmp_path / "torn.c.sqlite-wal"
    data = bytearray(log.read_bytes())
    if seed % 2:
        data[rng.randrange(5000, len(data))] ^= 1 << rng.randrange(8)
    else:
        del data[rng.randrange(5000, len(data)) :]
    log.write_bytes(data)
    found = copied(torn)
    with contextlib.closing(sqlite3.connect(torn)) as connection:
        assert found == content(connection)
    assert len(found) < 20
