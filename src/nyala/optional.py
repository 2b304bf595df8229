"""Libraries that Nyala uses only for some calls: imported at that call, with a message that names the extra."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, extra: str | None = None) -> Any:
    """Import an optional library, which comes with `extra` of Nyala. Raises ImportError with the pip command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        what = module if extra is None else f"'nyala[{extra}]'"
        raise ImportError(f"this needs {module}, which is not installed: pip install {what}") from error
