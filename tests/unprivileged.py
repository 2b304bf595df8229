"""Runs a function as a user who may read a folder and not write into it."""

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
    """A folder that every user may reach, unlike pytest's."""
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
    """As on a medium that is mounted read-only, for every user but root."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def forked(function: Callable[[], None]) -> int:
    """The process number of a forked child without root's rights, which runs `function` and prints its error."""
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
    """What `function(folder)` returns in a forked child that has given up root's rights. Raises AssertionError for its
    errors.

    `function` runs here on a copy first, so that the child has everything imported.
    """
    ignored = shutil.ignore_patterns("writer.sock")
    copy = shutil.copytree(folder, folder.with_name(folder.name + "-copy"), ignore=ignored)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)
    function(copy)
    shutil.rmtree(copy)
    reading, writing = os.pipe()

    def tell() -> None:
        os.write(writing, pickle.dumps(function(folder)))

    pid = forked(tell)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return pickle.loads(answer)
