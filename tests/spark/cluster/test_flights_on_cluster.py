"""The demo on the cluster: the URL of the store is its option, and Spark's configuration names the master."""

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
        said = machine.run(demo, around)
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stdout[-3000:] + error.stderr[-3000:])
    assert f"Master: {MASTER}" in said and "All checks passed" in said, said
    # What it says to type next works.
    (listing,) = (line.split() for line in said.splitlines() if "nyala table list" in line)
    tables = machine.run([sys.executable, "-m", "nyala", *listing[1:]], around)
    assert all(name in tables for name in ("airlines", "airports", "flights", "planes", "weather")), tables
