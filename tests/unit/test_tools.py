"""The tools of `make`: error messages about missing programs, lock files, and the progress of installs."""

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
    """Run a tool that finds only the commands in `path`, /usr/bin and /bin."""
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
def test_an_old_java_is_refused(tmp_path: Path, version: str, fine: bool) -> None:
    """Java 8 and 11 are refused with a message that names the required version."""
    fake(tmp_path, "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    found = run("check-java", path=tmp_path)
    assert (found.returncode == 0) == fine, found.stderr
    if not fine:
        assert "is too old" in found.stderr
        assert "needs Java 17 or newer" in found.stderr


def test_a_missing_java_is_an_error(tmp_path: Path) -> None:
    """If JAVA_HOME names a missing folder, no Java is found, even if another java is on the PATH."""
    fake(tmp_path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    found = run("check-java", path=tmp_path, JAVA_HOME=str(tmp_path / "nowhere"))
    assert found.returncode == 1
    assert "no Java was found" in found.stderr


def test_a_missing_python_is_an_error(tmp_path: Path) -> None:
    """If there is only an old Python, the message names the required version."""
    fake(tmp_path, "python3.10", "exit 1")
    found = run("make-venv", str(tmp_path / "venv"), path=tmp_path, PYTHON="python3.10")
    assert found.returncode == 1
    assert "no Python 3.11 or newer found" in found.stderr
    assert not (tmp_path / "venv").exists()


def test_a_python_without_venv_is_an_error_with_the_package_to_install(tmp_path: Path) -> None:
    """Debian's Python has no `venv`, so the message has the command that installs it."""
    fake(tmp_path, "python3.11", 'case "$2" in *ensurepip*) exit 1;; esac')
    found = run("make-venv", str(tmp_path / "venv"), path=tmp_path, PYTHON="python3.11")
    assert found.returncode == 1
    assert "sudo apt install python3.11-venv" in found.stderr


@pytest.mark.parametrize("name", ["build.lock", "dev.lock", "bench.lock"])
def test_lock_files_pin_versions_and_name_no_index(name: str) -> None:
    """Lock files give a version and hashes of each package, and no URL, so a mirror can be used."""
    text = (ROOT / "requirements" / name).read_text()
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text)
    pinned = re.findall(r"^([a-z0-9-]+)==\S+.*?((?:\\\n +--hash=sha256:[0-9a-f]{64} ?)+)", text, re.M)
    assert len(pinned) == len(re.findall(r"^[a-z0-9]", text, re.M)) > 5


def test_ci_runs_make_test() -> None:
    """CI runs `make test`."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("\nexec make test")


def test_help_lists_every_target() -> None:
    """`make help` lists every target except `java`, which is only a check for other targets."""
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


def test_an_install_shows_its_progress(tmp_path: Path) -> None:
    """`pip-install` shows a line of progress on a terminal, and the output of pip if it fails."""
    (tmp_path / "pip.py").write_text(PIP)
    (tmp_path / "x.lock").write_text("one==1 \\\n  --hash=a\ntwo[extra]==2 \\\n  --hash=b\n")
    command = [sys.executable, str(ROOT / "tools" / "pip-install")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    reading, writing = pty.openpty()
    with subprocess.Popen([*command, "-r", "x.lock"], stdout=writing, cwd=tmp_path, env=environment) as tool:
        os.close(writing)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal was closed by the tool
            while data := os.read(reading, 4096):
                shown += data
    os.close(reading)
    lines = shown.decode().replace("\033[K", "").split("\r")
    assert tool.returncode == 0 and lines[-1] == ""
    matches = [re.fullmatch(r"  1 of 2: one-1\.whl \(12\.5 MB\), (\d+) s", line) for line in lines]
    seconds = [int(match[1]) for match in matches if match]
    assert seconds == sorted(seconds) and seconds[-1] > 0, "the seconds since the start, ascending"
    assert lines[-2].startswith("  writing the packages to disk, ")
    quiet = subprocess.run([*command, "one"], capture_output=True, text=True, env=environment)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    failed = subprocess.run([*command, "nothing"], capture_output=True, text=True, env=environment)
    assert failed.returncode == 1 and failed.stderr == "ERROR: Could not find nothing\n"
