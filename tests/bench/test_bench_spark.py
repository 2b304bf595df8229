"""`make bench-spark` without Spark: what it says is missing, and what its report makes of figures."""

from __future__ import annotations

import importlib.util

import pytest

from bench import measure, questions, spark


def test_what_is_not_installed_is_said_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs the module in an environment without Spark reads a sentence, not a traceback."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name))
    monkeypatch.setattr("sys.argv", ["bench.spark", "--quick", "--no-write"])
    with pytest.raises(SystemExit) as ended:
        spark.main()
    assert "pyspark is not installed" in str(ended.value)
    assert "`make bench-spark` installs it" in str(ended.value)


def test_ratios_are_of_neighbours() -> None:
    """One of three rounds on a slow machine changes no ratio."""
    took = {"a": [2.0, 20.0, 2.0], "b": [1.0, 10.0, 1.0]}
    assert questions.ratio_of(took, "a", "b") == 2.0
    assert questions.ratio_of(took, "a", "absent") is None
    assert questions.geometric_mean([1.0, None, 4.0]) == pytest.approx(2.0)
    assert questions.geometric_mean([]) is None


def test_rounds_begin_with_another_way_each_and_the_first_does_not_count() -> None:
    """What runs first finds cold caches, so each has its turn at it; a way may say its own time."""
    order: list[tuple[str, int]] = []

    def way(name: str, own_s: float) -> float:
        order.append((name, len(order)))
        return own_s

    took = measure.in_rounds({"a": lambda n: way("a", 1.0 + n), "b": lambda n: way("b", 2.0 + n)}, 2)
    assert [name for name, _ in order] == ["a", "b", "b", "a", "a", "b"]
    assert took == {"a": [2.0, 3.0], "b": [3.0, 4.0]}


def test_short_rounds_go_on_until_it_is_enough_and_not_for_ever() -> None:
    """Five runs of 50 ms each say little, and mostly how the JVM starts."""
    took = measure.in_rounds({"a": lambda _: 1.0, "b": lambda _: 2.0}, 2, warm=0, enough_s=10.0)
    assert [len(times) for times in took.values()] == [4, 4]
    took = measure.in_rounds({"a": lambda _: 0.0}, 2, enough_s=10.0)
    assert len(took["a"]) == 40
    took = measure.in_rounds({"a": lambda _: 20.0}, 2, warm=0, enough_s=10.0)
    assert len(took["a"]) == 2
