"""A system may allow a process to open only 256 or 1,024 files, but a store may have thousands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, resource, sys, threading
import nyala

resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
with nyala.connect(sys.argv[1], maintenance=False, durability="os") as db:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", nyala.hash_partition("k", buckets=16))
    for round in range(4):
        table.insert({"k": range(round * 200, round * 200 + 200), "v": [round] * 200})
        db.flush()
    table.update(set={"v": nyala.expr("v + 1")})
    db.flush()
    assert table.stats().rowsets == 64 and table.stats().redo_files == 64

    def read():
        for _ in range(3):
            assert sum(table.to_arrow()["v"].to_pylist()) == 200 * (1 + 2 + 3 + 4)

    threads = [threading.Thread(target=read) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(os.listdir("/dev/fd")))
"""


def test_a_store_may_have_more_files_than_the_process_may_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "s")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Too many" not in done.stderr, done.stderr
    assert int(done.stdout) < 90
