"""The process that `test_kill` kills. It runs steps, and prints a line after each acknowledged one.

child.py FOLDER N before|after KINDS RUN   runs a fixed list of steps, and is killed at its N-th
operation of these kinds (0: never)

child.py FOLDER threads SEED   writes in 8 threads until it is killed
"""

from __future__ import annotations

import os
import random
import sys
import threading

from nyala.env import system_files
from nyala.testing.faulty_files import NAMES, SYNCS, WRITES, KillingFiles
from tests.crash import alterations, workload
from tests.crash.workload import DIRECT_COMMIT_BYTES
from tests.support import open_database

KINDS = {"sync": SYNCS, "write": WRITES, "name": NAMES}
RUNS = {"workload": workload.STEPS, "alterations": alterations.STEPS}
THREADS = 8


def run_steps(folder: str, kill_at: int, when: str, kinds: str, run: str) -> None:
    files = KillingFiles(
        system_files(), kill_at or None, "after" if when == "after" else "before", KINDS[kinds]
    )
    db = open_database(folder, files=files, direct_commit_bytes=DIRECT_COMMIT_BYTES)
    print("ready", files.count, flush=True)
    for step in RUNS[run]:
        step(db)
        print("done", files.count, flush=True)
    db.close()


def run_threads(folder: str, seed: str) -> None:
    """Write in 8 threads: row n of a key names row n - 1, and a counter has n, in one batch."""
    db = open_database(
        folder,
        maintenance=True,
        log_limit_bytes=20_000,
        memory_limit_bytes=16_000_000,
        direct_commit_bytes=20_000,
    )

    def write(thread: int) -> None:
        chance = random.Random(f"{seed} {thread}")
        number = 0
        while True:
            count = (
                400 if chance.randrange(40) == 0 else 1 + chance.randrange(4)
            )  # some are committed directly
            numbers = list(range(number, number + count))
            with db.batch() as batch:
                batch.insert(
                    "links", {"thread": [thread] * count, "n": numbers, "before": [n - 1 for n in numbers]}
                )
                batch.upsert("counters", {"thread": [thread], "n": [numbers[-1]]})
            number += count
            os.write(1, f"{thread} {number - 1}\n".encode())

    threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(arguments: list[str]) -> None:
    folder, first, *rest = arguments
    if first == "threads":
        run_threads(folder, *rest)
    else:
        run_steps(folder, int(first), *rest)


if __name__ == "__main__":
    main(sys.argv[1:])
