"""The examples in docstrings of the public classes and functions run, each on a new table."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest

import nyala

ROWS = [("a", 1, 1.0), ("a", 2, 2.0), ("b", 1, 3.0)]


def _documented() -> dict[str, Any]:
    """Return every public object that has an example, by name."""
    found: dict[str, Any] = {}
    for name in nyala.__all__:
        thing = getattr(nyala, name)
        found[name] = thing
        if inspect.isclass(thing):
            for attribute in dir(thing):
                value = inspect.getattr_static(thing, attribute)
                value = value.fget if isinstance(value, property) else value
                if inspect.isfunction(value):
                    found[f"{name}.{attribute}"] = value
    return {name: thing for name, thing in found.items() if ">>>" in (thing.__doc__ or "")}


@pytest.mark.parametrize("name", sorted(_documented()))
def test_example_runs(name: str, tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        metrics = db.create_table(
            "metrics", {"host": "string", "time": "int64", "value": "double"}, ["host", "time"]
        )
        metrics.insert(ROWS)
        names = {
            **{each: getattr(nyala, each) for each in nyala.__all__},
            "nyala": nyala,
            "db": db,
            "metrics": metrics,
            "folder": tmp_path / "other",
            "backups": tmp_path / "backups",
        }
        parser = doctest.DocTestParser()
        example = parser.get_doctest(inspect.getdoc(_documented()[name]) or "", names, name, None, None)
        assert example.examples
        report: list[str] = []
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
        runner.run(example, out=report.append)
        assert runner.failures == 0, "".join(report)


def test_the_main_classes_have_examples() -> None:
    documented = _documented()
    for name in ("Scan", "Database", "connect", "Table.insert", "Table.scan", "Table.get", "Database.sql"):
        assert name in documented
