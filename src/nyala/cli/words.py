"""The library's advice in the command line's words: `--at` for `at=`, and nothing that is typed in Python.

A message of the library's names its own arguments and methods. Each rule below is one sentence of its, or one
argument, as a pattern; what no rule knows stays as it is.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["cli_words"]

_RULES: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        # the writer's lock
        (r"open it with read_only=True, wait for the writer to close it with lock_timeout=seconds, or end (.*)",
         r"wait until it is closed, or end \1; commands that only read work meanwhile"),
        (r": close\(\) it first", ""),
        # tables
        (r"; open it with table\('.*'\), or pass exist_ok=True", "; without --create the rows go into it"),
        (r"make one with create_table\(\)", "`table load --create` makes one from a file"),
        # moments
        # One form in all that is said; what stands in quotes is somebody's own.
        (r"(?<!['\"\w])(\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)\+00:00(?!['\"\w])", r"\1Z"),
        (r"^at=", "--at "),
        (r"write at=('[^']*'), or give a datetime", r"write --at \1"),
        (r", as create_table\(history=…\) or set_history\(…\) said", ""),
        (r"^changes are those after since and up to until, and since=(.*) is later than until=(.*)$",
         r"changes are those after --since and up to --until, and \1 is later than \2"),
        # what a scan reads, and how a table is cut
        (r"TRUE selects every row", "leave out --where to select every row"),
        (r"^columns names a column twice", "--columns names a column twice"),
        (r"^hash_partition(?:\((.*?)\):)?", lambda found: f"--hash {found[1]}:" if found[1] else "--hash"),
        (r"^range_partition\b", "--range"),
        # how a column is stored
        (r", such as 65536 or '64KiB'; None is the default",
         ", such as 65536 or 64KiB; block_size= with nothing behind it is the default"),
        # a store that failed meanwhile
        (r"close it and connect\(\) again, which finds out", "the next command that writes finds out"),
        (r"check the disk, or raise memory_limit", "check the disk"),
    )
)  # fmt: skip


def cli_words(message: str) -> str:
    """The message with the command line's words for what the library's own are."""
    for pattern, words in _RULES:
        message = pattern.sub(words, message)
    return message
