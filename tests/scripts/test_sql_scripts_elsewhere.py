"""Scripts of `sql/` on a store in a bucket, and in a process that shares a store with the lock's holder.

The outcome is that of a folder and one process, except for the words of errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nyala
from nyala.api.database import Database
from nyala.testing.s3_server import S3Server
from tests.processes import Child, children
from tests.scripts.sql_runner import SqlRunner, parse

FOLDER = Path(__file__).parent / "sql"


@pytest.fixture(scope="module")
def bucket() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


IN_A_BUCKET = ["conflict", "copies_of_tables", "copy_from", "copy_to", "ddl", "insert", "merge", "time_travel",
               "transactions", "undrop", "update_from", "upsert"]  # fmt: skip
BESIDE_A_HOLDER = [*IN_A_BUCKET, "create_as", "delete", "insert_defaults", "keyless", "update_keys"]


@pytest.mark.parametrize("name", IN_A_BUCKET)
def test_script_on_a_bucket(name: str, bucket: S3Server, tmp_path: Path) -> None:
    """The rows, counts and classes of errors are the same as in a folder."""
    run_elsewhere(
        name,
        tmp_path,
        lambda: nyala.connect(
            f"s3://bucket/{name}",
            storage_options=bucket.options,
            cache_dir=tmp_path / "cache",
            group_interval=0,
        ),
    )


@pytest.fixture(scope="module")
def holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """Start a process that opens each store before this process does, and so holds its lock."""
    with children(tmp_path_factory.mktemp("holder"), 1, "") as [child]:
        yield child


@pytest.mark.parametrize("name", BESIDE_A_HOLDER)
def test_script_in_a_second_process(name: str, holder: Child, tmp_path: Path) -> None:
    """This process sends its writes to the holder of the lock. The outcome is that of a single process."""
    holder.run(f"db = nyala.connect({str(tmp_path / 'store')!r}, maintenance=False)")
    try:
        run_elsewhere(name, tmp_path, lambda: nyala.connect(tmp_path / "store"))
    finally:
        holder.run("db.close()")


def run_elsewhere(name: str, folder: Path, connect: Callable[[], Database]) -> None:
    """Run a script. Only the words of errors may differ."""
    runner = SqlRunner(folder / "store", connect)
    try:
        for block in parse((FOLDER / f"{name}.txt").read_text()):
            printed, expected = runner.run(block), block.expected or []
            assert [*map(without_words, printed)] == [*map(without_words, expected)], "\n".join(block.lines)
        runner.check()
    finally:
        runner.close()


def without_words(line: str) -> str:
    return " ".join(line.split()[:2]) if line.startswith("error: ") else line
