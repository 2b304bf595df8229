"""Simulates several machines of one network on this computer, by namespaces of Linux.

A machine has its own network, host name, processes and `/tmp`. It cannot see the processes and
temporary files of other machines, or the network of this computer. All machines share the rest of
the file system, so they have the same Python, Java and Nyala.

    with Network(folder, hidden, ["one", "two"]) as network:
        network.machines["one"].run(["ping", "-c1", "two"])

The first process of a machine, `sleep`, holds its namespaces. When the process that started `sleep`
ends, the kernel kills `sleep` and all processes of the machine, and removes the namespaces. So
nothing is left after `kill -9`, and nothing has a name that another test run could use.

Needs Linux, the programs of util-linux and iproute2, and the rights of root. `why_not` says what is
missing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[3]
TEMPORARY: Final = Path("/tmp")  # each machine has its own

_TOOLS: Final = ("setpriv", "unshare", "nsenter", "ip", "mount", "sh")
_UNSHARE: Final = (
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip


def why_not() -> str | None:
    """Return why this computer cannot have such machines, or None if it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"a network of namespaces needs {', '.join(missing)} (util-linux and iproute2, on Linux)"
    tried = subprocess.run(
        [*_UNSHARE, "sh", "-c", "ip link add br0 type bridge && mount -t tmpfs tmpfs /var/tmp"],
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        rights = "the rights of root (CAP_SYS_ADMIN, CAP_NET_ADMIN)"
        return f"a network of namespaces needs {rights}: {tried.stderr.strip()}"
    return None


class Machine:
    """One machine. folder: its /tmp, as this process sees it."""

    def __init__(self, name: str, address: str, folder: Path, holder: subprocess.Popen[str]) -> None:
        self.name: Final = name
        self.address: Final = address
        self.folder: Final = folder
        self.holder: Final = holder

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs another command in this machine."""
        pid = str(self.holder.pid)
        inside = ["--net", "--mount", "--uts", "--ipc", f"--pid=/proc/{pid}/ns/pid_for_children"]
        return ["nsenter", "--target", pid, *inside, "--", *arguments]

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of processes in this machine, which has few variables of this
        process.
        """
        kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG") if name in os.environ}
        own = {"HOME": str(TEMPORARY / "home"), "TMPDIR": str(TEMPORARY)}
        return kept | own | dict(more)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: str, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a process in this machine. Its output goes to the file `log` of `folder`."""
        with open(self.folder / log, "ab") as output:
            return subprocess.Popen(
                self.command(arguments),
                env=self.environment(environment),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests, which then end the machines
                **options,
            )

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, *, check: bool = True
    ) -> str:
        """Run a program, and return its output. check: raise CalledProcessError if it fails."""
        done = subprocess.run(
            self.command(arguments),
            env=self.environment(environment or {}),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=check,
        )
        return done.stdout


class Network:
    """Machines that a network bridge connects. The bridge itself is in another machine."""

    def __init__(self, folder: Path, hidden: Iterable[Path], names: Sequence[str]) -> None:
        """Prepare machines with these names.

        folder: an empty folder, for the machines' temporary files. hidden: folders that no machine sees.
        """
        self._folder = folder
        self._hidden = [str(path) for path in hidden if path != TEMPORARY]
        self._machines: list[Machine] = []
        self.machines: dict[str, Machine] = {}
        addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        try:
            bridge = self._add("bridge", "")
            bridge.run(["ip", "link", "add", "br0", "type", "bridge"])
            bridge.run(["ip", "link", "set", "br0", "up"])
            for name, address in addresses.items():
                self.machines[name] = self._add(name, address)
                self._join(self.machines[name], bridge)
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, address: str) -> Machine:
        own = self._folder / name
        own.mkdir()
        holder = subprocess.Popen(
            [*_UNSHARE, "sh", "-e", "-c", self._beginning(name, own)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        machine = Machine(name, address, own, holder)
        self._machines.append(machine)
        assert holder.stdout is not None
        first_line = holder.stdout.readline()
        assert first_line == "ready\n", f"the machine {name} did not start: {first_line}"
        return machine

    def _beginning(self, name: str, own: Path) -> str:
        """Return the shell commands of the first process of a machine."""
        steps = [
            ["hostname", name],
            ["ip", "link", "set", "lo", "up"],
            ["mount", "--bind", str(self._folder / "hosts"), "/etc/hosts"],
        ]
        for code in _code():
            if code.is_relative_to(TEMPORARY):  # bind it under the same path
                place = own / code.relative_to(TEMPORARY)
                place.mkdir(parents=True, exist_ok=True)
                steps.append(["mount", "--bind", str(code), str(place)])
        steps.append(["mount", "--rbind", str(own), str(TEMPORARY)])
        lines = [shlex.join(step) for step in steps]
        for hidden in (*self._hidden, "/var/tmp", "/dev/shm"):
            # The path below /tmp is hidden by the new /tmp.
            lines.append(f"[ ! -d {shlex.quote(hidden)} ] || mount -t tmpfs tmpfs {shlex.quote(hidden)}")
        return "\n".join([*lines, "echo ready", "exec sleep infinity"])

    def _join(self, machine: Machine, bridge: Machine) -> None:
        """Connect the machine with the bridge, by a pair of virtual network devices."""
        end = ["name", machine.name, "netns", str(bridge.holder.pid)]
        add = ["ip", "link", "add", "eth0", "netns", str(machine.holder.pid), "type", "veth", "peer", *end]
        subprocess.run(add, check=True)
        bridge.run(["ip", "link", "set", machine.name, "master", "br0", "up"])
        machine.run(["ip", "address", "add", f"{machine.address}/24", "dev", "eth0"])
        machine.run(["ip", "link", "set", "eth0", "up"])

    def close(self) -> None:
        """End all processes of all machines. May be called twice."""
        for machine in self._machines:
            machine.holder.kill()
        for machine in self._machines:
            machine.holder.wait()
            if machine.holder.stdout is not None:
                machine.holder.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def code_path() -> str:
    """Return PYTHONPATH for the machines: this project, and the PYTHONPATH of this process."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT), *(os.path.abspath(folder) for folder in given if folder)])


def _code() -> list[Path]:
    """Return the folders of Python and of this project, without folders inside others of them."""
    folders = {
        Path(folder).resolve() for folder in (sys.prefix, sys.base_prefix, *code_path().split(os.pathsep))
    }
    return [folder for folder in folders if not any(parent in folders for parent in folder.parents)]
