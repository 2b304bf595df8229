"""Stops a process before chosen system calls, until another process continues or kills it.

A filter of Linux' seccomp reports only the chosen calls: a run of ten thousand calls stops only at
its hundred syncs. strace would stop at each call. (Its filter `--seccomp-bpf` cannot kill, because
the kernel ignores signals at such a stop.) The filter needs Linux 5.5, and no right to trace. On
other systems, and in containers that forbid it, `why_not` returns the reason.

Source: man 2 seccomp_unotify; man 2 seccomp.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import select
import struct
import sys
from collections.abc import Iterator, Sequence

# The numbers of each kind of call: (on x86-64, on 64-bit ARM).
_NUMBERS = {
    "fdatasync": [(75, 83)],
    "fsync": [(74, 82)],
    "write": [(1, 64), (20, 66), (18, 68), (296, 70)],  # write, writev, pwrite64, pwritev
    "rename": [(82, None), (264, 38), (316, 276)],
    "unlink": [(87, None), (263, 35)],
    "truncate": [(76, 45), (77, 46)],
}
_SECCOMP = (317, 277)
_MACHINES = ("x86_64", "aarch64")
KINDS = tuple(_NUMBERS)

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
_RET_ALLOW, _RET_USER_NOTIF = 0x7FFF0000, 0x7FC00000
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NOTIF = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, number, machine, place, arguments
_RESPONSE = struct.Struct("=QqiI")  # id, value, error, flags
_CONTINUE = 1
_IOCTL_RECEIVE, _IOCTL_SEND = 0xC0502100, 0xC0182101


def why_not() -> str | None:
    """Return why this machine cannot stop processes; None: it can."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return "no seccomp on this system"
    pid = os.fork()
    if pid == 0:
        try:
            listen("fsync")
        except OSError:
            os._exit(1)
        os._exit(0)
    return "seccomp may not be used here" if os.waitpid(pid, 0)[1] else None


def listen(kind: str) -> int:
    """Let this process and all its future threads stop before calls of this kind.

    Returns a file descriptor, which another process passes to `stops`. Call it while this process has one
    thread.
    """
    which = _MACHINES.index(platform.machine())
    numbers = [number for pair in _NUMBERS[kind] if (number := pair[which]) is not None]
    program = [(_LOAD_WORD, 0, 0, 0)]
    program += [(_JUMP_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    program += [(_RETURN, 0, 0, _RET_ALLOW), (_RETURN, 0, 0, _RET_USER_NOTIF)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    packed_program = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    descriptor: int = libc.syscall(
        _SECCOMP[which], _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER, packed_program
    )
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return descriptor


def stops(listener: int) -> Iterator[Sequence[int]]:
    """Yield each stop of a listening process, as the call's arguments. The process continues at the
    next iteration.
    """
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        events = poll.poll()[0][1]
        if not events & select.POLLIN:
            return
        request = bytearray(_NOTIF.size)
        try:
            fcntl.ioctl(listener, _IOCTL_RECEIVE, request)
        except FileNotFoundError:  # it was killed meanwhile
            continue
        id, _, _, _, _, _, *arguments = _NOTIF.unpack(request)
        yield arguments
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(listener, _IOCTL_SEND, bytearray(_RESPONSE.pack(id, 0, 0, _CONTINUE)))
