"""Checks a store: reads every byte, and verifies all rules that can be verified.

    catalogue   the checkpoint and the changes in the log (rules of `catalog.model`)
    log         each record and CRC, their order, a torn end or damage; the position record, which
                shows reader processes how far they may read the log
    memory      the rows in memory after a replay of the log
    files       existence, size, each block and CRC (`rowset.checking.findings`)
    tablets     no key has two live rows at one moment; every row is in its partition
    folder      files that the catalogue does not name; a note about files that no writer created

If no process writes to the store, the check takes the writer's lock. Otherwise it checks the state
that a reader sees. Then it does not report files that the catalogue does not name, because the
writer may be writing them.

A check changes nothing; `tablet.repair` repairs.
Source: docs/reliability.md; Kudu's `kudu fs check`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nyala.catalog.checkpoint import identity_path, newest_checkpoint, read_identity
from nyala.catalog.loading import apply_changes, check_log_exists, without_collector
from nyala.catalog.model import CatalogState
from nyala.catalog.object_leases import ObjectLease
from nyala.catalog.store_lock import StoreLock
from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.blocks.read_stats import Access
from nyala.cfile.memory import row_ranges
from nyala.delta.run import MAX_TIMESTAMP, Rowids
from nyala.env import MAY_NOT_WRITE, Env, MissingFileError
from nyala.env.interrupts import Uninterrupted
from nyala.errors import CorruptionError, LockedError, StorageError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.objects.address import open_env
from nyala.objects.base import Objects
from nyala.objects.open import StorageOptions, open_objects
from nyala.rowset.checking import Lives, findings, lives_of
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.arrow_values import python_value_at
from nyala.tablet.jobs import staging
from nyala.tablet.media.bucket import base_state, batches, changes, count_records, damaged_checkpoints
from nyala.tablet.media.bucket_reader import BucketReader
from nyala.tablet.recovery.bootstrap import Replayer, ReplayReport
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.opening import open_root, unreferenced_files
from nyala.tablet.state.root import AnyRowSet, Root, TableState, TabletState
from nyala.tablet.store import Store
from nyala.wal.format import check_store_id, segment_number
from nyala.wal.objects.follower import LogFollower
from nyala.wal.objects.follower import read_identity as read_bucket_identity
from nyala.wal.objects.format import StoreIdentity as ObjectIdentity
from nyala.wal.position import LogPosition, PositionRecord
from nyala.wal.reader import LogReader, Recovery, recover
from nyala.wal.record import LogRecord

ProblemKind: TypeAlias = Literal[
    "catalogue",
    "checkpoint",
    "missing-file",
    "damage",
    "index",
    "surplus",
    "key-twice",
    "wrong-tablet",
    "log",
    "position",
    "orphan-file",
    "memory",
]

REPAIRABLE: Final = frozenset({"checkpoint", "index", "surplus", "position", "orphan-file"})
"""The kinds of problems that `repair` repairs: wrong derived data, and unneeded data."""

REPLAY_LIMIT_BYTES: Final = 1 << 30
"""The memory limit for a replay if no process has the store open. A check cannot flush."""
_CACHE_BYTES: Final = 64 << 20
_UNBOUNDED: Final = 1 << 62
_ONLY_HISTORY: Final = "; current rows are read without this file, only earlier snapshots need it"
_STRAYS_SHOWN: Final = 5
_UNNAMED_OBJECTS: Final = (
    "objects that the catalogue does not name were not checked: a writer may be uploading them"
)
_UNKNOWN: Final = "the data files were not checked: which of them belong to the store is not known"
Progress: TypeAlias = "Callable[[int, int], None]"


class _TooMuchError(Exception):
    """Raised when the replay of the log takes more memory than allowed."""


@dataclass(frozen=True)
class Problem:
    """One problem of a store.

    kind:  "catalogue"    the catalogue is damaged, or its entries contradict each other
           "checkpoint"   in a bucket: a checkpoint is damaged; an open uses the one before it
           "missing-file" a file that the catalogue names does not exist
           "damage"       bytes differ from those written, or files contradict each other
           "index"        rows are intact, but a bloom filter, zone map, index or bound is damaged
                          or wrong, or encoded keys are damaged
           "surplus"      a file is intact, but more bytes follow it
           "key-twice"    a key has two live rows at one moment
           "wrong-tablet" a row is not in the tablet of its partition
           "log"          the log is damaged, or ends too early
           "position"     the position record is damaged (it shows readers how far to read the log)
           "orphan-file"  a file that the catalogue does not name
           "memory"       after the replay of the log, the rows in memory break a rule
    path, offset: the file and the byte offset of the problem; None: not known, or several.
    """

    kind: ProblemKind
    message: str
    path: str | None = None
    offset: int | None = None
    table: str | None = None
    tablet_id: int | None = None
    rowset_id: int | None = None

    @property
    def repairable(self) -> bool:
        """Whether `nyala fs check --repair` repairs the problem. If not, restore a backup."""
        return self.kind in REPAIRABLE

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as a dict, for the output of `nyala fs check --json`."""
        return {**asdict(self), "repairable": self.repairable}


@dataclass(frozen=True)
class CheckReport:
    """The result of a check.

    problems: in the order in which they were found
    notes:    other facts for the user
    repairs:  one sentence per repair
    alone:    True: no other process wrote to the store, so the check also looked for orphans (files
              that the catalogue does not name); False: it did not look for them
    rows:     the number of rows in files, also dead ones
    bytes:    the size of the data files
    """

    path: str
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    alone: bool = True
    tables: int = 0
    tablets: int = 0
    rowsets: int = 0
    files: int = 0
    bytes: int = 0
    rows: int = 0
    log_records: int = 0

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def is_blind(self) -> bool:
        """Whether the catalogue could not be read, so that data files were not checked."""
        return _UNKNOWN in self.notes or any(problem.kind == "catalogue" for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict, for the output of `nyala fs check --json`."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "problems"}
        return {
            **plain,
            "notes": list(self.notes),
            "repairs": list(self.repairs),
            "ok": self.ok,
            "problems": [problem.to_dict() for problem in self.problems],
        }


def no_progress(done: int, total: int) -> None:
    """Progress function that does nothing."""


def check_folder(env: Env, path: str, progress: Progress = no_progress) -> CheckReport:
    """Check the store at `path`, also if a process writes to it.

    Raises: StorageError if there is no store, or if this user may not read it.
    """
    if not env.files.exists(path):
        raise StorageError(f"there is no folder {path!r}: give the folder of a store", path=path)
    env = env.bound(path)
    try:
        return _check_bound_folder(env, path, progress)
    finally:
        env.files.close()


def _check_bound_folder(env: Env, path: str, progress: Progress) -> CheckReport:
    lock = StoreLock(env, path)
    try:
        lock.acquire(0.0)
    except (LockedError, StorageError) as error:
        if isinstance(error, StorageError) and error.errno not in MAY_NOT_WRITE:
            raise
        # The writer has the rows of the whole log in memory, so this replay needs no limit.
        with contextlib.closing(ReaderStore.open(env, path, 4 * _CACHE_BYTES, _UNBOUNDED)) as reader:
            return check_open(reader, progress)
    try:
        return check_alone(env, path, progress)
    finally:
        lock.release()


def check_alone(env: Env, path: str, progress: Progress = no_progress) -> CheckReport:
    """Check the whole store, and look for orphan files. The caller must hold the writer's lock."""
    check = _Check(env, path, progress)
    found = check.catalogue()
    if found is not None:
        state, recovered = found
        root = open_root(env, path, state, BlockCache(_CACHE_BYTES))
        replayed = check.log(root, state, recovered)
        if not check.replayed:
            root = open_root(env, path, state, BlockCache(_CACHE_BYTES))  # with nothing in memory
        check.root(root, state)
        if replayed is not None and not check.has_path(replayed.path):
            check.add("log", replayed)
        check.orphans(state)
    return check.report(alone=True)


def check_bucket(
    url: str, storage_options: StorageOptions | None, progress: Progress = no_progress
) -> CheckReport:
    """Check the store in a bucket, also if a process writes to it, or if it cannot be opened.

    Raises: StorageError if there is no store, or if the bucket does not answer.
    """
    with bucket_at(url, storage_options) as (env, objects):
        check = _Check(env, objects.url, progress)
        try:
            identity = read_bucket_identity(env, objects)
        except CorruptionError as error:
            check.blind("catalogue", error)
            return check.report(alone=False)
        if identity is None:
            raise StorageError(
                f"there is no Nyala store at {objects.url!r}: give a store's URL", path=objects.url
            )
        lease = ObjectLease(env, objects)
        try:
            check.bucket(objects, identity)
        finally:
            lease.release()
        return check.report(alone=False)


@contextlib.contextmanager
def bucket_at(url: str, storage_options: StorageOptions | None) -> Iterator[tuple[Env, Objects]]:
    """Context manager: open the bucket at a URL; yield its objects, and an `Env` for its files."""
    with contextlib.closing(open_objects(url, storage_options)) as objects:
        env = open_env(objects)
        with contextlib.closing(env.files):
            yield env, objects


def check_open(store: Store | ReaderStore | BucketReader, progress: Progress = no_progress) -> CheckReport:
    """Check the current state of an open store, including the rows in memory."""
    check = _Check(store.env, store.root_path, progress)
    if isinstance(store, Store):
        with Uninterrupted(), store.commit_lock:
            store.check_open()
            root, state, upto = store.root, store.state, store.log.synced.position
    elif isinstance(store, BucketReader):
        root, state, upto = *store.look(), LogPosition(0, 0)
    else:
        root, state, upto = store.look()
    try:
        objects = None if isinstance(store, ReaderStore) else store.objects
        if objects is None:
            reader = LogReader(store.env, layout.wal_path(store.root_path), state.wal_start, state.store_id)
            check.log_records = sum(1 for _ in reader.read_to(upto))
        else:
            check.log_records = count_records(store.env, objects)
            check.checkpoints(objects)
    except (CorruptionError, StorageError) as error:
        check.add("log", error)
    check.root(root, state)
    check.notes.append(
        "a process has the store open, or this user may not write there: files that the catalogue does not name were "
        "not checked"
        if objects is None
        else _UNNAMED_OBJECTS
    )
    return check.report(alone=False)


class _OnDisk(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass
class _Check:
    env: Env
    path: str
    progress: Progress
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("tables", "tablets", "rowsets", "files"), 0)
    )
    bytes: int = 0
    rows: int = 0
    log_records: int = 0
    replayed: bool = True
    """Whether the root includes the log's replay; otherwise it has only the files."""

    def report(self, *, alone: bool) -> CheckReport:
        return CheckReport(
            self.path, tuple(self.problems), tuple(self.notes), (), alone, **self.counts,
            bytes=self.bytes, rows=self.rows, log_records=self.log_records,
        )  # fmt: skip

    def add(
        self,
        kind: ProblemKind,
        error: Exception | str,
        table: TableState | None = None,
        tablet: TabletState | None = None,
        rowset: AnyRowSet | None = None,
        path: str | None = None,
    ) -> None:
        if isinstance(error, StorageError) and not isinstance(error, MissingFileError):
            if self.env.files.is_remote:
                raise error  # without network or rights, nothing is known about the object
        message = str(error) or type(error).__name__
        path = path or getattr(error, "path", None)
        if isinstance(error, MissingFileError):
            kind = "missing-file"
            message = f"{path} does not exist, but the store needs it: restore it from a backup"
        if isinstance(rowset, DiskRowSet) and any(path == file.reader.path for file in rowset.undo):
            message += _ONLY_HISTORY
        self.problems.append(
            Problem(
                kind,
                message,
                path,
                getattr(error, "offset", None),
                None if table is None else table.name,
                None if tablet is None else tablet.id,
                rowset.id if isinstance(rowset, DiskRowSet) else None,
            )
        )

    def blind(self, kind: ProblemKind, error: Exception) -> None:
        """Add a problem, and a note that the data files could not be checked because of it."""
        self.add(kind, error)
        self.notes.append(_UNKNOWN)

    def has_path(self, path: str | None) -> bool:
        return any(problem.path == path for problem in self.problems)

    # ── catalogue and log

    def catalogue(self) -> tuple[CatalogState, Recovery] | None:
        """Read and return the catalogue and the log; None if one of them is damaged or missing."""
        path = identity_path(self.path)
        if not self.env.files.exists(path):
            left = [
                n for n in (layout.WAL_NAME, layout.DATA_NAME) if self.env.files.exists(f"{self.path}/{n}")
            ]
            if not left:
                raise StorageError(
                    f"there is no Nyala store at {self.path!r}: give the folder of a store", path=self.path
                )
            self.add("missing-file", f"{path} does not exist: restore it from a backup", path=path)
            return None
        kind: ProblemKind = "catalogue"
        with without_collector():
            try:
                checkpoint = newest_checkpoint(
                    self.env.files, self.path, read_identity(self.env.files, self.path)
                )
                kind = "log"
                recovered = recover(
                    self.env,
                    layout.wal_path(self.path),
                    checkpoint.wal_start,
                    checkpoint.store_id,
                    cut=False,
                )
                state = apply_changes(checkpoint, recovered.changes)
                check_log_exists(self.env, self.path, layout.wal_path(self.path), state)
            except (CorruptionError, StorageError) as error:
                self.blind(kind, error)
                return None
        for sentence in state.problems():
            self.add("catalogue", sentence)
        return state, recovered.since(state.wal_start)

    def _position(self) -> PositionRecord | None:
        path = layout.position_path(self.path)
        try:
            return PositionRecord.decode(self.env.files.read_all(path), path)
        except MissingFileError:
            return None
        except CorruptionError as error:
            if not self.has_path(path):
                self.add("position", error)
            return None

    def log(
        self, root: Root, state: CatalogState, recovered: Recovery
    ) -> CorruptionError | StorageError | None:
        """Check the end of the log, and replay the log into the memory of `root`.

        Returns: the error of a failed replay; None if the replay succeeded.
        """
        self.log_records = recovered.record_count
        if recovered.torn is not None:
            self.notes.append(
                f"the log ends in {recovered.torn.length} bytes that were never acknowledged, from a writer that did "
                "not close the store: the next open cuts them off"
            )
        position = self._position()
        if position is not None:
            try:
                check_store_id(state.store_id, position.store_id, layout.position_path(self.path))
                latest = max(state.timestamp_max, recovered.timestamp_max)
                position.check_reached(latest, recovered.reached, layout.position_path(self.path))
            except CorruptionError as error:
                self.add("log", error)

        return self.replay(root, recovered.records())

    def replay(self, root: Root, records: Iterable[LogRecord]) -> CorruptionError | StorageError | None:
        """Replay the log into the memory of `root`.

        Returns: the error of a failed replay; None if the replay succeeded.
        """

        def relieve(timestamp: int, report: ReplayReport) -> Root:
            if root.memory_bytes() > REPLAY_LIMIT_BYTES:
                raise _TooMuchError
            return root

        try:
            replayer = Replayer(root, relieve)
            replayer.feed(records)
            replayer.drain()
        except _TooMuchError:
            self.replayed = False
            self.notes.append(
                f"the log has more than {REPLAY_LIMIT_BYTES / 1e6:,.0f} MB of rows that are in no file yet. These "
                "rows were not checked, nor whether a key has two live rows. Open the store with connect() and close "
                "it, which writes these rows to files, then check again"
            )
        except (CorruptionError, StorageError) as error:
            return error
        return None

    # ── a bucket

    def bucket(self, objects: Objects, identity: ObjectIdentity) -> None:
        """Check a store in a bucket."""
        try:
            news = LogFollower(self.env, objects, identity).read_new()
            with without_collector():
                state = apply_changes(
                    base_state(objects, news.checkpoint, identity.store_id), changes(news.entries)
                )
        except CorruptionError as error:
            self.blind("log", error)
            return
        self.log_records = len(news.entries)
        self.checkpoints(objects)
        root = open_root(self.env, self.path, state, BlockCache(_CACHE_BYTES))
        replayed = self.replay(root, batches(news.entries))
        if not self.replayed:  # begin again with empty memory
            root = open_root(self.env, self.path, state, BlockCache(_CACHE_BYTES))
        self.root(root, state)
        if replayed is not None and not self.has_path(replayed.path):
            self.add("log", replayed)
        self.notes.append(_UNNAMED_OBJECTS)

    def checkpoints(self, objects: Objects) -> None:
        for damaged in damaged_checkpoints(self.env, objects):
            self.add("checkpoint", damaged)

    # ── tables

    def root(self, root: Root, state: CatalogState) -> None:
        tablets = list(root.tablets())
        total = sum(len(tablet.rowsets) for _, tablet in tablets)
        self.counts["tables"], self.counts["tablets"] = len([*root.every_table()]), len(tablets)
        done = 0
        for table, tablet in tablets:
            sound: list[AnyRowSet] = []
            for memory in (tablet.memory, *tablet.frozen):
                try:
                    memory.check()
                    sound.append(memory)
                except AssertionError as error:
                    self.add("memory", error, table, tablet)
            for rowset in tablet.rowsets:
                self.progress(done, total)
                done += 1
                if self._rowset(table, tablet, rowset):
                    sound.append(rowset)
            # Without the deletes in the log, files may have two live rows of a key.
            if self.replayed:
                self._two_live_rows(table, tablet, sound)
        self.progress(total, total)

    def _rowset(self, table: TableState, tablet: TabletState, rowset: DiskRowSet) -> bool:
        """Check one rowset. Return whether its rows are intact."""
        self.counts["rowsets"] += 1
        self.rows += rowset.row_count
        there = True
        entries: tuple[_OnDisk, ...] = (
            rowset.meta,
            *(part.entry for part in rowset.parts),
            *(f.entry for f in (*rowset.undo, *rowset.redo)),
        )
        sizes: dict[str, tuple[int, int]] = {}
        for entry in entries:
            path = os.path.join(self.path, entry.path)
            self.counts["files"] += 1
            try:
                size = self.env.files.size(path)
            except StorageError as error:
                self.add("damage", error, table, tablet, rowset)
                there = False
                continue
            self.bytes += size
            if size != entry.size_bytes:
                sizes[path] = size, entry.size_bytes
        if not there:
            return False
        sound = True
        try:
            for finding in findings(rowset, table.entry.history_start):
                sound = sound and (finding.derived or finding.trailing) and not finding.keyless
                kind: ProblemKind = (
                    "index" if finding.derived else "surplus" if finding.trailing else "damage"
                )
                self.add(kind, finding.error, table, tablet, rowset)
        except AssertionError as error:
            self.add("memory", error, table, tablet, rowset)
            sound = False
        for path, (size, named) in sizes.items():
            if not self.has_path(path):
                sentence = f"the file has {size} bytes, but the catalogue names {named}"
                self.add("damage", CorruptionError(sentence, path), table, tablet, rowset)
                sound = False
        return sound and self._where_rows_belong(table, tablet, rowset)

    def _where_rows_belong(self, table: TableState, tablet: TabletState, rowset: DiskRowSet) -> bool:
        """Check the rows of a rowset. Return whether all of them are right.

        NOT NULL columns must have no NULLs, stored keys must match the key columns, and each row
        must be in the tablet of its partition.
        """
        if tablet.id not in table.ordinal_of:  # the tablet of a dropped range
            table = dataclasses.replace(table, tablets=(tablet,), dropped=())
        ordinal = table.ordinal_of[tablet.id]
        path = rowset.reader.path
        key_columns = table.schema.key_columns
        for column in table.schema.columns:
            reader = rowset.base_column(column.id)
            if reader is not None and not column.nullable and reader.null_count:
                error = CorruptionError(
                    f"column {column.name!r} is NOT NULL but has {reader.null_count} NULLs", path
                )
                self.add("damage", error, table, tablet, rowset)
                return False
        for lower, upper in row_ranges(rowset.row_count, rowset.keys.row_bytes):
            arrays = [
                rowset.decode(column, MAX_TIMESTAMP, lower, upper, access=Access.SCAN)
                for column in key_columns
            ]
            # `KeyIndex.check` has compared the keys of all other rowsets.
            if rowset.keys.has_all_encoded:
                equal = table.codec.encode(arrays).equal_to(
                    rowset.keys.read(lower, upper, access=Access.ONCE)
                )
                if not equal.all():
                    row = lower + int(np.argmin(equal))
                    error = CorruptionError(
                        f"the stored key of row {row} of rowset {rowset.id} is not the key of its key columns",
                        path,
                    )
                    self.add("damage", error, table, tablet, rowset)
                    return False
            places = table.router.route(
                {column.name: array for column, array in zip(key_columns, arrays, strict=True)}, upper - lower
            )
            wrong = np.flatnonzero(places != ordinal)
            if len(wrong):
                key = {
                    c.name: python_value_at(a, int(wrong[0]))
                    for c, a in zip(key_columns, arrays, strict=True)
                }
                where = int(places[wrong[0]])
                belongs = "to no tablet" if where < 0 else f"to tablet {table.tablets[where].id}"
                error = CorruptionError(
                    f"the row with the key {key} is in tablet {tablet.id} but belongs {belongs}", path
                )
                self.add("wrong-tablet", error, table, tablet, rowset)
                return False
        return True

    def _two_live_rows(self, table: TableState, tablet: TabletState, stores: Sequence[AnyRowSet]) -> None:
        """Add a problem for each pair of rowsets in which one key is live at the same moment."""
        history_start = table.entry.history_start

        def of(store: AnyRowSet, rowids: Rowids) -> Lives:
            return lives_of(store, history_start, int(rowids.min()), int(rowids.max()) + 1)

        for left, right in _overlapping(stores):
            for keys, lefts, rights in _common(left, right):
                at = _both_alive(of(left, lefts), of(right, rights), lefts, rights, history_start)
                if at is None:
                    continue
                places = " and ".join(
                    f"rowset {store.id}" if isinstance(store, DiskRowSet) else "memory"
                    for store in (left, right)
                )
                store = right if isinstance(right, DiskRowSet) else left
                self.add(
                    "key-twice",
                    f"table {table.name!r}, tablet {tablet.id}: the key {keys.at(at).hex()} has live rows in {places} "
                    "at one moment",
                    table, tablet, store, store.reader.path if isinstance(store, DiskRowSet) else None,
                )  # fmt: skip
                break

    # ── the folder

    def orphans(self, state: CatalogState) -> None:
        orphans, strays = _unnamed(self.env, self.path, state)
        for path in orphans:
            self.add(
                "orphan-file",
                f"{path}: the catalogue does not name this file, and it is not needed",
                path=path,
            )
        if strays:
            shown = ", ".join(layout.relative(self.path, path) for path in strays[:_STRAYS_SHOWN])
            more = len(strays) - _STRAYS_SHOWN
            self.notes.append(
                f"these files in the data folder do not belong to the store and are left alone: {shown}"
                + (f" and {more:,} more" if more > 0 else "")
            )
        if state.garbage:
            self.notes.append(f"{len(state.garbage)} files are no longer needed and wait to be removed")


def _unnamed(env: Env, path: str, state: CatalogState) -> tuple[list[str], list[str]]:
    """Return the paths that the catalogue does not name, as two lists (orphans, strays).

    Orphans are files that a writer may have created and that are not needed any more. They include
    old segments of the log, and staging folders of finished jobs. Strays are other files in the
    data folder, which no writer creates.

    The caller must hold the writer's lock.
    """
    orphans, strays = unreferenced_files(env, path, state)
    for name in env.files.list_dir(layout.wal_path(path)):
        number = segment_number(name)
        named = f"{layout.WAL_NAME}/{name}" in state.garbage
        if number is not None and number < state.wal_start and not named:
            orphans.append(os.path.join(layout.wal_path(path), name))
    for name in env.files.list_dir(os.path.join(path, layout.STAGING_NAME)):
        if staging.is_over(env, path, name):
            orphans.append(os.path.join(path, layout.STAGING_NAME, name))
    return orphans, strays


# ── keys with several rows


def _overlapping(stores: Sequence[AnyRowSet]) -> Iterator[tuple[AnyRowSet, AnyRowSet]]:
    """Yield pairs of rowsets that may have a key in common. MemRowSets come first in a pair.

    stores: the rowsets to be compared, in any order.
    """
    memories = [store for store in stores if isinstance(store, MemRowSet) and store.row_count]
    disks = sorted(
        (store for store in stores if isinstance(store, DiskRowSet)), key=lambda rowset: rowset.meta.key_min
    )
    for index, memory in enumerate(memories):
        others: list[AnyRowSet] = [*memories[index + 1 :], *disks]
        for other in others:
            yield memory, other
    for index, left in enumerate(disks):
        for right in disks[index + 1 :]:
            if right.meta.key_min > left.meta.key_max:
                break
            yield left, right


def _common(left: AnyRowSet, right: AnyRowSet) -> Iterator[tuple[EncodedKeys, Rowids, Rowids]]:
    """Yield the keys that both rowsets have, in several portions.

    Each portion has the keys, their rowids in `left`, and their rowids in `right`.
    Bloom filters are not used, because they may be wrong.
    """
    for keys, rights, following in _key_parts(right):
        for found in _rows_of(left, keys, following):
            at = np.flatnonzero(found >= 0)
            if len(at):
                yield keys.take(at), found[at], rights[at]


def _rows_of(store: AnyRowSet, keys: EncodedKeys, following: bytes | None) -> Iterator[Rowids]:
    """Find the rowids of `keys` in a rowset. Yield one array for each range of rows that is read.

    A DiskRowSet is read in ranges of rows, because all its keys may not fit in memory. Each array
    has one rowid per key, or -1 if the key is not in the range.

    keys:      ascending.
    following: a key that is greater than all `keys`; rows from this key on are not read. None: read
               up to the last row.
    """
    if isinstance(store, MemRowSet):
        yield store.find(keys)
        return
    begin, end = store.rowid_range(KeyRange(keys.at(0), following))
    for lower, upper in row_ranges(end - begin, store.keys.row_bytes):
        found = store.keys.read(begin + lower, begin + upper, access=Access.ONCE).find(keys)
        yield np.where(found >= 0, found + (begin + lower), found)


def _key_parts(store: AnyRowSet) -> Iterator[tuple[EncodedKeys, Rowids, bytes | None]]:
    """Yield all keys of a rowset in portions.

    Each portion has ascending keys, their rowids, and the first key of the next portion, or None.
    """
    if isinstance(store, MemRowSet):
        order = store.order()
        yield store.keys_of(order), order, None
        return
    for lower, upper in row_ranges(store.row_count, store.keys.row_bytes):
        following = store.keys.read(upper, upper + 1).at(0) if upper < store.row_count else None
        yield store.keys.read(lower, upper, access=Access.ONCE), np.arange(lower, upper), following


def _both_alive(left: Lives, right: Lives, lefts: Rowids, rights: Rowids, history_start: int) -> int | None:
    """Return the index of the first pair of rows that are both live at some moment; None: no pair.

    left, right:    at which moments rows of the two rowsets were live.
    lefts, rights:  the rowids of the pairs in the two rowsets.
    history_start:  earlier moments are ignored.
    """
    parts = [left.of(lefts), right.of(rights)]
    count = len(lefts)
    owner: npt.NDArray[np.int64] = np.concatenate([part[0] for part in parts])
    times = np.maximum(np.concatenate([part[1] for part in parts]), history_start)
    steps = np.where(np.concatenate([part[2] for part in parts]), 1, -1)
    first = parts[0][3].astype(np.int64) + parts[1][3]
    order = np.lexsort((times, owner))
    owner, times, steps = owner[order], times[order], steps[order]
    both = first > 1
    # The state before an event at the start of the history does not count.
    if len(owner):
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        total = np.cumsum(steps)
        of_earlier = np.repeat(
            total[starts] - steps[starts], np.diff(np.append(starts, len(owner)))
        )  # steps of the pairs before
        alive = first[owner] + total - of_earlier
        settled = np.append((owner[1:] != owner[:-1]) | (times[1:] != times[:-1]), True)
        both[owner[starts[times[starts] <= history_start]]] = False
        both[owner[settled & (alive > 1)]] = True
    found = np.flatnonzero(both[:count])
    return int(found[0]) if len(found) else None
