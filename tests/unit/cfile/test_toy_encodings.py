"""An encoding that only the table of encodings names works everywhere.

Here, every column of every file, including keys and changes, is stored with a toy encoding. The
tests and scripts are those of the other encodings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampled import in_turns
from tests.scripts import test_scripts
from tests.support import folder_in_memory
from tests.unit.cfile import test_operations
from tests.unit.cfile.memory import TYPE_SPECS, MemoryFiles, make_values
from tests.unit.cfile.test_roundtrip import written
from tests.unit.cfile.toy_encodings import Flipped, Reversed

from nyala.cfile import writer
from nyala.cfile.dump import dump
from nyala.cfile.encoding import ENCODINGS
from nyala.cfile.encoding.base import Encoding

TOYS = (Flipped(), Reversed())
FOLDERS = ("scan", "predicates", "null_and_nan", "pruning", "compaction", "time_travel", "change_feed")
SCRIPTS = [
    path
    for path in test_scripts.scripts()
    if path.parent.name in FOLDERS and "\nkill" not in path.read_text() and ": kill" not in path.read_text()
]


def name_of(value: object) -> str:
    return (
        f"{value.parent.name}-{value.stem}" if isinstance(value, Path) else getattr(value, "name", str(value))
    )


@pytest.fixture(scope="module", params=TOYS, ids=name_of)
def toy(request: pytest.FixtureRequest) -> Iterator[Encoding]:
    """Make this encoding the only one that files are written with."""
    encoding: Encoding = request.param
    choose = writer.choose_encoding
    ENCODINGS.append(encoding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            writer, "choose_encoding", lambda _, *given, **named: choose(encoding.name, *given, **named)
        )
        yield encoding
    ENCODINGS.remove(encoding)


@pytest.mark.parametrize(
    ("type", "toy"), in_turns(TYPE_SPECS, TOYS), ids=name_of, indirect=["toy"], scope="module"
)
@settings(max_examples=max(4, settings().max_examples // 10))
@given(data=st.data())
def test_the_operations_agree_with_the_values(toy: Encoding, type: str, data: st.DataObject) -> None:
    """Each operation returns the values that were written, in order."""
    test_operations.check_operations(type, "auto", data)


def test_a_file_shows_its_encoding(toy: Encoding) -> None:
    """The dump names the encoding."""
    column = written(files := MemoryFiles(), make_values("int32", 1000, null_share=0.1), "int32")
    assert column.encoding == toy.name
    assert any(f"encoding    {toy.name}" in line for line in dump(files, *files.content))


@pytest.mark.parametrize(
    ("path", "toy"), in_turns(SCRIPTS, TOYS), ids=name_of, indirect=["toy"], scope="module"
)
def test_script(toy: Encoding, path: Path, request: pytest.FixtureRequest) -> None:
    """The script prints the same as with the other encodings."""
    with folder_in_memory() as folder:
        test_scripts.run_script(path, folder / "store", request)
