"""Marks that identify processes, so that another process can find out whether one has ended.

    mark = process_mark(pid)          40 hexadecimal digits: domain (16), pid (8), start time (16)
    is_gone(mark)                     whether the process has certainly ended

The domain identifies the machine, its last start, and the namespace of pids. A mark of another
domain comes from another machine or container. Its pid means nothing here, so `is_gone` is False.
The start time distinguishes a process from a later process with the same pid. A zombie process
counts as ended.

Only Linux has marks. On other systems callers need another way, such as an expiry time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from typing import Final

_MARK: Final = re.compile(r"([0-9a-f]{16})([0-9a-f]{8})([0-9a-f]{16})")
_ENDED: Final = ("Z", "X", "x")
_ANCESTORS_MAX: Final = 16


@functools.cache
def _domain() -> str | None:
    """Return the domain (machine, boot and pid namespace) of this process; None if not Linux."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read().strip()
        namespace = os.readlink("/proc/self/ns/pid").encode()
    except OSError:
        return None
    return hashlib.blake2b(boot + b"\0" + namespace, digest_size=8).hexdigest()


def _stat(pid: int) -> tuple[str, str, int, int] | None:
    """Return a process's (name, state, parent's pid, start in ticks since boot) from `/proc`.

    Return None if `/proc` does not describe this process, for example because it has ended.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    # The line has the form "pid (name) state parent …", and the name may contain spaces and brackets.
    name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return name, fields[0], int(fields[1]), int(fields[19])


def process_mark(pid: int | None = None) -> str | None:
    """Return the mark that identifies a process.

    pid: the number of the process; None: this process.
    Returns: None if the system has no such process, or does not describe it in `/proc`.
    """
    domain = _domain()
    found = _stat(os.getpid() if pid is None else pid)
    if domain is None or found is None:
        return None
    return f"{domain}{os.getpid() if pid is None else pid:08x}{found[3]:016x}"


def mark_of_ancestor(name: str) -> str | None:
    """Return the mark (text that identifies a process) of the nearest ancestor process `name`.

    Return None if no ancestor has the name.
    """
    pid = os.getppid()
    for _ in range(_ANCESTORS_MAX):
        found = _stat(pid)
        if found is None:
            return None
        if found[0] == name:
            return process_mark(pid)
        pid = found[2]
    return None


def is_gone(mark: str) -> bool:
    """Whether the process of this mark has certainly ended. False for an invalid mark."""
    match = _MARK.fullmatch(mark)
    if match is None or match[1] != _domain():
        return False
    pid = int(match[2], 16)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # a process of another user, so it exists
    found = _stat(pid)
    return found is not None and (found[1] in _ENDED or found[3] != int(match[3], 16))
