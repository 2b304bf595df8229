#!/usr/bin/env python3
"""Compile src/nyala/cfile/kernels/compiled.pyx: tools/build_kernels.py [FOLDER [quick]], for the
Python that runs it.

Without FOLDER the modules are written next to their source, where an editable install and
PYTHONPATH=src find them. Needs Cython, setuptools and a C compiler. With the environment variable
NYALA_KERNEL_CHECKS=1, the modules check each access to memory. With `quick` there is one module
with little optimisation, which takes a third of the time.
"""

import os
import platform
import shutil
import sys
import tempfile

_HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(_HERE), "src", "nyala", "cfile", "kernels")
NAME = "nyala.cfile.kernels.compiled"
PARTS = (
    "bloom.pxi",
    "comparing.pxi",
    "dictionary.pxi",
    "gathering.pxi",
    "runs.pxi",
    "scattering.pxi",
)  # files that the source includes


def build(folder: str = PACKAGE, speed: str = "") -> list[str]:
    """Compile the kernels into `folder`. Return the paths of the modules. speed: "quick", or any
    other text for fast modules.

    Raises the errors of Cython and of the compiler, ImportError without Cython or setuptools, and
    OSError.
    """
    if sys.byteorder != "little":
        raise OSError(
            "the kernels need a little-endian machine, because blocks are little-endian; this machine is big-endian"
        )
    from setuptools import (  # before Cython, which otherwise uses the distutils of Python 3.11
        Distribution,
        Extension,
    )
    from setuptools.command.build_ext import build_ext

    from Cython.Build import cythonize  # isort: skip

    checks = os.environ.get("NYALA_KERNEL_CHECKS", "") not in ("", "0")
    flags = [] if os.name == "nt" else ["-O1" if speed == "quick" else "-O3", "-g0"]
    variants = {NAME: flags}
    if speed != "quick" and sys.platform.startswith("linux") and platform.machine() == "x86_64":
        variants[f"{NAME}_avx2"] = [*flags, "-mavx2"]
    with tempfile.TemporaryDirectory() as scratch:
        extensions = []
        for part in PARTS:
            shutil.copyfile(os.path.join(PACKAGE, part), os.path.join(scratch, part))
        for name, its_flags in variants.items():
            source = os.path.join(scratch, name.rpartition(".")[2] + ".pyx")
            shutil.copyfile(os.path.join(PACKAGE, "compiled.pyx"), source)
            macros = [("NYALA_KERNEL_CHECKS", "1")] if checks else []
            extensions.append(Extension(name, [source], define_macros=macros, extra_compile_args=its_flags))
        extensions = cythonize(
            extensions,
            build_dir=scratch,
            quiet=True,
            force=True,
            compiler_directives={"boundscheck": True, "initializedcheck": True} if checks else {},
        )
        command = build_ext(Distribution({"name": "nyala", "ext_modules": extensions}))
        command.build_lib, command.build_temp = os.path.join(scratch, "lib"), scratch
        command.parallel = len(extensions)
        command.ensure_finalized()
        command.run()
        os.makedirs(folder, exist_ok=True)
        return [_put(made, folder) for made in command.get_outputs()]


def _put(made: str, folder: str) -> str:
    """Replace the module in the folder. A process that has the old one open keeps it."""
    target = os.path.join(folder, os.path.basename(made))
    shutil.copyfile(made, target + ".new")
    os.replace(target + ".new", target)
    return target


if __name__ == "__main__":
    print("\n".join(build(*sys.argv[1:3])))
