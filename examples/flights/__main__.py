"""The program: `python -m examples.flights [--store PLACE]`, or `make demo`. It imports
`screen.py`, which takes a second.
"""

from __future__ import annotations

import sys


def run() -> int:
    try:
        from examples.flights.screen import main

        return main()
    except KeyboardInterrupt:
        print("\nStopped. Nothing was written yet; `make demo` starts from the beginning.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(run())
