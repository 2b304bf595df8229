"""SeaweedFS as a real S3 server with signatures, for the tests marked `s3` (`make test-s3`)."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 60
# The name of a bucket has at least three characters.
BUCKET = "nyala"
KEYS = {"access_key_id": "test-key", "secret_access_key": "test-secret"}
IDENTITY = {
    "name": "nyala",
    "credentials": [{"accessKey": KEYS["access_key_id"], "secretKey": KEYS["secret_access_key"]}],
    "actions": ["Admin", "Read", "Write", "List", "Tagging"],
}
SERVICES = ("master", "volume", "filer", "s3")


def find_weed() -> str | None:
    """Return the path of SeaweedFS if it is installed beside this Python, else None."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else None


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def seaweedfs(program: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Run a server with one bucket; yield the `storage_options` that lead to it."""
    (folder / "data").mkdir()
    (folder / "identities.json").write_text(json.dumps({"identities": [IDENTITY]}))
    ports = dict(zip((*SERVICES, *(f"{name}.grpc" for name in SERVICES)), free_ports(8), strict=True))
    words = [program, "server", "-s3", f"-dir={folder / 'data'}", f"-s3.config={folder / 'identities.json'}",
             "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=50"]  # fmt: skip
    for name in SERVICES:
        words += [f"-{name}.port={ports[name]}", f"-{name}.port.grpc={ports[name + '.grpc']}"]
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(words, stdout=log, stderr=log, cwd=folder) as server,
    ):
        try:
            endpoint = f"http://127.0.0.1:{ports['s3']}"
            wait_until_it_answers(server, endpoint, folder / "log")
            made = urllib.request.Request(
                f"http://127.0.0.1:{ports['filer']}/buckets/{BUCKET}/", method="POST"
            )
            with urllib.request.urlopen(made, timeout=START_TIMEOUT_S):
                pass
            yield {"endpoint": endpoint, "allow_http": True, "region": "us-east-1", **KEYS}
        finally:
            server.kill()


def wait_until_it_answers(server: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(endpoint, timeout=5):
                return
        except urllib.error.HTTPError:
            return  # without a signature it refuses, but it is there
        except OSError:
            ended = server.poll() is not None
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"SeaweedFS does not answer: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)
