"""The source: orders in SQLite, with triggers that log the row before and after each change.

A connector such as Debezium reads the log of a database and sends such events. Here the events come
from the table `log`. They are late, repeated and shuffled, as after problems of a network.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path

__all__ = ["arriving", "make_source", "orders_of", "totals_of"]

_ROW = (
    "json_object('id', {0}.id, 'customer', {0}.customer, 'status', {0}.status,"
    " 'total', printf('%d.%02d', {0}.cents / 100, {0}.cents % 100))"
)
_TABLES = f"""
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, status TEXT, cents INTEGER);
CREATE TABLE log (lsn INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, before TEXT, after TEXT);
CREATE TRIGGER created AFTER INSERT ON orders BEGIN
  INSERT INTO log (op, before, after) VALUES ('c', NULL, {_ROW.format("NEW")}); END;
CREATE TRIGGER updated AFTER UPDATE ON orders BEGIN
  INSERT INTO log (op, before, after) VALUES ('u', {_ROW.format("OLD")}, {_ROW.format("NEW")}); END;
CREATE TRIGGER deleted AFTER DELETE ON orders BEGIN
  INSERT INTO log (op, before, after) VALUES ('d', {_ROW.format("OLD")}, NULL); END;
"""


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database, commit at the end, and close it."""
    with closing(sqlite3.connect(path)) as source, source:
        yield source


def make_source(path: Path, changes: int, seed: int = 1) -> None:
    """Create the database, and make this many changes of its orders."""
    draw = random.Random(seed)
    with _opened(path) as source:
        source.executescript(_TABLES)
        for number in range(1, changes + 1):
            chosen = draw.randrange(1, number + 1)
            kind = draw.random()
            if kind < 0.4:
                row = (number, f"customer {draw.randrange(30)}", draw.randrange(100_00))
                source.execute("INSERT INTO orders VALUES (?, ?, 'new', ?)", row)
            elif kind < 0.6:
                source.execute("UPDATE orders SET status = 'paid' WHERE id = ?", (chosen,))
            elif kind < 0.75:
                source.execute("UPDATE orders SET cents = cents + 50 WHERE id = ?", (chosen,))
            elif kind < 0.85:
                other = f"customer {draw.randrange(30)}"
                source.execute("UPDATE orders SET customer = ? WHERE id = ?", (other, chosen))
            elif kind < 0.9:  # the key changes, which is a delete and an insert
                source.execute("UPDATE orders SET id = ? WHERE id = ?", (changes + number, chosen))
            else:
                source.execute("DELETE FROM orders WHERE id = ?", (chosen,))


def arriving(path: Path, seed: int = 2) -> Iterator[list[str]]:
    """Yield the events in batches, as a consumer gets them: a fifth comes twice, and the order is
    wrong.
    """
    with _opened(path) as source:
        log = source.execute("SELECT lsn, op, before, after FROM log").fetchall()
    events = [
        json.dumps(
            {
                "op": op,
                "ts_ms": 1_767_225_600_000 + lsn // 3,  # many changes in the same millisecond
                "before": before and json.loads(before),
                "after": after and json.loads(after),
                "source": {"connector": "sqlite", "lsn": lsn},
            }
        )
        for lsn, op, before, after in log
    ]
    draw = random.Random(seed)
    events += draw.sample(events, len(events) // 5)
    draw.shuffle(events)
    for begin in range(0, len(events), 100):
        yield events[begin : begin + 100]


def orders_of(path: Path) -> list[tuple[int, str, str, Decimal]]:
    """Return the orders of the source: (id, customer, status, total)."""
    with _opened(path) as source:
        rows = source.execute("SELECT id, customer, status, cents FROM orders ORDER BY id").fetchall()
    return [(id, customer, status, Decimal(cents) / 100) for id, customer, status, cents in rows]


def totals_of(path: Path) -> list[tuple[str, int, Decimal]]:
    """Return the totals of the source: (customer, number of orders, sum)."""
    with _opened(path) as source:
        rows = source.execute(
            "SELECT customer, count(*), sum(cents) FROM orders GROUP BY customer ORDER BY customer"
        ).fetchall()
    return [(customer, count, Decimal(cents) / 100) for customer, count, cents in rows]
