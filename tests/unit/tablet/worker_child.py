"""A worker process with slow, noisy and failing jobs, for `test_workers.py`."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from typing import Any

from nyala import errors
from nyala._worker import HANDLERS, main
from nyala.env.files import MissingFileError
from nyala.tablet.workers.protocol import Report


def echo(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    return {"pid": os.getpid(), **arguments}


def steps(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    for step in range(arguments["count"]):
        report({"step": step})
    return {"done": arguments["count"]}


def hold(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    """Lock a file, report this, and work for a minute. The lock is free after the end of the process."""
    with open(arguments["path"], "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        report({"pid": os.getpid()})
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            pass
    return {}


def wait_for_file(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    report({"pid": os.getpid()})
    while not os.path.exists(arguments["path"]):
        time.sleep(0.01)
    return {"pid": os.getpid()}


def noise(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    """Write to every output of the process."""
    print("printed")
    os.write(1, b"written\n")
    print("to stderr", file=sys.stderr)
    subprocess.run(["echo", "from a program"], check=True)
    return {"stdin": sys.stdin.read()}


def flood(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    for _ in range(arguments["mb"]):
        print("x" * (1 << 20))
    return {}


def fail(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    raise {
        "corruption": errors.CorruptionError("bad", "/a/file", 17),
        "missing": MissingFileError("no such file", path="/gone", errno=2),
        "storage": errors.StorageError("full", path="/disk", errno=28, outcome="unknown"),
        "key": KeyError("left"),
        "memory": MemoryError(),
        "exit": SystemExit(3),
    }[arguments["how"]]


def load(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    return {"value": __import__(arguments["module"]).VALUE, "cwd": os.getcwd(), "nice": os.nice(0)}


JOBS = (echo, steps, hold, wait_for_file, noise, flood, fail, load)
main({**HANDLERS, **{job.__name__: job for job in JOBS}})
