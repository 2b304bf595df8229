"""The lock holder is killed during a call of another process: the next writer executes the call once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes import children
from tests.sampled import each

import nyala
from nyala.tablet.store import Store

TABLE = 'db.create_table("t", {"k": "int64", "v": "int64"}, "k").insert([(1, 1), (2, 2)])'

# Kills the process before or after the first call of a function.
DYING = """
def arm(module, name, when):
    import importlib
    owner = importlib.import_module(module)
    *outer, name = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    called = getattr(owner, name)
    def dying(*arguments, **more):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        called(*arguments, **more)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, dying)
"""

STEPS = {
    "taken": "nyala.handover.writer_session:WriterSession.answer:before",
    "logged": "nyala.wal.writer:LogWriter.append:after",
    "finished": "nyala.tablet.store:Store.finish:after",
    "changed": "nyala.tablet.store:Store.transact:after",
    "unchanged": "nyala.tablet.store:Store.transact:before",
    "done": "nyala.handover.writer_session:answer_call:after",
    "answering": "nyala.handover.channel:_Wire.send_frame:before",
    "files": "nyala.tablet.write.direct_commit:commit_directly:after",
}


def content(db: nyala.Database) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in db["t"].scan().to_arrow().to_pylist())


def insert(db: nyala.Database) -> None:
    assert db["t"].insert([(3, 3), (4, 4)]).inserted == 2
    assert content(db) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def insert_much(db: nyala.Database) -> None:
    count = 100_000
    assert db["t"].insert({"k": list(range(10, count)), "v": [0] * (count - 10)}).inserted == count - 10
    assert db["t"].count() == count - 8


def batch(db: nyala.Database) -> None:
    with db.batch() as made:
        made.insert("t", [(3, 3)])
        made.delete("t", 1)
    assert len({result.timestamp for result in made.results}) == 1
    assert content(db) == [(2, 2), (3, 3)]


def update_where(db: nyala.Database) -> None:
    assert db["t"].update(set={"v": nyala.expr("v + 1")}, where="k = 1").updated == 1
    assert content(db) == [(1, 2), (2, 2)]


def transaction(db: nyala.Database) -> None:
    with db.transaction() as tx:
        tx["t"].update(set={"v": nyala.expr("v + 1")}, where="TRUE")
        tx["t"].insert([(3, 3)])
    assert content(db) == [(1, 2), (2, 3), (3, 3)]


def run_alone(db: nyala.Database) -> None:
    def count_up(tx: nyala.Transaction) -> None:
        tx["t"].update([{"k": 1, "v": tx["t"][1]["v"] + 1}])

    with db._writing().alone():
        db.run(count_up)
    assert content(db) == [(1, 2), (2, 2)]


def restore(db: nyala.Database) -> None:
    before = db.now()
    db["t"].delete(2)
    db["t"].restore(to=before)
    assert content(db) == [(1, 1), (2, 2)]


def create_and_drop(db: nyala.Database) -> None:
    db.create_table("u", {"k": "int64"}, "k")
    assert db.list_tables() == ["t", "u"]
    db.drop_table("u")
    assert db.list_tables() == ["t"]


def alter(db: nyala.Database) -> None:
    with db["t"].alter() as steps:
        steps.add_column("w", "int64")
        steps.rename("tt")
    assert db["tt"].columns == ["k", "v", "w"]
    db.rename_table("tt", "t")
    assert content(db) == [(1, 1, None), (2, 2, None)]


def flush(db: nyala.Database) -> None:
    db.flush()
    db["t"].compact()
    assert content(db) == [(1, 1), (2, 2)]


CASES: list[tuple[Callable[[nyala.Database], None], str]] = [
    *[(call, step) for call in (insert, batch, update_where)
      for step in ("taken", "logged", "finished", "done", "answering")],
    *[(insert_much, step) for step in ("taken", "files", "answering")],
    *[(transaction, step) for step in ("taken", "logged", "finished", "answering")],
    *[(run_alone, step) for step in ("taken", "logged", "answering")],
    *[(restore, step) for step in ("logged", "done")],
    *[(call, step) for call in (create_and_drop, alter) for step in ("taken", "unchanged", "changed", "answering")],
    *[(flush, step) for step in ("taken", "changed", "answering")],
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "step"), each(6, CASES), ids=lambda value: value if isinstance(value, str) else value.__name__
)
def test_a_call_is_done_once(tmp_path: Path, call: Callable[[nyala.Database], None], step: str) -> None:
    module, name, when = STEPS[step].split(":")
    with children(tmp_path / "s", 1) as [holder], nyala.connect(tmp_path / "s") as db:
        holder.run(TABLE)
        if step == "files":
            holder.run("db._writer().direct_commit_bytes = 100_000")
        holder.run(DYING + f"arm({module!r}, {name!r}, {when!r})")
        call(db)
        assert holder.process.wait(20) < 0, "the holder was not killed"
        assert isinstance(db._store, Store), "this process is not the writer"
        assert not db.check().problems


def test_a_copy_whose_answer_is_lost(tmp_path: Path) -> None:
    """A copy has no idempotency key, so the error says that its outcome is unknown. The table exists."""
    with children(tmp_path / "s", 1) as [holder], nyala.connect(tmp_path / "s") as db:
        holder.run(TABLE)
        module, name, when = STEPS["answering"].split(":")
        holder.run(DYING + f"arm({module!r}, {name!r}, {when!r})")
        with pytest.raises(
            nyala.StorageError, match=r"sending the request again failed: .*already exists"
        ) as caught:
            db.copy_table("t", "copy")
        assert caught.value.outcome == "unknown"
        assert db["copy"].count() == 2


def test_two_clients_at_once(tmp_path: Path) -> None:
    """One client becomes the writer, and the other client sends its call to it."""
    with children(tmp_path / "s", 2) as [holder, other], nyala.connect(tmp_path / "s") as db:
        holder.run(TABLE)
        module, name, when = STEPS["logged"].split(":")
        holder.run(DYING + f"arm({module!r}, {name!r}, {when!r})")
        other.begin("result = [db['t'].insert([(k, k)]).inserted for k in range(10, 20)]")
        assert [db["t"].insert([(k, k)]).inserted for k in range(20, 30)] == [1] * 10
        assert other.end() == [1] * 10
        assert sorted(row[0] for row in content(db)) == [1, 2, *range(10, 30)]


def test_threads_whose_writer_ends(tmp_path: Path) -> None:
    """When one thread has taken the lock, all threads of the process write themselves."""
    with children(tmp_path / "s", 1) as [holder], nyala.connect(tmp_path / "s") as db:
        holder.run(TABLE)
        failures: list[BaseException] = []

        def work(me: int) -> None:
            try:
                for number in range(10):
                    assert db["t"].insert([(100 * me + number, me)]).inserted == 1
                    assert db["t"].get(100 * me + number) == {"k": 100 * me + number, "v": me}
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(me,)) for me in range(1, 5)]
        for thread in threads:
            thread.start()
        holder.kill()
        for thread in threads:
            thread.join()
        assert not failures
        assert db["t"].count() == 42


def test_a_call_that_kills_every_writer_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is not sent again without end: the error says that its outcome is unknown."""
    from nyala.handover import attempts

    monkeypatch.setattr(attempts, "AGAIN_MAX", 0)
    with children(tmp_path / "s", 1) as [holder], nyala.connect(tmp_path / "s") as db:
        holder.run(TABLE)
        module, name, when = STEPS["taken"].split(":")
        holder.run(DYING + f"arm({module!r}, {name!r}, {when!r})")
        with pytest.raises(nyala.StorageError, match="ended while it executed the request") as caught:
            db["t"].insert([(3, 3)])
        assert caught.value.outcome == "unknown"
        assert content(db) == [(1, 1), (2, 2)]
