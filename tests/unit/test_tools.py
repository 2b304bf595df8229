"""The way in: what `make` checks before it starts says what is missing, and the lock installs from anywhere."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fake(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def run(tool: str, *arguments: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a tool where only the commands in `path`, and the shell's own, can be found."""
    return subprocess.run(
        [str(ROOT / "tools" / tool), *arguments],
        env={"PATH": f"{path}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("version", "fine"), [("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("25", True)]
)
def test_java_is_judged_before_spark_is_started(tmp_path: Path, version: str, fine: bool) -> None:
    """Someone with Java 8 or 11 reads one sentence with the cure, not a stack trace of the JVM."""
    fake(tmp_path, "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    found = run("check-java", path=tmp_path)
    assert (found.returncode == 0) == fine, found.stderr
    if not fine:
        assert "is too old" in found.stderr
        assert "needs Java 17 or newer" in found.stderr


def test_no_java_is_said_plainly(tmp_path: Path) -> None:
    """JAVA_HOME that points nowhere counts as none, also when another java is on the PATH."""
    fake(tmp_path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    found = run("check-java", path=tmp_path, JAVA_HOME=str(tmp_path / "nowhere"))
    assert found.returncode == 1
    assert "no Java was found" in found.stderr


def test_no_python_is_said_plainly(tmp_path: Path) -> None:
    """A machine with only an old Python is told which one to install, and how to name one."""
    fake(tmp_path, "python3.10", "exit 1")
    found = run("make-venv", str(tmp_path / "venv"), path=tmp_path, PYTHON="python3.10")
    assert found.returncode == 1
    assert "no Python 3.11 or newer found" in found.stderr
    assert not (tmp_path / "venv").exists()


def test_a_python_without_venv_names_the_package(tmp_path: Path) -> None:
    """Debian's Python comes without `venv`: the message is the command that mends it."""
    fake(tmp_path, "python3.11", 'case "$2" in *ensurepip*) exit 1;; esac')
    found = run("make-venv", str(tmp_path / "venv"), path=tmp_path, PYTHON="python3.11")
    assert found.returncode == 1
    assert "sudo apt install python3.11-venv" in found.stderr


@pytest.mark.parametrize("name", ["build.lock", "dev.lock", "bench.lock"])
def test_the_lock_pins_and_names_no_index(name: str) -> None:
    """Every package has one version and its hashes, and a mirror or a cache serves as well as the public index."""
    text = (ROOT / "requirements" / name).read_text()
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text)
    pinned = re.findall(r"^([a-z0-9-]+)==\S+.*?((?:\\\n +--hash=sha256:[0-9a-f]{64} ?)+)", text, re.M)
    assert len(pinned) == len(re.findall(r"^[a-z0-9]", text, re.M)) > 5


def test_ci_runs_what_a_contributor_runs() -> None:
    """A green `make test` on a desk is a green CI."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("\nexec make test")


def test_help_lists_every_target() -> None:
    """`make help` leaves out nothing that one can ask for (`java` is a check, not a thing to ask for)."""
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.M)
    assert set(phony.split()) - {"java"} == set(re.findall(r"^([a-z0-9-]+):.*##", text, re.M))


PIP = """
import sys, time
if "nothing" in sys.argv: sys.exit("ERROR: Could not find nothing")
print("Collecting one==1 (from -r x.lock (line 1))\\n  Downloading https://x/one-1.whl (12.5 MB)")
time.sleep(1.2)
print("Collecting two==2\\nInstalling collected packages: one, two")
"""


def test_an_install_shows_that_it_goes_on(tmp_path: Path) -> None:
    """Minutes of silence while Spark is fetched look as if `make` hung; a failure shows what pip said."""
    (tmp_path / "pip.py").write_text(PIP)
    (tmp_path / "x.lock").write_text("one==1 \\\n  --hash=a\ntwo[extra]==2 \\\n  --hash=b\n")
    command = [sys.executable, str(ROOT / "tools" / "pip-install")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    reading, writing = pty.openpty()
    with subprocess.Popen([*command, "-r", "x.lock"], stdout=writing, cwd=tmp_path, env=environment) as tool:
        os.close(writing)
        shown = b""
        with contextlib.suppress(OSError):  # a terminal that nobody writes to any more
            while data := os.read(reading, 4096):
                shown += data
    os.close(reading)
    lines = shown.decode().replace("\033[K", "").split("\r")
    assert tool.returncode == 0 and lines[-1] == ""
    told = [re.fullmatch(r"  1 of 2: one-1\.whl \(12\.5 MB\), (\d+) s", line) for line in lines]
    seconds = [int(match[1]) for match in told if match]
    assert seconds == sorted(seconds) and seconds[-1] > 0, "how long it has taken, as it goes on"
    assert lines[-2].startswith("  writing the packages to disk, ")
    quiet = subprocess.run([*command, "one"], capture_output=True, text=True, env=environment)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    failed = subprocess.run([*command, "nothing"], capture_output=True, text=True, env=environment)
    assert failed.returncode == 1 and failed.stderr == "ERROR: Could not find nothing\n"
