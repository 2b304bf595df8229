"""The command line of the benchmarks: `python -m bench [PART …] [--quick] [--stores nyala,duckdb]`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import (
    bucket,
    bucket_costs,
    bucket_reads,
    hot_rows,
    ingest_lookup,
    machine,
    mixed_load,
    narrow_update,
    report,
    scan_after_updates,
    sizes,
    tpch,
    transactions,
)
from bench.parts import say
from bench.stores import (
    BUCKET,
    BUCKET_COSTS,
    BUCKET_READS,
    HOT,
    INGEST,
    KINDS,
    MIXED,
    NARROW,
    SCAN,
    SIZES,
    TPCH,
    TRANSACTIONS,
)

PARTS: dict[str, Any] = {
    SCAN: scan_after_updates,
    NARROW: narrow_update,
    MIXED: mixed_load,
    HOT: hot_rows,
    INGEST: ingest_lookup,
    TRANSACTIONS: transactions,
    TPCH: tpch,
    SIZES: sizes,
    BUCKET: bucket,
    BUCKET_READS: bucket_reads,
    BUCKET_COSTS: bucket_costs,
}


def main(parts: Sequence[str] | None = None) -> None:
    """Run parts. parts: default: those of the command line, or all."""
    arguments = _parse(parts)
    chosen = parts or arguments.parts or list(PARTS)
    folder = tempfile.mkdtemp(prefix="nyala-bench-", dir=arguments.dir)
    try:
        facts = machine.describe(folder)
        say("; ".join(facts))
        for name in chosen:
            own = os.path.join(folder, name)
            os.mkdir(own)
            scale = scale_of(name, arguments)
            result = PARTS[name].run(scale, own, arguments.stores, say)
            shutil.rmtree(own)
            print(result.text(), flush=True)
            if scale.name == "full" and not arguments.no_write:
                say(f"wrote {os.path.relpath(report.save(result, facts, Path(arguments.results)))}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def scale_of(part: str, arguments: argparse.Namespace) -> Any:
    """Return the scale of a part, changed by options of the command line. A changed scale is not
    called full.
    """
    module = PARTS[part]
    scale = module.QUICK if arguments.quick else module.FULL
    names = {field.name for field in dataclasses.fields(scale)}
    wanted = {
        "scale_factor": arguments.scale_factor,
        "rows": arguments.rows,
        "duration_s": None if arguments.minutes is None else arguments.minutes * 60,
        "peer_duration_s": None if arguments.peer_minutes is None else arguments.peer_minutes * 60,
        "updates": arguments.updates,
        "repeats": arguments.repeats,
    }
    changed = {key: value for key, value in wanted.items() if value is not None and key in names}
    if changed:
        changed["name"] = "own"
    return dataclasses.replace(scale, **changed)


def _parse(parts: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Nyala's speed beside its peers'.")
    if parts is None:
        parser.add_argument("parts", nargs="*", metavar="PART", help=f"by default all: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="small data, some minutes in all")
    parser.add_argument(
        "--stores",
        type=lambda text: text.split(","),
        help=f"some of {','.join(kind.name for kind in KINDS)}; by default all that are installed",
    )
    parser.add_argument("--dir", help="folder for the stores (by default the system's for temporary files)")
    parser.add_argument("--results", default=str(report.FOLDER), help="folder of RESULTS.md")
    parser.add_argument("--no-write", action="store_true", help="print only; only full runs are written")
    own = parser.add_argument_group(
        "sizes, other than those of --quick or the full run (printed, not written)"
    )
    own.add_argument(
        "--scale-factor", type=float, help=f"{SCAN}, {INGEST}, {TPCH}: TPC-H's, 1 is 6 M rows of lineitem"
    )
    own.add_argument("--repeats", type=int, help=f"{SCAN}, {TPCH}: measured runs of each query")
    own.add_argument("--rows", type=int, help=f"{NARROW}, {MIXED}, {SIZES}: rows of a table")
    own.add_argument("--minutes", type=float, help=f"{MIXED}: length of the load")
    own.add_argument("--peer-minutes", type=float, help=f"{MIXED}, {HOT}: the same for peers")
    own.add_argument("--updates", type=int, help=f"{HOT}: row updates")
    arguments = parser.parse_args()
    strange = sorted(set(getattr(arguments, "parts", None) or []) - set(PARTS))
    strange += sorted(set(arguments.stores or []) - {kind.name for kind in KINDS})
    if strange:
        parser.error(f"unknown: {', '.join(strange)}")
    return arguments


if __name__ == "__main__":
    main()
