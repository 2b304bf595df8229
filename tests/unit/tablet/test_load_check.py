"""A commit whose description of staged files differs from the files is refused, and changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.loads import content, open_with_table, staged_job

import nyala
from nyala.errors import CorruptionError, InvalidArgumentError
from nyala.handover import commits as handover
from nyala.tablet.state.entries import RowSetFiles

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with open_with_table(tmp_path / "store") as opened:
        yield opened


def first(staged: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = staged["rowsets"][0]
    return found


def forge(db: nyala.Database, operation: str, rows: dict[str, list[Any]], change: Change) -> None:
    """Run a job whose commit is changed in each of its tablets."""
    with staged_job(db, operation, rows) as (job, _):
        fields = json.loads(json.dumps(job.to_json()))
        for staged in fields["tablets"]:
            change(staged)
        handover.request_writer(db.path, {"do": "commit load", "job": fields})


def idle_as_new(staged: dict[str, Any]) -> None:
    staged["rowsets"], staged["idle"] = staged["idle"], staged["rowsets"]


def test_idle_rows_are_not_taken_for_new_ones(db: nyala.Database) -> None:
    """Rows without effect that are described as new are refused, because their keys would exist twice."""
    db["t"].insert({"k": [1, 2, 3], "v": [1, 2, 3], "w": ["a", "b", "c"]})
    before = content(db)
    rows: dict[str, list[Any]] = {"k": [1, 2, 3], "v": [9, 9, 9], "w": ["x", "y", "z"]}
    with pytest.raises(
        InvalidArgumentError,
        match=r"as new rows, but the file has idle rows\. Nothing was written: use the same",
    ):
        forge(db, "insert-ignore", rows, idle_as_new)
    assert content(db) == before and db["t"].count() == 3


def test_an_undo_file_does_not_make_idle_rows_new(db: nyala.Database) -> None:
    """The content of the rowset counts, not the files beside it."""
    db["t"].insert({"k": [1, 2, 3], "v": [1, 2, 3], "w": ["a", "b", "c"]})
    rows: dict[str, list[Any]] = {"k": [*range(1, 4), *range(100, 103)], "v": [9] * 6, "w": ["x"] * 6}

    def with_a_past(staged: dict[str, Any]) -> None:
        for new, idle in zip(staged["rowsets"], staged["idle"], strict=True):
            for name in ("path", "row_count", "places", "size_bytes", "file_id", "key_min", "key_max"):
                new["rowset"][name], idle["rowset"][name] = idle["rowset"][name], new["rowset"][name]
            new["undo_path"] = new["rowset"]["path"] + ".undo"
            folder = Path(db.path)
            shutil.copy(folder / (idle["rowset"]["path"] + ".undo"), folder / new["undo_path"])
        staged["idle"] = []

    with pytest.raises(InvalidArgumentError, match="as new rows, but the file has idle rows"):
        forge(db, "insert-ignore", rows, with_a_past)
    assert db["t"].count() == 3


def test_new_rows_are_not_taken_for_idle_ones(db: nyala.Database) -> None:
    """New rows that are described as rows without effect are refused, because they would be lost."""
    with pytest.raises(InvalidArgumentError, match="as idle rows, but the file has new rows"):
        forge(db, "upsert", {"k": [1, 2, 3], "v": [1, 2, 3]}, idle_as_new)
    assert content(db) == {}


def test_exchanged_rowsets_of_two_tablets_are_refused(db: nyala.Database) -> None:
    """Look-ups by key would not find the rows of a rowset in a wrong tablet."""
    with staged_job(db, "insert", {"k": list(range(30)), "v": [0] * 30}) as (job, _):
        fields = json.loads(json.dumps(job.to_json()))
        one, other = fields["tablets"][:2]
        one["rowsets"], other["rowsets"] = other["rowsets"], one["rowsets"]
        for staged in (one, other):
            first(staged)["rowset"]["tablet_id"] = staged["tablet_id"]
        with pytest.raises(InvalidArgumentError, match="as rows of tablet"):
            handover.request_writer(db.path, {"do": "commit load", "job": fields})
    assert content(db) == {} and db.check().ok


def test_a_file_under_two_names_is_refused(db: nyala.Database) -> None:
    """Each key of a file that is named twice would exist twice."""

    def with_a_copy(staged: dict[str, Any]) -> None:
        copy = json.loads(json.dumps(first(staged)))
        folder, path = Path(db.path), copy["rowset"]["path"]
        for what, suffix in (("path", ""), ("undo_path", ".undo")):
            shutil.copy(folder / (path + suffix), folder / (path + "-2" + suffix))
            (copy["rowset"] if what == "path" else copy)[what] = path + "-2" + suffix
        copy["rowset"]["id"] += 1
        staged["rowsets"].append(copy)

    with pytest.raises(InvalidArgumentError, match="overlapping keys"):
        forge(db, "insert", {"k": list(range(30)), "v": [0] * 30}, with_a_copy)
    assert content(db) == {} and db.check().ok


ROWSETS: dict[str, tuple[Change, str]] = {
    "another count": (lambda s: first(s)["rowset"].update(row_count=7), "7 rows, but the file has"),
    "another least key": (lambda s: first(s)["rowset"].update(key_min="80"), "keys 80 to"),
    "another greatest key": (lambda s: first(s)["rowset"].update(key_max="ff" * 8), "to ffffffffffffffff"),
    "another version": (lambda s: first(s)["rowset"].update(schema_version=9), "of schema version 9"),
    "a column less": (lambda s: first(s)["rowset"]["places"].__delitem__(slice(5, 10)), "of the base data at offset"),
    "a column elsewhere": (lambda s: first(s)["rowset"]["places"].__setitem__(8, 32), "at offset 32"),
    "another size": (lambda s: first(s)["rowset"].update(size_bytes=9), "bytes, expected 9"),
    "no UNDO": (lambda s: first(s).update(undo=None, undo_path=None), "new rows with UNDO file None"),
    "another UNDO": (lambda s: first(s).update(undo_path=first(s)["rowset"]["path"]), "twice"),
    "UNDO of fewer rows": (lambda s: first(s)["undo"].update(record_count=0), "as 0 records"),
    "REDO instead of UNDO": (lambda s: first(s)["undo"].update(kind="redo"), "redo of columns"),
    "UNDO of v": (lambda s: first(s)["undo"].update(column_ids=[11]), "undo of columns"),
    "twice": (lambda s: s["rowsets"].append(first(s)), "twice"),
    "another tablet's": (lambda s: first(s)["rowset"].update(tablet_id=99), "a rowset of tablet 99"),
}  # fmt: skip


@pytest.mark.parametrize("what", ROWSETS)
def test_wrong_descriptions_of_new_rows_are_refused(db: nyala.Database, what: str) -> None:
    """Wrong descriptions would damage the catalogue or lose rows."""
    change, says = ROWSETS[what]
    with pytest.raises((InvalidArgumentError, CorruptionError), match=says):
        forge(db, "insert", {"k": list(range(30)), "v": [0] * 30}, change)
    assert content(db) == {}
    assert db.check().ok


def changes(staged: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = staged["deltas"][0]
    return found


DELTAS: dict[str, tuple[Change, str]] = {
    "another count": (lambda s: changes(s)["redo"][1].update(record_count=99), "as 99 records, but the file has"),
    "another column": (lambda s: changes(s)["redo"][1].update(column_ids=[12]), "as records of columns"),
    "the liveness": (lambda s: changes(s)["redo"][1].update(column_ids=[-1]), "as changes of upsert, but the file has"),
    "another place": (lambda s: changes(s)["redo"][1]["places"].__setitem__(3, 32), "at offset 32"),
}  # fmt: skip


@pytest.mark.parametrize("what", DELTAS)
def test_wrong_descriptions_of_changes_are_refused(db: nyala.Database, what: str) -> None:
    """Every later read of the rowset would use the wrong description."""
    db["t"].insert({"k": list(range(30)), "v": [0] * 30})
    before = content(db)
    change, says = DELTAS[what]
    with pytest.raises(InvalidArgumentError, match=says):
        forge(db, "upsert", {"k": list(range(30)), "v": [1] * 30}, change)
    assert content(db) == before


def test_changes_of_another_rowset_are_refused(db: nyala.Database) -> None:
    """The rowids of changes mean other rows, or no rows, in another rowset."""
    for begin, count in ((0, 300), (1000, 3)):
        db["t"].insert({"k": list(range(begin, begin + count)), "v": [0] * count})
        db["t"].flush()
    before = content(db)

    def of_another(staged: dict[str, Any]) -> None:
        others = {
            rowset.id: rowset.row_count
            for tablet in db._store.root.table("t").tablets
            if tablet.id == staged["tablet_id"]
            for rowset in tablet.rowsets
        }
        changes(staged)["rowset_id"] = min(others, key=lambda number: others[number])

    def renamed(staged: dict[str, Any]) -> None:
        of_another(staged)
        old = changes(staged)["redo"][0]
        new = f"{old.rsplit('-', 2)[0]}-{changes(staged)['rowset_id']}-0.redo"
        changes(staged)["redo"][0] = new
        shutil.move(Path(db.path) / old, Path(db.path) / new)

    for change, says in (
        (of_another, "another rowset in its name"),
        (renamed, "but the file has one of row"),
    ):
        with staged_job(db, "upsert", {"k": list(range(300)), "v": [1] * 300}) as (job, _):
            fields = json.loads(json.dumps(job.to_json()))
            plan_files = {
                rowset.id: RowSetFiles.of(rowset).to_json()
                for tablet in db._store.root.table("t").tablets
                for rowset in tablet.rowsets
            }
            fields["files"] = {str(number): files for number, files in plan_files.items()}
            change(fields["tablets"][0])
            with pytest.raises(InvalidArgumentError, match=says):
                handover.request_writer(db.path, {"do": "commit load", "job": fields})
    assert content(db) == before


def test_a_damaged_staged_file_is_refused(db: nyala.Database) -> None:
    """The checksum of the file's directory detects the damage."""
    with staged_job(db, "insert", {"k": [1], "v": [1]}) as (job, _):
        path = Path(db.path) / job.tablets[0].rowsets[0].meta.path
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(CorruptionError, match="expected a directory with CRC-32C") as error:
            handover.commit_load_files(db.path, job)
        assert error.value.path == str(path)
    assert content(db) == {}
