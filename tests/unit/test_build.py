"""Wheels and editable installs have the compiled kernels where that is possible, and are made where it is not."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("hatchling", reason="what builds wheels is not installed here")
ROOT = Path(__file__).parents[2]
PLACE = "nyala/cfile/kernels"


class App:
    """What hatchling says to who builds."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.display_info = self.display_warning = self.said.append


def made(
    version: str, monkeypatch: pytest.MonkeyPatch, build: Callable[..., list[str]], wanted: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """(what the hook tells hatchling of the wheel, what it says), with `build` in the compiler's place."""
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
    return build_data, app.said


def no_compiler(*_: str) -> list[str]:
    raise OSError("command 'gcc' failed: No such file or directory")


def test_a_wheel_has_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tag says for which Python and system it is; a pure one would be installed on all."""
    data, said = made(
        "standard", monkeypatch, lambda folder: [f"{folder}/compiled.so", f"{folder}/compiled_avx2.so"]
    )
    assert (data["pure_python"], data["infer_tag"], said) == (False, True, [])
    assert list(data["force_include"].values()) == [f"{PLACE}/compiled.so", f"{PLACE}/compiled_avx2.so"]


def test_without_a_compiler_the_wheel_is_pure_and_somebody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler is needed to install."""
    for version in ("standard", "editable"):
        data, said = made(version, monkeypatch, no_compiler)
        assert (data["pure_python"], data["force_include"]) == (True, {})
        assert len(said) == 1 and "without compiled kernels" in said[0] and "gcc" in said[0]


def test_who_wants_them_is_not_given_a_wheel_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release would be slow, and nobody would see why."""
    with pytest.raises(OSError, match="gcc"):
        made("standard", monkeypatch, no_compiler, "yes")


def test_who_wants_none_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a compiler that is called."""
    data, said = made("standard", monkeypatch, lambda *_: pytest.fail("it was compiled"), "no")
    assert (data["pure_python"], data["force_include"]) == (True, {})
    assert "NYALA_BUILD_KERNELS=no" in said[0]


def test_a_mistyped_wish_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be taken for none."""
    with pytest.raises(ValueError, match="'true'"):
        made("standard", monkeypatch, no_compiler, "true")


def test_an_editable_install_has_them_beside_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python finds them there, and the wheel of an editable install is nothing but a pointer."""
    folders: list[tuple[str, ...]] = []

    def build(*folder: str) -> list[str]:
        folders.append(folder)
        return []

    data, said = made("editable", monkeypatch, build)
    assert folders == [()] and data["force_include"] == {} and said == []
