"""`make bench-spark` without Spark: messages about missing packages, and the report."""

from __future__ import annotations

import importlib.util

import pytest

from bench import measure, query_times, spark


def test_missing_packages_are_reported_with_the_command_to_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name))
    monkeypatch.setattr("sys.argv", ["bench.spark", "--quick", "--no-write"])
    with pytest.raises(SystemExit) as ended:
        spark.main()
    assert "pyspark is not installed" in str(ended.value)
    assert "`make bench-spark` installs it" in str(ended.value)


def test_ratios_are_of_neighbours() -> None:
    """One round of three on a slow machine changes no ratio."""
    took = {"a": [2.0, 20.0, 2.0], "b": [1.0, 10.0, 1.0]}
    assert query_times.ratio_of(took, "a", "b") == 2.0
    assert query_times.ratio_of(took, "a", "absent") is None
    assert query_times.geometric_mean([1.0, None, 4.0]) == pytest.approx(2.0)
    assert query_times.geometric_mean([]) is None


def test_each_round_begins_with_another_way() -> None:
    """The first way in a round finds cold caches. The first round is not counted, and a way may
    return its own time.
    """
    order: list[tuple[str, int]] = []

    def way(name: str, own_s: float) -> float:
        order.append((name, len(order)))
        return own_s

    took = measure.in_rounds({"a": lambda n: way("a", 1.0 + n), "b": lambda n: way("b", 2.0 + n)}, 2)
    assert [name for name, _ in order] == ["a", "b", "b", "a", "a", "b"]
    assert took == {"a": [2.0, 3.0], "b": [3.0, 4.0]}


def test_short_calls_run_for_more_rounds() -> None:
    """Five runs of 50 ms would mostly show how the JVM starts."""
    took = measure.in_rounds({"a": lambda _: 1.0, "b": lambda _: 2.0}, 2, warm=0, enough_s=10.0)
    assert [len(times) for times in took.values()] == [4, 4]
    took = measure.in_rounds({"a": lambda _: 0.0}, 2, enough_s=10.0)
    assert len(took["a"]) == 40
    took = measure.in_rounds({"a": lambda _: 20.0}, 2, warm=0, enough_s=10.0)
    assert len(took["a"]) == 2
