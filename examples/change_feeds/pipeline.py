"""The pipeline: events into `orders`, and the changes of `orders` into `totals`.

    events ──► apply_changes(sequence="source.lsn") ──► orders
    orders.changes(since=progress, before=True)     ──► totals, and the new progress, in one transaction

It may be killed at any moment, and started again from the first event. Events that were applied
before change nothing, because the table knows the newest `lsn` of each order, also of deleted
orders. Each change is counted once, because one transaction writes the totals and the moment up to
which changes are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import nyala
from examples.change_feeds.source import arriving, orders_of, totals_of

__all__ = ["apply_events", "check", "follow", "make_tables", "run"]


def make_tables(db: nyala.Database) -> None:
    """Create the three tables, if they are missing."""
    orders = {
        "id": "int64",
        "customer": "string",
        "status": "string",
        "total": "decimal(12,2)",
        "lsn": "int64",
    }
    db.create_table(
        "orders", orders, primary_key="id", partition_by=nyala.hash_partition("id", buckets=4), exist_ok=True
    )
    totals = {"customer": "string", "orders": "int64", "total": "decimal(18,2)"}
    db.create_table("totals", totals, primary_key="customer", exist_ok=True)
    db.create_table("progress", {"name": "string", "until": "int64"}, primary_key="name", exist_ok=True)


def apply_events(db: nyala.Database, events: Sequence[str]) -> nyala.WriteResult:
    """Apply envelopes in any order, as one batch."""
    return db["orders"].apply_changes(events, sequence="source.lsn")


def follow(db: nyala.Database) -> int:
    """Add the changes of the orders since the last call to the totals. Return the number of
    changes.
    """
    return db.run(lambda tx: _add_changes(db, tx))


def _add_changes(db: nyala.Database, tx: nyala.Transaction) -> int:
    done = tx["progress"].get("totals")
    feed = db["orders"].changes(
        since=0 if done is None else done["until"], columns=["customer", "total"], before=True
    )
    changes = feed.to_arrow()
    tx["progress"].upsert([{"name": "totals", "until": feed.until}])
    if not changes.num_rows:
        return 0
    gone = pc.is_in(changes["_change_type"], pa.array(["update_preimage", "delete"]))
    count = pc.if_else(gone, -1, 1)
    total = pc.if_else(gone, pc.negate(changes["total"]), changes["total"])
    added = pa.table({"customer": changes["customer"], "orders": count, "total": total})
    sums = added.group_by("customer").aggregate([("orders", "sum"), ("total", "sum")]).to_pylist()
    known = {row["customer"]: row for row in tx["totals"].get_many([s["customer"] for s in sums]).to_pylist()}
    totals = []
    for change in sums:
        before = known.get(change["customer"], {"orders": 0, "total": Decimal(0)})
        totals.append(
            {
                "customer": change["customer"],
                "orders": before["orders"] + change["orders_sum"],
                "total": before["total"] + change["total_sum"],
            }
        )
    tx["totals"].upsert(totals)
    tx["totals"].delete(where="orders = 0")
    return int(changes.num_rows)


def check(db: nyala.Database, source: Path) -> list[str]:
    """Compare both tables with the source. Return the differences."""
    orders = (
        db["orders"].scan(["id", "customer", "status", "total"], order_by_key=True).to_arrow().to_pylist()
    )
    totals = db["totals"].scan(order_by_key=True).to_arrow().to_pylist()
    found = []
    if [tuple(row.values()) for row in orders] != orders_of(source):
        found.append("the orders differ from the source's")
    if [tuple(row.values()) for row in totals] != totals_of(source):
        found.append("the totals differ from the source's")
    return found


def run(folder: Path) -> None:
    """Apply all events. After each batch update the totals and print a line."""
    with nyala.connect(folder / "store") as db:
        make_tables(db)
        for number, events in enumerate(arriving(folder / "source.db")):
            result = apply_events(db, events)
            changed = follow(db)
            print(
                f"batch {number}: {len(events)} events made {result.inserted} rows, changed {result.updated} and "
                f"deleted {result.deleted}; {result.ignored} were late or only remembered; the feed had {changed} rows",
                flush=True,
            )
        for difference in check(db, folder / "source.db"):
            sys.exit(difference)
    print("The orders and the totals are those of the source.")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
