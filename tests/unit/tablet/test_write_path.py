"""The life of a write: all or nothing, also under Ctrl-C, retries and alterations in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import key_value_table, open_database, rows

from nyala.errors import StorageError


@pytest.mark.parametrize("taken", [False, True])
def test_an_interrupt_in_the_log_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool) -> None:
    """Ctrl-C before the log took the record changed nothing; behind that moment the outcome is unknown, and the
    row is never there twice."""
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [0], "v": [0]})
    store = db._writer()
    append = store.log.append

    def interrupted(record: Any) -> int:
        if taken:
            append(record)
        raise KeyboardInterrupt

    monkeypatch.setattr(store.log, "append", interrupted)
    with pytest.raises(StorageError if taken else KeyboardInterrupt) as stopped:
        table.insert({"k": [1], "v": [1]})
    monkeypatch.undo()
    if taken:
        assert stopped.value.outcome == "unknown" and "KeyboardInterrupt" in str(stopped.value)  # type: ignore[attr-defined]
        with pytest.raises(StorageError, match="takes no more writes"):
            table.insert({"k": [1], "v": [2]})
    else:
        table.insert({"k": [1], "v": [2]})
    db.close()
    again = open_database(tmp_path / "s")
    assert rows(again["t"]) in ([[(0, 0), (1, 1)], [(0, 0)]] if taken else [[(0, 0), (1, 2)]])
    for rowset in again._writer().root.table("t").tablets[0].all_rowsets():
        rowset.check()
    again["t"].upsert({"k": [1], "v": [3]})
    assert rows(again["t"]) == [(0, 0), (1, 3)]
    again.close()
