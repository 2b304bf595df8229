"""Opening and reading a store imports no library or module that only other calls need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nyala

NOT_NEEDED = ("pandas", "duckdb", "polars", "sqlglot", "pyspark")


def loaded(*parts: tuple[str, tuple[str, ...]]) -> list[str]:
    """Run statements in a new process; return the unwanted modules that it has imported.

    parts: (statements, names of modules that must not be imported after them). `NOT_NEEDED` is added.
    """
    program = "import sys, nyala\n"
    for statements, modules in parts:
        names = (*NOT_NEEDED, *modules)
        program += f"{statements}\nprint(*(m for m in {names} if m in sys.modules))\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_creating_a_store_and_a_table_imports_no_other_library(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    statements = (
        f"with nyala.connect({path!r}) as db:\n"
        "    t = db.create_table('t', {'k': 'string', 'n': 'int64', 'v': 'double'}, ['k', 'n'],\n"
        "                        partition_by=[nyala.hash_partition('k', buckets=3)])\n"
        "    assert t.scan().to_arrow().num_rows == 0\n"
    )
    assert not loaded((statements, ()))


def test_reading_a_store_imports_no_other_library(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    with nyala.connect(path) as db:
        table = db.create_table(
            "t",
            {"k": "string", "n": "int64", "v": "double"},
            ["k", "n"],
            partition_by=[nyala.hash_partition("k", buckets=3)],
        )
        rows = [{"k": f"key {n % 7}", "n": n, "v": n / 2} for n in range(100)]
        table.insert(rows)
        db.flush()
        table.update([{"k": row["k"], "n": row["n"], "v": 0.0} for row in rows[::9]])
        db.flush()
        table.update([{"k": row["k"], "n": row["n"], "v": 1.0} for row in rows[::5]])
        table.delete([{"k": "key 0", "n": 0}])
        table.insert([{"k": "key 0", "n": 1000, "v": 0.0}])
    statements = (
        f"for read_only in (False, True):\n"
        f"    with nyala.connect({path!r}, read_only=read_only) as db:\n"
        "        assert db['t'].scan().to_arrow().num_rows == 100\n"
        "        assert db['t'].scan(order_by_key=True).to_arrow().num_rows == 100\n"
    )
    assert not loaded((statements, ()))


# These modules import most of the code that neither `connect` nor a first scan needs.
OF_OTHER_WORK = (
    "nyala.api.alter",
    "nyala.api.batch",
    "nyala.api.change_feed",
    "nyala.handover.commits",
    "nyala.sql",
    "nyala.tablet.alter",
    "nyala.tablet.manual_maintenance",
    "nyala.tablet.check",
    "nyala.tablet.compaction.lifecycle",
    "nyala.tablet.compaction.background",
    "nyala.tablet.changes.feed",
    "nyala.tablet.changes.versions",
    "nyala.tablet.write.direct_commit",
    "nyala.tablet.flush.lifecycle",
    "nyala.tablet.flush.in_worker",
    "nyala.tablet.repair",
    "nyala.tablet.tables.restore",
    "nyala.tablet.workers.process",
    "nyala.testing",
)
OF_READING = (
    "nyala.api.scan",
    "nyala.api.table",
    "nyala.tablet.scan.read_path",
    "nyala.schema.predicates.predicate",
)


def test_opening_and_a_first_scan_import_no_code_of_other_calls(tmp_path: Path) -> None:
    """The store has no background threads, which would import their own modules after a second."""
    path = str(tmp_path / "store")
    with nyala.connect(path) as db:
        db.create_table("t", {"k": "int64", "v": "string"}, "k").insert([{"k": 1, "v": "a"}])
        db.flush()
        db["t"].upsert([{"k": 1, "v": "b"}, {"k": 2, "v": "c"}])
    connect = f"db = nyala.connect({path!r}, maintenance=False)\n"
    scan = "assert db['t'].scan().to_arrow()['v'].to_pylist() == ['b', 'c']"
    assert not loaded(
        (connect, OF_OTHER_WORK + OF_READING), (scan, OF_OTHER_WORK), ("db.close()", OF_OTHER_WORK)
    )
