"""The public API: its names and their documentation, the import of `nyala`, and arguments of `connect`."""

from __future__ import annotations

import ast
import datetime as dt
import inspect
import json
import math
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from tests.support import key_value_table, open_database

import nyala
from nyala.api.database import parse_size
from nyala.errors import InvalidArgumentError, StorageError
from nyala.tablet.state.history import parse_history

ROOT = Path(__file__).parent.parent.parent

NAMES = {
    "open": {"connect", "Database", "Snapshot", "Alteration", "Batch", "Table", "TableView", "Scan", "ChangeFeed",
             "WriteResult", "check", "CheckReport", "Problem", "Transaction", "TransactionTable",
             "restore_backup", "list_backups", "clean_backups"},
    "results": {"ColumnStats", "CompactionResult", "DroppedTable", "FinishedCompaction", "FlushResult", "RangeChange",
                "RunningCompaction", "MaintenanceStatus", "StoreStats",
                "TableStats", "TabletStats", "VacuumResult", "ColumnDescription", "TableDescription", "BackupResult",
                "TableBackup", "RestoredTable", "PurgeResult", "PurgeStatus", "Commit", "CommitList", "Tag", "Result"},
    "types": {"DataLike", "KeyLike", "Moment", "PredicateLike"},
    "say": {"col", "expr", "column", "Limits", "RangeBound", "hash_partition", "range_partition", "to_datetime",
            "__version__"},
    "errors": {
        "Error", "TableNotFoundError", "TableExistsError", "ColumnNotFoundError", "SchemaError",
        "InvalidArgumentError", "WriteError", "DuplicateKeyError", "KeyNotFoundError", "NoPartitionError",
        "InvalidValueError", "CorruptionError", "LockedError", "HistoryExpiredError", "ReadOnlyError", "StorageError",
        "FencedError", "ConflictError", "TransactionEndedError",
    },
}  # fmt: skip


def public() -> list[str]:
    return [name for name in nyala.__all__ if name != "__version__"]


# --- names ----------------------------------------------------------------------------------------------


def test_all_has_exactly_the_public_names() -> None:
    """`nyala.__all__` has exactly the names of NAMES, and the package has no other public name."""
    assert set(nyala.__all__) == set().union(*NAMES.values())
    assert len(nyala.__all__) == len(set(nyala.__all__))
    loose = {
        name
        for name in vars(nyala)
        if not name.startswith("_") and not isinstance(getattr(nyala, name), types.ModuleType)
    }
    assert loose - {"annotations", "Any", "TYPE_CHECKING"} <= set(public())
    assert set(dir(nyala)) == set(nyala.__all__)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        nyala.conect  # noqa: B018
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", nyala.__version__)


@pytest.mark.parametrize("name", public())
def test_each_name_has_a_docstring(name: str) -> None:
    """Each name and each public method has a docstring. A class does not inherit its docstring."""
    thing = getattr(nyala, name)
    assert thing.__doc__ and len(thing.__doc__.strip()) > 10
    if not inspect.isclass(thing) or issubclass(thing, BaseException):
        return
    assert "__doc__" in vars(thing)
    bare = [
        method
        for method, value in inspect.getmembers(thing)
        if not method.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
        and not inspect.getdoc(value)
    ]
    assert bare == []


@pytest.mark.parametrize("name", sorted(set(public()) - {"Error"}))
def test_each_name_is_on_a_page(name: str) -> None:
    """Every public name is in the README or on a page of docs, so that users can find it."""
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
    word = re.compile(rf"\b{name}\b")
    found = any(word.search(page.read_text()) for page in pages)
    return_types = {"Batch", "Database", "Scan", "Snapshot", "Table", "TableView"}
    assert found or name in return_types, f"no page names nyala.{name}"


def test_each_public_signature_is_typed() -> None:
    """Every argument and result of public functions and methods is annotated, as `py.typed` promises."""
    assert (ROOT / "src" / "nyala" / "py.typed").exists()
    untyped = []
    for name in public():
        thing = getattr(nyala, name)
        functions = [(name, thing)] if inspect.isfunction(thing) else []
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            functions = [
                (f"{name}.{method}", value)
                for method, value in inspect.getmembers(thing, inspect.isfunction)
                if not method.startswith("_")
            ]
        for label, function in functions:
            parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
            annotations = function.__annotations__
            if "return" not in annotations or any(p.name not in annotations for p in parameters):
                untyped.append(label)
    assert untyped == []


def test_the_error_tree_is_as_documented() -> None:
    """Each error class has its documented base classes, such as ValueError, KeyError or OSError."""
    tree = {
        "TableNotFoundError": ("Error", KeyError),
        "TableExistsError": ("Error",),
        "ColumnNotFoundError": ("Error", KeyError),
        "SchemaError": ("Error", ValueError),
        "InvalidArgumentError": ("Error", ValueError),
        "WriteError": ("Error",),
        "DuplicateKeyError": ("WriteError",),
        "KeyNotFoundError": ("WriteError", KeyError),
        "NoPartitionError": ("WriteError",),
        "InvalidValueError": ("WriteError", ValueError),
        "CorruptionError": ("Error",),
        "LockedError": ("Error",),
        "HistoryExpiredError": ("Error",),
        "ReadOnlyError": ("Error",),
        "StorageError": ("Error", OSError),
        "ConflictError": ("Error",),
        "TransactionEndedError": ("Error",),
        "FencedError": ("StorageError",),
    }
    assert set(tree) | {"Error"} == NAMES["errors"]
    for name, bases in tree.items():
        expected = tuple(getattr(nyala, base) if isinstance(base, str) else base for base in bases)
        assert getattr(nyala, name).__bases__ == expected


def test_the_example_of_the_package_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example in the docstring of `nyala` runs unchanged."""
    text = nyala.__doc__ or ""
    code = "\n".join(text.split("\n")[2:])
    ast.parse(code)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    exec(code, namespace)
    before = namespace["orders"].scan(at=namespace["before"]).to_arrow()  # type: ignore[attr-defined]
    assert before.to_pydict() == {"id": [1], "status": ["new"]}
    assert namespace["orders"].get({"id": 1}) == {"id": 1, "status": "paid"}  # type: ignore[attr-defined]
    namespace["db"].close()  # type: ignore[attr-defined]


# --- the import -------------------------------------------------------------------------------------


def test_import_nyala_imports_few_modules() -> None:
    """Beside pyarrow and NumPy, the core of `nyala` imports few modules."""
    code = (
        "import json, sys, numpy, pyarrow, pyarrow.compute, pyarrow.ipc; before = set(sys.modules); import nyala;"
        "nyala.connect, nyala.Scan, nyala.col;"
        "print(json.dumps([sorted(set(sys.modules) - before), sorted(sys.modules)]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    added, all_ = json.loads(found.stdout)
    packages = {name.partition(".")[0] for name in added} - set(sys.stdlib_module_names)
    # Modules that all Cython modules of one version share. They have no file.
    packages = {name for name in packages if not name.startswith(("_sysconfigdata", "_cython_"))}
    assert packages <= {"nyala", "google_crc32c", "numpy", "pyarrow"}
    own = [name for name in added if name.startswith("nyala")]
    parts = {name.split(".")[1] for name in own if "." in name}
    assert not parts & {"cli", "spark", "testing", "engines"}, (
        "code that only some users need is imported at its first use"
    )
    assert len(own) <= 240 and len(added) <= len(own) + 110
    heavy = {"asyncio", "multiprocessing", "unittest", "http", "email", "xml", "pyarrow.parquet", "pyarrow.dataset",
             "pyarrow.flight", "pyarrow.pandas_compat"}  # fmt: skip
    assert not heavy & set(added)
    assert not {"duckdb", "sqlglot", "pandas", "polars", "pyspark", "numcodecs"} & set(all_)


# --- arguments of connect and create_table --------------------------------------------------------------

DAY = 24 * 3600 * 10**6


@pytest.mark.parametrize(
    ("history", "microseconds"),
    [
        (None, 7 * DAY), ("7d", 7 * DAY), ("1h", DAY // 24), ("90s", 90 * 10**6), ("30m", DAY // 48), ("2w", 14 * DAY),
        (" 1.5 D ", DAY * 3 // 2), ("0s", 0), (0, 0), (0.25, 250_000), (3600, DAY // 24),
        (dt.timedelta(days=1, microseconds=1), DAY + 1), (dt.timedelta(0), 0), ("forever", None), (" Forever ", None),
    ],
    ids=repr,
)  # fmt: skip
def test_parse_history(history: dt.timedelta | str | float | None, microseconds: int | None) -> None:
    """The argument `history` is a text with a unit, a number of seconds or a timedelta."""
    assert parse_history(history) == microseconds


@pytest.mark.parametrize(
    "history",
    ["", "7", "d", "7 days", "-1d", "1e3s", "soon", -1, float("nan"), float("inf"), True, [7],
     dt.timedelta(days=-1), b"7d"],
    ids=repr,
)  # fmt: skip
def test_an_invalid_history_is_refused(history: object) -> None:
    """An invalid `history` raises an error, and no other length is used."""
    with pytest.raises(InvalidArgumentError, match="history"):
        parse_history(history)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "size_bytes"),
    [
        ("1GB", 10**9), ("4 gb", 4 * 10**9), ("1.5GB", 15 * 10**8), ("512MB", 512 * 10**6), ("512M", 512 * 10**6),
        ("64MiB", 64 << 20), ("64Mi", 64 << 20), ("1GiB", 1 << 30), ("2T", 2 * 10**12), ("20000KB", 20_000_000),
        ("20000000", 20_000_000), ("20000000B", 20_000_000), (20_000_000, 20_000_000),
        ("16MB", 16_000_000), (16_000_000, 16_000_000), (" 16 MiB ", 16 << 20), (np.int64(16_000_000), 16_000_000),
    ],
    ids=repr,
)  # fmt: skip
def test_parse_size(size: int | str, size_bytes: int) -> None:
    """A size is a number of bytes, or a text with a decimal or binary unit."""
    assert parse_size("memory_limit", size, 16_000_000) == size_bytes


@pytest.mark.parametrize(
    "size",
    ["", "GB", "1 potato", "1PB", "-1GB", "1,5GB", "15MB", 15_999_999, 0, -1, True, 1e9 + 0.5, math.inf, math.nan,
     1e6, None, "1I", "9" * 20, 1 << 63],
    ids=repr,
)  # fmt: skip
def test_an_invalid_size_is_refused(size: object) -> None:
    """An invalid size, or one below the minimum, raises an error."""
    with pytest.raises(InvalidArgumentError, match="memory_limit"):
        parse_size("memory_limit", size, 16_000_000)  # type: ignore[arg-type]


def test_a_size_may_be_written_with_an_exponent() -> None:
    assert parse_size("memory_limit", 1e9, 16_000_000) == 1_000_000_000


@pytest.mark.parametrize("not_before", ["yesterday", -1, 2**63])
def test_an_invalid_not_before_releases_the_lock(tmp_path: Path, not_before: object) -> None:
    """If `not_before` is invalid, `connect` raises and releases the lock."""
    with pytest.raises(InvalidArgumentError):
        nyala.connect(tmp_path / "s", not_before=not_before)  # type: ignore[arg-type]
    nyala.connect(tmp_path / "s").close()


def test_a_timeout_of_not_before_releases_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten seconds `connect` raises, and keeps neither lock nor lease nor thread."""
    nyala.connect(tmp_path / "s").close()
    seconds = iter(range(0, 100_000, 6))
    monkeypatch.setattr("nyala.env.clock.SystemClock.monotonic_s", lambda self: float(next(seconds)))
    monkeypatch.setattr("nyala.env.clock.SystemClock.sleep_s", lambda self, seconds: None)
    for read_only in (True, False):
        with pytest.raises(InvalidArgumentError, match="did not become visible"):
            nyala.connect(tmp_path / "s", not_before=2**62, read_only=read_only, maintenance=False)
    monkeypatch.undo()
    assert not list((tmp_path / "s" / "leases").iterdir())
    with nyala.connect(tmp_path / "s") as db:
        assert db.list_tables() == []


def test_not_before_waits_until_the_timestamp_is_visible(tmp_path: Path) -> None:
    """With `not_before=timestamp`, a reader process sees all batches up to this timestamp."""
    with open_database(tmp_path / "s") as db:
        stamp = key_value_table(db).insert({"k": [1], "v": [1]}).timestamp
        with nyala.connect(tmp_path / "s", read_only=True, not_before=stamp) as reader:
            assert reader.now() >= stamp and reader["t"].count() == 1


# --- closed ---------------------------------------------------------------------------------------------


def test_after_close_every_call_raises(tmp_path: Path) -> None:
    """After `close`, every call raises an error. This includes scans, views and snapshots of before."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    scan, view, snapshot, maintenance = table.scan(), table.at(db.now()), db.snapshot(), db.maintenance
    db.close()
    db.close()
    for act in (
        scan.to_arrow, scan.count, scan.explain, scan.tokens, lambda: view.get({"k": 1}), view.count, view.scan,
        lambda: snapshot["t"].get({"k": 1}), lambda: snapshot["t"].count(), table.count, lambda: table.get({"k": 1}),
        lambda: table.insert({"k": [2]}), lambda: table.delete(where="TRUE"), table.flush, table.stats, db.flush,
        db.now, db.stats, db.list_tables, db.snapshot, lambda: db.drop_table("t"), lambda: db["t"],
        lambda: db.create_table("u", {"k": "int8"}, "k"), lambda: key_value_table(db, "u"),
    ):  # fmt: skip
        with pytest.raises(StorageError, match="closed"):
            act()
    assert maintenance.status().failures == 0
    assert "closed" in repr(db)
    snapshot.close()
    with open_database(tmp_path / "s") as again:
        assert again.list_tables() == ["t"]
