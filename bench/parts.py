"""What the parts of the benchmark share: progress messages, and a process for each store."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

Say = Callable[[str], None]

_BEGUN_S = time.perf_counter()


def say(text: str) -> None:
    """Print a progress message, with the seconds since the start."""
    print(f"[{time.perf_counter() - _BEGUN_S:7.1f} s] {text}", file=sys.stderr, flush=True)


def in_own_process(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run `measure` in a new process, so that its memory and its written bytes are those of one
    store.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, *arguments).result()


def ratio(over: float | None, under: float | None) -> float | None:
    """Return a / b, or None if one of them is missing."""
    return None if over is None or not under else over / under
