"""Rewrites the catalogue if its values are certain and only the data around them is damaged.

    damaged                            confirmed by
    the checksum of a row              the table's row count and sum of checksums, in `sums`
    the checksum of a row of `sums`    the table's rows, which have that count and sum
    SQLite's free pages and space      all rows and their checksums: no data is stored there

A changed value, a lost row and an additional row cannot be repaired: count and sum differ then, and
nothing shows which is right.

Source: docs/design/log-and-recovery.md, "The catalogue is a SQLite database"; C1 to C3 of
`catalog.format`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import Final

from nyala.catalog import format
from nyala.catalog.format import SHAPES, SUM_MODULUS, SUMS
from nyala.catalog.model import CatalogState
from nyala.catalog.rows import RowsByTable, decode
from nyala.catalog.store import READ_ERRORS, open_for_reading, read_error, signed, write_new
from nyala.env import Env
from nyala.errors import CorruptionError

__all__ = ["rebuild", "vouched_state"]

_SUFFIXES: Final = ("-wal", "-shm")


def vouched_state(env: Env, path: str) -> CatalogState | None:
    """The catalogue's state if it is certain in spite of damaged checksums; None: it is not.

    Reads only. Raises: StorageError if the file cannot be opened.
    """
    try:
        with contextlib.closing(open_for_reading(env, path)) as connection:
            rows = _vouched_rows(connection)
        return None if rows is None else decode(rows)
    except (CorruptionError, ValueError, TypeError, UnicodeError, *READ_ERRORS):
        return None


def _vouched_rows(connection: sqlite3.Connection) -> RowsByTable | None:
    found: RowsByTable = {}
    for shape in SHAPES:
        found[shape.name] = [row[:-1] for row in connection.execute(shape.select_sql).fetchall()]
    stored = {str(row[0]): row[1:] for row in found.pop(SUMS.name)}
    versions = {row[4] for row in found[format.STORE.name]}
    for shape in SHAPES:
        if shape is not SUMS:
            rows = found[shape.name]
            total = signed(sum(shape.crcs(rows)) % SUM_MODULUS)
            if len(versions) != 1 or stored.pop(shape.name, None) != (*versions, len(rows), total):
                return None
    return None if stored else found


def rebuild(env: Env, path: str, state: CatalogState) -> None:
    """Replace the catalogue at `path` by a new file with `state`.

    Call under the writer's lock, while the catalogue is not open.

    A power cut leaves either the old or the new file.
    Raises: StorageError; CorruptionError if SQLite's log cannot be merged into the old file first,
        because SQLite would take it for the log of the new file.
    """
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        raise read_error(env, error, path) from error
    for suffix in _SUFFIXES:
        if suffix == "-wal" and env.files.exists(path + suffix) and env.files.size(path + suffix):
            raise CorruptionError("SQLite's log is still in use", path + suffix)
        env.files.unlink(path + suffix, missing_ok=True)
    env.files.sync_dir(os.path.dirname(path) or ".")
    write_new(env, path, state)
