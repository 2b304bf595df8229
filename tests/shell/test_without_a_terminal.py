"""`nyala sql` with -c, -f and pipes: its output, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.cli.app import app
from nyala.sql.change import change as changes
from nyala.sql.change import rows, target
from nyala.sql.define import create_table
from nyala.sql.session import SqlSession
from nyala.tablet.tables import creation
from nyala.tablet.write import part_commit, write_path
from nyala.testing.s3_server import S3Server
from tests.shell.terminal import SOURCE
from tests.shell.test_terminal import SLOW
from tests.support import cli_runner

ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE}


def ran(*arguments: object, stdin: str | None = None) -> tuple[int, str, str]:
    """Run `nyala ARGUMENTS`. Return the exit code, stdout and stderr."""
    found = cli_runner().invoke(app, [str(each) for each in arguments], input=stdin, prog_name="nyala")
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.stdout, found.stderr


TWO = "SELECT 1 AS one; SELECT 2 AS two"
PRINTED = "one\n  1\ntwo\n  2\n"


def test_statements_of_an_argument_a_file_and_a_pipe(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "two.sql"
    file.write_text(TWO)
    expected = (0, PRINTED, "")
    assert ran("sql", store, "-c", TWO) == expected
    assert ran("sql", store, "-f", file) == expected
    assert ran("sql", store, "-f", "-", stdin=TWO) == expected
    assert ran("sql", store, stdin=TWO) == expected
    assert ran(store, stdin=TWO) == expected
    assert ran("sql", store, stdin="") == (0, "", "")


def test_the_first_error_ends_the_run(store: Path) -> None:
    text = "SELECT 1 AS one; SELECT x FROM metrics; SELECT 2 AS two"
    code, printed, output = ran("sql", store, "-c", text)
    assert (code, printed) == (1, "one\n  1\n")
    assert output.startswith("Error: there is no column 'x'")
    code, printed, output = ran("sql", store, "-c", text, "--keep-going")
    assert (code, printed, output.count("Error")) == (1, PRINTED, 1)


def test_several_commands_and_files_run_in_order(store: Path, tmp_path: Path) -> None:
    create = "CREATE TABLE made (k int PRIMARY KEY)"
    show = "SELECT table_name FROM information_schema.tables WHERE table_name = 'made'"
    assert ran("sql", store, "-c", create, "-c", show) == (0, "table_name\nmade\n", "CREATE TABLE\n")
    files = [tmp_path / "one.sql", tmp_path / "two.sql"]
    for file, text in zip(files, (".mode csv\nSELECT 1 AS one", "SELECT 2 AS two"), strict=True):
        file.write_text(text)
    assert ran("sql", store, "-f", files[0], "-f", files[1]) == (0, '"one"\n1\n"two"\n2\n', "")
    code, printed, _ = ran("sql", store, "-c", "SELECT x", "-c", "SELECT 2 AS two")
    assert (code, printed) == (1, "")
    code, printed, _ = ran("sql", store, "--keep-going", "-c", "SELECT x", "-c", "SELECT 2 AS two")
    assert (code, printed) == (1, "two\n  2\n")
    assert ran("sql", store, "-c", ".quit", "-c", "SELECT 2 AS two") == (0, "", "")
    assert ran("sql", store, "-f", files[0], "-f", tmp_path / "none.sql")[:2] == (2, "")  # nothing ran
    (tmp_path / "latin.sql").write_bytes(b"SELECT '\xe4'")
    code, _, output = ran("sql", store, "-f", tmp_path / "latin.sql")
    assert (code, output.startswith(f"Error: {tmp_path / 'latin.sql'}: not UTF-8 text")) == (1, True)


def test_commands_of_other_shells(store: Path) -> None:
    r"""`\d`, `exit`, `quit` and `help` work as in psql and DuckDB."""
    tables = ran("sql", store, "-c", ".tables")
    columns = ran("sql", store, "-c", ".schema metrics")
    assert columns[1].startswith('CREATE TABLE "metrics" (')
    for word in ("\\d", "\\dt", "\\dt+", "\\d;", ".tables;"):
        assert ran("sql", store, "-c", word) == tables, word
    assert ran("sql", store, "-c", "\\d metrics") == ran("sql", store, "-c", "\\d+ metrics;") == columns
    for word in ("exit", "EXIT;", "quit", "\\q"):
        assert ran("sql", store, "-c", f"SELECT 1 AS one;\n{word}\nSELECT 2") == (0, "one\n  1\n", ""), word
    for word in ("help", "\\?", "Help ;"):
        code, printed, output = ran("sql", store, "-c", word)
        assert (code, printed) == (0, "") and ".tables" in output, word
    code, _, output = ran("sql", store, "-c", "\\x")
    assert (code, output) == (1, "Error: there is no command \\x: .help lists the dot commands\n")
    # Inside of a statement, these words have no special meaning.
    assert ran("sql", store, "-c", "SELECT 1 AS\nhelp\n;")[1] == "help\n   1\n"


def test_plans_are_readable(store: Path) -> None:
    _, printed, _ = ran("sql", store, "-c", "EXPLAIN SELECT * FROM metrics; SHOW CREATE TABLE metrics")
    assert "\\n" not in printed
    assert "│" in printed.splitlines()[2]
    assert '  "time" BIGINT NOT NULL,' in printed.splitlines()


def test_a_new_store(tmp_path: Path) -> None:
    """`nyala sql NEW` creates the store. If it fails without a table, it removes the folder."""
    new = tmp_path / "a" / "new"
    create = "CREATE TABLE t (k int PRIMARY KEY)"
    assert ran("sql", new, "-c", create) == (0, "", f"{new} is a new store.\nCREATE TABLE\n")
    assert ran("sql", new, "-c", "SELECT count(*) AS n FROM t") == (0, "n\n0\n", "")
    wrong = tmp_path / "b" / "wrong"
    code, _, output = ran("sql", wrong, "-c", "SELECT x")
    assert code == 1 and not wrong.parent.exists()
    assert output.splitlines()[0] == f"{wrong} is a new store."
    assert output.splitlines()[-1] == f"{wrong} was removed: it had no table."
    code, _, output = ran("sql", wrong, "--read-only", "-c", "SELECT 1")
    assert code == 1 and f"nyala sql {wrong}" in output and not wrong.exists()
    code, _, output = ran(wrong, "-c", create)
    assert code == 2 and f"`nyala sql {wrong}` creates one" in output and not wrong.exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    code, _, output = ran("sql", tmp_path / "other", "-c", create)
    assert code == 1 and "other" in output
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["file"]


def test_errors_as_json(store: Path) -> None:
    """With --json, rows and errors are JSON."""
    code, printed, output = ran("sql", store, "--json", "-c", "SELECT 1 AS one; SELECT * FROM nothing")
    assert (code, json.loads(printed)) == (1, [{"one": 1}])
    assert json.loads(output)["error"]["type"] == "TableNotFoundError"


def test_a_dot_command_is_a_line_of_its_own(store: Path) -> None:
    text = ".mode csv\nSELECT\n.5 AS half; .mode md\nSELECT 1 AS one;\n.quit\nSELECT 3"
    assert ran("sql", store, "-c", text) == (0, '"half"\n0.5\n| one |\n| --: |\n| 1 |\n', "")


@pytest.mark.parametrize(
    ("line", "output"),
    [
        (".table", "there is no dot command .table: did you mean .tables?"),
        (".xyz", "there is no dot command .xyz; .help lists them"),
        (".schema a b", "write .schema [TABLE]: The CREATE TABLE statement of a table, or of all."),
        (
            ".changes",
            "write .changes TABLE [SINCE]: The rows that changed since an ISO time, an age (2h, 1d) or a tag. "
            "Default: since the oldest readable moment of the table.",
        ),
        (".mode xml", "expected table, csv, json, md or line, got 'xml'"),
        (".timing yes", "expected on or off, got 'yes'"),
        (".rows 0", "expected a number from 1 on, or all, got '0'"),
        (".schema 'a", ".schema 'a: a quotation mark is not closed"),
        (".schema nothing", "no table 'nothing' in this store"),
    ],
)
def test_wrong_dot_commands(store: Path, line: str, output: str) -> None:
    code, printed, error = ran("sql", store, "-c", f"{line}\nSELECT 1")
    assert (code, printed) == (1, "")
    assert error.startswith(f"Error: {output}")


def test_errors_of_moments_name_dot_commands(store: Path) -> None:
    for line in (".at yesterday-ish", ".changes metrics yesterday-ish"):
        code, _, output = ran("sql", store, "-c", line)
        assert code == 1
        assert "at=" not in output and "--" not in output and "since=" not in output, output


WRONG = """
INSERT INTO numbers VALUES (1);
INSERT INTO numbers VALUES (100), (100);
INSERT INTO metrics VALUES (NULL, 1, 1.0);
CREATE TABLE gone (k int PRIMARY KEY);
DROP TABLE gone;
INSERT INTO gone VALUES (1);
.changes gone
ALTER TABLE numbers ALTER COLUMN n TYPE text;
ALTER TABLE numbers ADD RANGE PARTITION VALUES < 5;
CREATE TABLE made (v text) PARTITION BY RANGE (v) (PARTITION VALUES < 5);
PIVOT numbers ON n;
COPY numbers TO 's3://bucket/file.csv';
ATTACH 'none' AS other;
SELECT * FROM numbers AT (TIMESTAMP => '2020-01-01');
.at before
SHOW PARTITIONS numbers;
DELETE FROM numbers;
BEGIN;
"""


def test_errors_name_sql_and_dot_commands(store: Path) -> None:
    _, _, output = ran("sql", store, "--keep-going", "-c", WRONG)
    python = re.compile(r"\bdb\.|connect\(|\w\(\)|\.errors|\w=(?:…|True|\[)|without at=|--\w")
    assert [line for line in output.splitlines() if python.search(line)] == []
    assert output.count("Error") == 15
    for words in (
        "Error: SHOW PARTITIONS reads only the present: use .at now first\n",
        "UNDROP TABLE gone brings it back",
        "use UPSERT, or INSERT OR IGNORE\n",
    ):
        assert words in output, output
    assert ran("sql", store, "--read-only", "-c", "DELETE FROM numbers")[2].endswith(
        "was opened with --read-only: start the shell without it to write\n"
    )


def test_a_moment_and_changes(store: Path) -> None:
    """`.at` reads an earlier moment, and `.changes` prints the changes since a moment."""
    count = "SELECT count(*) AS n FROM metrics;\n"
    _, printed, _ = ran("sql", store, "--mode", "json", "-c", f".at before\n{count}.at now\n{count}")
    assert printed == '[{"n": 3}]\n[{"n": 4}]\n'
    _, printed, _ = ran("sql", store, "--mode", "json", "-c", ".changes metrics before")
    (row,) = json.loads(printed)
    assert (row["host"], row["time"], row["_change_type"]) == ("b", 2, "insert")
    assert len(json.loads(ran("sql", store, "--mode", "json", "-c", ".changes metrics")[1])) == 4


def test_an_open_transaction_is_rolled_back(store: Path) -> None:
    write = "BEGIN; INSERT INTO numbers VALUES (77); SELECT max(n) AS n FROM numbers;"
    assert ran("sql", store, "-c", write) == (
        1, " n\n77\n", "BEGIN\nINSERT: 1 row\nThe open transaction was rolled back.\n",
    )  # fmt: skip
    assert ran("sql", store, "-c", f"{write} COMMIT; SELECT 1 AS one") == (
        0, " n\n77\none\n  1\n", "BEGIN\nINSERT: 1 row\nCOMMIT\n",
    )  # fmt: skip


def test_returning_prints_the_rows(store: Path) -> None:
    assert ran("sql", store, "-c", "DELETE FROM numbers WHERE n < 2 RETURNING n AS gone") == (
        0, "gone\n   0\n   1\n", "DELETE: 2 rows\n",
    )  # fmt: skip


def test_read_only_refuses_writes(store: Path) -> None:
    assert ran("sql", store, "--read-only", "-c", "SELECT count(*) AS n FROM numbers")[:2] == (0, " n\n50\n")
    code, _, output = ran("sql", store, "--read-only", "-c", "DELETE FROM numbers")
    assert code == 1
    assert "read-only" in output or "read_only" in output


def test_timing_goes_to_stderr(store: Path) -> None:
    _, printed, output = ran("sql", store, "-c", ".timing on\nSELECT 1 AS one")
    assert printed == "one\n  1\n"
    assert output.startswith("Time: ") and output.endswith(" ms\n")


def test_wrong_usage(store: Path, tmp_path: Path) -> None:
    """Wrong arguments end with exit code 2."""
    assert ran("sql", store, "-c", "SELECT 1", "-f", "-")[0] == 2
    (tmp_path / "folder").mkdir()
    code, _, output = ran(tmp_path / "folder")
    assert code == 2 and "No such command" in output


def test_without_prompt_toolkit_only_the_terminal_is_missing(store: Path) -> None:
    code = "import sys; sys.modules['prompt_toolkit'] = None; from nyala.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", code, "sql", str(store), "-c", "SELECT 1 AS one"],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=60,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (0, "one\n  1\n"), found.stderr


def test_a_reader_that_ends_early(store: Path) -> None:
    """`nyala sql … | head` is no error."""
    command = f"{sys.executable} -m nyala sql {store} -c 'SELECT * FROM range(10000000)' | head -2"
    found = subprocess.run(command, shell=True, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert (found.stdout, found.stderr) == ("range\n    0\n", "")


def test_an_error_in_the_middle_of_a_file(store: Path, tmp_path: Path) -> None:
    """Statements before the error have run, and later ones have not. An open transaction is rolled
    back.
    """
    file = tmp_path / "some.sql"
    count = "SELECT count(*) AS n FROM numbers;"
    file.write_text(f"DELETE FROM numbers WHERE n = 1;\n{count}\nSELECT x;\nDELETE FROM numbers;\n")
    code, printed, output = ran("sql", store, "-f", file)
    assert (code, printed) == (1, " n\n49\n")
    assert output.startswith("DELETE: 1 row\nError: there is no column 'x'")
    file.write_text("BEGIN;\nDELETE FROM numbers;\nINSERT INTO numbers VALUES (1), (1);\nCOMMIT;\n")
    code, _, output = ran("sql", store, "-f", file)
    assert code == 1 and output.endswith("The open transaction was rolled back.\n")
    assert ran("sql", store, "-c", "SELECT count(*) AS n FROM numbers")[1] == " n\n49\n"
    code, _, output = ran("sql", store, "-f", file, "--keep-going")
    assert code == 1 and output.endswith("COMMIT\n")  # the refused INSERT left the transaction open
    assert ran("sql", store, "-c", "SELECT count(*) AS n FROM numbers")[1] == "n\n0\n"


def test_a_file_of_windows(store: Path, tmp_path: Path) -> None:
    """A byte order mark, and lines that end with CR LF."""
    file = tmp_path / "windows.sql"
    file.write_bytes("\ufeff.mode csv\r\nSELECT 1 AS one;\r\n-- ä\r\n.tables\r\nSELECT\r\n2 AS two".encode())
    expected = (0, '"one"\n1\n"table","key"\n"metrics","host, time"\n"numbers","n"\n"two"\n2\n', "")
    assert ran("sql", store, "-f", file) == ran("sql", store, "-c", f".read {file}") == expected
    assert ran("sql", store, stdin=file.read_text(encoding="utf-8")) == expected


def test_statements_in_comments_do_not_run(store: Path) -> None:
    """Comments can be nested, as in PostgreSQL and DuckDB."""
    comment = "/* DELETE FROM numbers; /* all of them */\nDELETE FROM numbers; */"
    text = f"{comment}\nSELECT count(*) AS n FROM numbers; /**/; -- ;"
    assert ran("sql", store, "-c", text) == (0, " n\n50\n", "")
    with nyala.connect(store) as db:
        assert db.sql(text).fetchall() == [(50,)]


def test_read_runs_a_file(store: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.sql", tmp_path / "two.sql"
    one.write_text(f"\ufeffSELECT 1 AS one;\n.read {two}\nSELECT 3 AS three;\n")
    two.write_text("SELECT 2 AS two")
    assert ran("sql", store, "-c", f".read {one}\nSELECT 4 AS four") == (
        0, "one\n  1\ntwo\n  2\nthree\n    3\nfour\n   4\n", "",
    )  # fmt: skip
    two.write_text("SELECT x; SELECT 2 AS two")
    code, printed, output = ran("sql", store, "-c", f".read {one}\nSELECT 4 AS four")
    assert (code, printed, output.count("Error")) == (1, "one\n  1\n", 1)
    code, printed, output = ran("sql", store, "--keep-going", "-c", f".read {one}\n.quit")
    assert (code, printed, output.count("Error")) == (1, "one\n  1\ntwo\n  2\nthree\n    3\n", 1)
    two.write_text(f".read {two}")
    code, _, output = ran("sql", store, "-c", f".read {two}")
    assert (code, output) == (1, "Error: .read is nested 20 files deep: check whether a file reads itself\n")
    for name, words in (("none.sql", "No such file"), (".", "Is a directory")):
        code, _, output = ran("sql", store, "-c", f".read {tmp_path / name}")
        assert code == 1 and output.startswith(f"Error: .read {tmp_path / name}: {words}"), output
    two.write_bytes(b"SELECT '\xe4'")
    assert "not UTF-8 text" in ran("sql", store, "-c", f".read {two}")[2]


def test_the_output_of_schema_creates_the_tables(store: Path, tmp_path: Path) -> None:
    _, printed, _ = ran("sql", store, "-c", ".schema")
    (tmp_path / "schema.sql").write_text(printed)
    assert ran("sql", tmp_path / "new", "-f", tmp_path / "schema.sql")[0] == 0
    assert ran("sql", tmp_path / "new", "-c", ".schema")[1] == printed
    _, rows, _ = ran("sql", store, "--json", "-c", ".schema Numbers")
    ((row,),) = [json.loads(rows)]
    assert (row["table"], row["statement"]) == (
        "numbers",
        printed[printed.index('CREATE TABLE "numbers"') : -1],
    )


def test_a_very_long_text_is_printed_whole(store: Path) -> None:
    """Other rows do not become wider."""
    text = "SELECT repeat('x', 1000000) AS a, 1 AS n UNION ALL SELECT 'y', 2 ORDER BY n"
    lines = ran("sql", store, "-c", text)[1].splitlines()
    assert lines[1] == "x" * 1_000_000 + "  1"
    assert lines[2] == "y" + " " * 199 + "  2"
    assert len(ran("sql", store, "--mode", "csv", "-c", text)[1]) == 1_000_000 + 19


def test_a_store_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`nyala sql` takes a URL and storage options."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    with S3Server() as server:
        options = [f"--option={name}={value}" for name, value in (
            ("endpoint", server.endpoint), ("allow_http", "true"), ("region", "x"),
        )]  # fmt: skip
        url = "s3://bucket/store"
        made = "CREATE TABLE t (id INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 10)"
        code, printed, output = ran("sql", url, *options, "-c", f"{made}; BEGIN; UPDATE t SET v = 11; COMMIT")
        assert (code, printed) == (0, ""), output
        assert output.endswith("CREATE TABLE\nINSERT: 1 row\nBEGIN\nUPDATE: 1 row\nCOMMIT\n")
        assert ran("sql", url, *options, "--read-only", "-c", "FROM t") == (0, "id   v\n 1  11\n", "")
        code, printed, output = ran("sql", url, *options, "--read-only", "-c", "DELETE FROM t")
        assert (code, printed) == (1, "") and "read" in output
        with nyala.connect(url, storage_options=server.options, cache_dir=tmp_path / "other") as db:
            command = [sys.executable, "-m", "nyala", "sql", url, *options, "-c", "DELETE FROM t"]
            refused = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}
            )
            assert refused.returncode == 1 and "writes to the store" in refused.stderr
            assert "lock_timeout" not in refused.stderr
            assert ran("sql", url, *options, "--read-only", "-c", "SELECT v FROM t") == (0, " v\n11\n", "")
            assert db.sql("DELETE FROM t").rowcount == 1


def interrupting(act: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a Ctrl-C after it. The main thread receives the signal before this
    function returns.
    """

    def wrapped(*arguments: Any, **options: Any) -> Any:
        made = act(*arguments, **options)
        assert threading.current_thread() is not threading.main_thread()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        return made

    return wrapped


CHANGE = "UPDATE numbers SET n = n + 100"
CHANGES = [
    (CHANGE, "UPDATE: 50 rows"),
    ("INSERT INTO numbers SELECT n + 100 FROM numbers", "INSERT: 50 rows"),
    ("DELETE FROM numbers WHERE n >= 0", "DELETE: 50 rows"),
    (
        "MERGE INTO numbers USING (SELECT n + 100 AS n FROM numbers) s ON numbers.n = s.n "
        "WHEN NOT MATCHED THEN INSERT (n) VALUES (s.n)",
        "MERGE: 50 rows",
    ),
    ("CREATE TABLE made AS SELECT n FROM numbers", "CREATE TABLE: 50 rows"),
]


@pytest.mark.parametrize(("change", "output"), CHANGES, ids=[output.split(":")[0] for _, output in CHANGES])
def test_ctrl_c_after_a_commit_prints_the_result(
    store: Path, monkeypatch: pytest.MonkeyPatch, change: str, output: str
) -> None:
    """The output is not "Cancelled." Later statements do not run."""
    monkeypatch.setattr(SqlSession, "execute", interrupting(SqlSession.execute))
    assert ran("sql", store, "-c", change) == (0, "", f"{output}\n")


def test_ctrl_c_after_a_commit_ends_the_run(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqlSession, "execute", interrupting(SqlSession.execute))
    for run in (["-c", f"{CHANGE}; DELETE FROM numbers"], ["-c", CHANGE, "-c", "DELETE FROM numbers"]):
        assert ran("sql", store, *run) == (
            130, "", "UPDATE: 50 rows\nCancelled: the later statements did not run.\n",
        )  # fmt: skip
    assert ran("sql", store, "-c", f"{CHANGE} RETURNING n") == (
        0, "", "UPDATE: 50 rows; the rows are not all shown\n",
    )  # fmt: skip
    monkeypatch.undo()
    assert ran("sql", store, "-c", "SELECT min(n) AS n FROM numbers") == (0, "  n\n300\n", "")


@pytest.mark.parametrize(
    ("change", "module", "function"),
    [
        (CHANGE, write_path, "resolve_requests"),
        ("INSERT INTO numbers VALUES (100)", write_path, "resolve_requests"),
        ("CREATE TABLE made AS SELECT n FROM numbers", creation, "resolve"),
        ("CREATE OR REPLACE TABLE numbers AS SELECT n + 1 AS n FROM numbers", creation, "write_effects"),
    ],
)
def test_ctrl_c_while_rows_are_checked_and_written(
    store: Path, monkeypatch: pytest.MonkeyPatch, change: str, module: Any, function: str
) -> None:
    """Before the commit begins, Ctrl-C leaves no change and no file."""
    monkeypatch.setattr(module, function, interrupting(getattr(module, function)))
    assert ran("sql", store, "-c", change) == (130, "", "Cancelled.\n")
    monkeypatch.undo()
    assert ran("fs", "check", store)[0] == 0
    counted = "SELECT count(*) AS n, sum(n) AS s FROM numbers; SHOW TABLES"
    assert (
        ran("sql", store, "--mode", "csv", "-c", counted)[1]
        == '"n","s"\n50,1225\n"name"\n"metrics"\n"numbers"\n'
    )


def test_ctrl_c_while_the_store_closes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def close(database: nyala.Database) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        closed(database)

    closed = nyala.Database.close
    monkeypatch.setattr(nyala.Database, "close", close)
    before = signal.getsignal(signal.SIGINT)
    assert ran("sql", store, "-c", CHANGE) == (0, "", "UPDATE: 50 rows\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_between_the_parts_of_a_commit(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the first parts are removed."""
    monkeypatch.setattr(part_commit, "_part_bytes", lambda store: 1000)
    monkeypatch.setattr(changes, "release_pages", interrupting(rows.release_pages))
    assert ran("sql", store, "-c", CHANGE) == (130, "", "Cancelled.\n")
    monkeypatch.undo()
    assert ran("fs", "check", store)[0] == 0
    assert ran("sql", store, "-c", "SELECT sum(n) AS s FROM numbers")[1] == "   s\n1225\n"


@pytest.mark.parametrize(
    "change", [change for change, _ in CHANGES], ids=[output.split(":")[0] for _, output in CHANGES]
)
def test_ctrl_c_before_the_commit(store: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Ctrl-C between the SELECT of a statement and its commit leaves no change."""
    for module in (target, create_table):
        monkeypatch.setattr(module, "collected", interrupting(rows.collected))
    assert ran("sql", store, "-c", f"{change}; SELECT 1") == (130, "", "Cancelled.\n")
    monkeypatch.undo()
    assert ran("sql", store, "-c", "SELECT count(*) AS n, sum(n) AS s FROM numbers; .tables")[1].splitlines() == [
        " n     s", "50  1225", "table    key", "metrics  host, time", "numbers  n",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "statement",
    [SLOW, f"UPDATE numbers SET n = n + 100 WHERE n > ({SLOW.rstrip(';')}) - 1e30"],
    ids=["SELECT", "UPDATE"],
)
def test_ctrl_c(store: Path, statement: str) -> None:
    """A cancelled statement changes nothing, and later statements do not run."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nyala", "sql", str(store), "--mode", "csv", "-c",
         f"SELECT 1 AS one; BEGIN; COMMIT; {statement}; DELETE FROM numbers"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    assert process.stderr is not None
    assert [process.stderr.readline() for _ in range(2)] == ["BEGIN\n", "COMMIT\n"]
    process.send_signal(signal.SIGINT)
    printed, output = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, '"one"\n1\n')
    # The signal can come a moment before the statement begins.
    assert output in ("Cancelled.\n", "Cancelled: the later statements did not run.\n")
    with nyala.connect(store) as db:
        assert db["numbers"].count() == 50
        assert db["numbers"].count(where="n < 50") == 50
