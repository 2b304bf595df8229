"""The shell on a terminal: typed lines, keys, and the screen."""

from __future__ import annotations

import signal
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import children
from tests.shell.terminal import Terminal

SLOW = "SELECT sum(a.i * b.i) FROM range(1000000) a(i), range(10000000) b(i);"


@pytest.fixture
def terminal(store: Path, tmp_path: Path) -> Iterator[Terminal]:
    with open_shell(store, tmp_path) as opened:
        yield opened


def open_shell(store: Path, tmp_path: Path, *options: str, columns: int = 100) -> Terminal:
    made = Terminal(
        "sql", store, *options, environment={"NYALA_HISTORY": str(tmp_path / "history")}, columns=columns
    )
    made.wait_for("nyala>")
    made.screen.reset()
    made.type("\x0c")  # Ctrl-L clears the screen, which shows the folder's name
    made.wait_for("nyala>")
    return made


def test_a_statement_of_several_lines(terminal: Terminal) -> None:
    terminal.type("SELECT host, time\rFROM metrics\rWHERE value > 1;\r")
    assert terminal.wait_for("nyala>") == [
        "nyala> SELECT host, time",
        "    -> FROM metrics",
        "    -> WHERE value > 1;",
        "host  time",
        "a        2",
        "b        2",
        "2 rows",
        "nyala>",
    ]


def test_dot_commands(terminal: Terminal) -> None:
    """Dot commands list tables, print a schema and change the output mode."""
    for line in (".tables", ".schema Numbers", ".mode line", "SELECT 1 AS one, 'x' AS letter;"):
        terminal.type(line + "\r")
        terminal.wait_for("nyala>")
    assert terminal.lines == [
        "nyala> .tables",
        "table    key",
        "metrics  host, time",
        "numbers  n",
        "2 rows",
        "nyala> .schema Numbers",
        'CREATE TABLE "numbers" (',
        '  "n" BIGINT NOT NULL,',
        '  PRIMARY KEY ("n")',
        ");",
        "nyala> .mode line",
        "nyala> SELECT 1 AS one, 'x' AS letter;",
        "   one = 1",
        "letter = x",
        "1 row",
        "nyala>",
    ]


def test_a_moment_of_the_past(terminal: Terminal) -> None:
    """`.at` changes the moment of all reads, and the prompt shows it. Writes are then refused."""
    terminal.type(".at before\r")
    while not (prompt := terminal.lines[-1]).startswith("nyala @"):
        terminal.read()
    assert prompt.endswith("Z>")
    terminal.type("SELECT count(*) AS n FROM metrics;\r")
    assert terminal.wait_for(prompt)[-4:] == ["n", "3", "1 row", prompt]
    terminal.type("BEGIN;\r")
    assert "use .at now" in terminal.wait_for(prompt)[-2]
    terminal.type(".at now\r")
    terminal.wait_for("nyala>")
    terminal.type("SELECT count(*) AS n FROM metrics;\r")
    assert terminal.wait_for("nyala>")[-4:] == ["n", "4", "1 row", "nyala>"]


def test_commands_of_other_shells(terminal: Terminal) -> None:
    r"""`\d` lists the tables, and `help` inside of a statement is no command."""
    for line in ("\\d", "\\dx", "select 1 as", "help", ";"):
        terminal.type(line + "\r")
        terminal.wait_for("    ->" if line in ("select 1 as", "help") else "nyala>")
    assert terminal.lines == [
        "nyala> \\d",
        "table    key",
        "metrics  host, time",
        "numbers  n",
        "2 rows",
        "nyala> \\dx",
        "Error: there is no command \\dx: .help lists the dot commands",
        "nyala> select 1 as",
        "    -> help",
        "    -> ;",
        "help",
        "   1",
        "1 row",
        "nyala>",
    ]
    terminal.type("exit\r")
    assert terminal.ended()[0] == 0


def test_a_new_store(tmp_path: Path) -> None:
    """The shell creates a store if the folder does not exist, and says so."""
    with Terminal("sql", "new", environment={"NYALA_HISTORY": ""}, folder=tmp_path, columns=200) as terminal:
        assert terminal.wait_for("nyala>")[0] == f"{tmp_path / 'new'} is a new store."
        terminal.type("CREATE TABLE t (k int PRIMARY KEY);\r")
        terminal.wait_for("nyala>")
        terminal.type("SHOW CREATE TABLE t;\r")
        assert 'CREATE TABLE "t" (' in terminal.wait_for("nyala>")


def test_a_terminal_shows_the_first_rows(terminal: Terminal) -> None:
    terminal.type("SELECT n FROM numbers ORDER BY n;\r")
    lines = terminal.wait_for("nyala>")
    assert lines[-3:] == ["39", "50 rows; the first 40 are shown (.rows all shows all)", "nyala>"]
    terminal.type(".rows all\rSELECT n FROM numbers ORDER BY n;\r")
    terminal.wait_for("nyala>")
    assert terminal.wait_for("nyala>")[-3:] == ["49", "50 rows", "nyala>"]


def test_ctrl_c_cancels_only_the_statement(terminal: Terminal) -> None:
    terminal.type(f"SELECT 1; {SLOW} SELECT 'never';\r")
    terminal.wait_for("1 row")
    terminal.type("\x03")
    # Between the statements, a line says that the later ones did not run.
    assert terminal.wait_for("nyala>")[-2].startswith("Cancelled")
    terminal.type("SELECT 1 AS one;\r")
    assert terminal.wait_for("nyala>")[-4:] == ["one", "  1", "1 row", "nyala>"]


def test_ctrl_c_discards_the_line(terminal: Terminal) -> None:
    terminal.type("SELECT 1")
    terminal.wait_for("nyala> SELECT 1")
    terminal.type("\x03")
    terminal.wait_for("nyala>")
    terminal.type(".quit\r")
    assert terminal.ended()[0] == 0


def test_a_transaction_is_shown_and_rolled_back_at_the_end(terminal: Terminal) -> None:
    terminal.type("BEGIN;\r")
    terminal.wait_for("nyala*>")
    terminal.type("\x04")
    code, lines = terminal.ended()
    assert code == 0
    assert lines[-1] == "The open transaction was rolled back."


def test_tab_completes(terminal: Terminal) -> None:
    for text, line in (
        ("SEL\t", "SELECT"),
        (" metrics.val\t", "SELECT metrics.value"),
        (" FROM metr\t", "SELECT metrics.value FROM metrics"),
    ):
        terminal.type(text)
        terminal.wait_for(f"nyala> {line}")
    terminal.type(";\r")
    assert terminal.wait_for("nyala>")[0] == "nyala> SELECT metrics.value FROM metrics;"


def test_the_history_of_lines_is_kept(store: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with open_shell(store, tmp_path) as terminal:
            terminal.type("SELECT 7;\r")
            terminal.wait_for("nyala>")
            terminal.type(".quit\r")
            assert terminal.ended()[0] == 0
    with open_shell(store, tmp_path) as terminal:
        terminal.type("\x1b[A\x1b[A")
        terminal.wait_for("nyala> SELECT 7;")
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o600


def test_while_a_program_has_the_store_open(tmp_path: Path) -> None:
    with children(tmp_path / "s", 1) as [child]:
        child.run("t = db.create_table('t', {'k': 'int64'}, 'k'); t.insert([(1,)])")
        with open_shell(tmp_path / "s", tmp_path) as terminal:
            for expected in ("1", "2"):
                terminal.type("SELECT count(*) AS n FROM t;\r")
                assert terminal.wait_for("nyala>")[-4:] == ["n", expected, "1 row", "nyala>"]
                child.run("t.insert([(2,)])") if expected == "1" else None


def test_closing_the_terminal_ends_the_shell(terminal: Terminal) -> None:
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.ended()[0] != 0


MODES = {
    "table": [
        "id  name       w",
        " 1  漢字       1",
        " 2  🐟        22",
        " 3  café       1",
        "    line 2",
        " 4  NULL    NULL",
        "4 rows",
    ],
    "csv": ['"id","name","w"', '1,"漢字",1', '2,"🐟",22', '3,"café', 'line 2",1', "4,,"],
    "json": [
        '[{"id": 1, "name": "漢字", "w": 1},',
        '{"id": 2, "name": "🐟", "w": 22},',
        '{"id": 3, "name": "café\\nline 2", "w": 1},',
        '{"id": 4, "name": null, "w": null}]',
    ],
    "md": [
        "| id | name | w |",
        "| --: | --- | --: |",
        "| 1 | 漢字 | 1 |",
        "| 2 | 🐟 | 22 |",
        "| 3 | café\\nline 2 | 1 |",
        "| 4 | NULL | NULL |",
        "4 rows",
    ],
    "line": [
        "name = café",
        "       line 2",
        "   w = 1",
        "",
        "  id = 4",
        "name = NULL",
        "   w = NULL",
        "4 rows",
    ],
}


def test_each_mode_on_the_screen(store: Path, tmp_path: Path) -> None:
    """Wide characters take two columns of the terminal, combining characters none."""
    (tmp_path / "names.sql").write_text(
        "SELECT * FROM (VALUES (1, '漢字', 1), (2, '🐟', 22), (3, E'cafe\u0301\\nline 2', 1), (4, NULL, NULL)) "
        "AS t(id, name, w)"
    )
    with open_shell(store, tmp_path) as terminal:
        for mode, expected in MODES.items():
            terminal.type(f"\x0c.mode {mode}\r")
            terminal.wait_for("nyala>")
            terminal.type(f"\x0c.read {tmp_path / 'names.sql'}\r")
            lines = [unicodedata.normalize("NFC", line) for line in terminal.wait_for("nyala>")]
            assert lines[-len(expected) - 1 : -1] == expected, mode


def test_a_narrow_terminal(store: Path, tmp_path: Path) -> None:
    """Wide rows take several lines, and a message suggests another mode."""
    wide = f"SELECT {', '.join(f'{number} AS column_{number}' for number in range(1000))};"
    (tmp_path / "wide.sql").write_text(wide)
    with open_shell(store, tmp_path, columns=30) as terminal:
        terminal.type("SELECT 'a' AS x, 5 AS n;\r")
        assert terminal.wait_for("nyala>")[-4:] == ["x  n", "a  5", "1 row", "nyala>"]
        terminal.type(".read wide.sql\r".replace("wide", str(tmp_path / "wide")))
        lines = terminal.wait_for("nyala>")
        assert "".join(lines[-4:-1]).endswith("1 row; .mode line shows a column per line")
        terminal.type(".mode line\r")
        terminal.wait_for("nyala>")
        terminal.type(f".read {tmp_path / 'wide.sql'}\r")
        assert terminal.wait_for("nyala>")[-4:] == ["column_998 = 998", "column_999 = 999", "1 row", "nyala>"]


def test_a_history_that_cannot_be_written(store: Path, tmp_path: Path) -> None:
    """The shell prints a message and works without a history of lines."""
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "history"
    with Terminal("sql", store, environment={"NYALA_HISTORY": str(place)}, columns=200) as terminal:
        assert f"The history is not kept: {tmp_path / 'file'}: not a folder" in terminal.wait_for("nyala>")
        terminal.type("SELECT 1 AS one;\r")
        assert terminal.wait_for("nyala>")[-4:] == ["one", "  1", "1 row", "nyala>"]
        terminal.type("\x1b[A")
        terminal.wait_for("nyala> SELECT 1 AS one;")


def test_an_error_in_the_middle_of_a_line(terminal: Terminal) -> None:
    """Statements before the error have run, later ones have not, and the shell continues."""
    terminal.type("DELETE FROM numbers WHERE n = 1; SELECT x; DELETE FROM numbers;\r")
    lines = terminal.wait_for("nyala>")
    assert lines[1] == "DELETE: 1 row" and lines[2].startswith("Error: there is no column 'x'")
    terminal.type("SELECT count(*) AS n FROM numbers;\r")
    assert terminal.wait_for("nyala>")[-3:] == ["49", "1 row", "nyala>"]
    terminal.type("SELEC 1;\r")
    assert "SELEC is not a statement" in terminal.wait_for("nyala>")[-2 - 1] + terminal.lines[-2]


def test_ctrl_d_ends_only_an_empty_line(terminal: Terminal) -> None:
    terminal.type("SELECT 1 AS one;")
    terminal.wait_for("nyala> SELECT 1 AS one;")
    terminal.type("\x04\r")
    assert terminal.wait_for("nyala>")[-4:] == ["one", "  1", "1 row", "nyala>"]
    terminal.type("\x04")
    assert terminal.ended()[0] == 0
