"""The root command: help, version, errors, exit codes, Ctrl-C, and the modules that it imports."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import nyala
from nyala.catalog.store_lock import StoreLock
from nyala.cfile import kernels
from nyala.cli import stores
from nyala.cli.app import app
from nyala.env import SYSTEM

from .conftest import Example, Run

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(nyala.__file__).parents[1])}


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, env=ENVIRONMENT
    )


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], click.Command]]:
    """Return every command that is not a group, with the words that name it."""
    if not isinstance(command, click.Group):
        return [(path, command)]
    return [found for name, child in command.commands.items() for found in commands(child, (*path, name))]


@pytest.mark.parametrize("path", [path for path, _ in commands(app)], ids=" ".join)
def test_every_command_has_help_and_the_shared_options(run: Run, path: tuple[str, ...]) -> None:
    for flag in ("--help", "-h"):
        output = run(*path, flag).stdout
        assert f"Usage: nyala {' '.join(path)}" in output
        assert "--json" in output and "--debug" in output
        assert len(output.splitlines()[2].strip()) > 10


def test_a_forgotten_folder_is_a_usage_error_with_advice(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `nyala table describe flights` the folder is missing, and the error names the order."""
    monkeypatch.chdir(tmp_path)
    assert "FOLDER comes first, then TABLE" in run("table", "describe", "flights", code=1).stderr


def test_version(run: Run) -> None:
    """`--version` also says whether compiled kernels are used, for bug reports."""
    used = kernels.described()
    assert run("--version").stdout == f"nyala {nyala.__version__} (kernels: {used})\n"
    expected = {"version": nyala.__version__, "kernels": used}
    assert run("--json", "--version").json == run("--version", "--json").json == expected


def test_an_invalid_environment_variable_is_an_error_without_traceback() -> None:
    code = "import sys; from nyala.cli import main; sys.argv = ['nyala', '--version']; main()"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env={**ENVIRONMENT, "NYALA_KERNELS": "fast"},
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == (
        "Error: the environment variable NYALA_KERNELS is 'fast': set it to 'plain' or 'compiled', or unset it\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "tabel list x",
        "table lst x",
        "table list",
        "table list x --nothing",
        "table scan x t --limit many",
        "table scan x t --limit -1",
        "table scan x t --columns a,,b",
        "table load x t nofile.parquet",
        "cfile dump nofile",
    ],
)
def test_usage_errors_are_exit_code_2(run: Run, line: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*line.split(), code=2)
    assert ran.stdout == "" and "Error: " in ran.stderr
    assert not os.listdir(tmp_path)


def test_an_error_is_one_line_and_exit_code_1(run: Run, example: Example) -> None:
    ran = run("table", "scan", example.path, "metric", code=1)
    assert ran.stdout == ""
    assert ran.stderr == "Error: no table 'metric' in this store; did you mean 'metrics'?\n"
    assert run("table", "scan", example.path, "metrics", "--columns", "valu", code=1).stderr == (
        "Error: no column 'valu'; did you mean 'value'?\n"
    )


def test_an_error_in_json(run: Run, example: Example) -> None:
    for line in (["--json", "table", "scan"], ["table", "scan", "--json"]):
        ran = run(*line, example.path, "metrics", "--where", "value >", code=1)
        assert ran.stdout == ""
        error = json.loads(ran.stderr)["error"]
        assert error["type"] == "InvalidArgumentError" and "expected a value" in error["message"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("table scan S metrics --at 1763632800", "that is 2025-11-20T10:00:00Z: write --at '2025-11-20T10:00:00Z'"),
        ("table scan S metrics --at 2100-01-01", "--at 2100-01-01T00:00:00"),
        ("table scan S metrics --at yesterday", "--at 'yesterday' is neither a timestamp nor an ISO time"),
        ("table scan S metrics --columns host,host", "--columns names a column twice"),
        ("table scan S metrics --where \\ ", "leave out --where to select every row"),
        ("table scan H t --at 2026-01-01", "is the present only"),
        ("table scan E t", "`table load --create` creates one from a file"),
        ("table load S new F --create --key k --hash k/1", "--hash k: must have at least two"),
        ("table load S new F --create --key k --hash v/4", "--hash must specify only primary key columns"),
        ("table load S new F --create --key k --range v=4", "--range must specify only primary key columns"),
        ("table load L t F", "is already written by"),
        ("table load S/data/x t F --create --key k", "is inside the folder of another store"),
    ],
)  # fmt: skip
def test_advice_names_options_and_commands(
    run: Run, example: Example, tmp_path: Path, line: str, says: str
) -> None:
    """Messages of the library name Python arguments, such as `exist_ok=True`, which a shell does
    not have.
    """
    nyala.connect(tmp_path / "empty").close()
    with nyala.connect(tmp_path / "short") as db:
        db.create_table("t", {"k": "int64"}, "k", history=0).insert({"k": [1]})
    (tmp_path / "x.csv").write_text("k,v\n1,2\n")
    places = {"S": example.path, "E": tmp_path / "empty", "L": tmp_path / "locked", "F": tmp_path / "x.csv"}
    places["H"] = tmp_path / "short"
    words = [re.sub(r"^[SELFH]\b", lambda found: str(places[found[0]]), word) for word in shlex.split(line)]
    nyala.connect(places["L"]).close()
    with StoreLock(SYSTEM, str(places["L"])):  # as if another process were the writer
        output = run(*words, code=1).stderr
    assert says in output
    assert not re.search(r"\w+\(|[a-z_]=|=True|\bNone\b|read_only", output.replace("(pid", "")), output


def test_a_command_without_its_group_is_a_usage_error_with_a_suggestion(run: Run) -> None:
    """`nyala list` suggests `nyala table list`."""
    for line, suggested in (
        (
            "list x",
            "Did you mean 'nyala table list' or 'nyala tag list' or 'nyala tablet list' or 'nyala backups list'?",
        ),
        ("describe x", "Did you mean 'nyala table describe'?"),
        ("dump --bytes x", "Did you mean 'nyala cfile dump' or 'nyala wal dump'?"),
        ("lsit x", "No such command 'lsit'. There is no store 'lsit' either: `nyala sql lsit` creates one."),
    ):
        assert run(*line.split(), code=2).stderr.splitlines()[-1].endswith(suggested)


def test_a_folder_in_place_of_a_command(run: Run, tmp_path: Path) -> None:
    last = run(tmp_path, code=2).stderr.splitlines()[-1]
    assert "Write the folder after a command, as in `table list FOLDER`." in last
    assert f"`nyala sql {tmp_path}` creates one" in last


def test_debug_shows_the_traceback(run: Run, example: Example) -> None:
    ran = run("table", "scan", example.path, "nothing", "--debug", code=1)
    assert "Traceback" in ran.stderr and ran.stderr.splitlines()[-1].startswith("Error: no table")


@pytest.mark.parametrize("folder", ["nothing", "empty", "other"])
def test_commands_that_read_create_no_store(run: Run, tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo.jpg").touch()
    for line in (["list"], ["describe"], ["scan"], ["stats"], ["load", "t", __file__, "--format", "csv"]):
        ran = run("table", line[0], tmp_path / folder, *line[1:], code=1)
        assert "there is no Nyala store at" in ran.stderr and len(ran.stderr.splitlines()) == 1
    assert "no log found in" in run("wal", "dump", tmp_path / folder, code=1).stderr
    assert sorted(os.listdir(tmp_path)) == ["empty", "other"]
    assert os.listdir(tmp_path / "empty") == []


@pytest.mark.parametrize(
    "line",
    ["table list F", "table describe F", "table scan F", "table stats F", "table changes F --since 0",
     "table load F t F", "table load F t F --create --key k", "table alter F t 'comment x'",
     "table export F t out.csv", "table compact F", "table vacuum F", "tablet list F", "fs check F",
     "fs check F --repair", "wal dump F", "demo F"],
)  # fmt: skip
def test_a_file_in_the_place_of_the_folder(run: Run, tmp_path: Path, line: str) -> None:
    """The message names the path that the user gave, and says that it is a file."""
    file = tmp_path / "x.csv"
    file.write_text("k\n1\n")
    words = [str(file) if word == "F" else word for word in shlex.split(line)]
    assert run(*words, code=1).stderr == f"Error: expected a store's folder, but {str(file)!r} is a file\n"
    assert os.listdir(tmp_path) == ["x.csv"]


def test_a_store_that_lost_its_catalogue(run: Run, example: Example, tmp_path: Path) -> None:
    """The message says what is missing, because the user may have a backup of it."""
    (example.path / "nyala.json").unlink()
    with pytest.raises(nyala.StorageError, match="restore it from a backup") as error:
        nyala.connect(example.path)
    for line in (["list"], ["compact"], ["load", "t", __file__, "--format", "csv"]):
        assert run("table", line[0], example.path, *line[1:], code=1).stderr == f"Error: {error.value}\n"


def test_ctrl_c_is_exit_code_130(run: Run, example: Example, monkeypatch: Any) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nyala.cli.tables.find_table", interrupted)
    ran = run("table", "scan", example.path, "metrics", code=130)
    assert ran.stdout == "" and ran.stderr == "Stopped.\n"


def test_ctrl_c_in_a_real_process(tmp_path: Path) -> None:
    """Ctrl-C during the demo prints no traceback, also while the second process runs."""
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "nyala", "demo", str(tmp_path / "d")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
        start_new_session=True,  # a terminal sends Ctrl-C to all processes of a job
    ) as demo:
        assert demo.stdout is not None and demo.stderr is not None
        for line in demo.stdout:
            if line.startswith("6 of 6"):
                break
        os.killpg(demo.pid, signal.SIGINT)
        complaint = demo.stderr.read()
    assert complaint == "Stopped.\n"
    # Python may also end by the signal itself, which a shell reports as 130 too.
    assert demo.returncode in (130, -signal.SIGINT)


def test_a_second_ctrl_c_in_a_commit_is_exit_code_130_with_the_outcome(
    run: Run, example: Example, monkeypatch: Any
) -> None:
    """The message says whether the batch was committed."""

    def interrupted(*args: object) -> None:
        raise nyala.StorageError("its outcome is known later") from KeyboardInterrupt()

    monkeypatch.setattr("nyala.cli.tables.find_table", interrupted)
    assert (
        run("table", "scan", example.path, "metrics", code=130).stderr
        == "Stopped: its outcome is known later\n"
    )


def test_a_reader_that_goes_away_is_no_error(example: Example) -> None:
    """`nyala table scan … | head` prints no traceback about a broken pipe."""
    with nyala.connect(example.path) as db:
        long = db.create_table("long", {"k": "int64", "text": "string"}, "k")
        long.insert({"k": list(range(20_000)), "text": ["x" * 40] * 20_000})
    with subprocess.Popen(
        [sys.executable, "-m", "nyala", "table", "scan", str(example.path), "long"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline().split() == [b"k", b"text"]
        child.stdout.close()
        complaint = child.stderr.read()
    assert complaint == b""


def test_a_reader_that_ended_before_the_first_line_is_no_error(example: Example) -> None:
    """The interpreter prints no error when it flushes stdout at its end."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        found = subprocess.run(
            [sys.executable, "-m", "nyala", "table", "export", str(example.path), "metrics", "-"],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert found.stderr == b"" and found.returncode == 0


def test_without_click_there_is_one_sentence() -> None:
    """Without the extra `cli`, the command says what to install."""
    found = python("import sys; sys.modules['click'] = None; import nyala.cli; nyala.cli.main()")
    assert found.returncode == 1 and found.stdout == ""
    assert found.stderr == "nyala: the commands need click: pip install 'nyala[cli]'\n"


def test_without_click_the_version_is_printed() -> None:
    code = "import sys; sys.modules['click'] = None; import nyala.cli; nyala.cli.main()"
    output = f"nyala {nyala.__version__} (kernels: {kernels.described()})\n"
    assert (
        (found := python(code, "--version")).stdout == output and found.returncode == 0 and found.stderr == ""
    )
    found = python(code, "--json", "--version")
    assert json.loads(found.stdout) == {"version": nyala.__version__, "kernels": kernels.described()}
    for words in (("table", "--version"), ("--debug",), ()):
        assert "pip install" in python(code, *words).stderr
    found = python(f"import os; os.environ['NYALA_KERNELS'] = 'fast'; {code}", "--version")
    assert found.returncode == 1 and found.stderr.startswith("Error: the environment variable NYALA_KERNELS")


def test_help_imports_only_click_and_the_standard_library() -> None:
    """`nyala --help` and completion in a shell answer at once (L4).

    The test does not count what the `__init__` of the package `nyala` imports.
    """
    code = f"""
import json, sys, types
package = types.ModuleType("nyala")
package.__path__ = [{str(Path(nyala.__file__).parent)!r}]
sys.modules["nyala"] = package
sys.argv = ["nyala", *sys.argv[1:]]
import nyala.cli
try:
    nyala.cli.main()
except SystemExit as end:
    assert end.code == 0
heavy = {{"pyarrow", "numpy", "duckdb", "pandas", "decimal", "subprocess"}} & set(sys.modules)
print(json.dumps(sorted(heavy) + [name for name in sys.modules if name.startswith("nyala.") and ".cli" not in name]))
"""
    for line in (["--help"], ["table", "--help"], ["table", "load", "--help"]):
        found = python(code, *line)
        assert found.returncode == 0, found.stderr
        loaded = set(json.loads(found.stdout.splitlines()[-1]))
        assert loaded <= {"nyala.errors", "nyala.optional"}, line


def test_readers_are_read_only(run: Run, example: Example, monkeypatch: Any) -> None:
    """Commands that only read work while another process writes, and do not lock it out."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("opened for writing")

    monkeypatch.setattr(stores, "writer", refuse)
    with nyala.connect(example.path) as db:
        db["metrics"].insert([{"host": "z", "time": "2026-01-05T00:00:00"}])
        assert run("table", "list", example.path, "--json").json["tables"][0]["rows"] == 7
        for line in (
            "table describe {} metrics",
            "table scan {} metrics",
            "table stats {}",
            "table changes {} metrics --since 1970-01-01",
            "tablet list {}",
            "table export {} metrics -",
        ):
            run(*line.format(example.path).split())


def test_a_second_writer_names_the_process_of_the_first(run: Run, example: Example, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("host,time\na,2026-01-01\n")
    with StoreLock(SYSTEM, str(example.path)):
        ran = run("table", "load", example.path, "metrics", file, "--json", code=1)
        assert json.loads(ran.stderr)["error"]["type"] == "LockedError"
        assert str(os.getpid()) in ran.stderr
