"""Commands on a store in a bucket: a URL in place of a folder, `--option`, and what works on folders only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import nyala
from nyala.objects.open import open_objects
from nyala.testing.s3_server import S3Server
from nyala.wal.objects.format import WRITER_KEY, WriterHint

from .conftest import Run

URL = "s3://bucket/store"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    with S3Server() as server:
        yield server


def options(server: S3Server) -> list[str]:
    return ["--option", f"endpoint={server.endpoint}", "--option", "allow_http=true", "--option", "region=x"]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text("k,v\n1,a\n2,b\n")
    return tmp_path / "rows.csv"


def test_a_table_lives_in_a_bucket(run: Run, server: S3Server, csv: Path, tmp_path: Path) -> None:
    """Each kind of command: writers, readers, maintenance, a check."""
    to = options(server)
    run("table", "load", URL, "t", csv, "--create", "--key", "k", *to)
    assert run("table", "list", URL, "--json", *to).json["tables"][0]["rows"] == 2
    run("table", "alter", URL, "t", "add n int64 default=7", *to)
    run("table", "compact", URL, *to)
    run("table", "vacuum", URL, *to)
    rows = [{"k": 1, "v": "a", "n": 7}, {"k": 2, "v": "b", "n": 7}]
    assert run("table", "scan", URL, "--order", "--json", *to).json["rows"] == rows
    assert (
        len(run(*to, "table", "changes", URL, "--since", "1h", "--json").json["rows"]) == 2
    )  # in front, too
    run("table", "export", URL, "t", tmp_path / "out.parquet", *to)
    assert run("tablet", "list", URL, "--json", *to).json["store"] == URL
    checked = run("fs", "check", URL, "--json", *to).json
    assert checked["ok"] and checked["rows"] == 2 and checked["log_records"] > 0
    run("table", "drop", URL, "t", "--yes", *to)
    assert run("table", "list", URL, "--json", *to).json["tables"] == []


def test_a_mistyped_url_makes_no_store(run: Run, server: S3Server, csv: Path) -> None:
    for words in (["table", "list", URL], ["table", "load", URL, "t", csv], ["fs", "check", URL]):
        assert f"there is no Nyala store at '{URL}'" in run(*words, *options(server), code=1).stderr
    assert not server.requests["PUT"]


def test_commands_beside_a_writer(run: Run, server: S3Server, csv: Path) -> None:
    with nyala.connect(URL, storage_options=server.options, group_interval=0) as db:
        db.create_table("t", {"k": "int64", "v": "string"}, "k").insert([(1, "a")])
    with closing(open_objects(URL, server.options)) as objects:
        objects.put(WRITER_KEY, WriterHint("host", 1, "epoch", since_us=0, alive_us=0, closed=False).encode())
    assert run("table", "list", URL, "--json", *options(server)).json["tables"][0]["rows"] == 1
    said = run("table", "load", URL, "t", csv, *options(server), code=1).stderr
    assert "process 1 on host host writes to the store" in said and "wait until it is closed there" in said
    assert "take_over" not in said and "read_only" not in said


@pytest.mark.parametrize(
    ("words", "code", "advice"),
    [
        (["demo", URL], 1, "name one"),
        (["fs", "check", URL, "--repair"], 2, "restored from a backup"),
        (["wal", "dump", URL], 1, "`fs check` reads and verifies them"),
        (["cfile", "dump", URL + "/data/1/x.base"], 2, "copy the object to a file"),
        (["table", "list", "https://host/store"], 1, "is a URL"),
        (["table", "list", "s3://bucket/a b"], 1, "choose another prefix"),
        (["table", "list", "s3://bucket/a?region=x"], 1, "give --option NAME=VALUE"),
    ],
)
def test_what_needs_a_folder_says_so(run: Run, words: list[str], code: int, advice: str) -> None:
    said = " ".join(run(*words, code=code).stderr.split())
    assert advice in said


def test_a_store_is_copied_into_a_bucket_and_back(
    run: Run, server: S3Server, csv: Path, tmp_path: Path
) -> None:
    to = options(server)
    run("table", "load", tmp_path / "a", "t", csv, "--create", "--key", "k")
    run("fs", "copy", tmp_path / "a", URL, *to)
    said = run("fs", "copy", URL, tmp_path / "b", *to).stdout
    assert f"{tmp_path / 'b'} is a copy of {URL}" in said
    assert run("table", "scan", tmp_path / "b").stdout == run("table", "scan", URL, *to).stdout
    assert "there is a store" in run("fs", "copy", URL, tmp_path / "a", *to, code=1).stderr
    assert "there is no Nyala store" in run("fs", "copy", tmp_path, URL + "2", *to, code=1).stderr


@pytest.mark.parametrize(
    ("option", "code", "message"),
    [
        ("region", 2, "expected name=value"),
        ("secret_access_key=x", 2, "is a secret"),
        ("timeout_s=soon", 2, "is no value of timeout_s"),
        ("regoin=x", 1, "did you mean 'region'?"),
    ],
)
def test_an_invalid_option_is_an_error(run: Run, option: str, code: int, message: str) -> None:
    said = " ".join(run("table", "list", URL, "--option", option, code=code).stderr.split())
    assert message in said


def test_an_option_with_a_folder_is_an_error(run: Run, tmp_path: Path) -> None:
    nyala.connect(tmp_path / "store").close()
    said = run("table", "list", tmp_path / "store", "--option", "region=x", code=1).stderr
    assert "--option is for a store in a bucket" in said
