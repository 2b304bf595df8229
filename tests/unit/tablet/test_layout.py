"""The layout of a store's folder, and folders that are not a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support import key_value_table, open_database

from nyala.env import SYSTEM
from nyala.errors import StorageError
from nyala.tablet.state import store_folder as layout


def test_a_store_has_the_documented_layout(tmp_path: Path) -> None:
    """Tools, backups and readers of other languages look for these names."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    root = str(tmp_path / "s")
    tablet = db._writer().root.table("t").tablets[0].id
    assert os.path.isfile(os.path.join(root, "nyala.json"))
    assert os.path.isfile(layout.position_path(root)) and layout.position_path(root).endswith("/wal/position")
    assert os.path.isfile(os.path.join(layout.wal_path(root), "wal-000000001"))
    db.flush()
    files = [path for path in (tmp_path / "s" / layout.tablet_directory(tablet)).iterdir() if path.is_file()]
    assert sorted(path.suffix for path in files) == [".base", ".undo"]
    assert {"lock", "staging", "data", "wal"} <= set(os.listdir(root))
    for path in [*db._writer().state.files(), *db._writer().state.garbage]:
        assert not os.path.isabs(path) and "\\" not in path
    db.close()


def test_paths_are_relative_to_the_store(tmp_path: Path) -> None:
    """A store that is moved or copied is the same store."""
    inside = os.path.join(str(tmp_path), "wal", "wal-000000001")
    assert layout.relative(str(tmp_path), inside) == "wal/wal-000000001"
    db = open_database(tmp_path / "s")
    key_value_table(db).insert({"k": [1], "v": [1]})
    db.flush()
    db["t"].update({"k": [1], "v": [2]})
    db.close()
    os.rename(tmp_path / "s", tmp_path / "moved")
    again = open_database(tmp_path / "moved")
    assert again["t"].get({"k": 1}) == {"k": 1, "v": 2}
    again.close()


def test_a_folder_with_other_files_does_not_become_a_store(tmp_path: Path) -> None:
    """A mistyped path must not put a store into a folder with other files."""
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("x")
    with pytest.raises(StorageError, match=r"a\.txt"):
        layout.prepare_folder(SYSTEM, str(tmp_path / "letters"))
    assert os.listdir(tmp_path / "letters") == ["a.txt"]
    layout.prepare_folder(SYSTEM, str(tmp_path / "new" / "deep"))
    assert (tmp_path / "new" / "deep").is_dir()
    layout.prepare_folder(SYSTEM, str(tmp_path / "new" / "deep"))  # empty: it may become one


def test_a_folder_is_a_store_if_it_has_nyala_json(tmp_path: Path) -> None:
    """Creating the store again does not change `nyala.json`."""
    with pytest.raises(StorageError, match="no Nyala store at") as error:
        layout.require_store(SYSTEM, str(tmp_path))
    assert error.value.path == str(tmp_path)
    layout.create_store(SYSTEM, str(tmp_path))
    content = (tmp_path / "nyala.json").read_bytes()
    layout.require_store(SYSTEM, str(tmp_path))
    assert {"checkpoints", "data", "staging", "wal"} <= set(os.listdir(tmp_path))
    layout.create_store(SYSTEM, str(tmp_path))
    assert (tmp_path / "nyala.json").read_bytes() == content


def test_missing_folders_are_created(tmp_path: Path) -> None:
    """A copy of a store without its empty folders can be opened."""
    open_database(tmp_path / "s").close()
    for name in ("staging", "data", "checkpoints"):
        (tmp_path / "s" / name).rmdir()
    db = open_database(tmp_path / "s")
    key_value_table(db).insert({"k": [1], "v": [1]})
    db.flush()
    db.close()
