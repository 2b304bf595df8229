"""`python -m nyala` runs the command `nyala`."""

from __future__ import annotations

from nyala.cli import main

main()
