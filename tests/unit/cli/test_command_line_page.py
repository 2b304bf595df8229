"""docs/how-to/command-line.md agrees with the commands: names, options, exit codes and JSON keys.
Its examples run.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

import nyala
from nyala.cli import app as app_module
from nyala.cli import demo as demo_module
from nyala.cli import files, load, maintenance
from nyala.cli.app import app
from nyala.cli.base import shared_options

from .conftest import Example, Run
from .test_app import ENVIRONMENT, commands

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "command-line.md").read_text()
COMMANDS = commands(app)


def section(heading: str) -> str:
    """Return the text between a heading and the next one."""
    parts = re.split(rf"^#+ {re.escape(heading)}$", PAGE, flags=re.MULTILINE)
    assert len(parts) == 2, f"the page has no heading {heading!r}, or two"
    return re.split(r"^#+ ", parts[1], flags=re.MULTILINE)[0]


def heading_of(path: tuple[str, ...], command: click.Command) -> str:
    # The names of arguments as in the usage line. click keeps the help option of the first context
    # that it sees, so this context needs the settings of `nyala`.
    context = click.Context(command, **app.context_settings)
    arguments = command.collect_usage_pieces(context)[bool(command.options_metavar) :]
    return f"`{' '.join(['nyala', *path, *arguments])}`"


def options_of(parameters: list[click.Parameter]) -> dict[str, str]:
    """Return the help of each option, by the option with its metavar."""
    return {
        f"{p.opts[0]} {p.metavar}" if p.metavar else p.opts[0]: p.help or ""
        for p in parameters
        if isinstance(p, click.Option)
    }


def options_in(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(--[^`]+)` \| (.*) \|$", text, re.MULTILINE))


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    headings = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(heading_of(path, command) for path, command in COMMANDS)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_option_is_described(path: tuple[str, ...], command: click.Command) -> None:
    shared = options_of(shared_options())
    expected = {name: help for name, help in options_of(command.params).items() if name not in shared}
    assert options_in(section(heading_of(path, command))) == expected
    assert options_in(section("Commands")) == shared


def test_exit_codes() -> None:
    codes = re.findall(r"^\| (\d+) \| (\S+)", PAGE, re.MULTILINE)
    assert [int(code) for code, _ in codes] == [
        0,
        app_module.EXIT_ERROR,
        click.UsageError.exit_code,
        maintenance.EXIT_PROBLEMS,
        app_module.EXIT_INTERRUPTED,
    ]


def test_the_sizes_of_a_load() -> None:
    """The page and the help have the sizes of batches and flushes that the code uses."""
    output = section("`nyala table load FOLDER TABLE FILE|FOLDER...`")
    for words in (
        f"{files._BATCH_ROWS:,} rows, or fewer if they take {files._BATCH_BYTES >> 20} MB",
        f"if it holds more than {load._FLUSH_BYTES >> 20} MB",
    ):
        assert words in " ".join(output.split()), words
    output = " ".join((load.load.help or "").split())
    assert f"{files._BATCH_ROWS:,} rows, or fewer if they take {files._BATCH_BYTES >> 20} MB" in output


def keys_of(document: Any) -> set[str]:
    """Return the keys of a JSON document, without those that are column names."""
    if isinstance(document, list):
        return {key for one in document for key in keys_of(one)}
    if not isinstance(document, dict):
        return set()
    nested = {
        key for name, value in document.items() if name not in ("rows", "key") for key in keys_of(value)
    }
    return set(document) | nested


@pytest.mark.parametrize(
    "line",
    [
        "table list {store}",
        "table describe {store} metrics",
        "table scan {store} metrics",
        "table load {store} metrics {csv} --errors collect",
        "table export {store} metrics {tmp}/out.csv",
        "table stats {store}",
        "table changes {store} metrics --since 1970-01-01",
        "table alter {store} metrics 'comment x'",
        "table compact {store}",
        "table vacuum {store}",
        "tablet list {store}",
        "fs check {orphaned}",
        "fs copy {store} {tmp}/copy",
        "backup {store} {tmp}/backups",
        "restore {backups} {tmp}/restored",
        "backups list {backups}",
        "backups clean {backups} --older-than 2100-01-01",
        "fs probe file://{tmp}/bucket --races 5",
        "table drop {store} metrics --yes",
        "cfile dump {cfile}",
        "wal dump {store}",
    ],
)
def test_json_keys(run: Run, example: Example, tmp_path: Path, line: str) -> None:
    (tmp_path / "x.csv").write_text("host,time,unit\na,2026-01-01,%\nb,2026-01-01,\n")
    cfile = min((example.path / "data").rglob("*.base"))
    with nyala.connect(example.path, read_only=True) as db:
        db.backup(tmp_path / "made")
    places = {
        "backups": tmp_path / "made",
        "store": example.path,
        "orphaned": example.path,
        "csv": tmp_path / "x.csv",
        "tmp": tmp_path,
        "cfile": cfile,
    }
    words = shlex.split(line.format(**places))
    if "{orphaned}" in line:  # a store with a problem, so that the JSON document has the keys of a problem
        cfile.with_name("orphan").touch()
    heading = next(
        heading_of(path, command) for path, command in COMMANDS if path == tuple(words[: len(path)])
    )
    promised = re.search(r"In JSON: (.*?)\.(?:\s|$)", section(heading).replace("\n", " "))
    assert promised is not None
    optional = {"row_count"} if {"scan", "changes"} & set(words) else set()
    assert set(re.findall(r"`(\w+)`", promised[1])) | optional == keys_of(
        run(*words, "--json", code=3 if "{orphaned}" in line else 0).json
    )


def test_the_examples_run(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", ENVIRONMENT["PYTHONPATH"]
    )  # absolute, because a later line changes the working folder
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module, "TIMES", 50)
    block = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    lines = [shlex.split(line, comments=True) for line in block[1].splitlines()]
    assert len(lines) >= 5 and all(line[0] == "nyala" for line in lines)
    for line in lines:
        assert run(*line[1:]).stdout
