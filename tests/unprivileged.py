"""Runs a function as a user who may read a folder but not write into it."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NOBODY = 65534


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Yield a temporary folder that every user may enter; only its owner may enter pytest's folders."""
    folder = Path(tempfile.mkdtemp(prefix="nyala-unit-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for path in folder.rglob("*"):
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)


def forbid_writing(folder: Path) -> None:
    """Make a folder and its files read-only for every user but root."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def forked(function: Callable[[], None]) -> int:
    """Fork a child without root's rights, which runs `function` and prints its error. Return its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def as_reader_only(function: Callable[[Path], Any], folder: Path) -> Any:
    """Return the result of `function(folder)` in a forked child without root's rights.

    Raises AssertionError if the function fails. It first runs in this process on a copy of the folder, so
    that the child need not import anything.
    """
    ignored = shutil.ignore_patterns("writer.sock")
    copy = shutil.copytree(folder, folder.with_name(folder.name + "-copy"), ignore=ignored)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)
    function(copy)
    shutil.rmtree(copy)
    reading, writing = os.pipe()

    def send_result() -> None:
        os.write(writing, pickle.dumps(function(folder)))

    pid = forked(send_result)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return pickle.loads(answer)
