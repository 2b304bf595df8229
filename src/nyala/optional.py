"""Imports libraries that only some calls need, with an error message that names the extra."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, extra: str | None = None) -> Any:
    """Import an optional library that an `extra` of Nyala installs.

    Raises ImportError with the pip command.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module if extra is None else f"'nyala[{extra}]'"
        raise ImportError(f"this needs {module}, which is not installed: pip install {package}") from error
