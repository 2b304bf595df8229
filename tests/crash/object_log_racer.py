"""The processes of `test_object_log_races`: each takes over one log, and writes until it is
stopped.

The program itself only forks: it reads one line of JSON for each process to start, prints its pid,
and reads "wait PID" to wait for a process. It imports all modules once, and makes no request,
because a client of a bucket does not work after a fork.

A started process writes numbered records in three threads. Sometimes it "flushes": a change in the
log says that rows before a timestamp are in files, and a checkpoint has these rows. It writes one
line to its file for each record: "+ NAME" acknowledged, "! NAME" certainly not written, "? NAME"
unknown.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from nyala.env import SYSTEM, Bytes, Env
from nyala.errors import FencedError, StorageError
from nyala.objects.base import Objects
from nyala.objects.open import open_objects
from nyala.objects.settle import settle
from nyala.wal.objects import take_over as take_over_module
from nyala.wal.objects import writer as writer_module
from nyala.wal.objects.follower import LogFollower, read_identity
from nyala.wal.objects.format import Kind
from nyala.wal.objects.take_over import take_over

THREADS = 3
PATIENCE_S = 4.0


@dataclass
class Rows:
    """The rows of the store: each record is a row with its timestamp."""

    rows: list[tuple[int, str]] = field(default_factory=list)
    flushed: int = 0
    """Rows before this timestamp are in files."""

    def load(self, body: bytes) -> None:
        state = json.loads(body)
        self.rows, self.flushed = [(row[0], row[1]) for row in state["rows"]], state["flushed"]

    def replay(self, kind: Kind, timestamp: int, payload: bytes, in_files_before: int) -> None:
        if kind is Kind.CHANGE:
            self.flushed = max(self.flushed, int(payload))
        elif timestamp >= in_files_before:
            self.rows.append((timestamp, payload.decode()))

    def state(self) -> tuple[bytes, int | None]:
        """Return the state for a checkpoint, and the timestamp of the oldest row that is only in
        memory.
        """
        files = [row for row in self.rows if row[0] < self.flushed]
        memory = min((row[0] for row in self.rows if row[0] >= self.flushed), default=None)
        return json.dumps({"rows": files, "flushed": self.flushed}).encode(), memory


def rows_of(checkpoint: Any, entries: Any) -> Rows:
    rows = Rows()
    if checkpoint is not None:
        rows.load(checkpoint.body.to_pybytes())
    in_files_before = rows.flushed
    for entry in entries:
        rows.replay(entry.kind, entry.timestamp, entry.payload.to_pybytes(), in_files_before)
    return rows


def read_rows(objects: Objects) -> Rows:
    """Return what a new reader finds."""
    identity = read_identity(SYSTEM, objects)
    if identity is None:
        return Rows()
    news = LogFollower(SYSTEM, objects, identity).read_new()
    return rows_of(news.checkpoint, news.entries)


def plain_put(env: Env, objects: Objects, key: str, body: Bytes, **_: Any) -> None:
    """Put an object, even if it exists: a wrong rule."""
    while True:
        try:
            return objects.put(key, body)
        except StorageError:
            pass


def believe(env: Env, objects: Objects, key: str, body: Bytes, **options: Any) -> bytes | None:
    """Treat a request without an answer as successful: a wrong rule."""
    try:
        if objects.create(key, body):
            return None
    except StorageError:
        return None
    return settle(env, objects, key, body, **options)


def apply_mutant(name: str) -> None:
    if name in ("plain put", "believe"):
        mutant: Any = plain_put if name == "plain put" else believe
        take_over_module.settle = mutant  # type: ignore[attr-defined]
        writer_module.settle = mutant  # type: ignore[attr-defined]
    elif name == "seals deleted":
        writer_module.is_seal_size = lambda size_bytes: False  # type: ignore[attr-defined]
    else:
        assert name == "", name


class Racer:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.out = os.open(config["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.end_s = time.monotonic() + config["seconds"]
        self.commit_lock = threading.Lock()
        self.objects = open_objects(config["url"], {**config["options"], "timeout_s": config["timeout_s"]})

    def say(self, line: str) -> None:
        os.write(self.out, f"{line}\n".encode())

    def run(self) -> None:
        try:
            taken = take_over(SYSTEM, self.objects, patience_s=PATIENCE_S)
        except StorageError as error:
            if error.outcome != "unknown":
                raise
            self.say("# no answer at the take-over")
            return
        self.say("# took over")
        self.log = taken.log
        self.rows = rows_of(taken.checkpoint, taken.entries)
        threads = [threading.Thread(target=self.write, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        self.flush_now_and_then()
        for thread in threads:
            thread.join()

    def write(self, thread: int) -> None:
        number = 0
        while time.monotonic() < self.end_s:
            name = f"{self.config['name']}.{thread}.{number}"
            number += 1
            try:
                with self.commit_lock:
                    timestamp = self.log.appended.timestamp + 1
                    offset = self.log.append(Kind.BATCH, timestamp, [name.encode()])
                    self.rows.rows.append((timestamp, name))
                self.log.sync(offset)
            except StorageError as error:
                self.say(f"{'?' if error.outcome == 'unknown' else '!'} {name}")
                self.say(f"# {type(error).__name__}")
                return
            self.say(f"+ {name}")
            time.sleep(0.001)

    def flush_now_and_then(self) -> None:
        chance = random.Random(self.config["seed"])
        while time.monotonic() < self.end_s and self.log.failure is None:
            time.sleep(chance.random() * 0.1)
            try:
                with self.commit_lock:
                    last = self.log.appended.timestamp
                    flushed = max(self.rows.flushed, last - chance.choice([0, 5, 20]))
                    self.log.append(Kind.CHANGE, last, [str(flushed).encode()])
                    self.rows.flushed = flushed
                    body, memory = self.rows.state()
                    border = self.log.border()
                self.log.checkpoint(border, body, memory)
            except FencedError:
                return
            except StorageError as error:
                self.say(f"# checkpoint: {str(error)[:200]}")


def run(config: dict[str, Any]) -> None:
    try:
        apply_mutant(config["mutant"])
        Racer(config).run()
    except BaseException:
        text = traceback.format_exc()
        with open(config["out"], "a") as file:
            file.write(f"# DIED {json.dumps(text)}\n")
    finally:
        os._exit(0)


def starter() -> None:
    for line in sys.stdin:
        if line.startswith("wait "):
            os.waitpid(int(line[5:]), 0)
            print("ended", flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            run(json.loads(line))
        print(pid, flush=True)


if __name__ == "__main__":
    starter()
