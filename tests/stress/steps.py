"""The steps that tests of a failing disk interrupt, and the expected rows before and after each step."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import nyala
from nyala.api.database import Database
from tests.support import compact_deltas, open_database, rows

DIRECT_COMMIT_BYTES = 2_000

Step: TypeAlias = Callable[[Database], None]
Contents: TypeAlias = dict[str, tuple[list[str], list[tuple[object, ...]]]]
"""For each table, (names of the columns, rows)."""


def flush(db: Database) -> None:
    db.flush()


def write(db: Database) -> None:
    db["t"].upsert({"k": [5, 50], "v": [9, 9]})


def write_to_two_tables(db: Database) -> None:
    with db.batch() as batch:
        batch.upsert("t", {"k": [5, 50], "v": [9, 9]})
        batch.insert("t2", {"k": [7, 8]})


def commit_directly(db: Database) -> None:
    db["t"].upsert({"k": range(5, 40), "v": [7] * 35, "s": ["s" * 100] * 35})


def compact_and_collect(db: Database) -> None:
    compact_deltas(db._writer())
    db._writer().collect_garbage()


def create(db: Database) -> None:
    db.create_table("u", {"k": "int64"}, "k")


def drop(db: Database) -> None:
    db.drop_table("t2")


def merge(db: Database) -> None:
    db["t"].compact()


def alter(db: Database) -> None:
    with db["t"].alter() as alteration:
        alteration.add_column("x", "int64", default=3)
        alteration.rename_column("v", "value")


def make_origin(path: str) -> str:
    """Create a store with rows on disk, enough REDO files for a compaction, and rows and changes in
    the log.
    """
    with open_database(path) as db:
        table = db.create_table(
            "t", {"k": "int64", "v": "int64", "s": "string"}, "k", nyala.hash_partition("k", buckets=2)
        )
        db.create_table("t2", {"k": "int64"}, "k").insert({"k": [1]})
        table.insert({"k": range(20), "v": range(20)})
        db.flush()
        for value in range(4):
            table.upsert({"k": [1, 2, 10 + value], "v": [value] * 3})
            db.flush()
        table.upsert({"k": range(10, 30), "v": [1] * 20})
        table.delete({"k": [3, 4]})
    return path


def copy_of(origin: str) -> str:
    """Copy the store to a folder beside it, in place of the last copy."""
    path = origin + "-copy"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(origin, path)
    return path


def whole(db: Database, at: int | None = None) -> Contents:
    return {name: (db[name].schema.names, rows(db[name], at=at)) for name in db.list_tables()}


@dataclass(frozen=True)
class Outcomes:
    """The rows of a store before a step and after it. They are equal for a step that only moves rows."""

    before: Contents
    after: Contents


def outcomes_of(origin: str, step: Step) -> Outcomes:
    path = copy_of(origin)
    with open_database(path, direct_commit_bytes=DIRECT_COMMIT_BYTES) as db:
        before = whole(db)
        step(db)
        after = whole(db)
    with open_database(path) as db:
        assert whole(db) == after
    if step in (flush, compact_and_collect, merge):
        assert before == after
    else:
        assert before != after, "the step must change something"
    return Outcomes(before, after)
