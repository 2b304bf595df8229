"""The adapter for Harlequin. Without Harlequin these tests are skipped; `make test-harlequin`
installs it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import nyala

harlequin = pytest.importorskip("harlequin", reason="Harlequin is not installed: make test-harlequin")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def adapter() -> Any:
    from nyala.harlequin import NyalaAdapter

    return NyalaAdapter


def test_the_catalogue(adapter: Any, store: Path) -> None:
    """The adapter shows tables and columns with their types, and marks key columns."""
    connection = adapter((str(store),)).connect()
    found = {
        item.label: [(column.label, column.type_label) for column in item.children]
        for item in connection.get_catalog().items
    }
    connection.close()
    assert found == {
        "metrics": [("host (key)", "s"), ("time (key)", "##"), ("value", "#.#")],
        "numbers": [("n (key)", "##")],
    }


def test_statements(adapter: Any, store: Path) -> None:
    """The adapter returns columns and rows, the count of a write, and errors."""
    connection = adapter((str(store),)).connect()
    cursor = connection.execute("SELECT n, 'x' AS s FROM numbers ORDER BY n")
    assert cursor.columns() == [("n", "##"), ("s", "s")]
    assert cursor.set_limit(2).fetchall().to_pydict() == {"n": [0, 1], "s": ["x", "x"]}
    assert connection.execute("SELECT n FROM numbers WHERE n < 0").fetchall() is None
    assert connection.execute("DELETE FROM numbers WHERE n < 10").fetchall().to_pylist() == [{"Count": 10}]
    assert connection.execute("BEGIN") is None
    connection.execute("DELETE FROM numbers")
    with pytest.raises(harlequin.exception.HarlequinQueryError, match="no column 'x'"):
        connection.execute("SELECT x FROM numbers")
    connection.close()
    with nyala.connect(store) as db:
        assert db["numbers"].count() == 40


def test_cancel(adapter: Any, store: Path) -> None:
    """`cancel` ends a running statement."""
    connection = adapter((str(store),)).connect()
    stopped = threading.Event()

    def cancel() -> None:
        while not stopped.is_set():
            connection.cancel()
            time.sleep(0.05)

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(harlequin.exception.HarlequinQueryError, match="INTERRUPT"):
            connection.execute(
                "SELECT sum(a.i * b.i) FROM range(1000000) a(i), range(10000000) b(i)"
            ).fetchall()
    finally:
        stopped.set()
        thread.join()
    connection.close()


def test_wrong_stores(adapter: Any, store: Path, tmp_path: Path) -> None:
    """A missing store is an error and is not created. A read-only connection refuses writes."""
    with pytest.raises(harlequin.exception.HarlequinConfigError):
        adapter(())
    with pytest.raises(harlequin.exception.HarlequinConnectionError, match="no Nyala store"):
        adapter((str(tmp_path / "none"),)).connect()
    assert not (tmp_path / "none").exists()
    connection = adapter((str(store),), read_only=True).connect()
    with pytest.raises(harlequin.exception.HarlequinQueryError):
        connection.execute("DELETE FROM numbers")
    connection.close()


def test_harlequin_finds_the_adapter(adapter: Any) -> None:
    found = [point.load() for point in entry_points(group="harlequin.adapter") if point.name == "nyala"]
    assert found == [adapter]


def test_the_program(adapter: Any, store: Path) -> None:
    """Starts Harlequin itself. It shows the catalogue, and runs a statement."""

    async def main() -> Any:
        app = harlequin.Harlequin(adapter=adapter((str(store),)))
        async with app.run_test(size=(120, 36)) as pilot:
            for _ in range(200):
                await pilot.pause(0.1)
                if app.editor is not None and getattr(app, "connection", None) is not None:
                    break
            app.editor.text = "SELECT count(*) AS n FROM metrics"
            await pilot.pause(0.3)
            await pilot.press("ctrl+j")
            for _ in range(200):
                await pilot.pause(0.1)
                table = app.results_viewer.get_visible_table()
                if table is not None and table.row_count:
                    return table.get_row_at(0)
        return None

    assert list(asyncio.run(main())) == [4]
