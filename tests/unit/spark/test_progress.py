"""How far a job is goes to where its user looks: a terminal, a notebook's cell, or the log."""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import pytest

from nyala.spark import progress


class Terminal:
    """A stderr that is one, or not."""

    def __init__(self, is_one: bool) -> None:
        self.isatty = lambda: is_one
        self.flush = lambda: None
        self.said: list[str] = []
        self.write = self.said.append


class Kernel:
    """As much of IPython as is used: what is displayed, as the cell shows it at the end."""

    def __init__(self, kernel: object) -> None:
        self.cells: list[str] = []
        self.display = types.SimpleNamespace(display=self._display)
        self.get_ipython = lambda: types.SimpleNamespace(kernel=kernel)

    def _display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw and display_id
        self.cells.append(data["text/plain"])

        def update(new: dict[str, str], *, raw: bool) -> None:
            assert raw
            self.cells[0] = new["text/plain"]

        return types.SimpleNamespace(update=update)


def tell(*done: int) -> None:
    lines = progress._Lines("load of t", progress.shower("nyala.spark"))
    for number in done:
        lines.tell(number, 3, 1)


def test_a_terminal_has_a_line_for_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of IPython without notebook; what has not changed is not said again."""
    terminal = Terminal(True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "IPython", Kernel(None))
    tell(0, 1, 1)
    assert terminal.said == [f"load of t: {n} of 3 tasks done, 1 running\n" for n in (0, 1)]


def test_a_notebook_has_one_line_that_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Below the cell, from the first time on that there is something to say; not in the log besides."""
    caplog.set_level(logging.INFO, "nyala.spark")
    kernel = Kernel(object())
    monkeypatch.setattr(sys, "stderr", Terminal(False))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    tell()
    assert kernel.cells == []
    tell(0, 1, 2)
    assert kernel.cells == ["load of t: 2 of 3 tasks done, 1 running"] and caplog.messages == []


@pytest.mark.parametrize(
    "ipython", [None, Kernel(None), types.ModuleType("IPython")], ids=["none", "shell", "other"]
)
def test_elsewhere_it_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ipython: Any
) -> None:
    """A program in the background, one that has IPython for something else, or a module that is only called so."""
    caplog.set_level(logging.INFO, "nyala.spark")
    monkeypatch.setattr(sys, "stderr", Terminal(False))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    tell(1)
    assert caplog.messages == ["load of t: 1 of 3 tasks done, 1 running"]
