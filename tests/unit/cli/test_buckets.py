"""Commands on a store in a bucket: URLs, `--option`, and commands that need a folder."""

from __future__ import annotations

import re
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


def test_commands_on_a_table_in_a_bucket(run: Run, server: S3Server, csv: Path, tmp_path: Path) -> None:
    """Commands that write, read, maintain and check."""
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
    )  # --option before the command works too
    run("table", "export", URL, "t", tmp_path / "out.parquet", *to)
    assert run("tablet", "list", URL, "--json", *to).json["store"] == URL
    checked = run("fs", "check", URL, "--json", *to).json
    assert checked["ok"] and checked["rows"] == 2 and checked["log_records"] > 0
    run("table", "drop", URL, "t", "--yes", *to)
    assert run("table", "list", URL, "--json", *to).json["tables"] == []


def test_a_mistyped_url_creates_no_store(run: Run, server: S3Server, csv: Path) -> None:
    for words in (["table", "list", URL], ["table", "load", URL, "t", csv], ["fs", "check", URL]):
        assert f"there is no Nyala store at '{URL}'" in run(*words, *options(server), code=1).stderr
    assert not server.requests["PUT"]


def test_commands_beside_a_writer(run: Run, server: S3Server, csv: Path) -> None:
    with nyala.connect(URL, storage_options=server.options, group_interval=0) as db:
        db.create_table("t", {"k": "int64", "v": "string"}, "k").insert([(1, "a")])
    with closing(open_objects(URL, server.options)) as objects:
        objects.put(WRITER_KEY, WriterHint("host", 1, "epoch", since_us=0, alive_us=0, closed=False).encode())
    assert run("table", "list", URL, "--json", *options(server)).json["tables"][0]["rows"] == 1
    output = run("table", "load", URL, "t", csv, *options(server), code=1).stderr
    assert (
        "process 1 on host host writes to the store" in output and "wait until it is closed there" in output
    )
    assert "take_over" not in output and "read_only" not in output


@pytest.mark.parametrize(
    ("words", "code", "advice"),
    [
        (["demo", URL], 1, "the demo can only make a store in a folder"),
        (["table", "list", "https://host/store"], 1, "is a URL"),
        (["table", "list", "s3://bucket/a b"], 1, "choose another prefix"),
        (["table", "list", "s3://bucket/a?region=x"], 1, "give --option NAME=VALUE"),
    ],
)
def test_commands_that_need_a_folder_refuse_a_url(run: Run, words: list[str], code: int, advice: str) -> None:
    output = " ".join(run(*words, code=code).stderr.split())
    assert advice in output


def test_objects_are_dumped_by_their_urls(run: Run, server: S3Server, csv: Path, tmp_path: Path) -> None:
    """All kinds of objects can be dumped.

    These are the log with all kinds of records, a checkpoint, the writer's hint, and a data file.
    """
    to = options(server)
    with nyala.connect(URL, storage_options=server.options, group_interval=0, maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "string"}, "k")
        table.insert([(1, "a")])
        db.flush()
        db._writer().write_checkpoint()
        table.insert([(2, "b")])
    lines = run("wal", "dump", URL, *to).lines
    text = "\n".join(lines)
    for messages in (
        r"^nyala\.json: \d+ bytes$",
        r'^writer: .*\n.*"closed": true',
        r"^ckpt/.*\n +0  the state before slot \d of epoch 1; the log starts at slot \d of epoch 1; timestamp \d+$",
        r'^ +tables \{.*"name": "t"',
        r"^log/0000000000-.*\n.*\n.*, a seal that leads to epoch 0000000001-[0-9a-f]{16}: pid \d+ on host ",
        r"^log/0000000001-.*\n.*, CRC [0-9a-f]{8} after [0-9a-f]{8}\n.*, a change of the catalogue$",
        r"a checkpoint was written: ckpt/",
        r"^ +insert 1 rows, table 1 version 0, rows by tablet \{1: 1\}, columns \{",
    ):
        assert re.search(messages, text, re.MULTILINE), (messages, text)
    for line in lines:
        if line.startswith(("log/", "ckpt/")):
            key = line.partition(":")[0]
            at = lines.index(line)
            one = run("wal", "dump", f"{URL}/{key}", *to).lines
            assert one == lines[at : at + len(one)]
    shown = run("wal", "dump", URL, "--bytes", "--json", *to).json["lines"]
    assert any("magic = NyLg" in line for line in shown) and any("magic = NyCk" in line for line in shown)
    assert "there is no Nyala store" in run("wal", "dump", URL + "2", *to, code=1).stderr
    (file,) = [key for key in server.bodies() if key.endswith(".base")]
    (tmp_path / "x.base").write_bytes(server.bodies()[file])
    there = run("cfile", "dump", f"s3://bucket/{file}", "--bytes", *to).lines
    here = run("cfile", "dump", tmp_path / "x.base", "--bytes").lines
    assert there[1:] == here[1:] and len(there) > 20


def test_damaged_objects_are_dumped_up_to_the_damage(run: Run, server: S3Server, csv: Path) -> None:
    run("table", "load", URL, "t", csv, "--create", "--key", "k", *options(server))
    log = sorted(key for key in server.bodies() if "/log/" in key)
    for key, damage in zip(log, (b"", b"x", b"NyLg" + bytes(200)), strict=False):
        server.put(key, server.bodies()[key][:-1] + b"?" if damage == b"x" else damage)
    server.put("store/writer", b"\xff" * 3000)
    lines = run("wal", "dump", URL, *options(server), "--bytes").lines
    assert sum("DAMAGE" in line for line in lines) == 3 and max(map(len, lines)) < 2500


def test_a_store_is_repaired_by_its_url(run: Run, server: S3Server, csv: Path) -> None:
    run("table", "load", URL, "t", csv, "--create", "--key", "k", *options(server))
    run("table", "compact", URL, *options(server))
    (file,) = [key for key in server.bodies() if key.endswith(".base")]
    server.put(file, server.bodies()[file] + b"more")
    assert "surplus" in run("fs", "check", URL, *options(server), code=3).stdout
    assert "repaired: rewrote rowset" in run("fs", "check", URL, "--repair", *options(server)).stdout
    assert run("fs", "check", URL, "--json", *options(server)).json["rows"] == 2


def test_a_store_is_copied_into_a_bucket_and_back(
    run: Run, server: S3Server, csv: Path, tmp_path: Path
) -> None:
    to = options(server)
    run("table", "load", tmp_path / "a", "t", csv, "--create", "--key", "k")
    run("fs", "copy", tmp_path / "a", URL, *to)
    output = run("fs", "copy", URL, tmp_path / "b", *to).stdout
    assert f"{tmp_path / 'b'} is a copy of {URL}" in output
    assert run("table", "scan", tmp_path / "b").stdout == run("table", "scan", URL, *to).stdout
    assert "there is a store" in run("fs", "copy", URL, tmp_path / "a", *to, code=1).stderr
    assert "there is no Nyala store" in run("fs", "copy", tmp_path, URL + "2", *to, code=1).stderr


def test_a_copy_between_two_services_has_options_for_each(
    run: Run, server: S3Server, csv: Path, tmp_path: Path
) -> None:
    run("table", "load", URL, "t", csv, "--create", "--key", "k", *options(server))
    with S3Server() as second:
        to = [word.replace("--option", "--to-option") for word in options(second)]
        run("fs", "copy", URL, URL, *options(server), *to)
        run(
            "fs", "copy", URL, f"file://{tmp_path}/b", *options(second)
        )  # --option is not for a URL of another scheme
        expected = run("table", "scan", URL, *options(server)).stdout
        assert run("table", "scan", URL, *options(second)).stdout == expected
    assert run("table", "scan", f"file://{tmp_path}/b").stdout == expected
    output = run(
        "fs", "copy", URL, tmp_path / "c", *options(server), "--to-option", "region=x", code=2
    ).stderr
    assert "--to-option is only for a bucket" in " ".join(output.split())
    assert "is a secret" in run("fs", "copy", URL, URL, "--to-option", "session_token=x", code=2).stderr


def test_sql_creates_a_store(run: Run, server: S3Server) -> None:
    """`nyala sql URL` creates a missing store. `nyala URL` and `sql --read-only` do not."""
    to = options(server)
    create = ["-c", "CREATE TABLE t (k int PRIMARY KEY)", *to]
    assert f" sql {URL}`" in run(URL, *create, code=1).stderr
    assert "there is no Nyala store" in run("sql", URL, "--read-only", *create, code=1).stderr
    assert run("sql", URL, *create).stderr.splitlines() == [f"{URL} is a new store.", "CREATE TABLE"]
    assert run(URL, "--json", "-c", "SELECT count(*) AS n FROM t", *to).stdout == '[{"n": 0}]\n'


def test_a_load_that_fails_says_that_the_new_store_is_empty(
    run: Run, server: S3Server, csv: Path, tmp_path: Path
) -> None:
    """The new store is not removed, because another process may already be its writer."""
    (tmp_path / "bad.csv").write_text("k,v\n1,a\n1,b\n")
    load = ["table", "load", URL, "t", "--create", "--key", "k", *options(server)]
    output = run(*load, tmp_path / "bad.csv", code=1).stderr
    assert f"{URL} is now a store without tables; `table load --create` adds one" in output
    run(*load, csv)
    assert "without tables" not in run(*load[:3], "u", *load[4:], tmp_path / "bad.csv", code=1).stderr


@pytest.mark.parametrize(
    ("option", "code", "message"),
    [
        ("region", 2, "expected name=value"),
        ("secret_access_key=x", 2, "is a secret"),
        ("timeout_s=soon", 2, "is not a valid value of timeout_s"),
        ("regoin=x", 1, "did you mean 'region'?"),
    ],
)
def test_an_invalid_option_is_an_error(run: Run, option: str, code: int, message: str) -> None:
    output = " ".join(run("table", "list", URL, "--option", option, code=code).stderr.split())
    assert message in output


def test_an_option_with_a_folder_is_an_error(run: Run, tmp_path: Path) -> None:
    nyala.connect(tmp_path / "store").close()
    output = run("table", "list", tmp_path / "store", "--option", "region=x", code=1).stderr
    assert "--option is for a store in a bucket" in output
