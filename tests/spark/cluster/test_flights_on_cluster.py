"""The flights demo on the cluster, with the store's URL as its option and the master in Spark's
configuration.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.spark.cluster.standalone import MASTER, Cluster, environment


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_flights_demo_runs_with_its_store_in_a_bucket(cluster: Cluster) -> None:
    machine = cluster.network.machines["driver"]
    around = environment(machine) | {"PYSPARK_SUBMIT_ARGS": f"--master {MASTER} pyspark-shell"}
    options = ["--option", f"endpoint={cluster.endpoint}", "--option", "allow_http=true"]
    demo = [sys.executable, "-m", "examples.flights", "--quick", "--store", "s3://bucket/flights", *options]
    try:
        output = machine.run(demo, around)
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stdout[-3000:] + error.stderr[-3000:])
    assert f"Master: {MASTER}" in output and "All checks passed" in output, output
    # The command that it suggests works.
    (listing,) = (line.split() for line in output.splitlines() if "nyala table list" in line)
    tables = machine.run([sys.executable, "-m", "nyala", *listing[1:]], around)
    assert all(name in tables for name in ("airlines", "airports", "flights", "planes", "weather")), tables
