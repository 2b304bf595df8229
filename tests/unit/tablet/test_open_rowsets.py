"""Rowsets that stay open between tokens return the same rows, and never those of other files."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.support import key_value_table, open_database

import nyala
from nyala.env import SYSTEM, Env, RandomFile
from nyala.errors import HistoryExpiredError
from nyala.tablet.scan import open_rowsets
from nyala.tablet.scan.open_rowsets import OpenRowSets
from nyala.tablet.scan.token import read_token
from nyala.testing import ManualClock
from nyala.testing.file_wrapper import FileWrapper


class CountingFiles(FileWrapper):
    """Files that note which paths were opened."""

    def __init__(self) -> None:
        super().__init__(SYSTEM.files)
        self.opened: list[str] = []

    def open(self, path: str) -> RandomFile:
        self.opened.append(Path(path).name)
        return super().open(path)


class Process:
    """A process that reads tokens: its files, clock and open rowsets."""

    def __init__(self) -> None:
        self.files, self.clock = CountingFiles(), ManualClock()
        self._env = Env(self.files, self.clock, SYSTEM.randomness)
        self._open = OpenRowSets()

    def read(self, token: bytes) -> tuple[dict[int, int], list[str]]:
        """Return the rows (v by k), and the files that were opened to read them."""
        self.files.opened.clear()
        batches = list(read_token(token, self._env, opened=self._open))
        opened = [re.sub("-[0-9a-f]{16}", "", name) for name in self.files.opened]
        return {r["k"]: r["v"] for batch in batches for r in batch.to_pylist()}, opened


def token_of(table: nyala.Table, **scan: Any) -> bytes:
    (token,) = table.scan(**scan).tokens()
    return token


def files_of(token: bytes) -> list[Any]:
    """Return the files of the token's rowsets."""
    (length,) = struct.unpack_from("<I", token, 16)
    return [part["files"] for part in json.loads(token[20 : 20 + length])["rowsets"]]


def test_files_are_opened_once(tmp_path: Path) -> None:
    """Tokens with other columns, predicates or moments use the same open rowset."""
    process = Process()
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        first = table.insert({"k": [1, 2], "v": [10, 20]}).timestamp
        table.flush()
        assert process.read(token_of(table)) == ({1: 10, 2: 20}, ["1.base"])
        assert process.read(token_of(table)) == ({1: 10, 2: 20}, [])
        assert process.read(token_of(table, where="v > 10")) == ({2: 20}, [])
        second = table.update({"k": [1], "v": [11]}).timestamp
        table.flush()
        assert process.read(token_of(table)) == ({1: 11, 2: 20}, ["1.base", "2.redo"])
        assert process.read(token_of(table, at=first)) == ({1: 10, 2: 20}, [])
        assert process.read(token_of(table, at=second)) == ({1: 11, 2: 20}, [])


def test_changes_in_memory_are_not_kept_for_other_tokens(tmp_path: Path) -> None:
    """A rowset stays open without the changes in a token. After a flush, the token has more files."""
    process = Process()
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1, 2], "v": [10, 20]})
        table.flush()
        before = token_of(table)
        assert process.read(before)[0] == {1: 10, 2: 20}
        table.update({"k": [1], "v": [11]})
        after = token_of(table)
        assert files_of(after) == files_of(before)
        assert process.read(after) == ({1: 11, 2: 20}, [])
        assert process.read(before) == ({1: 10, 2: 20}, [])
        table.flush()
        flushed, opened = process.read(token_of(table))
        assert (flushed, len(opened)) == ({1: 11, 2: 20}, 2)
        assert process.read(after) == ({1: 11, 2: 20}, [])


def test_t1_another_store_in_the_same_folder_is_read_from_its_own_files(tmp_path: Path) -> None:
    """Files of the new store have the same names and lengths, but other rows."""
    process, tokens = Process(), []
    for values in ([10, 20], [30, 40]):
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        clock = ManualClock()
        with open_database(tmp_path / "s", clock=clock) as db:
            table = key_value_table(db)
            table.insert({"k": [1, 2], "v": values})
            table.flush()
            tokens.append(token_of(table))
            assert process.read(tokens[-1]) == (dict(zip([1, 2], values, strict=True)), ["1.base"])


def test_a_deleted_file_is_expired_history_although_it_is_open(tmp_path: Path) -> None:
    process = Process()
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        table.flush()
        token = token_of(table)
        assert process.read(token)[0] == {1: 1}
        db.drop_table("t", purge=True)
        db._writer().collect_garbage()
        with pytest.raises(HistoryExpiredError, match=r"\.base.*load again"):
            process.read(token)


def test_t2_unused_rowsets_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: unused rowsets are closed after a time, or if too many are open.

    The next use opens them again.
    """
    process = Process()
    with open_database(tmp_path / "s") as db:
        tokens = {}
        for name in ("a", "b", "c"):
            table = db.create_table(name, {"k": "int64", "v": "int64"}, ["k"])
            table.insert({"k": [1], "v": [1]})
            table.flush()
            tokens[name] = token_of(table)
            assert process.read(tokens[name])[1] != []
        process.clock.advance(open_rowsets.IDLE_S - 1)
        assert process.read(tokens["a"])[1] == []
        assert process.read(tokens["b"])[1] == []
        process.clock.advance(2)
        assert process.read(tokens["a"])[1] == []
        assert process.read(tokens["b"])[1] == [], "the rowset of b was used two seconds ago"
        assert process.read(tokens["c"])[1] != [], "the rowset of c was closed"
        monkeypatch.setattr(open_rowsets, "ROWSETS_MAX", 2)
        assert process.read(tokens["b"])[1] == []
        assert process.read(tokens["c"])[1] == []
        assert process.read(tokens["a"])[1] != [], "the rowset of a was the least recently used"
