"""The program: `python -m examples.change_feeds FOLDER`. FOLDER must be new."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from examples.change_feeds.source import make_source

CHANGES = 2_000
KILLED_AFTER = 8  # batches


def main() -> None:
    """Make the source, run the pipeline and kill it, and run it again to its end."""
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("usage: python -m examples.change_feeds FOLDER, a new folder for the source and the store")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    make_source(folder / "source.db", CHANGES)
    command = [sys.executable, "-m", "examples.change_feeds.pipeline", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pipeline:
        assert pipeline.stdout is not None
        for number, line in enumerate(pipeline.stdout, 1):
            print(line, end="")
            if number == KILLED_AFTER:
                pipeline.send_signal(signal.SIGKILL)
                break
    print("The process was killed. Another one begins with the first event again:")
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
