"""`python -m nyala`: the command `nyala`, where no script of that name is on the path."""

from __future__ import annotations

from nyala.cli import main

main()
