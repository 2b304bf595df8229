"""Staging folders: a job's files are kept until the time in the folder's name (P3)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support import key_value_table, open_database

from nyala.catalog.leases import create_lease
from nyala.env import Env, system_files
from nyala.errors import InvalidArgumentError, StorageError
from nyala.tablet.jobs.staging import make_staging, plain_name, remove_expired_staging, staging_folder
from nyala.testing.clock import ManualClock, SeededRandomness


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def env(clock: ManualClock) -> Env:
    return Env(system_files(), clock, SeededRandomness())


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Path:
    with open_database(tmp_path / "s", clock=clock) as db:
        key_value_table(db)
    return tmp_path / "s"


def names(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "staging").iterdir())


def test_a_staging_folder_is_removed_when_it_has_expired(store: Path, env: Env, clock: ManualClock) -> None:
    short, folder = make_staging(env, str(store), 60)
    long, _ = make_staging(env, str(store), 3600)
    Path(folder, "0.arrow").write_bytes(b"rows")
    assert staging_folder(str(store), short) == folder and short != long
    clock.advance(59.999)
    assert remove_expired_staging(env, str(store)) == 0
    clock.advance(0.001)
    assert remove_expired_staging(env, str(store)) == 1
    assert names(store) == [long]
    clock.advance(3600)
    assert remove_expired_staging(env, str(store)) == 1 and names(store) == []
    assert remove_expired_staging(env, str(store)) == 0


@pytest.mark.parametrize("owner", [None, "0" * 40])
def test_a_staging_folder_stays_as_long_as_its_lease(
    store: Path, env: Env, clock: ManualClock, owner: str | None
) -> None:
    """A staging folder is kept as long as its lease, also for a job of two days that renews its lease."""
    lease = create_lease(env, str(store), "remote", expires_us=env.clock.now_us() + 3_600_000_000)
    key, _ = make_staging(env, str(store), 60, owner, lease.name)
    other, _ = make_staging(env, str(store), 60, owner)
    for _ in range(48):
        clock.advance(3500)
        remove_expired_staging(env, str(store), strangers=True)
        assert names(store) == [key] and key != other
        lease.renew(env.clock.now_us() + 3_600_000_000)
    clock.advance(3600)
    assert remove_expired_staging(env, str(store)) == 1 and names(store) == []
    early, _ = make_staging(env, str(store), 60, owner, lease.name)
    assert remove_expired_staging(env, str(store)) == 0, "it has not expired"
    assert staging_folder(str(store), early).endswith(early)


def test_unknown_folders_are_removed_only_at_an_open(store: Path, env: Env, clock: ManualClock) -> None:
    """Unknown folders are removed when the store is opened. Later, a process may be creating one."""
    key, _ = make_staging(env, str(store), 60)
    (store / "staging" / "notes").mkdir()
    (store / "staging" / "notes" / "x").write_bytes(b"x")
    assert remove_expired_staging(env, str(store)) == 0
    with open_database(store, clock=clock):
        assert names(store) == [key]
    clock.advance(61)
    with open_database(store, clock=clock) as db:
        assert names(store) == []
        make_staging(env, str(store), -1)
        db.maintenance.run_once(db._writer())
        assert names(store) == []


def test_a_folder_with_an_invalid_lifetime_expires_at_once(store: Path, env: Env) -> None:
    make_staging(env, str(store), -1e12)
    assert remove_expired_staging(env, str(store)) == 1


def test_a_folder_is_created_only_in_a_store(tmp_path: Path, env: Env) -> None:
    """A mistyped path raises an error, and is not filled with files that no commit reads."""
    with pytest.raises(StorageError, match="no Nyala store"):
        make_staging(env, str(tmp_path / "nothing"), 60)
    assert not (tmp_path / "nothing").exists()
    assert remove_expired_staging(env, str(tmp_path / "nothing")) == 0


@pytest.mark.parametrize(
    "key",
    ["", ".", "..", "../data", "a/b", "0" * 14, "0" * 14 + "-" + "g" * 32, "0" * 14 + "-" + "0" * 33, "x\0"],
)
def test_a_key_cannot_name_a_folder_outside_of_staging(tmp_path: Path, key: str) -> None:
    """A job's key comes from another process, and must not lead to the removal of another folder."""
    with pytest.raises(InvalidArgumentError, match="not the key of a staged job"):
        staging_folder(str(tmp_path), key)


@given(st.text(max_size=8))
@example("\0")
@example("a/b")
def test_a_staged_files_name_cannot_have_folders(name: str) -> None:
    try:
        assert plain_name(name) == name
    except InvalidArgumentError:
        assert "/" in name or "\0" in name or name in ("", ".", "..")
    else:
        assert "/" not in name and "\0" not in name and name not in ("", ".", "..")
