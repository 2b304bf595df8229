"""What all tests share: Hypothesis profiles with a printed seed, and the order of the run.

Profiles (--hypothesis-profile): `quick` by default and in `make test`, `nightly` in `make test-long`.
A failing random test prints the seed of the run; `--hypothesis-seed=N` runs the same cases again.

Order: tests without Spark first, in the order in which they are found, then those with Spark: each xdist worker starts
a JVM for those that it gets. Among these the longest tests come first, so that both workers end at about one time.
"""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

import hypothesis
import pytest

SPARK_TESTS = Path(__file__).parent / "spark"
SPARK_TIMEOUT_S = 300
# Files with the longest tests, in this order: the first six start programs or sessions of their own.
LONG_SPARK_TESTS = (
    "test_bucket_on_cluster",
    "test_no_shared_folder",
    "test_connect",
    "test_kills",
    "test_retries",
    "test_flights",
    "test_docs",
    "test_backup_histories",
    "test_tpch",
    "test_streams",
    "test_sql",
)

# No deadline: on a machine shared with a JVM the time of one example says nothing.
hypothesis.settings.register_profile("quick", max_examples=20, deadline=None, print_blob=True)
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
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
    items.sort(key=place_in_the_run)


def place_in_the_run(item: pytest.Item) -> int:
    if item.get_closest_marker("spark") is None:
        return -1
    name = item.path.stem
    return LONG_SPARK_TESTS.index(name) if name in LONG_SPARK_TESTS else len(LONG_SPARK_TESTS)
