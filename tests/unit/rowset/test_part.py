"""Parts are base columns that were rewritten; a column is read from the newest file that has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from nyala.catalog.model import PartEntry
from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec
from nyala.cfile.writer import CFileWriter
from nyala.delta.delta_file import LIVENESS_TYPE
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP
from nyala.env import PosixFiles
from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.image import RowSetImage
from nyala.rowset.part import Part
from nyala.rowset.skipping import candidate_ranges
from nyala.rowset.writer import column_spec, write_rowset
from nyala.schema.predicates.constraint import Constraint
from nyala.schema.schema import build_schema

FILES = PosixFiles()
COUNT = 100
SCHEMA = build_schema({"k": "int64", "a": "int64", "b": "string", "c": "int64"}, ["k"])
K, A, B, C = (column.id for column in SCHEMA.columns)


def rowset(folder: Path, parts: list[Part] | None = None) -> DiskRowSet:
    keys = pa.array(range(COUNT), pa.int64())
    columns = {
        K: keys,
        A: pa.array(range(COUNT), pa.int64()),
        B: pa.array(["base"] * COUNT),
        C: pa.array([7] * COUNT, pa.int64()),
    }
    encoded = KeyCodec([SCHEMA.columns[0].type]).encode([keys])
    image = RowSetImage(encoded, columns, None, {}, np.arange(COUNT))
    written = write_rowset(FILES, str(folder), "40.base", 40, 1, image, SCHEMA, deltas_durable=1)
    return DiskRowSet.open(FILES, str(folder), written.meta, SCHEMA, parts=parts or [])


def entry(folder: Path, number: int, arrays: dict[int, pa.Array]) -> PartEntry:
    """Write a part with these columns."""
    writer = CFileWriter(FILES, f"{folder}/{number}.part")
    for column_id, array in arrays.items():
        if column_id == LIVENESS:
            writer.append_column(ColumnWriteSpec(ColumnKey(BASE, 0, LIVENESS), LIVENESS_TYPE), array)
        else:
            writer.append_column(column_spec(SCHEMA.by_id(column_id), SCHEMA), array)
    made = writer.finish(sync=True)
    return PartEntry(number, 40, f"{number}.part", made.file_id, made.size_bytes, tuple(made.columns))


def part(folder: Path, number: int, arrays: dict[int, pa.Array]) -> Part:
    return Part.open(FILES, str(folder), entry(folder, number, arrays))


def numbers(value: int) -> pa.Array:
    return pa.array([value] * COUNT, pa.int64())


def column(found: DiskRowSet, column_id: int) -> set[object]:
    return set(found.decode(SCHEMA.by_id(column_id), MAX_TIMESTAMP, 0, COUNT).to_pylist())


def test_a_column_is_read_from_the_newest_file_that_has_it(tmp_path: Path) -> None:
    """The example of the module's docstring."""
    older = part(tmp_path, 51, {A: numbers(1), B: pa.array(["51"] * COUNT)})
    newer = part(tmp_path, 60, {A: numbers(2)})
    found = rowset(tmp_path, [older, newer])
    assert (column(found, A), column(found, B), column(found, C)) == ({2}, {"51"}, {7})
    assert found.gather(SCHEMA.by_id(A), MAX_TIMESTAMP, np.array([5, 3])).to_pylist() == [2, 2]
    assert (older.column_ids, newer.column_ids) == ({A, B}, {A})
    assert found.base_bytes == found.meta.size_bytes + older.size_bytes + newer.size_bytes == found.size_bytes
    assert found.paths == [found.meta.path, "51.part", "60.part"]
    found.check()
    found.close()


def test_z1_zone_maps_are_those_of_the_newest_file(tmp_path: Path) -> None:
    """Zone maps of an older base file would exclude rows that match."""
    found = rowset(tmp_path, [part(tmp_path, 51, {A: numbers(5000)})])
    a = SCHEMA.by_id(A)
    (tmp_path / "other").mkdir()
    for disk, value, rows in ((found, 5000, COUNT), (found, 5, 0), (rowset(tmp_path / "other"), 5, COUNT)):
        left = candidate_ranges(disk, [(a, Constraint.one_of([value]))], MAX_TIMESTAMP, 0, COUNT)
        assert sum(upper - lower for lower, upper in left) == rows


def test_a_part_of_another_length_is_corruption(tmp_path: Path) -> None:
    """A part with other row counts would give values of other rows."""
    found = rowset(tmp_path, [part(tmp_path, 51, {A: pa.array([1] * (COUNT - 1), pa.int64())})])
    with pytest.raises(CorruptionError, match=f"column {A} with {COUNT} rows, found {COUNT - 1} rows"):
        column(found, A)
    with pytest.raises(CorruptionError):
        found.check()


def test_with_major_compaction_drops_unread_parts(tmp_path: Path) -> None:
    """A part whose columns were all rewritten is dropped; one with a column that is still read is
    kept.
    """
    both = part(tmp_path, 51, {A: numbers(1), B: pa.array(["51"] * COUNT)})
    first = rowset(tmp_path, [both])
    second = first.with_major_compaction([], None, part(tmp_path, 60, {A: numbers(2)}), None)
    third = second.with_major_compaction([], None, part(tmp_path, 61, {A: numbers(3)}), None)
    assert [made.id for made in third.parts] == [51, 61]
    fourth = third.with_major_compaction(
        [], None, part(tmp_path, 62, {A: numbers(4), B: pa.array(["62"] * COUNT)}), None
    )
    assert [made.id for made in fourth.parts] == [62]
    assert [column(version, A) for version in (first, second, third, fourth)] == [{1}, {2}, {3}, {4}]
    assert fourth.undo == first.undo == ()
