"""The kernels that these tests run: the twin in NumPy, what was compiled, and a build that proves every access."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "build_kernels.py"
KINDS = ["plain", "compiled", "compiled_avx2", pytest.param("checked", marks=pytest.mark.long)]


def loaded(folder: Path) -> ModuleType:
    """The compiled module of a folder."""
    (path,) = [path for path in folder.glob("compiled.*") if path.suffix in (".so", ".pyd")]
    spec = importlib.util.spec_from_file_location("nyala.cfile.kernels.compiled", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session", params=KINDS)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    if request.param == "plain":
        yield importlib.import_module("nyala.cfile.kernels.plain")
        return
    if request.param == "checked":
        pytest.importorskip("Cython", reason="the build with checks is made by Cython")
        folder = tmp_path_factory.mktemp("checked")
        subprocess.run(
            [sys.executable, TOOL, folder], check=True, env={**os.environ, "NYALA_KERNEL_CHECKS": "1"}
        )
        module = loaded(folder)
        assert module.CHECKED
        yield module
        return
    try:
        if (
            request.param == "compiled_avx2"
            and not importlib.import_module("nyala.cfile.kernels.compiled").HAS_AVX2
        ):
            pytest.skip("this processor has no AVX2")
        yield importlib.import_module(f"nyala.cfile.kernels.{request.param}")
    except ImportError as error:
        pytest.skip(f"nothing is compiled here: {error}")
