"""Paths as bytes, as `os.PathLike` objects, and paths that are not UTF-8."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import nyala
from nyala.cli.app import app
from tests.support import cli_runner

NOT_UTF8 = os.fsdecode(b"caf\xe9")


class Somewhere:
    """An `os.PathLike` that is not a `pathlib.Path`."""

    def __init__(self, path: str | bytes) -> None:
        self._path = path

    def __fspath__(self) -> str | bytes:
        return self._path


def test_bytes_and_path_likes_are_paths(tmp_path: Path) -> None:
    path = str(tmp_path / "s ü % ? #")
    with nyala.connect(path) as db:
        db.create_table("t", {"k": "int64"}, "k").insert([{"k": 1}])
        db.flush()
    for spelling in (os.fsencode(path), Somewhere(path), Somewhere(os.fsencode(path)), Path(path)):
        with nyala.connect(spelling, read_only=True) as db:  # type: ignore[arg-type]
            assert db["t"].count() == 1
        assert nyala.check(spelling).ok  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [os.fsdecode, os.fsencode, Path, Somewhere])
def test_a_path_that_is_not_utf8_is_refused(tmp_path: Path, make: type) -> None:
    path = make(os.path.join(tmp_path, NOT_UTF8))
    for call in (nyala.connect, lambda p: nyala.connect(p, read_only=True), nyala.check):
        with pytest.raises(nyala.InvalidArgumentError, match=r"caf\\xe9' is not UTF-8"):
            call(path)
    assert os.listdir(tmp_path) == []


def test_a_relative_path_in_a_folder_that_is_not_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NOT_UTF8).mkdir()
    monkeypatch.chdir(tmp_path / NOT_UTF8)
    with pytest.raises(nyala.InvalidArgumentError, match="is not UTF-8"):
        nyala.connect("s")


def test_a_link_to_a_folder_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / NOT_UTF8).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / NOT_UTF8)
    with nyala.connect(tmp_path / "link") as db:
        db.create_table("t", {"k": "int64"}, "k").insert([{"k": 1}])
        assert db.check().ok


def test_the_command_line_refuses_such_paths(tmp_path: Path) -> None:
    nyala.connect(tmp_path / "s").close()
    store, bad = str(tmp_path / "s"), os.path.join(tmp_path, NOT_UTF8)
    Path(bad + ".csv").write_text("k\n1\n")
    for line in (
        ["table", "list", bad],
        ["fs", "check", bad],
        ["table", "load", store, "t", bad + ".csv", "--create", "--key", "k"],
        ["table", "load", bad, "t", bad + ".csv"],
    ):
        ran = cli_runner().invoke(app, line)
        assert (ran.exit_code != 0 and ran.exception is None) or isinstance(ran.exception, SystemExit), ran
        assert "is not UTF-8" in ran.stderr


def test_spark_refuses_such_paths(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from nyala.spark.source.options import WriteOptions

    with pytest.raises(nyala.InvalidArgumentError, match="is not UTF-8"):
        WriteOptions.parse({"path": os.path.join(tmp_path, NOT_UTF8), "table": "t"})
