"""What a worker has imported is out of the garbage collector's sight at its next task."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from nyala.spark import reader


def test_what_was_imported_since_is_frozen_at_the_next_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow imports pandas when it meets a list, and from then on each collection takes 20 ms more."""
    monkeypatch.setattr(reader, "_modules_frozen", 0)
    monkeypatch.setattr(reader, "hold_nothing_back", lambda: None)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "came_late.py").write_text("kept = [[] for _ in range(1000)]\n")
    try:
        reader.begin_task()
        assert gc.get_freeze_count() > 0
        frozen = gc.get_freeze_count()
        reader.begin_task()
        assert gc.get_freeze_count() <= frozen, "nothing was imported"
        import came_late

        before = {id(each) for each in gc.get_objects()}
        assert all(id(each) in before for each in came_late.kept)
        reader.begin_task()
        assert gc.get_freeze_count() > frozen
        left = {id(each) for each in gc.get_objects()}
        assert not any(id(each) in left for each in came_late.kept)
    finally:
        gc.unfreeze()
        sys.modules.pop("came_late", None)
