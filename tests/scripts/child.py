"""The process that a script kills: statements in, one JSON line each; what they print out.

It is forked by a server that has imported everything, which takes longer than a script does. The server is asked over
a socket: a folder, with the descriptor of the socket on which the statements come, is answered by the pid of a new
process; a pid by its exit code, once it has ended.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from pathlib import Path

from tests.scripts.interpreter import Interpreter


def run(folder: Path, descriptor: int) -> None:
    interpreter = Interpreter(folder)
    with socket.socket(fileno=descriptor) as statements, statements.makefile("rw") as lines:
        for line in lines:
            lines.write(json.dumps(interpreter.run(json.loads(line))) + "\n")
            lines.flush()


def main() -> None:
    asked = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, 4096, 1)
        if not message:
            return
        if descriptors:
            answer = os.fork()
            if answer == 0:
                asked.close()
                try:
                    run(Path(message.decode()), *descriptors)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            os.close(descriptors[0])
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(int(message), 0)[1])
        asked.sendall(str(answer).encode())


if __name__ == "__main__":
    main()
