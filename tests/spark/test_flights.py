"""The flights demo runs, its checks find wrong rows, and it removes nobody's data."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from rich.console import Console

import nyala
from examples.flights import checks, screen
from examples.flights.data import prepare
from examples.flights.pipeline import LAST_DAY_OF_STEP_2
from examples.flights.place import Place, clear_earlier_demo
from nyala.testing import S3Server

ROOT = Path(__file__).parents[2]


@pytest.mark.long  # `make demo` does the same
@pytest.mark.timeout(600)
def test_the_pipeline_runs_and_all_its_checks_hold(store: Path) -> None:
    """`make demo` with three days of each month: six steps and two Spark sessions. Every result
    equals that of the CSV.
    """
    run = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--quick", "--store", str(store)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=590,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "All checks passed" in run.stdout
    assert "second process" in run.stdout
    steps = [line.split("  ")[0] for line in run.stdout.splitlines() if " of 6  " in line]
    assert steps == [f"{number} of 6" for number in range(1, 7)]
    with nyala.connect(store, read_only=True) as db:
        assert db.list_tables() == ["airlines", "airports", "flights", "planes", "weather"]


def test_an_interrupt_that_python_swallows_stops_the_next_step() -> None:
    """Python prints and ignores exceptions, also KeyboardInterrupt, while it deletes an object."""
    shown = screen.Screen(Console(quiet=True))
    shown.step("before")
    with contextlib.suppress(KeyboardInterrupt):
        shown.stop()
    with pytest.raises(KeyboardInterrupt):
        shown.step("after")


@pytest.mark.parametrize("line", ["Nyala: a year", pytest.param("1 of 6", marks=pytest.mark.long)])
def test_ctrl_c_ends_with_one_sentence(store: Path, line: str) -> None:
    """While Spark starts and while it works, the exit code is 130, and no traceback is printed."""
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.flights", "--quick", "--store", str(store)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a terminal sends Ctrl-C to all processes of a job
    ) as demo:
        assert demo.stdout is not None
        for output in demo.stdout:
            if output.startswith(line):
                break
        time.sleep(2)
        os.killpg(demo.pid, signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    assert (
        "Traceback" not in rest
        and rest.count("Stopped. ") == 1
        and rest.endswith("starts from the beginning.\n")
    ), rest


def test_the_feed_and_the_csv_have_the_same_departures(tmp_path: Path) -> None:
    """Each departure of the year is in exactly one file of the feed."""
    sources = prepare(tmp_path)
    assert [day.date for day in sources.feed] == [dt.date(2013, 1, 1) + dt.timedelta(n) for n in range(365)]
    assert sum(day.departures for day in sources.feed) == 328_521
    assert sources.csv["flights"].read_text().count("\n") == 336_776 + 1
    assert LAST_DAY_OF_STEP_2 in {day.date for day in sources.feed}


def test_a_check_notices_a_wrong_row(spark: SparkSession) -> None:
    """A value in another column, or a row twice, ends the demo."""
    expected = spark.range(0, 1000, 1, 1).selectExpr("id AS k", "id * 2 AS v", "CAST(NULL AS bigint) AS w")
    assert checks.same_rows("right", expected.orderBy("v"), expected) == 1000
    for wrong in (
        expected.selectExpr("k", "IF(k = 500, NULL, v) AS v", "IF(k = 500, v, NULL) AS w"),
        expected.union(expected.where("k = 7")),
    ):
        with pytest.raises(checks.CheckFailed, match="Spark over the CSV"):
            checks.same_rows("wrong", wrong, expected)


def test_a_check_notices_a_wrong_answer() -> None:
    """A mean that differs in its last bit, or a missing group, is a failed check."""
    right = [Row(carrier="UA", mean=0.1), Row(carrier="US", mean=0.2)]
    assert checks.same_answers("right", right, list(right)) == 2
    with pytest.raises(checks.CheckFailed, match="Nyala says"):
        checks.same_answers("wrong", [right[0], Row(carrier="US", mean=0.1 + 0.1 + 1e-17 + 2e-16)], right)
    with pytest.raises(checks.CheckFailed, match="1 rows"):
        checks.same_answers("wrong", right[:1], right)


def test_the_demo_removes_only_its_own_store(tmp_path: Path) -> None:
    """If the folder has other files or another store, the demo refuses and changes nothing."""
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit, match="not a store of this demo"):
        clear_earlier_demo(Place(str(folder)))
    assert (folder / "thesis.txt").exists()

    with nyala.connect(tmp_path / "mine") as db:
        db.create_table("orders", {"k": "int64"}, ["k"])
    with pytest.raises(SystemExit, match=r"tables that are not this demo's \(orders\)"):
        clear_earlier_demo(Place(str(tmp_path / "mine")))
    assert (tmp_path / "mine").exists()

    with nyala.connect(tmp_path / "demo") as db:
        db.create_table("flights", {"k": "int64"}, ["k"])
    clear_earlier_demo(Place(str(tmp_path / "demo")))
    assert not (tmp_path / "demo").exists()
    clear_earlier_demo(Place(str(tmp_path / "demo")))


def test_the_demo_removes_only_its_own_tables_from_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with S3Server() as server:
        place = Place(server.url, {"endpoint": server.endpoint, "allow_http": True})
        clear_earlier_demo(place)
        with place.connect() as db:
            db.create_table("flights", {"k": "int64"}, ["k"])
        clear_earlier_demo(place)
        with place.connect() as db:
            assert db.list_tables() == []
            db.create_table("flights", {"k": "int64"}, ["k"])
            db.create_table("orders", {"k": "int64"}, ["k"])
        with pytest.raises(SystemExit, match=r"tables that are not this demo's \(orders\)"):
            clear_earlier_demo(place)
        with place.connect() as db:
            assert db.list_tables() == ["flights", "orders"]


@pytest.mark.parametrize(
    "given",
    [
        "--store s3://b/f --option region=x --option region=y",
        "--store s3://b/f --option region",
        "--option region=x",
    ],
)
def test_a_wrong_option_is_an_error_before_anything_starts(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        screen.main(given.split())
    assert "--option takes NAME=VALUE" in capsys.readouterr().err


def test_a_failed_check_stops_the_demo_with_exit_code_1(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message is printed unchanged, also rows in brackets."""

    def run(*_: object) -> None:
        raise checks.CheckFailed("flights: Nyala has 2 rows\n  only in Nyala: [Row(carrier='UA', x=[1])]")

    monkeypatch.setattr(screen, "run", run)
    assert screen.main(["--store", str(store)]) == 1
    output = capsys.readouterr().out
    assert "A check failed." in output
    assert "only in Nyala: [Row(carrier='UA', x=[1])]" in output
    assert "passed" not in output
