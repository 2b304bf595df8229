"""Describes the machine on which figures were measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import subprocess
from pathlib import Path
from statistics import median
from typing import Final

from bench.measure import synced_append_s

PACKAGES = (
    "nyala", "pyarrow", "numpy", "duckdb", "polars", "pyspark", "deltalake", "tpchgen-cli",
)  # fmt: skip
_HERE: Final = Path(__file__).parent
# Files that the benchmarks write.
_WRITTEN: Final = ("bench/RESULTS.md",)


def describe(folder: str) -> list[str]:
    """Return lines for the report. folder: where the stores are, for the speed of its disk."""
    return [
        f"{_processor()}, {len_of_affinity()} cores, {_memory_gb():.1f} GB of memory; load before the run {_load()}",
        f"{platform.system()} {platform.release()}; stores on {_file_system(folder)}, where appending and syncing "
        f"4 KB takes {sync_ms(folder):.1f} ms (median)",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {', '.join(_versions())}{_commit()}",
    ]


def len_of_affinity() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def sync_ms(folder: str, times: int = 30) -> float:
    """Return the time of one durable append in milliseconds. Every durable commit takes at least
    this time.
    """
    return median(synced_append_s(folder) for _ in range(times)) * 1e3


def _versions() -> list[str]:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Return the commit of the code, with "-dirty" if files differ from it, other than results of
    an earlier part.
    """
    described = _git("describe", "--always")
    if described is None or described.returncode:
        return ""
    changed = _git("diff", "--quiet", "HEAD", "--", ":/", *(f":(top,exclude){name}" for name in _WRITTEN))
    dirty = "-dirty" if changed is None or changed.returncode else ""
    return f" (commit {described.stdout.strip()}{dirty})"


def _git(*arguments: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(["git", *arguments], cwd=_HERE, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _processor() -> str:
    """Return the name of the processor, with its family and model: many virtual machines only say
    "AMD EPYC".
    """
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    return processor_of(text) or platform.processor() or platform.machine()


def processor_of(text: str) -> str:
    """Return the name of the first processor in the text of /proc/cpuinfo, or ""."""
    first = text.split("\n\n")[0]
    found = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())
    }
    name = found.get("model name", "")
    labels = {"cpu family": "family", "model": "model", "stepping": "stepping", "cache size": "cache"}
    more = [f"{word} {found[key]}" for key, word in labels.items() if found.get(key)]
    return (
        f"{name} ({', '.join([*filter(None, [found.get('vendor_id')]), *more])})" if name and more else name
    )


def _memory_gb() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 1e9


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _file_system(folder: str) -> str:
    """Return the type of the file system of a folder. A tmpfs would say nothing about durable
    writes.
    """
    try:
        lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "an unknown file system"
    real = os.path.realpath(folder)
    holding = [(mount, kind) for _, mount, kind, *_ in lines if os.path.commonpath([real, mount]) == mount]
    return max(holding, key=lambda pair: len(pair[0]))[1] if holding else "an unknown file system"
