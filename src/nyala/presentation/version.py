"""The text of `nyala --version`. It works without the package click, for bug reports."""

from __future__ import annotations

__all__ = ["version_text"]


def version_text(as_json: bool) -> str:
    """Return the version of Nyala, and which kernels this process uses: compiled or plain.

    Raises: Error if the setting that chooses the kernels is invalid.
    """
    import json

    from nyala import __version__
    from nyala.cfile import kernels

    if as_json:
        return json.dumps({"version": __version__, "kernels": kernels.described()})
    return f"nyala {__version__} (kernels: {kernels.described()})"
