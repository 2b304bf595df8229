"""`python -m nyala.cli` is the command `nyala` where no script is installed."""

from __future__ import annotations

from nyala.cli import main

main()
