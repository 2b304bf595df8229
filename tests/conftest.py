"""What all tests share: Hypothesis profiles with a printed seed, and the order of the run.

Profiles (--hypothesis-profile): `quick` by default and in `make test`, `nightly` in `make test-long`.
A failing random test prints the seed of the run; `--hypothesis-seed=N` runs the same cases again.

Order with xdist: one worker takes all tests that share a Spark session, so that there is one such JVM; the other
begins with the files that take longest, and both share what is left, file by file. So they end at about one time, and a
fixture of a file is made once. By night each test goes to the next free worker. Without xdist Spark comes last.
"""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.sampled import is_night

TESTS = Path(__file__).parent
SPARK_TESTS = TESTS / "spark"
SPARK_TIMEOUT_S = 300
# What starts programs of its own with Spark in them, and no session beside them.
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

# No deadline: on a machine shared with a JVM the time of one example says nothing.
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
    """Choose the run's seed here, before Hypothesis' own plugin looks, so that it can be printed."""
    # A run that a shell started in the background (as CI may) ignores Ctrl-C, and so would what the tests interrupt.
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("hypothesis_seed", default=None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_report_header(config: pytest.Config) -> str:
    return f"random cases: --hypothesis-seed={config.option.hypothesis_seed}"


# Before pytest's own hook, which deselects by `-m`.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
    spark_first = hasattr(config, "workerinput") and not is_night()
    items.sort(
        key=lambda item: place_in_the_run(unit_of(item.path.relative_to(TESTS).as_posix()), spark_first)
    )


def unit_of(file: str) -> str:
    """Return what one worker has as a whole: a file, or all files that share a cluster or a session of Spark."""
    if file in OWN_PROGRAMS or not file.startswith("spark/"):
        return file
    return CLUSTER if file.startswith(f"{CLUSTER}/") else SESSION


def place_in_the_run(unit: str, spark_first: bool) -> int:
    if unit == SESSION:
        return -1 if spark_first else len(LONGEST) + 1
    return LONGEST.index(unit) if unit in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker a unit's tests at a time, in the order above."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            unit = unit_of(nodeid.partition("::")[0].partition("tests/")[2])
            return nodeid if is_night() and unit != CLUSTER else unit

    config.option.loadscopereorder = False
    return ByUnit(config, log)
