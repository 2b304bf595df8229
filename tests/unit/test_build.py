"""Wheels and editable installs contain compiled kernels if a compiler works, and are built without them otherwise."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("hatchling", reason="hatchling is not installed")
ROOT = Path(__file__).parents[2]
KERNELS = "nyala/cfile/kernels"


class App:
    """Records the messages that hatchling would print."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.display_info = self.display_warning = self.messages.append


def build_wheel(
    version: str, monkeypatch: pytest.MonkeyPatch, build: Callable[..., list[str]], wanted: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Run the build hook with `build` instead of the compiler; return (its build data, its messages).

    `wanted`: the value of NYALA_BUILD_KERNELS.
    """
    tool = ModuleType("build_kernels")
    tool.build = build  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "build_kernels", tool)
    monkeypatch.delenv("NYALA_BUILD_KERNELS", raising=False)
    if wanted is not None:
        monkeypatch.setenv("NYALA_BUILD_KERNELS", wanted)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app, build_data = App(), {"force_include": {}, "pure_python": True, "infer_tag": False}
    hook = module.CustomBuildHook(str(ROOT), {}, None, SimpleNamespace(), str(ROOT), "wheel", app)
    hook.initialize(version, build_data)
    hook.finalize(version, build_data, "")
    return build_data, app.messages


def no_compiler(*_: str) -> list[str]:
    raise OSError("command 'gcc' failed: No such file or directory")


def test_a_wheel_contains_the_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel contains the compiled files, and its tag names the Python and system."""
    data, messages = build_wheel(
        "standard", monkeypatch, lambda folder: [f"{folder}/compiled.so", f"{folder}/compiled_avx2.so"]
    )
    assert (data["pure_python"], data["infer_tag"], messages) == (False, True, [])
    assert list(data["force_include"].values()) == [f"{KERNELS}/compiled.so", f"{KERNELS}/compiled_avx2.so"]


def test_without_a_compiler_the_wheel_is_pure_and_a_warning_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The build succeeds without kernels and prints the compiler's error."""
    for version in ("standard", "editable"):
        data, messages = build_wheel(version, monkeypatch, no_compiler)
        assert (data["pure_python"], data["force_include"]) == (True, {})
        assert len(messages) == 1 and "without compiled kernels" in messages[0] and "gcc" in messages[0]


def test_a_required_build_of_kernels_raises_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NYALA_BUILD_KERNELS=yes, a missing compiler fails the build."""
    with pytest.raises(OSError, match="gcc"):
        build_wheel("standard", monkeypatch, no_compiler, "yes")


def test_kernels_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NYALA_BUILD_KERNELS=no, the compiler is not called."""
    data, messages = build_wheel("standard", monkeypatch, lambda *_: pytest.fail("it was compiled"), "no")
    assert (data["pure_python"], data["force_include"]) == (True, {})
    assert "NYALA_BUILD_KERNELS=no" in messages[0]


def test_an_invalid_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown value of NYALA_BUILD_KERNELS fails the build."""
    with pytest.raises(ValueError, match="'true'"):
        build_wheel("standard", monkeypatch, no_compiler, "true")


def test_an_editable_install_has_its_kernels_in_the_source_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python imports them from the source folder, so the wheel contains no kernels."""
    folders: list[tuple[str, ...]] = []

    def build(*folder: str) -> list[str]:
        folders.append(folder)
        return []

    data, messages = build_wheel("editable", monkeypatch, build)
    assert folders == [()] and data["force_include"] == {} and messages == []
