"""docs/how-to/maintenance.md has every key of status(), stats() and vacuum(), and the figures of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

import nyala
from nyala import _worker
from nyala.api.database import Database
from nyala.delta.file_selection import FILES_MIN
from nyala.env.reserve import PIECE_BYTES, PIECES_MAX, PIECES_MIN
from nyala.rowset.size import TARGET_BYTES
from nyala.tablet import maintenance, store
from nyala.tablet.compaction import background as compactor
from nyala.tablet.compaction import lifecycle as compaction
from nyala.tablet.compaction import plans, policy
from nyala.tablet.compaction.reports import RunningCompaction
from tests.support import open_database

from .test_settings import rows, section

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "maintenance.md").read_text()
MB = 1 << 20


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=0)
        for start in range(5):
            table.insert({"k": list(range(start, 1000, 5)), "v": [0] * 200})
            db.flush()
        yield db


def keys(heading: str) -> list[str]:
    """Return the first cells of the section's first table, without backticks."""
    table = section(PAGE, heading).split("\n\n")
    (found,) = [part for part in table if part.strip().startswith("| key")]
    return [row[0].strip("`") for row in rows(found)]


def inner(heading: str, key: str) -> set[str]:
    """Return the keys in backticks in the row of `key`."""
    (found,) = [row[1] for row in rows(section(PAGE, heading)) if row[0] == f"`{key}`"]
    return set(re.findall(r"`([a-z_]+)`", found))


def test_every_key_of_status_is_on_the_page(db: Database) -> None:
    heading = "Status of background work: `status()`"
    running: list[RunningCompaction] = []
    work = db.maintenance.compactor
    done = work._count

    def while_running(*args: object) -> None:
        work.running = RunningCompaction("merging compaction", "t", 1, 0.0, 0, 0), 0.0
        found = db.maintenance.status().compaction
        work.running = None
        assert found is not None
        running.append(found)
        done(*args)  # type: ignore[arg-type]

    work._count = while_running  # type: ignore[method-assign,assignment]
    db.maintenance.compact_once(db._writer())
    status = db.maintenance.status()
    assert sorted(keys(heading)) == sorted(asdict(status))
    assert status.recent and inner(heading, "recent") == set(asdict(status.recent[0]))
    assert running and inner(heading, "compaction") - {"None"} == set(asdict(running[0]))


def test_every_key_of_stats_and_vacuum_is_on_the_page(db: Database) -> None:
    assert sorted(keys("Statistics of a table: `stats()`")) == sorted(asdict(db["t"].stats()))
    assert sorted(keys("Manual maintenance: `compact()` and `vacuum()`")) == sorted(
        asdict(db["t"].vacuum(dry_run=True))
    )


def test_limits_and_times_on_the_page_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    cells = {row[0]: row for row in _all_rows(section(PAGE, "Background work"))}
    log_mb, aged_mb = store.LOG_LIMIT_BYTES // MB, maintenance.FLUSH_AGE_MIN_BYTES // MB
    in_memory_s = f"{maintenance.FLUSH_AGE_S:.0f} seconds"
    aged = f"at least {aged_mb} MB of these rows and changes has been in memory for {in_memory_s}"
    assert f"the log has more than {log_mb} MB, or when {aged}" in cells["flush"][2]
    assert f"of about {TARGET_BYTES // MB} MB" in cells["merging compaction"][1]
    assert f"{policy.REDO_RATIO_MIN:.0%}".replace("%", " %") in cells["major delta compaction"][2]
    assert cells["minor delta compaction"][2] == f"when there are at least {FILES_MIN} files"
    assert cells["UNDO compaction"][2] == f"when there are at least {policy.UNDO_FILES_MIN} files"
    assert policy.SPACE_RATIO == 0.5 and cells["rewrite"][2].startswith(
        "when half of the rowset, and at least"
    )
    expiry = f"when there are at least {policy.EXPIRED_FILES_MIN} such files or {plans.OPEN_BYTES // MB} MB"
    assert cells["expiry"][2].startswith(expiry)
    assert f"nobody has written to it for {compactor.QUIET_S:.0f} seconds" in text
    assert f"the last {compactor.HISTORY_LENGTH} compactions" in text
    assert (
        f"after {compactor.DELAY_S:.0f} seconds, then after {2 * compactor.DELAY_S:.0f}, and so on up to an hour"
        in text
    )
    assert compactor.DELAY_MAX_S == 3600
    assert f"tries again after {compactor.DELAY_S:.0f} seconds" in text
    small = (
        f"reads less than {compactor.INLINE_BYTES // MB} MB, and fewer than {compactor.INLINE_ROWS:,} rows"
    )
    assert f"{small}, runs in the background thread" in text
    assert compaction.SPARE_SHARE == 4 and "and another quarter of that" in text
    assert (
        f"{PIECE_BYTES * PIECES_MIN >> 20} MiB" in text
        and f"at most {PIECE_BYTES * PIECES_MAX >> 20} MiB" in text
    )
    assert f"(`nice` {_worker.NICENESS})" in text
    assert f"fail after {store.WAIT_FOR_ROOM_S:.0f} seconds" in text
    assert f"after {_worker.IDLE_S:.0f} seconds without work" in text


def test_the_second_scan_of_a_column_reads_from_the_cache(tmp_path: Path) -> None:
    assert "blocks that scans read again may use the rest" in " ".join(PAGE.split())
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
        table.insert({"k": range(200_000), "v": [k * 7919 % 100_003 for k in range(200_000)]})
        table.flush()
        found = []
        for _ in range(4):
            before = db.stats()
            table.scan(columns=["v"]).to_arrow()
            after = db.stats()
            found.append(
                [getattr(after, key) > getattr(before, key) for key in ("cache_hits", "cache_misses")]
            )
        assert found == [[False, True]] + 3 * [[True, False]]


def _all_rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_loggers_on_the_page_exist() -> None:
    named = set(re.findall(r"`(nyala\.[a-z]+)`", PAGE))
    used = {
        match
        for path in Path(nyala.__file__).parent.rglob("*.py")
        for match in re.findall(r'getLogger\("([\w.]+)"\)', path.read_text())
    }
    assert {"nyala.maintenance", "nyala.compaction", "nyala.worker"} <= named and named <= used


def test_every_key_of_the_stores_stats_is_on_the_page(db: Database) -> None:
    heading = "Statistics of a store: `db.stats()`"
    assert keys(heading) == list(asdict(db.stats()))
