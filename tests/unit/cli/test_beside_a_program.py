"""Commands that write while a running program has the store open. The process of the program does
the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import Child, children

from .conftest import Run


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Child]]:
    """Start another process that has a new store open."""
    path = tmp_path_factory.mktemp("program") / "s"
    with children(path, 1) as [child]:
        child.run(
            "t = db.create_table('t', {'k': 'int64', 'v': 'string'}, 'k'); t.insert([(1, 'a'), (2, 'b')])"
        )
        yield path, child


def test_load_alter_drop_and_undrop(run: Run, program: tuple[Path, Child], tmp_path: Path) -> None:
    path, child = program
    (tmp_path / "rows.csv").write_text("k,v\n3,c\n4,d\n")
    assert run("table", "load", path, "t", tmp_path / "rows.csv", "--json").json["inserted"] == 2
    assert child.value("t.count()") == 4
    run("table", "load", path, "made", tmp_path / "rows.csv", "--create", "--key", "k")
    run("table", "alter", path, "made", "rename v w")
    assert child.value("db['made'].columns") == ["k", "w"]
    run("table", "drop", path, "made", "--yes")
    assert child.value("db.list_tables()") == ["t"]
    run("table", "undrop", path, "made")
    run("table", "clone", path, "made", "clone")
    assert child.value("db['clone'].count()") == 2
    for name in ("made", "clone"):
        run("table", "drop", path, name, "--yes")
    assert "Removed" in run("table", "purge", path, "--yes").stdout
    assert child.value("db.dropped_tables()") == []


def test_compact_and_vacuum(run: Run, program: tuple[Path, Child]) -> None:
    path, child = program
    child.run("db.maintenance.pause()")
    child.run("for k in range(10, 13): t.insert([(k, 'x')]); db.flush()")
    child.run("t.update(set={'v': 'y'}, where='k >= 10'); db.flush()")
    found = run("table", "compact", path, "t", "--json").json["tables"][0]
    assert found["compactions"] > 0 and found["rowsets"] == 1 and found["redo_bytes"] == 0
    assert run("table", "vacuum", path, "t", "--json").json["tables"][0]["name"] == "t"
    child.run("db.maintenance.resume()")


def test_a_program_that_does_not_answer(
    run: Run, program: tuple[Path, Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one line with advice for a shell, not for Python."""
    import signal

    from nyala.handover import remote_writer

    monkeypatch.setattr(remote_writer, "TAKE_TIMEOUT_S", 0.2)
    path, child = program
    child.signal(signal.SIGSTOP)
    try:
        output = run("table", "drop", path, "t", "--yes", code=1).stderr
    finally:
        child.signal(signal.SIGCONT)
    assert f"process {child.process.pid}" in output and output.count("\n") == 1
    assert "commands that only read work meanwhile" in output and "read_only" not in output
