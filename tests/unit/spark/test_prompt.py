"""A worker's end of its connection holds nothing back: neither its acknowledgements nor small segments."""

from __future__ import annotations

import io
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nyala.spark import reader
from nyala.spark.changes import NyalaChangeReader, NyalaChangeStream
from nyala.spark.prompt import hold_nothing_back, worker_stream
from nyala.spark.reader import NyalaReader
from nyala.spark.sink import NyalaStreamWriter
from nyala.spark.source import NyalaDataSource
from nyala.spark.writer import NyalaWriter

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="this system has no such option")


def in_worker(infile: Any, call: Callable[[], Any]) -> Any:
    """As PySpark calls what it was sent: under a function of its own, which has the connection as `infile`."""
    space: dict[str, Any] = {"__name__": "pyspark.worker"}
    exec("def main(infile, call):\n    return call()", space)
    return space["main"](infile, call)


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """The worker's end, as the kernel treats one after some requests and answers."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as jvm,
    ):
        worker, _ = server.accept()
        with worker:
            worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            assert prompt(worker) == (False, False)
            yield worker
            jvm.sendall(b"still open")
            assert worker.recv(10) == b"still open"


def prompt(connection: socket.socket) -> tuple[bool, bool]:
    """Whether small segments, and acknowledgements, go out at once."""
    return tuple(
        bool(connection.getsockopt(socket.IPPROTO_TCP, option))
        for option in (socket.TCP_NODELAY, socket.TCP_QUICKACK)
    )  # type: ignore[return-value]


def test_a_worker_holds_nothing_back(connection: socket.socket) -> None:
    in_worker(connection.makefile("rb"), hold_nothing_back)
    assert prompt(connection) == (True, True)


@pytest.mark.parametrize(
    "kind",
    [NyalaDataSource, NyalaReader, NyalaChangeReader, NyalaChangeStream, NyalaWriter, NyalaStreamWriter],
)
def test_what_is_sent_to_a_worker_does_so_before_the_worker_reads_on(
    connection: socket.socket, kind: Any
) -> None:
    """Spark reads a task's partition, a planner's schema, or messages, between the pickle and the first call."""
    made = kind.__new__(kind)
    state = dict.fromkeys(("_options", "_schema", "_cores", "_target", "_open"))
    made.__dict__.update({**state, "_leases": []})
    data = pickle.dumps(made)
    assert in_worker(connection.makefile("rb"), lambda: pickle.loads(data)).__dict__ == made.__dict__
    assert prompt(connection) == (True, True)


def test_elsewhere_nothing_happens(connection: socket.socket, tmp_path: Path) -> None:
    """No worker; streams that are no connection of the internet's, or closed: they stay as they are."""
    infile = connection.makefile("rb")  # of somebody else: this function is not PySpark's
    hold_nothing_back()
    assert worker_stream() is None and prompt(connection) == (False, False)
    one, other = socket.socketpair()
    (tmp_path / "file").touch()
    with one, other, open(tmp_path / "file", "rb") as file, io.BytesIO() as memory:
        for stream in (one.makefile("rb"), file, memory):
            in_worker(stream, hold_nothing_back)
        one.sendall(b"x")
        assert other.recv(1) == b"x"
    infile.close()
    in_worker(infile, hold_nothing_back)


def test_a_task_begins_before_it_asks_for_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has read the function by then, and waits for the first rows as soon as somebody asks for them."""
    order: list[str] = []
    monkeypatch.setattr(reader, "begin_task", lambda: order.append("begun"))

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            order.append(batch)
            yield batch

    made = reader.in_task(rows)(iter(["batch"]))
    assert order == ["begun"]
    assert list(made) == ["batch"] and order == ["begun", "batch"]
