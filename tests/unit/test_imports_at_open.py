"""What a program pays for that opens and reads a store: no library that Nyala needs only for some calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nyala

NOT_NEEDED = ("pandas", "duckdb", "polars", "sqlglot", "pyspark")


def loaded(statements: str, *modules: str) -> list[str]:
    """Those of `modules`, and of `NOT_NEEDED`, that a new process has imported after these statements."""
    names = (*NOT_NEEDED, *modules)
    program = f"import sys, nyala\n{statements}\nprint(*(m for m in {names} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_new_store_and_table(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    assert not loaded(
        f"with nyala.connect({path!r}) as db:\n"
        "    t = db.create_table('t', {'k': 'string', 'n': 'int64', 'v': 'double'}, ['k', 'n'],\n"
        "                        partition_by=[nyala.hash_partition('k', buckets=3)])\n"
        "    assert t.scan().to_arrow().num_rows == 0\n"
    )


def test_a_store_with_files_changes_and_a_log(tmp_path: Path) -> None:
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
    for options in ("", ", read_only=True"):
        assert not loaded(
            f"with nyala.connect({path!r}{options}) as db:\n"
            "    assert db['t'].scan().to_arrow().num_rows == 100\n"
            "    assert db['t'].scan(order_by_key=True).to_arrow().num_rows == 100\n"
        )


# Modules whose imports bring most of the code that neither opening nor a first scan needs.
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
    "nyala.tablet.write.restore",
    "nyala.tablet.workers.process",
    "nyala.testing",
)
OF_READING = (
    "nyala.api.scan",
    "nyala.api.table",
    "nyala.tablet.scan.read_path",
    "nyala.schema.predicates.predicate",
)


def test_opening_and_a_first_scan_load_no_code_of_other_work(tmp_path: Path) -> None:
    """Without maintenance, whose threads import what they need one second later."""
    path = str(tmp_path / "store")
    with nyala.connect(path) as db:
        db.create_table("t", {"k": "int64", "v": "string"}, "k").insert([{"k": 1, "v": "a"}])
        db.flush()
        db["t"].upsert([{"k": 1, "v": "b"}, {"k": 2, "v": "c"}])
    connect = f"db = nyala.connect({path!r}, maintenance=False)\n"
    assert not loaded(connect, *OF_OTHER_WORK, *OF_READING)
    scan = "assert db['t'].scan().to_arrow()['v'].to_pylist() == ['b', 'c']\n"
    assert not loaded(connect + scan, *OF_OTHER_WORK)
    assert not loaded(f"{connect}{scan}db.close()", *OF_OTHER_WORK)
