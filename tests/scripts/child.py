"""A server that forks processes, which run the statements of a script and can be killed.

The server imports all modules before it forks, because the imports take longer than a script. It receives
two kinds of messages on a socket:

- a folder and the descriptor of another socket: it forks a process, and answers with its pid;
- a pid: it waits until this process has ended, and answers with its exit code.

The forked process reads statements from its socket, one JSON line each, and writes their output as JSON lines.
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
    """Run the statements of a socket on a store in the folder."""
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
