"""The second process of step 5: a Spark session that reads the table while the first process
writes.

It talks to the first process by lines of JSON. When its Spark session is ready, it prints {"ready":
true} and waits for `go`. Then it loads the table again and again, as of now, and prints what it
sees. At `stop` it reads once more, and ends.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from examples.flights.session import start_spark


def look(spark: SparkSession, store: dict[str, str]) -> dict[str, object]:
    """Return how many flights have left, and the last day of them, of one snapshot."""
    began = time.monotonic()
    departed = (
        spark.read.format("nyala")
        .options(**store, table="flights", columns="year,month,day", where="dep_time IS NOT NULL")
        .load()
    )
    row = departed.agg(F.count("*"), F.max(F.make_date("year", "month", "day"))).first()
    assert row is not None
    return {"departures": row[0], "last_day": str(row[1]), "seconds": time.monotonic() - began}


def main() -> int:
    store, log = json.loads(sys.argv[1]), sys.argv[2]
    spark = start_spark(Path(log), cores=1, on_cluster="://" in store["path"])
    stopped = threading.Event()

    def say(message: dict[str, object]) -> None:
        print(json.dumps(message), flush=True)

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                break
        stopped.set()

    look(spark, store)  # the first query starts Python workers
    say({"ready": True})
    if sys.stdin.readline().strip() != "go":
        return 1
    threading.Thread(target=listen, daemon=True).start()
    while not stopped.is_set():
        say(look(spark, store))
    say(look(spark, store) | {"last": True})
    spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
