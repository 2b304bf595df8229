"""Progress of upserts and compactions: reported to a function, or shown every two seconds."""

from __future__ import annotations

import logging
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support import key_value_table, open_database

import nyala
from nyala.env import SYSTEM
from nyala.presentation import progress


def reader(first: int, batches: int = 3) -> pa.RecordBatchReader:
    """Return a reader of record batches with 100 keys each."""
    rows = pa.table({"k": range(first, first + 100 * batches), "v": [1] * 100 * batches})
    return rows.to_reader(max_chunksize=100)


@pytest.mark.parametrize("operation", ["insert", "upsert", "update", "delete"])
def test_a_stream_reports_the_rows_after_each_batch(tmp_path: Path, operation: str) -> None:
    with open_database(tmp_path / "s") as db:
        table, steps = key_value_table(db), list[tuple[int, int | None]]()
        if operation in ("update", "delete"):
            table.insert(reader(0))
        data: Any = reader(0)
        if operation == "delete":
            data = data.read_all().select(["k"]).to_reader(max_chunksize=100)
        getattr(table, operation)(data, progress=lambda *done: steps.append(done))
        assert steps == [(100, None), (200, None), (300, None)]
        steps.clear()
        table.upsert({"k": [1, 2], "v": [1, 2]}, progress=lambda *done: steps.append(done))
        assert steps == [(2, None)]


def test_an_exception_of_the_function_ends_the_stream(tmp_path: Path) -> None:

    def stop(done: int, total: int | None) -> None:
        if done == 200:
            raise KeyboardInterrupt

    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        with pytest.raises(KeyboardInterrupt):
            table.insert(reader(0), progress=stop)
        assert table.count() == 200


def test_the_progress_of_several_rounds_never_decreases(tmp_path: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    work = progress.CompactionProgress(lambda *done: steps.append(done))
    for step in ((0, 2), (1, 2), (2, 2), (0, 1), (1, 1)):
        work.step(*step)
        work.rows(1, 2)
    shares = [done / (total or 1) for done, total in steps]
    assert steps[-2] == (300, 300)
    assert shares[:4] == sorted(shares[:4]) and [done for done, _ in steps[::2]] == [0, 100, 200, 200, 300]


@pytest.mark.parametrize("what", ["compact", "vacuum"])
def test_the_function_cannot_start_another_compaction(tmp_path: Path, what: str) -> None:
    """A compaction inside of the function raises an error.

    It would wait for the compaction that called it.
    """
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = key_value_table(db)
        for value in (1, 2):
            table.upsert({"k": [1, 2, 3], "v": [value] * 3})
            table.flush()
        steps = []

        def call(done: int, total: int | None) -> None:
            with pytest.raises(nyala.InvalidArgumentError, match="call them after it returns"):
                getattr(table, what)()
            steps.append(table.count())

        table.compact(progress=call)
        assert steps and set(steps) == {3}
        getattr(table, what)()


@pytest.mark.parametrize("maintenance", [False, True])
def test_a_compaction_reports_hundredths_of_its_rows(tmp_path: Path, maintenance: bool) -> None:
    with nyala.connect(tmp_path / "s", maintenance=maintenance, rowset_size="1MB") as db:
        db.maintenance.pause()
        table = db.create_table(
            "t", {"k": "int64", "v": "binary"}, "k", [nyala.hash_partition("k", buckets=2)]
        )
        noise = pa.array([SYSTEM.randomness.token_hex(32).encode() for _ in range(40_000)])
        for _ in range(3):
            table.upsert({"k": list(range(40_000)), "v": noise})
            table.flush()
        steps: list[tuple[int, int | None]] = []
        table.compact(progress=lambda *done: steps.append(done))
        totals = {total for _, total in steps}
        assert totals == {200} and steps[0] == (0, 200) and steps[-1] == (200, 200)
        assert steps == sorted(steps) and len(steps) > 4  # the rows of the running compaction
        steps.clear()
        table.compact(progress=lambda *done: steps.append(done))
        assert steps == []  # there was nothing to do


def test_lines_are_shown_every_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Work of less than two seconds shows no line. Without a terminal the lines go to the log."""
    caplog.set_level(logging.INFO, "nyala.progress")
    now_s = iter([0.0, 1.0, 2.5, 3.0, 5.0])
    clock = types.SimpleNamespace(monotonic_s=lambda: next(now_s))
    monkeypatch.setattr(progress, "SYSTEM", types.SimpleNamespace(clock=clock))
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert(reader(0, 4), progress=True)
        assert caplog.messages == ["insert into t: 200 rows", "insert into t: 400 rows"]
        caplog.clear()
        now_s = iter([0.0, *(2.0 * number for number in range(1, 100))])
        db.flush()
        table.insert(reader(100, 4), on_conflict="ignore")
        db.flush()
        table.compact(progress=True)
        assert (
            caplog.messages[0] == "compaction of t: 0 %" and caplog.messages[-1] == "compaction of t: 100 %"
        )


@pytest.mark.parametrize("wrong", ["yes", 1, object()])
def test_other_objects_are_refused_as_progress(tmp_path: Path, wrong: Any) -> None:
    """An object that is not a function raises an error, before anything is written."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        for call, given in ((table.insert, [{"k": 1}]), (table.delete, [{"k": 1}]), (table.compact, None)):
            with pytest.raises(
                nyala.InvalidArgumentError, match="progress takes True, or a function .*done, total"
            ):
                call(*(() if given is None else (given,)), progress=wrong)
        assert table.count() == 0
