"""What `nyala --version` says; nothing here needs click, so that a bug report can be written without it."""

from __future__ import annotations

import json

__all__ = ["version_text"]


def version_text(as_json: bool) -> str:
    """The version, and which kernels run. Raises: Error for a setting of the kernels that is none."""
    from nyala import __version__
    from nyala.cfile import kernels

    if as_json:
        return json.dumps({"version": __version__, "kernels": kernels.described()})
    return f"nyala {__version__} (kernels: {kernels.described()})"
