"""The end of the log is lost or damaged, but the position record says that it was durable (R6).

So it is not a torn tail, and an open that refuses changes nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import nyala
from nyala.errors import CorruptionError
from tests.corruption.seeded import copy_store, files_of
from tests.support import key_value_table, open_database, rows


@pytest.mark.parametrize("read_only", [False, True])
def test_r6_a_log_cut_off_at_its_very_end_is_damage(tmp_path: Path, read_only: bool) -> None:
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    table.insert({"k": [2], "v": [2]})
    db.close()
    segment = tmp_path / "s" / "wal" / "wal-000000001"
    whole = segment.read_bytes()
    segment.write_bytes(whole[: len(whole) - 64])  # without rows, only the footer is lost
    nyala.connect(tmp_path / "s", read_only=True).close()
    for length in (len(whole) - 80, 985, 64, 0):
        segment.write_bytes(whole[:length])
        with pytest.raises(CorruptionError, match="cut off"):
            nyala.connect(tmp_path / "s", read_only=read_only)
    segment.write_bytes(whole)
    with nyala.connect(tmp_path / "s", read_only=read_only) as db:
        assert rows(db["t"]) == [(1, 1), (2, 2)]


def test_r6_a_refused_open_changes_no_file(tmp_path: Path) -> None:
    """The torn end and orphans stay, so that the log can still be restored."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    table.insert({"k": [2], "v": [2]})
    killed = copy_store(tmp_path / "s", tmp_path / "killed")
    db.close()
    segment = max((killed / "wal").glob("wal-*"))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-40] + bytes(20))
    (killed / "data" / "1" / "orphan.base").write_bytes(b"nobody names this")
    (killed / "staging" / "stranger").mkdir()
    before = {
        name: (killed / name).read_bytes() for name in files_of(killed) if not name.startswith("catalog")
    }
    for _ in range(2):
        with pytest.raises(CorruptionError, match="ends before what was synced"):
            open_database(killed)
        after = {
            name: (killed / name).read_bytes() for name in files_of(killed) if not name.startswith("catalog")
        }
        assert after == before and (killed / "staging" / "stranger").exists()
    segment.write_bytes(whole)
    with open_database(killed) as db:
        assert rows(db["t"]) == [(1, 1), (2, 2)]
    assert not (killed / "data" / "1" / "orphan.base").exists()


@pytest.mark.parametrize("how", ["flipped", "cut", "whole segment gone"])
@pytest.mark.parametrize("read_only", [False, True])
def test_r6_a_later_catalogue_change_does_not_hide_a_lost_end_of_the_log(
    tmp_path: Path, how: str, read_only: bool
) -> None:
    """The error names the byte."""
    db = open_database(tmp_path / "s")
    key_value_table(db).insert({"k": [1], "v": [1]})
    key_value_table(db, "later")
    killed = copy_store(tmp_path / "s", tmp_path / "killed")
    db.close()
    (killed / "lock").unlink()  # the lock names this process, which is alive
    segment = killed / "wal" / "wal-000000001"
    whole = segment.read_bytes()
    if how == "flipped":
        segment.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    elif how == "cut":
        segment.write_bytes(whole[: len(whole) // 2])
    else:
        segment.unlink()
    with pytest.raises(CorruptionError, match="ends before what was synced"):
        nyala.connect(killed, read_only=read_only)
    assert not nyala.check(killed).ok


@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_r6_a_damaged_footer_of_a_closed_log_is_damage(tmp_path: Path, how: str) -> None:
    db = open_database(tmp_path / "s")
    key_value_table(db).insert({"k": [1], "v": [1]})
    db.close()
    segment = tmp_path / "s" / "wal" / "wal-000000001"
    whole = segment.read_bytes()
    for offset in (64, 40, 1):
        damaged = bytearray(whole)
        damaged[-offset] ^= 1
        segment.write_bytes(damaged if how == "flipped" else whole[:-offset])
        assert not nyala.check(tmp_path / "s").ok
        with pytest.raises(CorruptionError, match="ends before what was synced"):
            open_database(tmp_path / "s")
        with nyala.connect(tmp_path / "s", read_only=True) as reader:
            assert rows(reader["t"]) == [(1, 1)]
    segment.write_bytes(whole)
    for number in range(2, 4):  # closed without a write, and after a write
        with open_database(tmp_path / "s") as db:
            assert len(rows(db["t"])) == max(1, number - 2)
            if number == 3:
                db["t"].insert({"k": [number], "v": [number]})
    assert nyala.check(tmp_path / "s").ok


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_store_without_its_log_is_refused_and_not_changed(tmp_path: Path, with_checkpoint: bool) -> None:
    """It would otherwise open as an older or an empty store."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        db.flush()
        if with_checkpoint:
            db._writer().collect_garbage()
    shutil.rmtree(tmp_path / "s" / "wal")
    before = files_of(tmp_path / "s")
    for read_only in (False, True):
        with pytest.raises(CorruptionError, match="the log is missing"):
            nyala.connect(tmp_path / "s", read_only=read_only)
    assert "the log is missing" in nyala.check(tmp_path / "s", repair=True).problems[0].message
    assert files_of(tmp_path / "s") == before
