"""A small store with every kind of file, and helpers to damage it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support import open_database

import nyala
from nyala.api.database import Database
from nyala.catalog.checkpoint import newest_checkpoint, read_identity
from nyala.catalog.codec import encode_change
from nyala.catalog.loading import apply_changes
from nyala.catalog.model import CatalogChange, CatalogState
from nyala.env import SYSTEM
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MajorPlan
from nyala.wal.reader import recover
from nyala.wal.record import ChangeRecord
from nyala.wal.writer import LogWriter

TABLES = ("t", "u")
Contents = dict[str, dict[int, pa.Table]]


def make_store(path: Path | str, *, close: bool = True, tablets: int = 2) -> tuple[Database, list[int]]:
    """Create a store with base files, parts, UNDO, REDO, ghosts, and rows and changes in the log.

    Table `t` has this number of tablets. Table `u` has a composite key.
    Returns: the database, which is closed if `close`, and some moments of its past.
    """
    db = open_database(path, direct_commit_bytes=4_000)
    moments = []
    levels = [nyala.hash_partition("k", buckets=tablets)] if tablets > 1 else []
    t = db.create_table("t", {"k": "int64", "v": "int64", "s": "string"}, "k", levels)
    a, b = nyala.column("string", encoding="dictionary"), nyala.column("int32", encoding="plain")
    u = db.create_table("u", {"a": a, "b": b, "v": "double"}, ["a", "b"])
    t.insert({"k": range(60), "v": range(60), "s": [f"text {n}" for n in range(60)]})
    u.insert({"a": ["x", "x", "y", ""], "b": [1, 2, 1, 0], "v": [0.5, 1.5, None, float("nan")]})
    db.flush()
    moments.append(db.now())
    t.update({"k": [1, 2, 3, 4], "v": [-1, -2, -3, -4]})
    t.delete({"k": [5, 6, 7]})
    db.flush()
    store = db._writer()
    for tablet in store.root.table("t").tablets:
        rowset = tablet.rowsets[0]
        v = store.root.table("t").schema.by_name("v").id
        assert compact(
            store, store.root.table("t").id, tablet.id, MajorPlan(rowset.id, (v,), 1.0), run_here(store)
        )
    t.insert({"k": [5, 6], "v": [50, 60], "s": ["again", "again"]})
    t.delete({"k": [8]})
    moments.append(db.now())
    db.flush()
    t.upsert({"k": range(100, 160), "v": range(60), "s": ["committed directly " * 10] * 60})
    t.update({"k": [10], "v": [100]})
    db.flush()
    store.collect_garbage()
    moments.append(db.now())
    t.update({"k": [11, 12], "v": [110, 120]})
    u.upsert({"a": ["x", "z"], "b": [1, 9], "v": [2.5, 9.5]})
    t.delete({"k": [13]})
    moments.append(db.now())
    if close:
        db.close()
    return db, moments


def contents(db: Database, moments: list[int]) -> Contents:
    """Return the rows of each table at each of these moments."""
    return {
        name: {at: db[name].scan(at=at, order_by_key=True).to_arrow() for at in moments}
        for name in db.list_tables()
    }


def same(left: Contents, right: Contents) -> bool:
    """Compare contents as text, because for Arrow NaN is not equal to NaN."""
    return {name: {at: str(rows.to_pylist()) for at, rows in of.items()} for name, of in left.items()} == {
        name: {at: str(rows.to_pylist()) for at, rows in of.items()} for name, of in right.items()
    }


def tamper(path: Path | str, change: Callable[[CatalogState], CatalogChange | dict[str, Any]]) -> None:
    """Append a wrong change of the catalogue to the log, with right checksums."""
    wal = os.path.join(path, "wal")
    checkpoint = newest_checkpoint(SYSTEM.files, str(path), read_identity(SYSTEM.files, str(path)))
    recovered = recover(SYSTEM, wal, checkpoint.wal_start, checkpoint.store_id)
    state = apply_changes(checkpoint, recovered.changes)
    made = change(state)
    made = made if isinstance(made, CatalogChange) else CatalogChange(**made)
    with closing(LogWriter(SYSTEM, wal, recovered.since(state.wal_start))) as log:
        log.append_change(ChangeRecord(encode_change(made, state.version + 1)))


def copy_store(source: Path | str, target: Path | str) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sock"))
    return Path(target)


def files_of(path: Path | str) -> list[str]:
    """Return the files with data, relative to the store's folder."""
    found = [
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path)
        for name in names
    ]
    return sorted(
        name for name in found if not name.endswith((".sock", "lock")) and not name.startswith("reserve/")
    )


@dataclass
class Origin:
    """An undamaged store, its rows at some moments, and the bytes of its files."""

    path: Path
    moments: list[int]
    contents: Contents = field(repr=False)
    files: dict[str, bytes] = field(repr=False)


def make_origin(folder: Path, *, tablets: int = 2) -> Origin:
    """Create a store at `folder`/s. Its rows are read from a copy, so the store was never opened again."""
    path = folder / "s"
    _, moments = make_store(path, tablets=tablets)
    with open_database(copy_store(path, folder / "copy")) as db:
        whole = contents(db, moments)
    return Origin(path, moments, whole, {name: (path / name).read_bytes() for name in files_of(path)})
