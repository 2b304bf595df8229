"""Runs commands in the test's own process, and creates small stores for them."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support import cli_runner

import nyala
from nyala.cli.app import app


@dataclass(frozen=True)
class Ran:
    """The result of a command: its exit code, its output, and the exception that ended it."""

    exit_code: int
    stdout: str
    stderr: str
    exception: BaseException | None

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


Run = Callable[..., Ran]


@pytest.fixture
def run() -> Run:
    """Return a function that runs a command, as run("table", "list", folder). It asserts that the
    exit code is `code`.
    """

    def run_it(*args: object, code: int = 0, stdin: str | bytes | None = None) -> Ran:
        found = cli_runner().invoke(app, [str(arg) for arg in args], input=stdin, prog_name="nyala")
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        ran = Ran(found.exit_code, found.stdout, found.stderr, found.exception)
        assert ran.exit_code == code, f"exit code {ran.exit_code}: {ran.stdout}\n{ran.stderr}"
        return ran

    return run_it


ALL_TYPES = {
    "k": "int64",
    "bool": "bool",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "date": "date",
    "timestamp": "timestamp",
    "float": "float",
    "double": "double",
    "decimal": "decimal(15,2)",
    "varchar": "varchar(40)",
    "string": "string",
    "binary": "binary",
}
ALL_ROWS: list[dict[str, Any]] = [
    {
        "k": 1,
        "bool": True,
        "int8": -128,
        "int16": 32767,
        "int32": -(2**31),
        "date": dt.date(2026, 11, 20),
        "timestamp": dt.datetime(2026, 11, 20, 10, 0, 0, 500_000, dt.UTC),
        "float": 0.1,
        "double": float("nan"),
        "decimal": decimal.Decimal("-1234567890123.40"),
        "varchar": "čaj",
        "string": 'a "quoted", text\nof two lines',
        "binary": b"\x00\xff,\n",
    },
    {"k": 2**62, "double": float("-inf"), "string": "", "varchar": "NA", "binary": b""},
    {"k": -5},
]


def all_types_table() -> pa.Table:
    schema = pa.schema([pa.field(name, nyala.column(type).type.arrow) for name, type in ALL_TYPES.items()])
    return pa.Table.from_pylist(ALL_ROWS, schema=schema)


@dataclass(frozen=True)
class Example:
    """A store with the tables `metrics` (six rows, hash and range partitions) and `types`. first: a
    moment before its last update.
    """

    path: Path
    first: int
    last: int


@pytest.fixture
def example(made: Example, tmp_path: Path) -> Example:
    """Return a copy of the example store, which the test may change."""
    return replace(made, path=Path(shutil.copytree(made.path, tmp_path / "store")))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Example:
    path = tmp_path_factory.mktemp("example") / "store"
    with nyala.connect(path) as db:
        metrics = db.create_table(
            "metrics",
            {
                "host": "string",
                "time": "timestamp",
                "value": nyala.column("double", default=0.5, comment="a share"),
                "unit": nyala.column("varchar(8)", nullable=False, default="%", encoding="dictionary"),
            },
            primary_key=["host", "time"],
            partition_by=[
                nyala.hash_partition("host", buckets=2),
                nyala.range_partition("time", splits=["2026-01-02"]),
            ],
            comment="how busy",
            history="12h",
        )
        rows = [
            {"host": host, "time": f"2026-01-0{day}T00:00:00", "value": day + number / 10}
            for number, host in enumerate(("a", "b", "c"))
            for day in (1, 2)
        ]
        first = metrics.insert(rows).timestamp
        metrics.flush()
        last = metrics.update(
            [{"host": "a", "time": "2026-01-01T00:00:00", "value": None}],
        ).timestamp
        db.create_table("types", ALL_TYPES, primary_key="k").insert(all_types_table())
    return Example(path, first, last)


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """Create a store with the table t (k int64, v int8, s string), with keys 0 to 4."""
    path = tmp_path / "numbers"
    with nyala.connect(path) as db:
        table = db.create_table("t", {"k": "int64", "v": "int8", "s": "string"}, "k")
        table.insert({"k": list(range(5)), "v": [0] * 5, "s": ["old"] * 5})
    return path


def csv(folder: Path, text: str, name: str = "x.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def rows(folder: Path, table: str, **options: Any) -> list[dict[str, Any]]:
    with nyala.connect(folder, read_only=True) as db:
        found: list[dict[str, Any]] = db[table].scan(order_by_key=True, **options).to_arrow().to_pylist()
        return found
