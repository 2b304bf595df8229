"""All jobs of Spark on a store in a bucket, on a cluster whose machines share nothing else."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.spark.cluster import bucket_jobs as jobs
from tests.spark.cluster.remote_python import RemoteEnd, RemoteError
from tests.spark.cluster.standalone import KEY_ID, SECRET, WORKER_NAMES, Cluster

# The time of the first test includes the start of the cluster.
pytestmark = pytest.mark.timeout(600)

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "spark-cluster.md"
MANY = 30_000  # too many rows for a read by the driver


@pytest.fixture
def writer(cluster: Cluster) -> Iterator[Cluster]:
    """Let the program with the session open the store."""
    cluster.driver(jobs.connect, cluster.endpoint)
    yield cluster
    cluster.driver(jobs.close)


def test_rows_are_written_and_read_by_other_machines(writer: Cluster) -> None:
    driver = writer.driver
    driver(jobs.create, "written")
    truth = {k: 3 * k for k in range(MANY)}
    driver(jobs.write, "written", truth, "insert")
    changed = {k: -k for k in range(MANY - 50, MANY + 50, 2)}
    driver(jobs.write, "written", changed)
    truth |= changed
    assert driver(jobs.read_in_each_way, "written") == [truth] * 3
    assert driver(jobs.read_of_a_session_that_knows_the_store, "written") == truth
    assert driver(jobs.read, "written", where="k < 10", columns="k,v") == {k: 3 * k for k in range(10)}
    negative = [v for v in truth.values() if v < 0]
    text = "SELECT count(*), sum(a.v) FROM written a JOIN written b ON a.k = b.k WHERE b.v < 0"
    assert driver(jobs.answer, text) == [(len(negative), sum(negative))]


@pytest.mark.long
def test_write_returns_counts_and_failing_rows(writer: Cluster) -> None:
    driver = writer.driver
    driver(jobs.create, "counted")
    driver(jobs.write, "counted", dict.fromkeys(range(0, 100, 2), 0))
    done, failed = driver(
        jobs.write_with_counts, "counted", dict.fromkeys(range(10), 1), operation="insert", errors="collect"
    )
    assert (done.inserted, failed) == (5, [0, 2, 4, 6, 8])
    with pytest.raises(RemoteError, match="DuplicateKeyError: table 'counted'"):
        driver(jobs.write_with_counts, "counted", {2: 1, 1001: 1}, operation="insert")
    assert driver(jobs.content, "counted") == dict.fromkeys(range(0, 100, 2), 0) | dict.fromkeys(
        range(1, 10, 2), 1
    )


def test_executors_load_upsert_and_compact(writer: Cluster) -> None:
    driver = writer.driver
    driver(jobs.create, "loaded")
    truth = {k: k for k in range(MANY)}
    assert driver(jobs.load, "loaded", truth) == (MANY, 0)
    again = dict.fromkeys(range(MANY - 10, MANY + 10), -1)
    assert driver(jobs.load, "loaded", again, on_conflict="ignore") == (10, 10)
    truth = again | truth
    upserted = {k: 7 * k for k in range(0, MANY + 20, 3)}
    assert driver(jobs.upsert, "loaded", upserted) == (3, 10_004)
    truth |= upserted
    with pytest.raises(RemoteError, match="DuplicateKeyError: table 'loaded'"):
        driver(jobs.load, "loaded", {1: 1})
    assert driver(jobs.read, "loaded") == truth
    driver(jobs.compact, "loaded")
    assert driver(jobs.read, "loaded") == driver(jobs.content, "loaded") == truth
    assert driver(jobs.is_sound)


@pytest.mark.long
def test_a_stream_copies_a_table_into_another_one(writer: Cluster) -> None:
    driver = writer.driver
    driver(jobs.create, "source", "copy")
    driver(jobs.update, "source", {k: k for k in range(1000)})
    driver(jobs.stream, "source", "copy", "/tmp/checkpoint")
    assert driver(jobs.content, "copy") == {k: k for k in range(1000)}
    driver(jobs.update, "source", {k: -k for k in range(500, 1500)})
    driver(jobs.delete, "source", list(range(0, 500, 2)))
    driver(jobs.stream, "source", "copy", "/tmp/checkpoint")
    truth = {k: k for k in range(1, 500, 2)} | {k: -k for k in range(500, 1500)}
    assert driver(jobs.content, "copy") == driver(jobs.read, "source") == truth


@pytest.mark.long
def test_backups_in_a_bucket_restore_each_moment(writer: Cluster) -> None:
    driver = writer.driver
    driver(jobs.create, "kept")
    first = {k: k for k in range(MANY)}
    driver(jobs.load, "kept", first)
    assert driver(jobs.backup, "kept") == "full"
    moment = driver(jobs.update, "kept", {1: -1})
    driver(jobs.delete, "kept", [2])
    assert driver(jobs.backup, "kept") == "incremental"
    assert driver(jobs.backup, "kept") is None
    driver(jobs.restore, "kept", "then", at=moment - 1)
    driver(jobs.restore, "kept", "now")
    assert driver(jobs.content, "then") == first
    assert driver(jobs.content, "now") == driver(jobs.content, "kept")
    assert driver(jobs.content, "now") == {k: v for k, v in (first | {1: -1}).items() if k != 2}


def test_jobs_commit_through_the_writer_on_another_machine(cluster: Cluster) -> None:
    other = cluster.python("worker1")
    other(jobs.connect, cluster.endpoint)
    other(jobs.create, "far")
    cluster.driver(jobs.use, cluster.endpoint)
    cluster.driver(jobs.write, "far", {k: k for k in range(2000)})
    other(jobs.update, "far", {1: -1})
    cluster.driver(jobs.write, "far", {2: -2}, "update")
    truth = {k: k for k in range(2000)} | {1: -1, 2: -2}
    assert other(jobs.content, "far") == cluster.driver(jobs.read, "far") == truth
    assert other(jobs.is_sound)
    other(jobs.close)
    other.close()


def test_a_job_commits_after_the_writer_on_another_machine_was_killed(cluster: Cluster) -> None:
    cluster.driver(jobs.connect, cluster.endpoint)
    cluster.driver(jobs.create, "orphaned")
    cluster.driver(jobs.close)
    other = cluster.python("worker2")
    with pytest.raises(RemoteEnd):
        other(jobs.write_and_die, cluster.endpoint, "orphaned", {1: 1, 2: 2})
    other.close()
    cluster.s3(jobs.pass_time, 20)  # the driver waits until the writer's lease has expired
    cluster.driver(jobs.write, "orphaned", {2: -2, 3: -3})
    assert cluster.driver(jobs.read, "orphaned") == {1: 1, 2: -2, 3: -3}


@pytest.mark.long
@pytest.mark.parametrize("job", [jobs.read, jobs.content, jobs.write])
def test_a_refused_request_is_an_error_without_credentials(
    writer: Cluster, job: Callable[..., object]
) -> None:
    writer.driver(jobs.create, f"refused_{job.__name__}")
    writer.driver(jobs.update, f"refused_{job.__name__}", {1: 1})
    writer.s3(jobs.fail_requests, "403")
    try:
        arguments = ({1: 2},) if job is jobs.write else ()
        with pytest.raises(RemoteError, match="s3://bucket/store") as error:
            writer.driver(job, f"refused_{job.__name__}", *arguments)
        assert SECRET not in error.value.trace and KEY_ID not in error.value.trace
    finally:
        writer.s3(jobs.fail_requests, None)


@pytest.mark.long
def test_jobs_succeed_while_requests_fail(writer: Cluster) -> None:
    """Requests are throttled, and replies are lost or cut, many times in each job."""
    driver = writer.driver
    driver(jobs.create, "rough", "smooth")
    truth = {k: k for k in range(MANY)}
    writer.s3(jobs.fail_every, 7)
    try:
        driver(jobs.load, "rough", truth)
        upserted = {k: -k for k in range(MANY - 1000, MANY + 1000)}
        assert driver(jobs.upsert, "rough", upserted) == (1000, 1000)
        assert driver(jobs.write_with_counts, "rough", {0: 5, -1: 5})[0].inserted == 1
        truth |= upserted | {0: 5, -1: 5}
        driver(jobs.stream, "rough", "smooth", "/tmp/checkpoint-rough")
        assert driver(jobs.read_in_each_way, "rough") == [truth] * 3
    finally:
        writer.s3(jobs.fail_requests, None)
    assert driver(jobs.content, "smooth") == driver(jobs.content, "rough") == truth
    assert driver(jobs.is_sound)


@pytest.mark.long
def test_a_job_survives_the_end_of_executors(writer: Cluster) -> None:
    """Spark starts new executors, which repeat the tasks."""
    driver = writer.driver
    driver(jobs.create, "survived")
    truth: dict[int, int] = {}
    for number, pause_s in enumerate((0.3, 0.8, 1.5, 2.5, 4.0)):
        rows = dict.fromkeys(range(number * 10000, number * 10000 + 60000), number)
        driver.begin(jobs.upsert, "survived", rows)
        time.sleep(pause_s)
        machine = writer.network.machines[WORKER_NAMES[number % 2]]
        for pid in machine.run(["pgrep", "-f", "CoarseGrainedExecutorBackend"], check=False).split():
            machine.run(["kill", "-9", pid], check=False)
        inserted = len(rows.keys() - truth.keys())
        assert driver.answer() == (inserted, len(rows) - inserted)
        truth |= rows
        assert driver(jobs.read, "survived") == truth
    assert driver(jobs.is_sound)


@pytest.mark.long
def test_the_examples_of_the_page_run(cluster: Cluster) -> None:
    code = "\n".join(re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    output = [match[1] for match in re.finditer(r"^\s*print\(.*\)\s+# (.*)$", code, re.MULTILINE)]
    here = {"region": "eu-central-1", "endpoint": cluster.endpoint, "allow_http": True}
    code = code.replace('{"region": "eu-central-1"}', repr(here)).replace("s3://my-bucket", "s3://bucket")
    given = "".join(f'.option("storage.{name}", {str(value)!r})' for name, value in here.items())
    code = code.replace('.option("storage.region", "eu-central-1")', given)
    assert cluster.driver(jobs.run_page, code).splitlines() == output


@pytest.mark.long
def test_each_machine_needs_the_credentials_file(writer: Cluster) -> None:
    """The option has the path of a file, and each machine reads its own file."""
    driver = writer.driver
    driver(jobs.create, "filed")
    driver(jobs.update, "filed", {1: 1})
    path = "/tmp/credentials.json"
    content = json.dumps({"access_key_id": "of-the-file", "secret_access_key": "of-the-file"})
    for name in ("driver", "worker1", "worker2"):
        if name == "worker1":
            with pytest.raises(RemoteError, match=rf"credentials file '{path}' on host worker[12]: "):
                driver(jobs.read, "filed", **{"storage.credentials_file": path})
        (writer.network.machines[name].folder / "credentials.json").write_text(content)
    assert driver(jobs.read, "filed", **{"storage.credentials_file": path}) == {1: 1}


def test_no_secret_is_in_anything_that_spark_keeps_or_shows(cluster: Cluster) -> None:
    """Searches the event log, logs, plans, tokens, staged files, temporary files of all machines,
    and the bucket, after all tests above. Here the program has credentials of its own, which
    executors do not need.
    """
    driver = cluster.driver
    of_program, given = "recognisable-secret-of-the-program", "recognisable-secret-of-a-read"
    driver(jobs.connect_with_keys, cluster.endpoint, of_program)
    driver(jobs.create, "shown")
    driver(jobs.update, "shown", {k: k for k in range(MANY)})
    driver(jobs.write, "shown", {1: 2})
    with pytest.raises(RemoteError, match="storage.secret_access_key is a secret") as error:
        driver(jobs.read_with_a_secret_option, "shown", given)
    plans, sent = driver(jobs.shown, "shown")
    driver(jobs.close)
    files = {path: path.read_bytes() for path in jobs.files_below(cluster.folder)}
    bodies = cluster.s3(jobs.bodies)
    places: dict[object, bytes] = {f"plan {n}": text for n, text in enumerate(plans)}
    places |= {f"sent {n}": text for n, text in enumerate(sent)}
    places |= {**files, **bodies} | {"error": error.value.trace.encode()}
    secrets = [secret.encode() for secret in (SECRET, KEY_ID, of_program, given)]
    assert [place for place, text in places.items() if any(secret in text for secret in secrets)] == []
    # Check the search itself: it finds other text.
    events = [text for path, text in files.items() if path.parent.name == "events"]
    assert [b"BatchScan nyala" in text for text in (plans[0], *events)] == [True, True]
    assert [jobs.STORE.encode() in text for text in sent] == [True, True, True]
