"""Pytest settings for all tests: the Hypothesis profiles, the seed of the run, and the order of the tests.

Profiles (--hypothesis-profile): `quick` by default and in `make test`, `nightly` in `make test-long`.
The header of each run prints its seed; `--hypothesis-seed=N` runs the same random cases again.

With xdist (`make test`), one worker runs all tests that share a Spark session, so that only one JVM starts.
The other workers begin with the slowest files. Each worker takes a whole file at a time, so the fixtures of
a file are made once. In `make test-long`, workers take single tests. Without xdist, Spark's tests come last.
"""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.sampled import is_long_run

TESTS = Path(__file__).parent
SPARK_TESTS = TESTS / "spark"
SPARK_TIMEOUT_S = 300
# These tests start Spark in other processes, and do not use the shared session.
OWN_PROGRAMS = ("spark/test_retries.py",)
CLUSTER = "spark/cluster"
SESSION = "spark"
LONGEST = (
    CLUSTER,
    *OWN_PROGRAMS,
    "model/test_model.py",
    "api/test_every_encoding.py",
    "corruption/test_check.py",
    "sqlalchemy_suite/test_suite.py",
    "unit/cfile/test_toy_encodings.py",
    "unit/tablet/test_compaction.py",
    "unit/cfile/encoding/test_every_encoding.py",
    "unit/cfile/test_operations.py",
    "unit/tablet/test_remote_reads.py",
    "stress/test_faults.py",
    "crash/test_power_cut.py",
    "crash/test_kill.py",
    "api/test_key_lists.py",
    "scripts/test_scripts.py",
)

# No deadline, because a JVM on the same machine may slow down any single example.
hypothesis.settings.register_profile("quick", max_examples=10, deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "nightly",
    max_examples=1000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scripts", action="store_true", help="write what scripts print into their files"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed of the run before the plugin of Hypothesis does, so that the header can print it."""
    # A shell that starts pytest in the background (as CI may) makes it ignore Ctrl-C. Its child processes
    # would inherit that, but some tests interrupt them.
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("hypothesis_seed", default=None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_report_header(config: pytest.Config) -> str:
    return f"random cases: --hypothesis-seed={config.option.hypothesis_seed}"


# Runs before the hook of pytest that deselects tests by `-m`.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
    spark_first = hasattr(config, "workerinput") and not is_long_run()
    items.sort(
        key=lambda item: place_in_the_run(unit_of(item.path.relative_to(TESTS).as_posix()), spark_first)
    )


def unit_of(file: str) -> str:
    """Return the group of tests that one worker runs: a file, or all files with the same session or cluster."""
    if file in OWN_PROGRAMS or not file.startswith("spark/"):
        return file
    return CLUSTER if file.startswith(f"{CLUSTER}/") else SESSION


def place_in_the_run(unit: str, spark_first: bool) -> int:
    if unit == SESSION:
        return -1 if spark_first else len(LONGEST) + 1
    return LONGEST.index(unit) if unit in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let each worker take all tests of a unit at a time, in the order that the module's docstring explains."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            unit = unit_of(nodeid.partition("::")[0].partition("tests/")[2])
            return nodeid if is_long_run() and unit != CLUSTER else unit

    config.option.loadscopereorder = False
    return ByUnit(config, log)
