"""Imports optional libraries; the error for a missing one says how to install it."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, extra: str | None = None) -> Any:
    """Import and return an optional library. Raises: ImportError with the pip command.

    extra: the extra of Nyala that installs the library; None: no extra installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module if extra is None else f"'nyala[{extra}]'"
        raise ImportError(f"this needs {module}, which is not installed: pip install {package}") from error
