"""Rules of the source code: an exception at any line, such as Ctrl-C, leaves no lock taken."""

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
    """No `with` statement names a Condition itself.

    `Condition.__enter__` is Python code, so Ctrl-C can interrupt it after it has taken the lock.
    """
    conditions = {
        name for source in SOURCES.values() for name in re.findall(r"(\w+) = threading\.Condition\(", source)
    }
    assert conditions
    entered = rf"with [^\n]*\.({'|'.join(conditions)})[:,]"
    assert [path for path, source in SOURCES.items() if re.search(entered, source)] == []


def test_ctrl_c_waits_until_the_commit_lock_is_released() -> None:
    """Each `with` that takes the commit lock also enters `Uninterrupted`, with two exceptions."""
    bare = re.compile(r"with (?!Uninterrupted\(\), )(?:\w+\.flush_lock, )?\w+\.commit_lock\b")
    found = [(path, line) for path, source in SOURCES.items() for line in bare.findall(source)]
    assert [path.rpartition("/")[2] for path, _ in found] == ["transaction.py", "write_path.py"], (
        "`write_path` enters `Uninterrupted` one line earlier; `transaction` runs the user's function"
    )
