"""`nyala wal dump` shows a log, also a damaged one."""

from __future__ import annotations

import os
from typing import Any

from nyala.wal.dump import dump

Bench = Any  # the class of conftest.py, which tests cannot import


def test_every_segment_record_and_footer_is_listed(bench: Bench) -> None:
    bench.write([1, 2], close=True)
    bench.write([3])
    lines = list(dump(bench.files, bench.directory))
    assert sum("insert 3 rows, table 1 version 1, rows by tablet {5: 1, 7: 2}" in line for line in lines) == 3
    assert [line.split(":")[0] for line in lines if line.startswith("wal-")] == [
        "wal-000000001",
        "wal-000000002",
    ]
    assert sum("footer, 2 records" in line for line in lines) == 1
    assert "not closed" in lines[-1]


def test_damage_and_a_torn_tail_are_distinguished(bench: Bench) -> None:
    bench.write([1, 2], close=True)
    bench.write([3, 4], group_size=2)
    bench.store(bench.load(2)[:-1], 2)
    lines = list(dump(bench.files, bench.directory, show_bytes=True))
    assert "a torn tail" in lines[-1]
    data = bytearray(bench.load(1))
    data[200] ^= 1
    bench.store(bytes(data), 1)
    lines = list(dump(bench.files, bench.directory))
    assert sum("DAMAGE" in line and bench.path(1) in line for line in lines) == 1
    assert any("record 0, timestamp 3" in line for line in lines), "the next segment is shown too"
    bench.store(b"nothing of ours", 1)
    assert any("DAMAGE" in line for line in dump(bench.files, bench.directory))


def test_a_folder_without_a_log_is_an_error(bench: Bench) -> None:
    os.makedirs(bench.directory)
    assert list(dump(bench.files, bench.directory)) == [f"no log segments in {bench.directory}"]
