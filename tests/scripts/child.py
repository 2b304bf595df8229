"""The process that a script kills: statements in, one JSON line each; what they print out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.scripts.interpreter import Interpreter


def main() -> None:
    interpreter = Interpreter(Path(sys.argv[1]))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(interpreter.run(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
