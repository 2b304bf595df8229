"""Loading the catalogue: from a checkpoint, and from the later changes in the log."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.catalog.conftest import delta, part, rowset, table, tablet

from nyala.catalog import checkpoint
from nyala.catalog.checkpoint import (
    StoreIdentity,
    checkpoint_path,
    checkpoint_versions,
    newest_checkpoint,
    read_checkpoint,
    read_identity,
    write_checkpoint,
    write_identity,
)
from nyala.catalog.codec import decode_change, decode_state, encode_change, encode_state
from nyala.catalog.format import FORMAT_VERSION
from nyala.catalog.loading import apply_changes, find_store, read_catalogue
from nyala.catalog.model import CatalogChange, CatalogState, CommittedKey, apply, purging_tables
from nyala.env import SYSTEM, Env
from nyala.errors import CorruptionError, InvalidArgumentError, StorageError
from nyala.wal.reader import recover
from nyala.wal.record import ChangeRecord
from nyala.wal.writer import LogWriter

IDENTITY = StoreIdentity("a" * 32, 1_700_000_000_000_000)


def log_changes(path: Path, *changes: CatalogChange) -> CatalogState:
    """Append these changes to the log of the store; return the catalogue after them."""
    folder, wal = str(path), str(path / "wal")
    state, _ = read_catalogue(SYSTEM, folder, wal, None)
    log = LogWriter(SYSTEM, wal, recover(SYSTEM, wal, state.wal_start, state.store_id))
    for change in changes:
        state = apply(state, change)
        log.append_change(ChangeRecord(encode_change(change, state.version)))
    log.close()
    return state


@pytest.fixture
def store(tmp_path: Path, env: Env) -> Path:
    write_identity(env, str(tmp_path))
    env.files.make_dirs(str(tmp_path / "checkpoints"))
    return tmp_path


# --- JSON -------------------------------------------------------------------------------------------


def test_every_kind_of_entry_can_be_decoded_again(full_change: CatalogChange) -> None:
    state = apply(IDENTITY.catalogue(), full_change)
    assert decode_state(encode_state(state)) == state
    assert decode_change(encode_change(full_change, 2)) == (2, full_change)
    assert decode_change(encode_change(CatalogChange(), 7)) == (7, CatalogChange())


def change_of(state: CatalogState, steps: list[tuple[str, int]], full: CatalogChange) -> CatalogChange:
    """Return a change that is valid for this state."""
    change = CatalogChange(timestamp=state.timestamp_max + len(steps))
    for step, number in steps:
        match step:
            case "table" if not state.tables:
                change.put_tables, change.put_tablets = [table()], [tablet(1), tablet(2)]
            case "rowset" if 1 in state.tablets:
                change.put_rowsets = [rowset(state.next_rowset_id, 1)]
            case "raise" if state.rowsets:
                one = state.rowsets[min(state.rowsets)]
                change.put_rowsets = [dataclasses.replace(one, deltas_durable=state.timestamp_max)]
            case "delta" if state.rowsets:
                change.put_deltas = [delta(state.next_delta_id, min(state.rowsets))]
            case "part" if state.rowsets and not change.put_deltas:
                change.put_parts = [part(state.next_delta_id, min(state.rowsets))]
            case "drop" if state.tables and not change.put_tables:
                return purging_tables(state, [1], state.timestamp_max)
            case "garbage":
                change.garbage = [f"data/1/old{state.version}.base"]
            case "collect" if state.garbage:
                change.collected = [min(state.garbage)]
            case "key":
                change.committed_keys = [CommittedKey(f"k{state.version}", 1, "{}")]
            case "log":
                change.wal_start = state.wal_start + number
    return change


STEPS = st.sampled_from(
    ["table", "rowset", "raise", "delta", "part", "drop", "garbage", "collect", "key", "log"]
)


@settings(max_examples=60)
@given(st.lists(st.lists(st.tuples(STEPS, st.integers(0, 3)), max_size=3), max_size=8), st.integers(0, 8))
def test_changes_after_any_checkpoint_give_the_same_catalogue(
    history: list[list[tuple[str, int]]], checkpoint_at: int
) -> None:
    """Changes give the same catalogue when they are applied to version 1, or to any later checkpoint."""
    states = [IDENTITY.catalogue()]
    records = []
    for steps in history:
        change = change_of(states[-1], steps, CatalogChange())
        states.append(apply(states[-1], change))
        records.append(ChangeRecord(encode_change(change, states[-1].version)))
    assert apply_changes(states[0], records) == states[-1]
    middle = decode_state(encode_state(states[min(checkpoint_at, len(states) - 1)]))
    assert apply_changes(middle, records) == states[-1]


def test_a_missing_change_is_damage(full_change: CatalogChange) -> None:
    records = [ChangeRecord(encode_change(full_change, 2)), ChangeRecord(encode_change(CatalogChange(), 4))]
    with pytest.raises(CorruptionError, match="changes are missing"):
        apply_changes(IDENTITY.catalogue(), records)


def forged(change: CatalogChange, **fields: object) -> bytes:
    return json.dumps({**json.loads(encode_change(change, 2)), **fields}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b"\xff", b'{"version": "2", "timestamp": 0}', b'{"version": 2}',
        forged(CatalogChange(), surprise=1), forged(CatalogChange(), put_tables=[{}]),
        forged(CatalogChange(), drop_rowsets=[1.5]), forged(CatalogChange(), drop_rowsets=[99]),
        forged(CatalogChange(), garbage=["../../etc/passwd"]), forged(CatalogChange(put_rowsets=[rowset()])),
        forged(CatalogChange(), wal_start=-1),
    ],
)  # fmt: skip
def test_an_invalid_change_is_damage(data: bytes) -> None:
    """The error names the log segment and the offset of the change."""
    with pytest.raises(CorruptionError, match="a change of the catalogue is invalid") as error:
        apply_changes(IDENTITY.catalogue(), [ChangeRecord(data, 0, ("wal-000000001", 64))])
    assert (error.value.path, error.value.offset) == ("wal-000000001", 64)


# --- files ------------------------------------------------------------------------------------------


def test_a_checkpoint_and_the_changes_after_it_are_the_catalogue(
    store: Path, full_change: CatalogChange
) -> None:
    folder, wal = str(store), str(store / "wal")
    assert read_catalogue(SYSTEM, folder, wal, None)[0] == read_identity(SYSTEM.files, folder).catalogue()
    full_change.wal_start = None
    second = log_changes(store, full_change)
    write_checkpoint(SYSTEM.files, folder, second)
    fourth = log_changes(store, CatalogChange(garbage=["data/1/9.base"]), CatalogChange(drop_parts=[3]))
    assert read_catalogue(SYSTEM, folder, wal, None)[0] == fourth
    assert (second.version, fourth.version) == (2, 4)
    write_checkpoint(SYSTEM.files, folder, fourth)
    assert checkpoint_versions(SYSTEM.files, folder) == [2, 4]
    assert read_catalogue(SYSTEM, folder, wal, None)[0] == fourth


def test_a_reader_without_a_lease_loads_again(
    store: Path, full_change: CatalogChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer removes an old checkpoint and log segments while a process reads the catalogue."""
    folder, wal = str(store), str(store / "wal")
    state = log_changes(store, full_change)
    read = checkpoint.read_checkpoint
    write_checkpoint(SYSTEM.files, folder, state)
    newest = log_changes(store, CatalogChange())

    def overtaken(files: object, path: str, store_id: str) -> CatalogState:
        found = read(SYSTEM.files, path, store_id)
        monkeypatch.undo()
        write_checkpoint(SYSTEM.files, folder, newest)
        (store / "checkpoints" / f"{state.version:012d}").unlink()
        for segment in sorted((store / "wal").iterdir())[:-1]:
            segment.unlink()
        return found

    monkeypatch.setattr(checkpoint, "read_checkpoint", overtaken)
    assert read_catalogue(SYSTEM, folder, wal, None)[0] == newest


def test_a_checkpoint_of_another_store_is_refused(store: Path, tmp_path: Path) -> None:
    folder = str(store)
    path = write_checkpoint(SYSTEM.files, folder, IDENTITY.catalogue())
    with pytest.raises(CorruptionError, match="another store"):
        newest_checkpoint(SYSTEM.files, folder, read_identity(SYSTEM.files, folder))
    assert path == checkpoint_path(folder, 1)


@pytest.mark.parametrize("what", ["nyala.json", "checkpoint"])
def test_every_flipped_bit_and_every_length_is_damage(
    store: Path, what: str, full_change: CatalogChange
) -> None:
    """Each flipped bit and each cut is an error: damage, or an unknown format version."""
    folder = str(store)
    identity = read_identity(SYSTEM.files, folder)
    state = apply(identity.catalogue(), full_change)
    path = Path(write_checkpoint(SYSTEM.files, folder, state))
    if what == "nyala.json":
        path = store / what
    whole = path.read_bytes()

    def read() -> object:
        if what == "nyala.json":
            return read_identity(SYSTEM.files, folder)
        return read_checkpoint(SYSTEM.files, str(path), identity.store_id)

    expected = read()
    damaged = [whole[:at] for at in range(len(whole))] + [whole + b"x"]
    damaged += [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for content in damaged:
        path.write_bytes(content)
        try:
            assert read() == expected, "damage was not noticed"
            assert content == whole
        except CorruptionError as error:
            assert error.path == str(path)
        except StorageError as error:
            assert "format version" in str(error)


def test_a_length_is_checked_before_it_is_allocated(store: Path) -> None:
    folder = str(store)
    identity = read_identity(SYSTEM.files, folder)
    path = Path(write_checkpoint(SYSTEM.files, folder, identity.catalogue()))
    header = checkpoint.CHECKPOINT.decode(path.read_bytes(), 0, str(path), 0)
    stored = path.read_bytes()[checkpoint.CHECKPOINT.size_bytes :]
    path.write_bytes(checkpoint.CHECKPOINT.encode({**header, "length": 1 << 60}) + stored)
    with pytest.raises(CorruptionError):
        read_checkpoint(SYSTEM.files, str(path), identity.store_id)


def test_an_idempotency_key_is_used_once(full_change: CatalogChange) -> None:
    state = apply(IDENTITY.catalogue(), full_change)
    with pytest.raises(InvalidArgumentError, match=r"spark-job-7.*timestamp 55"):
        apply(state, CatalogChange(committed_keys=[CommittedKey("spark-job-7", 60)]))


# --- folders ----------------------------------------------------------------------------------------


def test_a_folder_with_nyala_json_is_a_store(tmp_path: Path, env: Env) -> None:
    assert not find_store(env, str(tmp_path / "nothing"))
    assert not find_store(env, str(tmp_path))
    write_identity(env, str(tmp_path))
    assert find_store(env, str(tmp_path))
    with pytest.raises(StorageError, match="is a store already"):
        write_identity(env, str(tmp_path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("letter.txt", r"other files \(letter\.txt\)"),
        ("wal", "looks like a store, but nyala.json is missing"),
        ("catalog.sqlite", "never released"),
    ],
)
def test_a_folder_with_other_files_is_refused(tmp_path: Path, env: Env, name: str, says: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(StorageError, match=says):
        find_store(env, str(tmp_path))


def test_files_of_an_interrupted_creation_are_ignored(tmp_path: Path, env: Env) -> None:
    """A store can be created in a folder where an earlier creation was interrupted."""
    for name in ("lock", "leases", "nyala.json.12-ab.tmp"):
        (tmp_path / name).write_text("")
    assert not find_store(env, str(tmp_path))


def test_the_error_names_another_format_version(store: Path) -> None:
    path = store / "nyala.json"
    for version in (FORMAT_VERSION - 1, FORMAT_VERSION + 1):
        fields = {**json.loads(path.read_bytes()), "format_version": version}
        del fields["crc32c"]
        path.write_text(json.dumps({**fields, "crc32c": checkpoint._crc(fields)}))
        with pytest.raises(StorageError, match=f"version {version}") as error:
            read_identity(SYSTEM.files, str(store))
        assert ("update Nyala" in str(error.value)) == (version > FORMAT_VERSION)
