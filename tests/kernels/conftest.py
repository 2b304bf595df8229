"""The kernels under test: the NumPy version, compiled ones, and a build that checks every access."""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "build_kernels.py"
KINDS = [
    "plain",
    "compiled",
    "compiled_avx2",
    pytest.param("checked", marks=pytest.mark.long),  # compiling them takes longer than all other tests here
]


def loaded(folder: Path) -> ModuleType:
    """Import the compiled module of a folder."""
    (path,) = [path for path in folder.glob("compiled.*") if path.suffix in (".so", ".pyd")]
    spec = importlib.util.spec_from_file_location("nyala.cfile.kernels.compiled", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def checked_build(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Build with checks of every access, once for all workers of pytest-xdist."""
    pytest.importorskip("Cython", reason="the build with checks is made by Cython")
    folder = tmp_path_factory.getbasetemp() / "checked"
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = (
            tmp_path_factory.getbasetemp().parent / "checked"
        )  # the folders of all workers have this parent
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            environ = {**os.environ, "NYALA_KERNEL_CHECKS": "1"}
            subprocess.run([sys.executable, TOOL, folder, "quick"], check=True, env=environ)
            (folder / "made").touch()
    module = loaded(folder)
    assert module.CHECKED
    return module


def kernels_of(request: pytest.FixtureRequest) -> ModuleType:
    """Return the kernels that the parameter names, if this machine has them."""
    kind: str = request.param
    if kind == "checked":
        module: ModuleType = request.getfixturevalue("checked_build")
        return module
    try:
        if kind == "compiled_avx2" and not importlib.import_module("nyala.cfile.kernels.compiled").HAS_AVX2:
            pytest.skip("this processor has no AVX2")
        return importlib.import_module(f"nyala.cfile.kernels.{kind}")
    except ImportError as error:
        pytest.skip(f"nothing is compiled here: {error}")


@pytest.fixture(scope="session", params=KINDS)
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """Each version of the kernels."""
    return kernels_of(request)


@pytest.fixture(scope="session", params=KINDS[1:])
def compiled_kernels(request: pytest.FixtureRequest) -> ModuleType:
    """Each compiled version: NumPy checks its own accesses."""
    return kernels_of(request)
