"""The choice of kernels. Everything works without the compiled ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nyala.cfile import kernels

# A table with every kind of column that a kernel decodes, read whole, by predicate, and row by row.
PROGRAM = """
import datetime as dt, decimal, json, sys
{before}
import nyala, pyarrow as pa
from nyala.cfile import kernels

n = 6_000
rows = pa.table({{
    "k": pa.array(range(n), pa.int64()),
    "small": pa.array([i % 7 for i in range(n)], pa.int8()),
    "price": pa.array([decimal.Decimal(i * 37 % 9001 - 4000) / 100 for i in range(n)], pa.decimal128(15, 2)),
    "day": pa.array([dt.date(2020, 1, 1) + dt.timedelta(i % 900) for i in range(n)], pa.date32()),
    "some": pa.array([None if i % 3 else i % 1000 for i in range(n)], pa.int32()),
    "few": pa.array([(i % 3) * 10**15 for i in range(n)], pa.int64()),
    "word": pa.array([("red", "green", "blue")[i % 3] for i in range(n)]),
}})
with nyala.connect(sys.argv[1]) as db:
    table = db.create_table("t", rows.schema, ["k"])
    table.insert(rows)
    table.compact()
    with nyala.connect(sys.argv[1], read_only=True) as reader:
        t = reader["t"]
        assert t.scan().to_arrow().equals(rows.cast(t.scan().schema)), "other values"
        assert t.scan(where="small = 3 AND price > 10 AND few = 2000000000000000").count() == sum(
            1 for i in range(n) if i % 7 == 3 and i * 37 % 9001 - 4000 > 1000 and i % 3 == 2
        )
        assert t.get({{"k": 4321}})["day"] == dt.date(2020, 1, 1) + dt.timedelta(4321 % 900)
print(json.dumps([kernels.described(), "nyala.cfile.kernels.compiled" in sys.modules]))
"""


def run(folder: Path, setting: str | None, before: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != kernels.SETTING}
    if setting is not None:
        environment[kernels.SETTING] = setting
    program = PROGRAM.format(before=before)
    return subprocess.run(
        [sys.executable, "-c", program, folder / "store"], capture_output=True, text=True, env=environment
    )


def test_everything_works_without_compiled_kernels(tmp_path: Path) -> None:
    """An installation needs no compiler."""
    done = run(tmp_path, None, "sys.modules['nyala.cfile.kernels.compiled'] = None")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0] == "plain"


def test_kernels_compiled_from_another_source_are_not_used(tmp_path: Path) -> None:
    """After an update from git without a new build, the old kernels are ignored."""
    old = "import types; old = types.ModuleType('old')\n"
    done = run(tmp_path, None, old + "sys.modules['nyala.cfile.kernels.compiled'] = old")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0] == "plain"
    done = run(tmp_path, "compiled", old + "sys.modules['nyala.cfile.kernels.compiled'] = old")
    assert done.returncode and "have revision unknown" in done.stderr


def test_the_setting_selects_numpy(tmp_path: Path) -> None:
    """A user can exclude the compiled kernels, for example to examine an error."""
    done = run(tmp_path, "plain")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["plain", False]


def test_the_setting_requires_compiled_kernels(tmp_path: Path) -> None:
    """Without compiled kernels, the setting raises an error instead of using slower ones."""
    if not kernels.COMPILED:
        pytest.skip("nothing is compiled here")
    done = run(tmp_path, "compiled")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0].startswith("compiled")
    done = run(tmp_path, "compiled", "sys.modules['nyala.cfile.kernels.compiled'] = None")
    assert done.returncode and "has no usable compiled kernels" in done.stderr


def test_a_mistyped_setting_is_refused(tmp_path: Path) -> None:
    """A wrong value raises an error."""
    done = run(tmp_path, "compield")
    assert done.returncode and "NYALA_KERNELS is 'compield'" in done.stderr
