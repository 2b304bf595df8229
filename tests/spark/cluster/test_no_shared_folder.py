"""A store in a folder that only the driver's machine has: each job raises an error that says so,
and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.spark.cluster.remote_python import RemoteError
from tests.spark.cluster.standalone import Cluster, session

import nyala
import nyala.spark

# The time of the first test includes the start of the cluster.
pytestmark = pytest.mark.timeout(600)

STORE = "/tmp/store"
SENTENCE = (
    r"(?s)StorageError: table 't': host worker[12] does not see the store: there is no store in any folder above "
    r"/tmp/store/(leases|staging)/[^ ]*\. Every executor needs the store's folder under the same path as the driver"
)


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> None:
    cluster.driver(make)


def make() -> None:
    with nyala.connect(STORE, maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
        table.insert({"k": range(100_000), "v": range(100_000)})


def read() -> None:
    session().read.format("nyala").options(path=STORE, table="t").load().count()


def sql() -> None:
    nyala.spark.sql(session(), "SELECT sum(v) FROM t", store=STORE).collect()


def write() -> None:
    rows = session().range(10).selectExpr("id AS k", "-id AS v")
    rows.write.format("nyala").options(path=STORE, table="t").mode("append").save()


def load() -> None:
    with nyala.connect(STORE, maintenance=False) as db:
        rows = session().range(200_000, 200_010).selectExpr("id AS k", "id AS v")
        nyala.spark.load(rows, db["t"], tasks=2)


def read_by_the_driver() -> tuple[int, int]:
    with nyala.connect(STORE, read_only=True) as db:
        found = db.sql("SELECT count(*), sum(v) FROM t").fetchone()
        assert found is not None
        return int(found[0]), int(found[1])


@pytest.mark.parametrize(
    "job",
    [read, pytest.param(sql, marks=pytest.mark.long), pytest.param(write, marks=pytest.mark.long), load],
)
def test_a_job_on_a_folder_that_workers_do_not_see(
    cluster: Cluster, store: None, job: Callable[[], None]
) -> None:
    with pytest.raises(RemoteError, match=SENTENCE):
        cluster.driver(job)
    assert cluster.driver(read_by_the_driver) == (100_000, sum(range(100_000)))


def test_a_job_on_the_driver_alone_needs_no_shared_folder(cluster: Cluster, store: None) -> None:
    assert cluster.driver(small_write) == 1


def small_write() -> int:
    """Upsert few rows, which are collected into the program that has the store open."""
    with nyala.connect(STORE, maintenance=False) as db:
        rows = session().sql("SELECT 300000 AS k, 1 AS v")
        inserted = nyala.spark.load(rows, db["t"]).inserted
        db["t"].delete([300_000])
        return inserted
