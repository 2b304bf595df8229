"""The catalogue on disk: a committed change is loaded whole, and a failed one leaves no trace."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from nyala.catalog.format import APPLICATION_ID, FORMAT_VERSION
from nyala.catalog.model import CatalogChange, CatalogState, CommittedKey, apply, dropping_tables
from nyala.catalog.store import Catalog, find_store
from nyala.env import Env, PosixFiles
from nyala.errors import CorruptionError, InvalidArgumentError, ReadOnlyError, StorageError
from nyala.testing.recording_files import RecordingFiles

Reopened = Callable[[], CatalogState]


def test_new_store_is_empty_and_is_found_again(catalog: Catalog, reopened: Reopened) -> None:
    """A new store opens again, and is empty."""
    assert catalog.state.version == 1
    assert (catalog.state.next_table_id, catalog.state.wal_start) == (1, 1)
    assert not catalog.state.tables and not catalog.state.rowsets
    assert reopened() == catalog.state


def test_everything_committed_is_found_again(
    catalog: Catalog, full_change: CatalogChange, reopened: Reopened
) -> None:
    """Tables, files, garbage and idempotency keys survive a restart exactly."""
    state = catalog.commit(full_change)
    assert state is catalog.state
    assert state.version == 2
    found = reopened()
    assert found == state
    assert found.tables[1].schema.by_name("delay").write_default == -0.5
    assert found.garbage == {"wal/000001.log": 2, "data/1/ü.base": 2}
    assert found.committed_keys["spark-job-7"] == CommittedKey("spark-job-7", 55, '{"inserted":3}', 2)
    assert (found.next_table_id, found.next_tablet_id, found.next_rowset_id, found.next_delta_id) == (
        2,
        3,
        3,
        4,
    )
    catalog.close()
    assert reopened() == state, "also after the writer's clean close"


def test_a_version_does_not_change_when_the_next_is_committed(
    catalog: Catalog, full_change: CatalogChange
) -> None:
    """A scan that began before a flush continues with its files."""
    first = catalog.commit(full_change)
    before = dataclasses.asdict(first.rowsets[1])
    second = catalog.commit(CatalogChange(drop_deltas=[2], garbage=["data/1/2.redo"], timestamp=61))
    assert set(first.deltas) == {1, 2} and set(second.deltas) == {1}
    assert dataclasses.asdict(first.rowsets[1]) == before
    assert first.rowsets is second.rowsets, "what did not change is shared"
    with pytest.raises(TypeError):
        first.rowsets[9] = first.rowsets[1]  # type: ignore[index]


operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "mark", "garbage", "collect", "key", "nothing"]), st.integers(1, 6)
    ),
    min_size=1,
    max_size=12,
)


def change_of(state: CatalogState, steps: list[tuple[str, int]], full: CatalogChange) -> CatalogChange:
    """One transaction of those steps that are valid in `state`."""
    change = CatalogChange(timestamp=state.timestamp_max + 1)
    template = full.put_rowsets[0]
    for step, number in steps:
        path = f"data/{state.version}/{number}"
        touched = {entry.id for entry in change.put_rowsets} | set(change.drop_rowsets)
        if step == "put":
            new = state.next_rowset_id + number
            change.put_rowsets.append(
                dataclasses.replace(template, id=new, path=path, places=template.places[: number % 4])
            )
        elif number in state.rowsets and number not in touched and step == "drop":
            change.drop_rowsets.append(number)
            change.drop_deltas += [d.id for d in state.deltas.values() if d.rowset_id == number]
            change.drop_parts += [p.id for p in state.parts.values() if p.rowset_id == number]
        elif number in state.rowsets and number not in touched and step == "mark":
            raised = dataclasses.replace(state.rowsets[number], deltas_durable=state.timestamp_max + 5)
            change.put_rowsets.append(raised)
        elif step == "garbage":
            change.garbage.append(path + ".old")
        elif step == "collect":
            change.collected = sorted(state.garbage)[:number]
        elif step == "key" and not change.committed_keys:
            change.committed_keys.append(CommittedKey(f"{state.version}-{number}", state.timestamp_max))
    return change


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(operations, max_size=5))
def test_any_history_is_found_again(
    history: list[list[tuple[str, int]]],
    full_change: CatalogChange,
    env: Env,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """After any sequence of puts, replacements and drops, the disk equals the state in memory."""
    path = str(tmp_path_factory.mktemp("history") / "catalog.sqlite")
    with Catalog.create(env, path) as catalog:
        catalog.commit(full_change)
        for steps in history:
            change = change_of(catalog.state, steps, full_change)
            expected = apply(catalog.state, change)
            assert catalog.commit(change) == expected
        assert Catalog.open(env, path, read_only=True).load() == catalog.state
        assert catalog.load() == catalog.state


def test_a_dropped_table_takes_all_that_is_its_own_along(
    catalog: Catalog, full_change: CatalogChange, reopened: Reopened
) -> None:
    """drop_table leaves no tablets or files behind, and the files become garbage."""
    state = catalog.commit(full_change)
    after = catalog.commit(dropping_tables(state, [1], 70))
    assert not after.tables and not after.tablets and not after.rowsets and not after.deltas
    assert set(after.garbage) == {*state.files(), *state.garbage}
    assert after.garbage["data/1/1.base"] == after.version
    assert (after.next_table_id, after.next_rowset_id) == (2, 3), "M2: ids are not used again"
    assert reopened() == after


def test_T1_highest_timestamp_is_stored_and_never_falls(catalog: Catalog, full_change: CatalogChange) -> None:
    """After a restart no new write may get a timestamp that an old one had."""
    assert catalog.commit(CatalogChange(timestamp=100)).timestamp_max == 100
    assert catalog.commit(full_change).timestamp_max == 100
    raised = dataclasses.replace(catalog.state.tablets[1], inserts_durable=2**62)
    assert catalog.commit(CatalogChange(timestamp=5, put_tablets=[raised])).timestamp_max == 2**62
    assert catalog.load().timestamp_max == 2**62


def test_an_idempotency_key_is_used_once(catalog: Catalog, full_change: CatalogChange) -> None:
    """A job that is run twice does not load its data twice."""
    state = catalog.commit(full_change)
    with pytest.raises(InvalidArgumentError, match="'spark-job-7' was already used"):
        catalog.commit(CatalogChange(committed_keys=[CommittedKey("spark-job-7", 70)]))
    assert catalog.state is state
    dropped = catalog.commit(CatalogChange(drop_committed_keys=["spark-job-7"]))
    assert not dropped.committed_keys
    assert catalog.commit(CatalogChange(committed_keys=[CommittedKey("spark-job-7", 70)])).committed_keys


# --- readers ----------------------------------------------------------------------------------------


def test_P1_a_reader_sees_each_commit_and_keeps_nothing_open(
    catalog: Catalog, full_change: CatalogChange, env: Env, path: str
) -> None:
    """Readers follow a living writer, and never keep its log from being emptied."""
    reader = Catalog.open(env, path, read_only=True)
    assert reader.load().version == 1
    state = catalog.commit(full_change)
    assert reader.load() == state
    assert catalog._connection is not None
    busy, _, _ = catalog._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0
    with pytest.raises(ReadOnlyError):
        reader.commit(CatalogChange())


def test_P1_a_reader_never_sees_half_a_transaction(
    catalog: Catalog, full_change: CatalogChange, env: Env, path: str
) -> None:
    """A reader that opens in the middle of a writer's work gets one of its versions, whole."""
    base = catalog.commit(full_change)
    versions = {base.version: base}
    done = threading.Event()

    def write() -> None:
        template = full_change.put_rowsets[0]
        for number in range(40):
            state = catalog.state
            change = CatalogChange(timestamp=state.timestamp_max + 1)
            change.put_rowsets = [
                dataclasses.replace(template, id=state.next_rowset_id + n, path=f"d/{number}/{n}")
                for n in range(5)
            ]
            new = apply(state, change)
            versions[new.version] = new
            catalog.commit(change)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    reader = Catalog.open(env, path, read_only=True)
    while not done.is_set():
        seen.append(reader.load())
    writer.join()
    assert all(state == versions[state.version] for state in seen)
    assert [s.version for s in seen] == sorted(s.version for s in seen)


def test_a_reader_needs_no_writer(catalog: Catalog, full_change: CatalogChange, env: Env, path: str) -> None:
    """A store without a writer can be read, after a close and after a kill."""
    state = catalog.commit(full_change)
    catalog.close()
    assert not os.path.exists(path + "-wal")
    assert Catalog.open(env, path, read_only=True).load() == state


WRITER_THAT_DIES = """
import os, sys
from nyala.catalog.model import CatalogChange
from nyala.catalog.store import Catalog
from nyala.env import SYSTEM
catalog = Catalog.open(SYSTEM, sys.argv[1])
catalog.load()
for timestamp in range(1, 20):
    catalog.commit(CatalogChange(timestamp=timestamp, garbage=[f"old/{timestamp}"]))
catalog._connection.execute("BEGIN IMMEDIATE")
catalog._connection.execute("DELETE FROM garbage")
os.kill(os.getpid(), 9)
"""


def test_a_killed_writer_loses_nothing_that_it_committed(catalog: Catalog, env: Env, path: str) -> None:
    """After kill -9 in a transaction the store has exactly the committed changes."""
    catalog.close()
    child = subprocess.run([sys.executable, "-c", WRITER_THAT_DIES, path], check=False)
    assert child.returncode == -9
    assert Catalog.open(env, path, read_only=True).load().version == 20
    with Catalog.open(env, path) as again:
        assert again.load().garbage == {f"old/{n}": n + 1 for n in range(1, 20)}
        assert again.commit(CatalogChange(timestamp=99)).version == 21


class CommitRecorder(PosixFiles):
    def __init__(self) -> None:
        self.images: list[tuple[str, dict[str, bytes]]] = []

    def external_commit(self, path: str) -> None:
        files = {s: Path(path + s).read_bytes() for s in ("", "-wal") if os.path.exists(path + s)}
        self.images.append((os.path.basename(path), files))


def test_what_is_on_disk_when_commit_reports_is_the_whole_commit(
    tmp_path: Path, env: Env, full_change: CatalogChange
) -> None:
    """A power cut right after a commit finds it: database and log as they are then are enough."""
    recorder = CommitRecorder()
    path = str(tmp_path / "catalog.sqlite")
    states = []
    with Catalog.create(dataclasses.replace(env, files=recorder), path) as catalog:
        states.append(catalog.state)
        states.append(catalog.commit(full_change))
        states.append(catalog.commit(dropping_tables(catalog.state, [1], 90)))
    assert [name for name, _ in recorder.images] == ["catalog.sqlite.new"] + ["catalog.sqlite"] * 3
    assert "-wal" not in recorder.images[1][1], "a new catalogue is one file, whole"
    for number, (state, (_, files)) in enumerate(zip(states, recorder.images[1:], strict=True)):
        copy = tmp_path / f"copy{number}"
        copy.mkdir()
        for suffix, content in files.items():
            (copy / f"catalog.sqlite{suffix}").write_bytes(content)
        with Catalog.open(env, str(copy / "catalog.sqlite")) as found:
            assert found.load() == state


def test_a_power_cut_at_any_moment_leaves_a_whole_catalogue_or_none(
    tmp_path: Path, env: Env, full_change: CatalogChange
) -> None:
    """Created or not, one version or the next: never a store that cannot be opened, never a lost commit."""
    folder = tmp_path / "store"
    folder.mkdir()
    recording = RecordingFiles(PosixFiles(), str(folder))
    env = dataclasses.replace(env, files=recording)
    acknowledged: dict[int, int] = {}  # events so far to the version acknowledged by then
    states: dict[int, CatalogState] = {}
    path = str(folder / "catalog.sqlite")
    with Catalog.create(env, path) as catalog:
        for change in (None, full_change, CatalogChange(timestamp=70, collected=["wal/000001.log"])):
            state = catalog.state if change is None else catalog.commit(change)
            states[state.version] = state
            acknowledged[len(recording.events)] = state.version
    for upto in range(len(recording.events) + 1):
        least = max((version for events, version in acknowledged.items() if events <= upto), default=0)
        for seed in range(5):
            image = tmp_path / f"{upto}-{seed}"
            recording.crash_image(upto, random.Random(seed), str(image))
            plain = dataclasses.replace(env, files=PosixFiles())
            if find_store(plain, str(image)):
                with Catalog.open(plain, str(image / "catalog.sqlite")) as found:
                    state = found.load()
            else:
                with Catalog.create(plain, str(image / "catalog.sqlite")) as found:
                    state = found.state
                assert not least
                continue
            assert state.version >= least and state == states[state.version]


# --- refusing ---------------------------------------------------------------------------------------


def test_no_store_is_a_storage_error(tmp_path: Path, env: Env) -> None:
    """A wrong path raises an error about the path, not SQLite's message, and creates no file."""
    for read_only in (False, True):
        with pytest.raises(StorageError, match="there is no store in .*check the path"):
            Catalog.open(env, str(tmp_path / "catalog.sqlite"), read_only=read_only)
    assert os.listdir(tmp_path) == []


def test_a_folder_of_other_things_is_no_store(tmp_path: Path, env: Env) -> None:
    """connect("~/Documents") does not begin a store among the user's papers."""
    assert not find_store(env, str(tmp_path / "missing"))
    assert not find_store(env, str(tmp_path))
    for name in ("lock", "catalog.sqlite.new", "catalog.sqlite.new-wal", "writer.sock"):
        (tmp_path / name).touch()
    (tmp_path / "leases").mkdir()
    assert not find_store(env, str(tmp_path)), "what a creation that was cut short leaves is no hindrance"
    (tmp_path / "letter.txt").touch()
    with pytest.raises(StorageError, match=r"not a Nyala store.*letter\.txt"):
        find_store(env, str(tmp_path))
    (tmp_path / "catalog.sqlite").touch()
    assert find_store(env, str(tmp_path))


def test_a_store_without_its_catalogue_is_not_created_again(tmp_path: Path, env: Env) -> None:
    """A new catalogue would make all data files orphans, and they would be deleted."""
    (tmp_path / "data").mkdir()
    with pytest.raises(StorageError, match=r"catalog\.sqlite is missing.*backup"):
        find_store(env, str(tmp_path))


def test_a_file_in_place_of_the_folder(tmp_path: Path, env: Env) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot list"):
        find_store(env, str(tmp_path / "file"))


def test_create_refuses_to_replace(catalog: Catalog, env: Env, path: str) -> None:
    with pytest.raises(StorageError, match="a catalogue already exists"):
        Catalog.create(env, path)


def test_create_replaces_its_own_unfinished_work(tmp_path: Path, env: Env) -> None:
    """A crash while a store is created does not stop the next attempt."""
    (tmp_path / "catalog.sqlite.new").write_bytes(b"half")
    (tmp_path / "catalog.sqlite.new-wal").write_bytes(b"half")
    Catalog.create(env, str(tmp_path / "catalog.sqlite")).close()
    assert os.listdir(tmp_path) == ["catalog.sqlite"]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_future_version_is_named(catalog: Catalog, env: Env, path: str, read_only: bool) -> None:
    """The error names the store's version, the newest readable version, and the remedy."""
    catalog.close()
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA user_version = 7")
        raw.execute("UPDATE store SET format_version = 7")
        raw.execute("CREATE TABLE something_new (a)")
    raw.close()
    before = Path(path).read_bytes()
    with pytest.raises(StorageError, match=r"format version 7.*up to 4.*update Nyala"):
        Catalog.open(env, path, read_only=read_only)
    assert Path(path).read_bytes() == before, "and is left as it was"


def test_a_version_that_only_the_header_claims_is_damage(catalog: Catalog, env: Env, path: str) -> None:
    """A flipped bit in the version must not send the user for an update that does not exist."""
    catalog.close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 7")
    raw.close()
    with pytest.raises(CorruptionError, match="user_version is 7, expected 4"):
        Catalog.open(env, path)


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, b"SQLite format 3\0" + bytes(4080)])
def test_what_is_not_a_database_is_damage(tmp_path: Path, env: Env, content: bytes) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(content)
    with pytest.raises(CorruptionError, match=r"catalog\.sqlite: "):
        Catalog.open(env, str(tmp_path / "catalog.sqlite")).load()


def test_another_programs_database_is_damage(tmp_path: Path, env: Env) -> None:
    path = str(tmp_path / "catalog.sqlite")
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE addresses (name)")
    raw.close()
    with pytest.raises(CorruptionError, match="not a catalogue of Nyala"):
        Catalog.open(env, path)


# --- failing ----------------------------------------------------------------------------------------


def test_a_full_disk_changes_nothing(
    catalog: Catalog, full_change: CatalogChange, reopened: Reopened
) -> None:
    """Without space a flush fails with the reason, and the store goes on when there is space."""
    state = catalog.commit(full_change)
    assert catalog._connection is not None
    (pages,) = catalog._connection.execute("PRAGMA page_count").fetchone()
    catalog._connection.execute(f"PRAGMA max_page_count = {pages}")
    template = full_change.put_rowsets[0]
    change = CatalogChange(
        put_rowsets=[dataclasses.replace(template, id=10 + n, path=f"{'x' * 200}/{n}") for n in range(200)]
    )
    with pytest.raises(StorageError, match="full; free some space") as caught:
        catalog.commit(change)
    assert caught.value.outcome is None
    assert catalog.state is state and reopened() == state
    catalog._connection.execute("PRAGMA max_page_count = 100000")
    assert catalog.commit(change) == reopened()


class FailingConnection:
    """A connection whose COMMIT fails, before or after its execution."""

    def __init__(self, inner: sqlite3.Connection, code: int, done: bool) -> None:
        self._inner, self._code, self._done = inner, code, done

    def execute(self, sql: str, *args: Any) -> Any:
        if sql != "COMMIT":
            return self._inner.execute(sql, *args)
        if self._done:
            self._inner.execute(sql)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = self._code
        raise error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("done", [False, True])
def test_K1_after_a_failed_commit_nothing_is_claimed(
    catalog: Catalog, full_change: CatalogChange, env: Env, path: str, done: bool
) -> None:
    """After a failed sync the outcome is unknown: the store stops, and the next open shows it."""
    before = catalog.state
    assert catalog._connection is not None
    catalog._connection = FailingConnection(catalog._connection, sqlite3.SQLITE_IOERR_FSYNC, done)  # type: ignore[assignment]
    with pytest.raises(StorageError, match="next open of the store shows whether") as caught:
        catalog.commit(full_change)
    assert caught.value.outcome == "unknown"
    for call in (lambda: catalog.commit(CatalogChange()), catalog.load):
        with pytest.raises(StorageError, match="takes no more calls") as caught:
            call()
        assert caught.value.outcome == "unknown"
    catalog.close()
    with Catalog.open(env, path) as again:
        assert again.load() == (apply(before, full_change) if done else before)


def test_a_commit_that_certainly_failed_leaves_the_catalogue_usable(
    catalog: Catalog, full_change: CatalogChange
) -> None:
    """A disk that is full at COMMIT is no unknown outcome: SQLite's last frame was never written."""
    inner = catalog._connection
    assert inner is not None
    catalog._connection = FailingConnection(inner, sqlite3.SQLITE_FULL, False)  # type: ignore[assignment]
    with pytest.raises(StorageError) as caught:
        catalog.commit(full_change)
    assert caught.value.outcome is None
    catalog._connection = inner
    assert catalog.commit(full_change).version == 2


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE store SET version = 9",
        "DELETE FROM rowsets WHERE id = 1",
        "INSERT INTO rowsets SELECT 3, tablet_id, row_count, key_min, key_max, deltas_durable, path, file_id, "
        "size_bytes, schema_version, crc FROM rowsets WHERE id = 1",
    ],
)
def test_K1_a_change_by_another_program_is_noticed_at_the_next_commit(
    catalog: Catalog, full_change: CatalogChange, path: str, sql: str
) -> None:
    """If another program edits the catalogue of an open store, the next commit is refused."""
    state = catalog.commit(full_change)
    raw = sqlite3.connect(path)
    raw.execute(sql)
    raw.commit()
    raw.close()
    change = CatalogChange(
        put_rowsets=[
            dataclasses.replace(state.rowsets[1], deltas_durable=99),
            dataclasses.replace(state.rowsets[1], id=3, path="data/1/3.base"),
        ]
    )
    with pytest.raises(CorruptionError, match="another program has changed"):
        catalog.commit(change)
    assert catalog.state is state


def test_the_bytes_are_synced_as_promised(catalog: Catalog) -> None:
    """Acknowledged means durable: the settings that make SQLite sync at every COMMIT are on."""
    assert catalog._connection is not None
    for pragma, value in (
        ("journal_mode", "wal"), ("synchronous", 2), ("fullfsync", 1), ("checkpoint_fullfsync", 1),
        ("foreign_keys", 0), ("application_id", APPLICATION_ID), ("user_version", FORMAT_VERSION),
        ("cell_size_check", 1),
    ):  # fmt: skip
        assert catalog._connection.execute(f"PRAGMA {pragma}").fetchone() == (value,), pragma


def test_a_path_with_odd_characters(tmp_path: Path, env: Env) -> None:
    """A folder's name may contain characters with a meaning in a URI."""
    folder = tmp_path / "100% ?mode=memory#x ü"
    folder.mkdir()
    with Catalog.create(env, str(folder / "catalog.sqlite")) as catalog:
        state = catalog.commit(CatalogChange(timestamp=3))
        assert Catalog.open(env, str(folder / "catalog.sqlite"), read_only=True).load() == state
    assert os.listdir(folder) == ["catalog.sqlite"]


def test_an_older_catalogue_than_known_is_damage(
    catalog: Catalog, full_change: CatalogChange, env: Env, path: str
) -> None:
    """SQLite's log was lost: the committed flush is missed, not silently undone."""
    catalog.commit(full_change)
    catalog.commit(CatalogChange(timestamp=70))
    shutil.copy(path, path + ".kept")
    catalog.close()
    os.replace(path + ".kept", path)
    with pytest.raises(CorruptionError, match="at version 1, but version 3 was committed"):
        Catalog.open(env, path, read_only=True).load(at_least=3)
