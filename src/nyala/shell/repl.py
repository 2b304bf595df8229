"""Reads statements on a terminal, with a prompt, a history of lines, and completion.

    nyala> SELECT …                      the present
    nyala*> SELECT …                     inside a transaction
    nyala @2026-11-20T10:00:00Z> …       `.at`: a moment of the past

Enter runs a complete statement, and otherwise begins a new line. Ctrl-C discards the text. Ctrl-D
on an empty line ends the shell.

Source: docs/how-to/shell.md.
"""

from __future__ import annotations

import os
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from nyala.errors import Error
from nyala.shell.completion import Catalogue, ShellCompleter
from nyala.shell.console import Console
from nyala.shell.dot_commands import Quit, at_text
from nyala.shell.runner import Cancelled
from nyala.shell.shell import Shell, is_complete

__all__ = ["history_path", "run_repl"]


def run_repl(shell: Shell) -> None:
    """Ask for statements and run them, until `.quit` or Ctrl-D."""
    console = shell.console
    session: PromptSession[str] = PromptSession(
        history=_history(console),
        completer=ShellCompleter(lambda: _catalogue(console)),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation=lambda width, line, wrapped: "" if wrapped else "-> ".rjust(width),
    )
    console.note(f"{console.database.path}: a statement ends with ;, and .help lists the dot commands.")
    while True:
        try:
            text = session.prompt(_prompt(console))
            shell.run(text)
        except KeyboardInterrupt:
            continue
        except Cancelled as cancelled:
            console.note(f"\n{cancelled}")  # the terminal has printed ^C
        except (EOFError, Quit):
            return


def _prompt(console: Console) -> str:
    at = console.settings.at
    return f"nyala{'*' if console.runner.in_transaction else ''}{'' if at is None else f' @{at_text(at)}'}> "


def _keys() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=Condition(lambda: is_complete(get_app().current_buffer.text)))
    def run(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return bindings


def _catalogue(console: Console) -> Catalogue:
    try:
        return {name: console.database[name].columns for name in console.database.list_tables()}
    except Error:
        return {}


def history_path() -> Path | None:
    """Return the file of the history of lines: NYALA_HISTORY, or a file in the user's state folder.

    None means no history: NYALA_HISTORY is empty.
    """
    named = os.environ.get("NYALA_HISTORY")
    if named is not None:
        return Path(named).expanduser() if named else None
    state = os.environ.get("XDG_STATE_HOME", "")
    return Path(state if os.path.isabs(state) else "~/.local/state").expanduser() / "nyala" / "history"


def _history(console: Console) -> History:
    path = history_path()
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        reason = "not a folder" if isinstance(error, FileExistsError) else error.strerror
        console.note(f"The history is not kept: {error.filename or path}: {reason}")
        return InMemoryHistory()
    return FileHistory(str(path))
