"""docs/format/delta.md and rowset.md match the code: their tables, rules and worked examples.

To renew the examples after a change of a format: `python -m tests.unit.rowset.test_format_pages`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from nyala.cfile import column as roles
from nyala.cfile import format
from nyala.cfile.dump import dump
from nyala.delta.batch import SharedBatch
from nyala.delta.delta_file import WrittenDelta
from nyala.delta.run import LIVENESS
from nyala.env import PosixFiles
from nyala.keys.codec import KeyCodec
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.writer import WrittenRowSet, write_rowset
from nyala.schema.schema import Schema, build_schema, column
from nyala.tablet.state.opening import delta_entry

FOLDER = Path(__file__).parents[3] / "docs" / "format"
FILES = PosixFiles()


def write(folder: str, schema: Schema, rows: MemRowSet, at: int) -> WrittenRowSet:
    return write_rowset(FILES, folder, "7.base", 7, 2, rows.image(at), schema, deltas_durable=at)


def specification_undo(folder: str) -> WrittenDelta:
    """Write the specification's example, flushed after its last operation."""
    schema = build_schema({"key": "string", "val": "int32"}, ["key"])
    codec = KeyCodec([schema.columns[0].type])
    rows = MemRowSet(codec, schema)
    batch = SharedBatch({10: pa.array(["row"]), 11: pa.array([1], pa.int32())})
    rows.insert(codec.encode([pa.array(["row"])]), batch, 0, 1, 1)
    row = np.array([0])
    rows.deltas.append(row, 2, {11: pa.array([2], pa.int32())})
    rows.deltas.append(row, 3, {LIVENESS: pa.array([False])})
    rows.deltas.append(row, 4, {LIVENESS: pa.array([True]), 11: pa.array([3], pa.int32())})
    undo = write(folder, schema, rows, 4).undo
    assert undo is not None
    return undo


def three_rows(folder: str) -> WrittenRowSet:
    time = column("int64", encoding="plain")  # so all keys are stored
    schema = build_schema({"host": "string", "time": time, "val": "int32"}, ["host", "time"])
    codec = KeyCodec([of.type for of in schema.key_columns])
    rows = MemRowSet(codec, schema)
    columns = {10: pa.array(["a", "a", "b"]), 11: pa.array([5, 6, 5]), 12: pa.array([1, 2, None], pa.int32())}
    rows.insert(codec.encode([columns[10], columns[11]]), SharedBatch(columns), 0, 3, 1)
    rows.deltas.append(np.array([1]), 2, {LIVENESS: pa.array([False])})
    return write(folder, schema, rows, 2)


def three_texts(folder: str) -> WrittenRowSet:
    schema = build_schema({"host": "string", "name": "string"}, ["host", "name"])
    codec = KeyCodec([of.type for of in schema.key_columns])
    rows = MemRowSet(codec, schema)
    columns = {10: pa.array(["a", "a", "b"]), 11: pa.array(["u", "v", "u"])}
    rows.insert(codec.encode([columns[10], columns[11]]), SharedBatch(columns), 0, 3, 1)
    return write(folder, schema, rows, 1)


def three_hundred_rows(folder: str) -> WrittenRowSet:
    """Write rows of a key of two numbers only: the file has the encoded key of every 128th row."""
    schema = build_schema({"a": "int64", "b": "int32"}, ["a", "b"])
    codec = KeyCodec([of.type for of in schema.key_columns])
    rows = MemRowSet(codec, schema)
    columns = {10: pa.array(range(1000, 1300), pa.int64()), 11: pa.array([0] * 300, pa.int32())}
    rows.insert(codec.encode([columns[10], columns[11]]), SharedBatch(columns), 0, 300, 1)
    return write(folder, schema, rows, 1)


def two_hundred_wide_rows(folder: str) -> WrittenRowSet:
    """Write wider rows with such a key: the file has the encoded key of every 64th row."""
    schema = build_schema({"a": "int64", "b": "int32", "c": "double"}, ["a", "b"])
    codec = KeyCodec([of.type for of in schema.key_columns])
    rows = MemRowSet(codec, schema)
    noise = np.random.default_rng(1).normal(size=200)
    columns = {
        10: pa.array(range(1000, 1200), pa.int64()), 11: pa.array([0] * 200, pa.int32()), 12: pa.array(noise)
    }  # fmt: skip
    rows.insert(codec.encode([columns[10], columns[11]]), SharedBatch(columns), 0, 200, 1)
    return write(folder, schema, rows, 1)


def lines_of(path: str, bytes: bool = False) -> list[str]:
    folder, name = path.rsplit("/", 1)
    lines = [line.replace(f"{folder}/./", "") for line in dump(FILES, f"{folder}/./{name}", bytes)]
    return [re.sub("^file id   .*", "file id   32 random hexadecimal digits", line) for line in lines]


def parts_of(path: str, *titles: str) -> list[str]:
    """Return the parts of a dump that have these titles, with their bytes."""
    chosen: list[str] = []
    inside = False
    for line in lines_of(path, bytes=True):
        if not line.startswith(" "):
            inside = line in titles
        if inside:
            chosen.append(line)
    return chosen


def examples(folder: str) -> dict[str, list[str]]:
    """Return the texts of each page's fenced blocks."""
    specification_undo(folder)
    undo = f"{folder}/7.base.undo"
    delta = [
        "\n".join(lines_of(undo)),
        "\n".join(parts_of(undo, "block 0 of delta-timestamp/1/0", "block 0 of delta-value/1/-1")),
    ]
    FILES.unlink(undo)
    FILES.unlink(f"{folder}/7.base")
    three_rows(folder)
    dense = lines_of(f"{folder}/7.base")
    FILES.unlink(f"{folder}/7.base.undo")
    FILES.unlink(f"{folder}/7.base")
    three_hundred_rows(folder)
    lines = [*lines_of(f"{folder}/7.base"), ""]
    begin = lines.index("column    key/7/0")
    sparse = [*lines[begin : lines.index("", begin)], ""]
    sparse += parts_of(f"{folder}/7.base", "block 0 of key/7/0")
    return {"delta.md": delta, "rowset.md": ["\n".join(dense), "\n".join(sparse)]}


FENCE = re.compile(r"```\n(.*?)\n```", re.DOTALL)


@pytest.mark.parametrize("page", ["delta.md", "rowset.md"])
def test_the_worked_example_is_what_the_dump_prints(page, tmp_path):
    """The bytes in a hex editor are those on the page."""
    assert FENCE.findall((FOLDER / page).read_text()) == examples(str(tmp_path))[page]


def test_the_example_table_has_the_records_of_the_file(tmp_path):
    """The table is the specification's flushed row; the file has exactly these records."""
    from nyala.delta.delta_file import DeltaFile

    undo = specification_undo(str(tmp_path))
    file = DeltaFile.open(FILES, str(tmp_path), delta_entry(1, 0, "7.base.undo", undo))
    records = []
    for group, number in enumerate((11, LIVENESS)):
        run = file.run(number)
        assert run is not None
        for record in zip(run.rowids.tolist(), run.timestamps.tolist(), run.values.to_pylist(), strict=True):
            records.append([str(group), str(number), *map(str, record)])
    rows = re.findall(
        r"^\| (\d) \| (\S+) \(\w+\) \| (\d) \| (\d) \| (\w+) \|", (FOLDER / "delta.md").read_text(), re.M
    )
    assert [[cell.replace("−", "-") for cell in row] for row in rows] == records


@pytest.mark.parametrize("page", ["delta.md", "rowset.md"])
def test_roles_have_the_numbers_and_names_of_the_page(page):
    """Files contain the numbers, so the page must have them right."""
    named = re.findall(r"^\| (\d+) \(([\w-]+)\) \|", (FOLDER / page).read_text(), re.M)
    numbers = {int(number): name for number, name in named if int(number) in format.ROLES and name != "val"}
    assert numbers == {number: format.ROLES[number] for number in numbers}
    expected = {roles.DELTA_ROWID, roles.DELTA_TIMESTAMP, roles.DELTA_VALUE} if page == "delta.md" else {
        roles.BASE, roles.KEY, roles.BLOOM,
    }  # fmt: skip
    assert set(numbers) == expected


def test_the_file_names_are_those_of_the_page(tmp_path):
    """A store's folder has the files that the page lists."""
    written = three_rows(str(tmp_path))
    assert written.paths == ["7.base", "7.base.undo"]
    text = (FOLDER / "rowset.md").read_text()
    assert "`<rowset id>-<token>.base`" in text and "`<rowset id>-<token>.base.undo`" in text
    by_role = [(place.key.role, place.key.column_id) for place in written.meta.columns]
    assert by_role == [(0, 10), (0, 11), (0, 12), (1, 0), (2, 0), (0, LIVENESS)]


def test_the_sparse_keys_are_those_of_the_page(tmp_path):
    """The page gives the rows whose encoded keys a file has."""
    groups = {
        place.key.group
        for make in (three_rows, three_texts, three_hundred_rows, two_hundred_wide_rows)
        for place in make(tempfile.mkdtemp(dir=tmp_path)).meta.columns
        if place.key.role == roles.KEY
    }
    (named,) = re.findall(
        r"^\| 1 \(key\) \| (\d), (\d), (\d) or (\d) \|", (FOLDER / "rowset.md").read_text(), re.M
    )
    known = {format.SPARSE_TEXT_KEY_ROWS_LOG2, format.SPARSE_KEY_ROWS_LOG2, format.SPARSE_WIDE_KEY_ROWS_LOG2}
    assert set(map(int, named)) == groups == {0} | known


def fill(page: str, texts: Iterator[str]) -> str:
    return FENCE.sub(lambda _: f"```\n{next(texts)}\n```", page)


def renew() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for page, texts in examples(folder).items():
            (FOLDER / page).write_text(fill((FOLDER / page).read_text(), iter(texts)))


if __name__ == "__main__":
    renew()
