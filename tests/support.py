"""Helpers of several test folders: open a store with chosen files and clock, read its rows, count calls."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner

from nyala.api.database import Database
from nyala.env import Env, Files, SystemClock, SystemRandomness, system_files
from nyala.env.clock import Clock
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.measurement import Layouts
from nyala.tablet.compaction.policy import choose_minor
from nyala.tablet.scan import read_path
from nyala.tablet.state.store_folder import wal_path
from nyala.tablet.store import Store, StoreOptions
from nyala.wal.reader import LogReader, batches


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Yield a temporary folder. If possible it is in memory, where a sync takes no time."""
    where = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="nyala-unit-", dir=where) as folder:
        yield Path(folder)


def cli_runner() -> CliRunner:
    """Return a runner that keeps stdout and stderr apart; click before 8.2 does so only on request."""
    options = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return CliRunner(**options)


def open_database(
    path: Path | str, *, files: Files | None = None, clock: Clock | None = None, **options: Any
) -> Database:
    """Open a store as its writer. Nothing runs in the background, unless `maintenance=True`."""
    env = Env(files or system_files(), clock or SystemClock(), SystemRandomness())
    options.setdefault("maintenance", False)
    return Database(Store.open(env, str(path), StoreOptions(**options)))


def rows(table: Any, at: Any = None, where: Any = None) -> list[tuple[Any, ...]]:
    """Return the rows as tuples, in key order."""
    found = table.scan(at=at, where=where, order_by_key=True).to_arrow()
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True)) if len(found) else []


def key_value_table(database: Database, name: str = "t") -> Any:
    """Create a table (k int64, v int64 nullable) with the key k and one tablet."""
    return database.create_table(name, {"k": "int64", "v": "int64"}, primary_key="k")


def split_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of rows of each split that scans read from now on."""
    read: list[int] = []
    real = read_path.read_split

    def noted(unit: Any, spec: Any, lower: int, upper: int, *others: Any) -> Any:
        read.append(upper - lower)
        return real(unit, spec, lower, upper, *others)

    monkeypatch.setattr(read_path, "read_split", noted)
    return read


def calls_of(action: Callable[[], object], rounds: int = 1) -> Counter[str]:
    """Count the calls that this thread makes in `action`: C functions by module, others as "python".

    Runs the action `rounds` times without the garbage collector, and returns the counts of the round with the
    fewest calls. Other rounds may include calls of finalizers, or of a wait for a background thread.
    """

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            module = (
                getattr(argument, "__module__", None) or type(getattr(argument, "__self__", None)).__module__
            )
            calls[str(module).partition(".")[0]] += 1
        elif event == "call":
            calls["python"] += 1

    seen: list[Counter[str]] = []
    for _ in range(rounds):
        calls: Counter[str] = Counter()
        gc.collect()
        gc.disable()
        sys.setprofile(note)
        try:
            action()
        finally:
            sys.setprofile(None)
            gc.enable()
        seen.append(calls)
    return min(seen, key=Counter.total)


def logged_rows(db: Database) -> int:
    """Return the number of rows in the part of the log that a replay would read."""
    store = db._writer()
    state, end = store.state, store.log.synced.position
    reader = LogReader(store.env, wal_path(store.root_path), state.wal_start, state.store_id)
    return sum(record.row_count for record in batches(reader.read_to(end)))


def compact_deltas(store: Store) -> int:
    """Run minor delta compactions until no rowset has enough REDO files for another. Return how many ran."""
    done = 0
    for table in list(store.root.tables.values()):
        for tablet_id in table.ordinal_of:
            while True:
                root = store.root  # keeps the files during the measurement
                now = root.tables.get(table.id)
                if now is None or tablet_id not in now.ordinal_of:
                    break
                state = now.tablets[now.ordinal_of[tablet_id]]
                layouts = Layouts().of_tablet(state, 0, store.reservations)
                plan = choose_minor(layouts, redo_ratio_min=float("inf"))
                if plan is None or compact(store, table.id, tablet_id, plan, run_here(store)) is None:
                    break
                done += 1
    return done
