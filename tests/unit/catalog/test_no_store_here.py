"""On a host that does not see the store's folder, the error is about the folder, not about a lease."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

import nyala
from nyala.env import SYSTEM, MissingFileError
from nyala.handover import commits as handover
from nyala.tablet.state.leased_files import kept_by_lease


def test_a_missing_folder_differs_from_an_ended_lease(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    nyala.connect(store, maintenance=False).close()
    name = handover.remote_lease(store, 60).name
    gone = f"{store}/data/1/r1.cfile"

    def meet_a_missing_file() -> None:
        with kept_by_lease("this scan", "load again"):
            raise MissingFileError(f"no such file: {gone}", path=gone)

    with pytest.raises(nyala.HistoryExpiredError):
        handover.renew_lease(store, "remote-0123456789abcdef", 60, SYSTEM)
    with pytest.raises(nyala.HistoryExpiredError):
        meet_a_missing_file()
    shutil.rmtree(store)
    for act in (lambda: handover.renew_lease(store, name, 60, SYSTEM), meet_a_missing_file):
        with pytest.raises(
            nyala.StorageError, match=f"host {socket.gethostname()} does not see the store"
        ) as raised:
            act()
        assert store in str(raised.value) and not isinstance(raised.value, nyala.HistoryExpiredError)
