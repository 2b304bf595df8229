#!/usr/bin/env python3
"""Draw docs/images/shell.svg, a screen of the SQL shell: make setup; .venv/bin/python -m
tools.draw_shell

Types a few statements into `nyala sql` on a pseudo-terminal, and draws what a person then sees,
with its colors.
"""

import re
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text
from tests.shell.terminal import Terminal

import nyala

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "shell.svg"
COLUMNS, LINES = 78, 19
# The last one is not executed: the shell shows what the name may become.
STATEMENTS = [
    "UPDATE orders SET state = 'paid' WHERE id = 1002;",
    "SELECT * FROM orders;",
    ".at 9s",  # before the UPDATE: the program waits 3 seconds after each statement
    "SELECT * FROM orders WHERE id = 1002;",
]
UNFINISHED = "SELECT * FROM orders WHERE c\t"
COLOURS = {"brown": "yellow", "default": None}


def make_store(folder):
    with nyala.connect(folder) as db:
        orders = db.create_table("orders", {"id": "int64", "customer": "string", "state": "string"}, "id")
        orders.insert([(1001, "Ada", "paid"), (1002, "Grace", "new"), (1003, "Edsger", "new")])
    time.sleep(1)


def colour(name):
    """Return the name or hexadecimal number of a color, as Rich writes it; None: the terminal's default."""
    name = COLOURS.get(name, name)
    return (
        f"#{name}" if name and len(name) == 6 and all(digit in "0123456789abcdef" for digit in name) else name
    )


def style(cell):
    return Style(
        color=colour(cell.fg), bgcolor=colour(cell.bg), bold=cell.bold, italic=cell.italics,
        underline=cell.underscore, reverse=cell.reverse,
    )  # fmt: skip


def screen_after_typing(folder):
    history = {"NYALA_HISTORY": str(folder / "history"), "TERM": "xterm-256color"}
    with Terminal("sql", folder / "shop", environment=history, columns=COLUMNS) as terminal:
        terminal.wait_for("nyala>")
        terminal.type("\x0c")  # Ctrl-L clears the screen, which shows the folder's name
        terminal.wait_for("nyala>")
        for statement in STATEMENTS:
            terminal.type(statement + "\r")
            read_until_idle(terminal)
        terminal.type(UNFINISHED)
        read_until_idle(terminal)
        return [
            [style_and_text(terminal.screen.buffer[line][place]) for place in range(COLUMNS)]
            for line in range(LINES)
        ]


def read_until_idle(terminal):
    while terminal.read(3):
        pass


def style_and_text(cell):
    return cell.data, style(cell)


def main():
    with tempfile.TemporaryDirectory() as folder:
        make_store(Path(folder) / "shop")
        lines = screen_after_typing(Path(folder))
    with open("/dev/null", "w") as nowhere:
        console = Console(
            record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        for line in lines:
            console.print(Text.assemble(*line), no_wrap=True, crop=True)
        drawn = console.export_svg(title="nyala sql shop", font_aspect_ratio=0.61)
    # The page must not load fonts from another site.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace(
        "Fira Code, monospace", "monospace"
    )
    PICTURE.write_text(drawn.replace("\n", "\n<title>A screen of nyala sql</title>\n", 1))
    print(PICTURE)


if __name__ == "__main__":
    main()
