"""The child process of `test_collector.py`: threads use one store while the garbage collector runs all the time.

During a collection, a callback and finalizers let other threads run, as finalizers of any program may. CPython 3.11 can
begin a collection in any allocation, so between any two steps of C code."""

from __future__ import annotations

import faulthandler
import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import nyala

KEYS = 400
TEXTS = [f"text {number}" for number in range(20)]


class Finalized:
    """An object in a reference cycle, which lets other threads run when the collector frees it."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


held: list[list[dict[Any, Any]]] = []


def let_others_run(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        held.append(
            [{} for _ in range(100)]
        )  # CPython keeps 80 freed ones for reuse, whose allocation starts no collection
        time.sleep(0.0002)


def rows(round: int) -> list[dict[str, Any]]:
    return [{"key": key, "text": TEXTS[(key + round) % 20], "number": round} for key in range(KEYS)]


def write(table: nyala.Table, rounds: int) -> None:
    for round in range(1, rounds + 1):
        Finalized()
        table.upsert(rows(round))
        table.update([{"key": key, "number": round} for key in range(0, KEYS, 7)])


def scan(table: nyala.Table, rounds: int) -> None:
    for _ in range(rounds):
        Finalized()
        found = table.scan(["number", "text"]).to_arrow()
        assert found.num_rows == KEYS, found.num_rows
        numbers = set(found["number"].to_pylist())
        assert len(numbers) == 1, f"a batch was seen in part: {numbers}"
        some = table.scan(["key"], where="text = 'text 3' AND number >= 0").to_arrow()
        assert some.num_rows == KEYS // 20, some.num_rows


def get(table: nyala.Table, rounds: int) -> None:
    for number in range(20 * rounds):
        Finalized()
        found = table.get({"key": number % KEYS})
        assert found is not None and found["key"] == number % KEYS


def read(path: str, rounds: int) -> None:
    """Open the store again and again, so that threads use objects that no thread has used before."""
    for _ in range(rounds):
        Finalized()
        with nyala.connect(path, read_only=True) as reader:
            table = reader["t"]
            together(*[(scan, table, 1)] * 3, (get, table, 1))


def maintain(db: nyala.Database, rounds: int) -> None:
    for _ in range(rounds):
        Finalized()
        db.flush()
        db["t"].compact()


def together(*calls: tuple[Any, ...]) -> None:
    """Run these calls, each (function, argument, …), in threads at the same time."""
    errors: list[BaseException] = []
    ready = threading.Barrier(len(calls))

    def run(act: Callable[..., None], *arguments: Any) -> None:
        try:
            ready.wait(60)
            act(*arguments)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def main(path: str, rounds: int) -> None:
    faulthandler.enable()
    with nyala.connect(path) as db:
        table = db.create_table(
            "t",
            {"key": "int64", "text": "string", "number": "int64"},
            ["key"],
            partition_by=[nyala.hash_partition("key", buckets=2)],
        )
        table.insert(rows(0))
        db.flush()
        sys.setswitchinterval(1e-5)
        gc.callbacks.append(let_others_run)
        gc.set_threshold(1, 100, 100)
        ours = [(act, table, rounds) for act in (write, get, scan, scan)]
        together(*ours, (maintain, db, rounds), (read, path, rounds), (read, path, rounds))
        gc.set_threshold(700, 10, 10)
        assert table.scan(where=f"number = {rounds}").count() == KEYS
        assert db.check().ok
    print(gc.get_stats()[0]["collections"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
