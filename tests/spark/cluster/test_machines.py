"""The machines of the cluster share nothing but the network, and nothing is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.spark.cluster.machines import ROOT, Network, why_not

REASON = "from tests.spark.cluster.machines import why_not; print(why_not())"
TWO = """
import sys, time
from pathlib import Path
from tests.spark.cluster.machines import Network
network = Network(Path(sys.argv[1]), [], ["one", "two"])
for machine in network.machines.values():
    machine.start(["sleep", "1000"], {}, "log")
print(*(one.holder.pid for one in network.machines.values()), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def rights() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)


def test_machines_see_each_other_only_by_the_network(rights: None, tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    with Network(tmp_path / "net", [tmp_path], ["one", "two"]) as network:
        one, two = network.machines["one"], network.machines["two"]
        assert one.run(["hostname"]) == "one\n"
        one.run(["sh", "-c", "mkdir /tmp/a && echo text > /tmp/a/file && echo text > /dev/shm/file"])
        assert (one.folder / "a" / "file").read_text() == "text\n"
        assert two.run(["find", "/tmp/a", "/dev/shm", str(tmp_path), "-name", "file*"], check=False) == ""
        assert two.run(["ps", "ax", "-o", "comm="]).split() == ["sleep", "ps"]
        assert "veth" not in Path("/proc/net/dev").read_text()
        listening = "import socket; s = socket.create_server(('two', 77)); s.accept()[0].send(b'from two')"
        process = two.start([sys.executable, "-c", listening], {}, "log")
        ask = (
            "import socket, time\n"
            "for _ in range(200):\n"
            "    try: print(socket.create_connection(('two', 77), 10).recv(9).decode()); break\n"
            "    except ConnectionRefusedError: time.sleep(0.05)"
        )
        assert one.run([sys.executable, "-c", ask]) == "from two\n"
        assert process.wait() == 0


def test_nothing_is_left_of_killed_tests(rights: None, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TWO, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        holders = [int(pid) for pid in program.stdout.readline().split()]
        spaces = {os.readlink(f"/proc/{pid}/ns/pid_for_children") for pid in holders}
        assert len(spaces) == 2 and spaces <= used_spaces()
        program.kill()
    end = time.monotonic() + 60
    while spaces & used_spaces():
        assert time.monotonic() < end, f"processes are left in {spaces & used_spaces()}"
        time.sleep(0.02)


def used_spaces() -> set[str]:
    """Return the process namespaces that have processes."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/pid"):
        try:
            found.add(os.readlink(link))
        except OSError:
            pass  # it has just ended
    return found


@pytest.mark.parametrize("lost", ["sys_admin", "net_admin"])
def test_missing_rights_are_named(rights: None, lost: str) -> None:
    python = [sys.executable, "-c", REASON]
    drop = ["setpriv", "--bounding-set", f"-{lost}", "--inh-caps", f"-{lost}"]
    done = subprocess.run([*drop, *python], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "CAP_NET_ADMIN): " in done.stdout and "not permitted" in done.stdout


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "needs setpriv, unshare, nsenter, ip, mount, sh (util-linux and iproute2" in str(why_not())
