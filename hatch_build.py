"""Compiles the kernels while hatchling makes a wheel, or an editable install of this folder.

NYALA_BUILD_KERNELS     what happens
not set                 they are compiled where that is possible; else the wheel is a pure one, and a warning says why
yes                     the build fails where they cannot be compiled
no                      the wheel is a pure one
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SETTING = "NYALA_BUILD_KERNELS"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get(SETTING, "")
        if wanted not in ("", "yes", "no"):
            raise ValueError(
                f"the environment variable {SETTING} is {wanted!r}: set it to 'yes' or 'no', or leave it out"
            )
        if wanted == "no":
            self.app.display_info(f"Nyala without compiled kernels ({SETTING}=no): scans take NumPy")
            return
        sys.path.insert(0, os.path.join(self.root, "tools"))
        try:
            import build_kernels

            if version == "editable":
                build_kernels.build()
                return
            self._scratch = tempfile.TemporaryDirectory()
            made = build_kernels.build(self._scratch.name)
        except (Exception, SystemExit) as error:  # compilers, and what is missing of them, fail in many ways
            self.finalize(version, build_data, "")
            if wanted == "yes":
                raise
            self.app.display_warning(
                f"Nyala without compiled kernels: scans take NumPy, which is slower and as right. Compiling failed: "
                f"{type(error).__name__}: {error}"
            )
            return
        finally:
            sys.path.pop(0)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in made:
            build_data["force_include"][path] = f"nyala/cfile/kernels/{os.path.basename(path)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        scratch = getattr(self, "_scratch", None)
        if scratch is not None:
            scratch.cleanup()
