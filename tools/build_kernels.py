#!/usr/bin/env python3
"""Compile src/nyala/cfile/kernels/compiled.pyx: tools/build_kernels.py [FOLDER], by the Python that is to import it.

Without FOLDER the module lies beside its source, where an editable install and PYTHONPATH=src find it. Needs Cython,
setuptools and a C compiler. The environment variable NYALA_KERNEL_CHECKS=1 makes a build that proves each access again.
"""

import os
import shutil
import sys
import tempfile

_HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(_HERE), "src", "nyala", "cfile", "kernels")
NAME = "nyala.cfile.kernels.compiled"


def build(folder: str = PACKAGE) -> str:
    """Compile the kernels into `folder`. Returns: the module's path.

    Raises: whatever Cython and the compiler raise, ImportError without Cython or setuptools, and OSError.
    """
    if sys.byteorder != "little":
        raise OSError(
            "the kernels read blocks, which are little-endian, as they lie: this machine is big-endian"
        )
    from setuptools import (
        Distribution,
        Extension,
    )  # before Cython, which else takes the distutils of Python 3.11
    from setuptools.command.build_ext import build_ext

    from Cython.Build import cythonize  # isort: skip

    checks = os.environ.get("NYALA_KERNEL_CHECKS", "") not in ("", "0")
    with tempfile.TemporaryDirectory() as scratch:
        extension = Extension(
            NAME,
            [os.path.join(PACKAGE, "compiled.pyx")],
            define_macros=[("NYALA_KERNEL_CHECKS", "1")] if checks else [],
            extra_compile_args=[] if os.name == "nt" else ["-O3", "-g0"],
        )
        extensions = cythonize(
            [extension],
            build_dir=scratch,
            quiet=True,
            force=True,
            compiler_directives={"boundscheck": True, "initializedcheck": True} if checks else {},
        )
        command = build_ext(Distribution({"name": "nyala", "ext_modules": extensions}))
        command.build_lib, command.build_temp = os.path.join(scratch, "lib"), scratch
        command.ensure_finalized()
        command.run()
        (made,) = command.get_outputs()
        os.makedirs(folder, exist_ok=True)
        target = os.path.join(folder, os.path.basename(made))
        # A process that has the old one open keeps it.
        shutil.copyfile(made, target + ".new")
        os.replace(target + ".new", target)
    return target


if __name__ == "__main__":
    print(build(*sys.argv[1:2]))
