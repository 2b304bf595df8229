"""Rules of the source that keep an exception at any line, as of Ctrl-C, from leaving a lock taken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import nyala

SOURCES: Final = {
    str(path): path.read_text()
    for path in Path(nyala.__file__).parent.rglob("*.py")
    if "testing" not in path.parts
}


def test_a_condition_is_entered_through_its_lock() -> None:
    """`Condition.__enter__` is a method written in Python, which can be interrupted when it has taken the lock."""
    conditions = {
        name for source in SOURCES.values() for name in re.findall(r"(\w+) = threading\.Condition\(", source)
    }
    assert conditions
    entered = rf"with [^\n]*\.({'|'.join(conditions)})[:,]"
    assert [path for path, source in SOURCES.items() if re.search(entered, source)] == []


def test_ctrl_c_waits_for_what_is_done_under_the_commit_lock() -> None:
    bare = re.compile(r"with (?!Uninterrupted\(\), )(?:\w+\.flush_lock, )?\w+\.commit_lock\b")
    found = [(path, line) for path, source in SOURCES.items() for line in bare.findall(source)]
    assert [path.rpartition("/")[2] for path, _ in found] == ["transaction.py", "write_path.py"], (
        "`write_path` is in `Uninterrupted` whole; `transaction` runs a user's function, whose commits are"
    )
