"""Kills a program at a step of a job. Python imports this module first, in the driver and in each
worker.

NYALA_DIE_AT        module:function:before|after:n     kills all processes of the program at the n-th call of the
                    function. Calls of all processes count, from the moment at which the file `armed` exists
NYALA_LOG_AT_MOST   bytes of a batch above which it is committed as files
                    (`nyala.tablet.store.DIRECT_COMMIT_BYTES`)
"""

import functools
import importlib.abc
import importlib.util
import os
import signal
import sys


def die():
    """Kill the driver and its JVM first, which could clean up after a dead worker, and this process
    last.
    """
    session, me = os.getsid(0), os.getpid()
    others = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        try:
            with open(f"/proc/{int(name)}/stat", encoding="latin-1") as file:
                group, its_session = map(int, file.read().rpartition(")")[2].split()[2:4])
        except (ValueError, OSError):
            continue  # no process, or one that has ended
        if its_session == session and int(name) != me:
            others.append((group != session, int(name)))
    for _, pid in sorted(others):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os.killpg(session, signal.SIGKILL)
    os.kill(me, signal.SIGKILL)


def is_the_call(expected):
    """Count a call. Return whether the program must die at it."""
    if not os.path.exists("armed"):
        return False
    calls = os.open("calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(calls, b".")
    count = os.lseek(calls, 0, os.SEEK_CUR)
    os.close(calls)
    return count == expected


def dying(function, when, expected):
    @functools.wraps(function)
    def called(*args, **kwargs):
        if when == "before" and is_the_call(expected):
            die()
        found = function(*args, **kwargs)
        if when == "after" and is_the_call(expected):
            die()
        return found

    return called


def make_mortal(module, name, when, expected):
    owner, _, attribute = name.rpartition(".")
    place = getattr(module, owner) if owner else module
    setattr(place, attribute, dying(getattr(place, attribute), when, int(expected)))


def lower_the_limit(module, limit):
    options = module.StoreOptions

    @functools.wraps(options.__init__)
    def made(self, *args, __init__=options.__init__, **kwargs):
        __init__(self, *args, **{"direct_commit_bytes": int(limit), **kwargs})

    options.__init__ = made


class Hook(importlib.abc.MetaPathFinder):
    """Calls `change(module, *words)` as soon as the module is imported."""

    def __init__(self, module, change, *words):
        self.module, self.change, self.words = module, change, words

    def find_spec(self, expected, path, target=None):
        if expected != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(expected)
        run = spec.loader.exec_module

        def exec_module(made):
            run(made)
            self.change(made, *self.words)

        spec.loader.exec_module = exec_module
        return spec


if "NYALA_DIE_AT" in os.environ:
    where, *step = os.environ["NYALA_DIE_AT"].split(":")
    sys.meta_path.insert(0, Hook(where, make_mortal, *step))
if "NYALA_LOG_AT_MOST" in os.environ:
    sys.meta_path.insert(0, Hook("nyala.tablet.store", lower_the_limit, os.environ["NYALA_LOG_AT_MOST"]))

import loaded  # noqa: E402, F401  # after the hooks: it loads what they change
