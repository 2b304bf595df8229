"""Runs SQLAlchemy's suite of dialect tests over a store, in its own process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CONFIG = """
[tool:pytest]
python_files = suite.py
addopts = -q -W ignore -p no:cacheprovider -p no:xdist
    -p sqlalchemy.testing.plugin.pytestplugin -p tests.sqlalchemy_suite.plugin

[sqla_testing]
requirement_cls = tests.sqlalchemy_suite.requirements:Requirements
profile_file = profiles.txt
"""


@pytest.mark.timeout(600)
def test_sqlalchemys_own_tests_pass(tmp_path: Path) -> None:
    config = tmp_path / "setup.cfg"
    config.write_text(CONFIG)
    store = f"nyala:///{tmp_path}/store?maintenance=false"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            config,
            "--dburi",
            store,
            "--maxfail",
            "20",
            HERE / "suite.py",
        ],
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-20_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 700, done.stdout[-2000:]
