"""The process that a script kills. It reads statements and writes what they print, each as a line of JSON.

A server process that has imported everything forks it, because the imports take longer than a script. The
server receives two kinds of messages on a socket. For a folder and the descriptor of a socket for statements, it
answers the pid of a new process. For a pid, it answers the exit code after the process has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import socket
import sys
import traceback
from pathlib import Path

import nyala.wal
from tests.scripts.interpreter import Interpreter

# Modules that the store and pyarrow import at their first use.
MODULES = ["nyala.api.table", "pandas"] + [
    module.name
    for package in (nyala.tablet, nyala.rowset, nyala.delta, nyala.cfile, nyala.catalog, nyala.wal)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
]


def run(folder: Path, descriptor: int) -> None:
    interpreter = Interpreter(folder)
    with socket.socket(fileno=descriptor) as statements, statements.makefile("rw") as lines:
        for line in lines:
            lines.write(json.dumps(interpreter.run(json.loads(line))) + "\n")
            lines.flush()


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 4096, 1)
        if not message:
            return
        if descriptors:
            answer = os.fork()
            if answer == 0:
                requests.close()
                try:
                    run(Path(message.decode()), *descriptors)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            os.close(descriptors[0])
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(int(message), 0)[1])
        requests.sendall(str(answer).encode())


if __name__ == "__main__":
    main()
