"""`catalog.sqlite`: loaded whole at the start, changed by one transaction at a time.

    commit(change)      apply ── BEGIN ── rows out, rows in, sums ── COMMIT ── external_commit
                         |                                             |
                         may raise: nothing has happened               from here durable

Every COMMIT syncs SQLite's own log (`catalog.sqlite-wal`, `synchronous=FULL`). Its checksums make a
torn transaction vanish as a whole. A flipped bit also makes a transaction vanish, with all later
ones. SQLite does not report that, so `load(at_least=…)` compares with a version known from
elsewhere (the log's position record).

Invariants
    C1, C2, C3  Checksums of rows and tables, see `nyala.catalog.format`: `load` compares them,
        `commit` keeps them.
    K1  `state` is the state on disk. After a COMMIT with unknown outcome every later call raises
        until the catalogue is opened again.
    K2  No other code opens `catalog.sqlite`, not even to read its header. Closing any descriptor of
        the file drops SQLite's locks of the whole process (POSIX), and another process could then
        remove the log.
    P1  A reader uses one short read transaction on a connection of its own. Where SQLite cannot
        write beside the file, it connects to a copy in memory (`memory_copy`).

The writer must hold the store's lock. Any thread may use a Catalog; calls run one by one.
Source: docs/design/log-and-recovery.md, "The catalogue is a SQLite database"; docs/design/rules.md,
P1 and T1; SQLite's documents on WAL mode and on how to corrupt a database.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import sqlite3
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeVar

from nyala.catalog import format
from nyala.catalog.format import (
    APPLICATION_ID,
    CATALOG_NAME,
    FORMAT_VERSION,
    SHAPES,
    SUM_MODULUS,
    SUMS,
    Row,
    TableShape,
)
from nyala.catalog.memory_copy import connect_to_copy
from nyala.catalog.model import CatalogChange, CatalogState, apply
from nyala.catalog.rows import RowsByTable, all_rows, decode, difference
from nyala.env import Env, is_full, why_full
from nyala.errors import CorruptionError, ReadOnlyError, StorageError

__all__ = ["Catalog", "find_store", "without_collector"]

_T = TypeVar("_T")

_UNFINISHED_NAME: Final = CATALOG_NAME + ".new"
# Files that `Catalog.create` and its callers may have left in a folder that is not yet a store.
_FORERUNNERS: Final = frozenset(
    {format.LOCK_NAME, format.LEASES_NAME, format.SOCKET_NAME, ".DS_Store"}
    | {_UNFINISHED_NAME + suffix for suffix in ("", "-wal", "-shm", "-journal")}
)
_BUSY_TIMEOUT_S: Final = 30.0
# The longest text or blob that SQLite may allocate: a flipped bit in a length must not cost a
# gigabyte.
_VALUE_MAX_BYTES: Final = 64 << 20

# Advice for SQLite's result codes (low byte) that say nothing about the bytes on disk.
_OUTSIDE: Final = {
    sqlite3.SQLITE_PERM: "give this user the right to read and write there",
    sqlite3.SQLITE_BUSY: "another process has it locked: is it open in an SQLite tool?",
    sqlite3.SQLITE_LOCKED: "another process has it locked: is it open in an SQLite tool?",
    sqlite3.SQLITE_READONLY: "give this user the right to write to the file and its folder",
    sqlite3.SQLITE_IOERR: "check the disk and the system's log",
    sqlite3.SQLITE_FULL: "free some space on this file system and try again",
    sqlite3.SQLITE_CANTOPEN: "give this user the right to read it (and, to write to the store, the right to write to "
    "its folder)",
    sqlite3.SQLITE_PROTOCOL: "too many processes open it at once: try again",
    sqlite3.SQLITE_NOLFS: "the file system does not allow files of this size",
    sqlite3.SQLITE_TOOBIG: "make the value smaller",
}
# A damaged text may stand in a value, and in SQLite's own message about it.
# A damaged text may be in a value, or in SQLite's own message about it.
READ_ERRORS: Final = (sqlite3.Error, UnicodeError)
# A COMMIT that fails with one of these has not happened: its last frame was never written.
_NOT_COMMITTED: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
# SQLite was not allowed to create its files beside a database that it should read.
_MAY_NOT_WRITE: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})
# Possible codes for a full disk: no new file, no write (a quota), no longer shared memory.
_MAYBE_FULL: Final = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
    }
)
# Codes that damaged bytes lead to, besides a file that ends within a page
# (SQLITE_IOERR_SHORT_READ). 0 is an error of Python, for example about text that is not UTF-8. All
# other codes concern the environment.
_DAMAGE: Final = frozenset({
    0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG,
})  # fmt: skip
_SHORT_READ: Final = 522
# The verdict of `PRAGMA quick_check` for a page that could not be read.
_PAGE_NOT_READ: Final = re.compile(r"unable to get the page\. error code=(\d+)")


def find_store(env: Env, directory: str) -> bool:
    """Whether this folder has a store; False: it has none, and one may be created.

    Raises: StorageError if the folder has other files, or is not a folder.
    """
    if env.files.exists(os.path.join(directory, CATALOG_NAME)):
        return True
    if not env.files.exists(directory):
        return False
    foreign = [name for name in env.files.list_dir(directory) if name not in _FORERUNNERS]
    if not foreign:
        return False
    if {"wal", "data"} & set(foreign):
        raise StorageError(
            f"{directory} looks like a store, but {CATALOG_NAME} is missing, and without it nothing can be read: "
            "restore it from a backup",
            path=directory,
        )
    named = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
    raise StorageError(
        f"{directory} is not a Nyala store: it has no {CATALOG_NAME}, but other files ({named}). Give the store's "
        "own folder, or an empty or new one to create a store",
        path=directory,
    )


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Pause Python's garbage collector while hundreds of thousands of entries are created.

    None of them is garbage, and the collector's repeated passes would take as long as creating
    them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Catalog:
    """The catalogue of one store. Use `create` or `open`; close the writer's with `close`."""

    def __init__(self, env: Env, path: str, connection: sqlite3.Connection | None) -> None:
        self.path: Final = path
        self._env = env
        self._connection = connection  # None: read-only, with a connection for each load
        self._read_only = connection is None
        self._state: CatalogState | None = None
        self._sums: dict[str, tuple[int, int]] = {}  # table name to row count and sum of CRCs
        self._failure: StorageError | None = None
        self._lock = threading.Lock()

    @staticmethod
    def create(env: Env, path: str) -> Catalog:
        """Create a new store's durable catalogue at `path`; returns it, loaded, for writing.

        It is created under another name and renamed, so there is either a complete catalogue or
        none.
        Raises: StorageError, also if there is a catalogue.
        """
        if env.files.exists(path):
            raise StorageError(f"cannot create {path}: a catalogue already exists: open it", path=path)
        write_new(env, path, CatalogState.empty(env.randomness.token_hex(16), env.clock.now_us()))
        catalog = Catalog.open(env, path)
        catalog.load()
        return catalog

    @staticmethod
    def open(env: Env, path: str, *, read_only: bool = False) -> Catalog:
        """Open the catalogue at `path`; `load` reads it.

        Raises: StorageError if it does not exist, cannot be opened, or was written by a future
            version of Nyala; CorruptionError if it is not a catalogue.
        """
        connection = _open(env, path, read_only)
        if not read_only:
            return Catalog(env, path, connection)
        connection.close()
        return Catalog(env, path, None)

    @property
    def state(self) -> CatalogState:
        """The loaded or last committed state."""
        assert self._state is not None, "load() comes first"
        return self._state

    @without_collector()
    def load(self, *, at_least: int = 0, thorough: bool = False) -> CatalogState:
        """Read everything, compare all checksums, and return the state.

        at_least: a version known to be committed; an older catalogue is damaged.
        thorough: run SQLite's own check too, as a writer always does.
        Raises:   CorruptionError, which names the file and the table; StorageError.
        Cost:     all rows: 10,000 rowsets of 20 columns take about a second.
        """
        with self._lock:
            self._check_usable()
            rows, sums = _read_again_if_damaged(lambda: self._read_whole(thorough), self.path)
            try:
                state = decode(rows)
            except ValueError as error:
                raise CorruptionError(str(error), self.path) from error
            if state.version < at_least:
                raise CorruptionError(
                    f"the catalogue is at version {state.version}, but version {at_least} was committed: "
                    f"{CATALOG_NAME}-wal is damaged or missing",
                    self.path,
                )
            self._state, self._sums = state, sums
            return state

    def commit(self, change: CatalogChange) -> CatalogState:
        """Commit `change` in one durable transaction; returns the new state.

        Raises: StorageError; nothing changed then, unless `.outcome` is "unknown". In that case the
            next open shows whether the change is durable, this object refuses all further calls
            (K1), and no file that `change` names may be removed. InvalidArgumentError if an
            idempotency key was used.
        Cost:   the rows of the change, and at most two syncs.
        """
        with self._lock:
            self._check_usable()
            if self._connection is None:
                raise ReadOnlyError(f"{self.path} is open for reading only: open the store for writing")
            old = self.state
            new = apply(old, change)
            leaving, coming = difference(old, new, change)
            sums = dict(self._sums)
            connection = self._connection
            self._env.files.check_bound()
            try:
                connection.execute("BEGIN IMMEDIATE")
                (version,) = connection.execute("SELECT version FROM store").fetchone()
                if version != old.version:
                    raise sqlite3.IntegrityError(f"version {version}, not {old.version}")
                _write_rows(connection, leaving, coming, sums, new.version)
            except BaseException as error:
                _roll_back(connection)
                if isinstance(error, sqlite3.IntegrityError):
                    raise self._changed_by_another(str(error)) from error
                if isinstance(error, sqlite3.Error):
                    raise _storage_error(self._env, error, self.path, "write") from error
                raise
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                _roll_back(connection)
                failure = _storage_error(self._env, error, self.path, "commit to")
                # SQLite reports a used-up quota as an I/O error; the last frame was not written
                # then either.
                if _code(error) not in _NOT_COMMITTED and not is_full(failure):
                    failure = StorageError(
                        f"{failure}; the next open of the store shows whether the change is durable",
                        path=self.path,
                        outcome="unknown",
                    )
                    self._failure = failure
                raise failure from error
            self._state, self._sums = new, sums
            self._env.files.external_commit(self.path)
            return new

    def close(self) -> None:
        """Close the database. May be called twice."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                self._failure = self._failure or StorageError(f"{self.path} is closed", path=self.path)
                with contextlib.suppress(sqlite3.Error):  # what was committed is durable already
                    connection.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageError(
                f"the catalogue takes no more calls because an earlier one failed ({self._failure}): close the store "
                "and open it again",
                path=self.path,
                outcome=self._failure.outcome,
            )

    def _read_whole(self, thorough: bool) -> tuple[RowsByTable, dict[str, tuple[int, int]]]:
        if self._connection is not None:
            return self._read(self._connection, thorough)
        with contextlib.closing(_open_once(self._env, self.path, read_only=True)) as connection:
            return self._read(connection, thorough)

    def _read(
        self, connection: sqlite3.Connection, thorough: bool
    ) -> tuple[RowsByTable, dict[str, tuple[int, int]]]:
        try:
            connection.execute("BEGIN")
            try:
                if thorough or not self._read_only:
                    # A writer also checks free pages and the order of trees, which no row shows:
                    # damage there would spoil the next write.
                    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                    if verdict != "ok":
                        _check_read(verdict, self.path)
                        raise CorruptionError(f"SQLite's own check says: {verdict}", self.path)
                return _read_rows(connection, self.path)
            finally:
                _roll_back(connection)
        except READ_ERRORS as error:
            raise read_error(self._env, error, self.path) from error

    def _changed_by_another(self, what: str) -> CorruptionError:
        return CorruptionError(
            f"another program has changed the catalogue ({what}): close the store and open it again",
            self.path,
        )


def write_new(env: Env, path: str, state: CatalogState) -> None:
    """Write a durable catalogue of this state at `path`, replacing an existing one.

    Raises: StorageError.

    It is written under another name and renamed, so there is either a complete catalogue or none.
    """
    unfinished = os.path.join(os.path.dirname(path), _UNFINISHED_NAME)
    for suffix in ("", "-wal", "-shm", "-journal"):
        env.files.unlink(unfinished + suffix, missing_ok=True)
    try:
        with contextlib.closing(_connect(unfinished, "rwc")) as connection:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise StorageError(
                    f"cannot create {path}: SQLite's WAL mode does not work on this file system (it reports {mode!r}): "
                    "put the store on a local disk",
                    path=path,
                )
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            connection.execute("BEGIN IMMEDIATE")
            for shape in SHAPES:
                connection.execute(shape.create_sql)
            nothing: RowsByTable = {shape.name: [] for shape in SHAPES}
            sums = {shape.name: (0, 0) for shape in SHAPES if shape is not SUMS}
            _write_rows(connection, nothing, all_rows(state), sums, state.version)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise _storage_error(env, error, path, "create") from error
    # Closing the last connection made SQLite copy its log into the file, sync it, and remove the
    # log.
    env.files.external_commit(unfinished)
    env.files.rename(unfinished, path)
    env.files.sync_dir(os.path.dirname(path) or ".")
    env.files.external_commit(path)


# --- rows, with their checksums ---------------------------------------------------------------------


def _write_rows(
    connection: sqlite3.Connection,
    leaving: RowsByTable,
    coming: RowsByTable,
    sums: dict[str, tuple[int, int]],
    version: int,
) -> None:
    """Delete and insert rows and rewrite all sums; updates `sums` (C1 to C3)."""
    for shape in SHAPES:
        if shape is SUMS:
            continue
        out, new = leaving[shape.name], coming[shape.name]
        if not out and not new:
            continue
        count, total = sums[shape.name]
        if out:
            cursor = connection.executemany(shape.delete_sql, [row[: shape.key_count] for row in out])
            if cursor.rowcount != len(out):
                raise sqlite3.IntegrityError(f"rows of table {shape.name} are missing")
        crcs = shape.crcs(new)
        connection.executemany(shape.insert_sql, [(*row, crc) for row, crc in zip(new, crcs, strict=True)])
        total += sum(crcs) - sum(shape.crcs(out))
        sums[shape.name] = (count + len(new) - len(out), total % SUM_MODULUS)
    rows: list[Row] = [(name, version, count, signed(total)) for name, (count, total) in sorted(sums.items())]
    connection.execute(f"DELETE FROM {SUMS.name}")
    connection.executemany(
        SUMS.insert_sql, [(*row, crc) for row, crc in zip(rows, SUMS.crcs(rows), strict=True)]
    )


def _read_rows(connection: sqlite3.Connection, path: str) -> tuple[RowsByTable, dict[str, tuple[int, int]]]:
    """All rows except those of `sums`, with all checksums compared (C1 to C3)."""
    sums_rows, _ = _read_table(connection, path, SUMS)
    sums: dict[str, tuple[Any, Any, Any]] = {
        str(name): (version, count, total) for name, version, count, total in sums_rows
    }
    expected_names = {shape.name for shape in SHAPES if shape is not SUMS}
    if set(sums) != expected_names:
        raise CorruptionError(f"table sums has rows for {sorted(sums)}, not {sorted(expected_names)}", path)
    rows: RowsByTable = {}
    found: dict[str, tuple[int, int]] = {}
    for shape in SHAPES:
        if shape is SUMS:
            continue
        rows[shape.name], total = _read_table(connection, path, shape)
        count = len(rows[shape.name])
        found[shape.name] = (count, total)
        _, sum_count, sum_total = sums[shape.name]
        if (sum_count, sum_total) != (count, signed(total)):
            raise CorruptionError(
                f"table {shape.name} has {count} rows with CRC sum {signed(total)}, expected {sum_count} rows with "
                f"{sum_total}: rows are lost, duplicated or old",
                path,
            )
    versions = {version for version, _, _ in sums.values()} | {row[4] for row in rows[format.STORE.name]}
    if len(versions) != 1:
        raise CorruptionError(f"tables have different versions {sorted(map(str, versions))}", path)
    return rows, found


def _read_table(connection: sqlite3.Connection, path: str, shape: TableShape) -> tuple[list[Row], int]:
    """The rows of a table without their CRC, which is compared, and the sum of the CRCs."""
    width = len(shape.columns)
    stored: list[Row] = connection.execute(shape.select_sql).fetchall()
    rows = [row[:width] for row in stored]
    try:
        crcs = shape.crcs(rows)
    except (TypeError, UnicodeError) as error:
        raise CorruptionError(f"table {shape.name} is damaged: {error}", path) from error
    for row, crc in zip(stored, crcs, strict=True):
        if row[width] != crc:
            key = ", ".join(repr(value)[:80] for value in row[: shape.key_count])
            raise CorruptionError(
                f"the row ({key}) of table {shape.name} has CRC-32C {crc:#010x}, expected {row[width]!r}",
                path,
            )
    return rows, sum(crcs) % SUM_MODULUS


def signed(total: int) -> int:
    """The sum as SQLite's signed integer: the upper half becomes negative."""
    return total - SUM_MODULUS if total >= SUM_MODULUS // 2 else total


# --- opening ----------------------------------------------------------------------------------------


def _connect(path: str, mode: Literal["ro", "rw", "rwc"]) -> sqlite3.Connection:
    uri = f"file:{urllib.parse.quote(os.fsencode(os.path.abspath(path)))}?mode={mode}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        _set_up(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_MAX_BYTES)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: past the drive's own cache
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute("PRAGMA temp_store = MEMORY")  # the disk may be full
    connection.execute("PRAGMA foreign_keys = OFF")  # `apply` keeps M1, and `load` checks it
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def open_for_reading(env: Env, path: str) -> sqlite3.Connection:
    """An SQLite connection to the catalogue at `path`. Raises: as `Catalog.open`."""
    return _open(env, path, read_only=True)


def _open(env: Env, path: str, read_only: bool) -> sqlite3.Connection:
    """A connection to a database that is a catalogue of the current format version."""
    return _read_again_if_damaged(lambda: _open_once(env, path, read_only), path)


def _open_once(env: Env, path: str, read_only: bool) -> sqlite3.Connection:
    if not env.files.exists(path):
        raise StorageError(
            f"there is no store in {os.path.dirname(path) or '.'}: it has no {CATALOG_NAME}: check the path",
            path=path,
        )
    try:
        try:
            return _checked(_connect(path, "ro" if read_only else "rw"), path, "wal")
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorcode", 0) in _MAYBE_FULL or _code(error) == sqlite3.SQLITE_FULL
            if not read_only or not (full or _code(error) in _MAY_NOT_WRITE):
                raise
            connection = connect_to_copy(env, path)
            _set_up(connection)
            return _checked(connection, path, "memory")
    except READ_ERRORS as error:
        raise read_error(env, error, path) from error


def _checked(connection: sqlite3.Connection, path: str, journal_mode: str) -> sqlite3.Connection:
    try:
        _check_identity(connection, path, journal_mode)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_identity(connection: sqlite3.Connection, path: str, expected_mode: str) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if application_id != APPLICATION_ID:
        raise CorruptionError(
            f"this is not a catalogue of Nyala: application id {application_id:#x}, expected {APPLICATION_ID:#x}",
            path,
        )
    found = connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
    as_expected = found == [(shape.create_sql,) for shape in sorted(SHAPES, key=lambda shape: shape.name)]
    if version > FORMAT_VERSION:
        # A store of a future version has it in the row of `store` too. If not, a bit has flipped
        # here.
        stored = _stored_format_version(connection)
        if stored != FORMAT_VERSION:
            raise StorageError(
                f"the store {os.path.dirname(path)} has format version {version}, and this version of Nyala "
                f"reads versions up to {FORMAT_VERSION}: update Nyala (pip install --upgrade nyala)",
                path=path,
            )
    if version == 1 and _stored_format_version(connection) == 1:
        raise StorageError(
            f"the store {os.path.dirname(path)} has format version 1, which was never released; this "
            f"version of Nyala reads version {FORMAT_VERSION}: export its tables with the version that wrote them, and "
            "load them into a new store",
            path=path,
        )
    if version != FORMAT_VERSION:
        raise CorruptionError(f"user_version is {version}, expected {FORMAT_VERSION}", path)
    if not as_expected:
        raise CorruptionError("the tables are not those of a catalogue", path)
    if journal_mode != expected_mode:
        raise CorruptionError(f"journal mode is {journal_mode!r}, expected {expected_mode!r}", path)


def _stored_format_version(connection: sqlite3.Connection) -> int | None:
    """The version in the row of `store`; None if there is no such row."""
    try:
        row = connection.execute("SELECT format_version FROM store").fetchone()
    except sqlite3.Error:
        return None
    return row[0] if row is not None and isinstance(row[0], int) else None


# --- errors -----------------------------------------------------------------------------------------


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _storage_error(env: Env, error: sqlite3.Error, path: str, verb: str) -> StorageError:
    """The StorageError for an error of SQLite.

    Its error number is that of a full disk if the disk is full. SQLite reports a full disk only for
    writes, by a code of its own, and not for files that it cannot create, nor for quotas.
    """
    code = _code(error)
    number = errno.ENOSPC if code == sqlite3.SQLITE_FULL else None
    if number is None and getattr(error, "sqlite_errorcode", 0) in _MAYBE_FULL:
        number = why_full(env.files, os.path.dirname(path) or ".")
        code = code if number is None else sqlite3.SQLITE_FULL
    advice = _OUTSIDE.get(code, "check the disk, and that no other program writes to the file")
    return StorageError(f"cannot {verb} {path}: {error}; {advice}", path=path, errno=number)


def read_error(env: Env, error: sqlite3.Error | UnicodeError, path: str) -> StorageError | CorruptionError:
    """The error for a failed read: damage, unless SQLite's code concerns the environment."""
    if isinstance(error, UnicodeError):
        return CorruptionError(f"a text is not UTF-8 ({error})", path)
    if _code(error) not in _DAMAGE and getattr(error, "sqlite_errorcode", 0) != _SHORT_READ:
        return _storage_error(env, error, path, "read")
    return CorruptionError(f"SQLite reports: {error}", path)


def _read_again_if_damaged(read: Callable[[], _T], path: str) -> _T:
    """Return the result of `read`, and do not mistake an I/O error for damage.

    SQLite also reports damage when the system cannot read a page (EIO). So damage counts only if a
    second read finds it too, and SQLite's own check can read every page.

    Raises: CorruptionError for damage, StorageError for a page that cannot be read.
    """
    try:
        return read()
    except CorruptionError as error:
        if not isinstance(error.__cause__, sqlite3.Error):
            raise  # found by our own checksum or comparison, so the bytes were read
    try:
        return read()
    except CorruptionError as error:
        if isinstance(error.__cause__, sqlite3.Error):
            with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(path, "ro")) as connection:
                for (verdict,) in connection.execute("PRAGMA quick_check"):
                    _check_read(verdict, path)
        raise


def _check_read(verdict: str, path: str) -> None:
    """Raises: StorageError if SQLite's own check could not read a page."""
    for found in _PAGE_NOT_READ.finditer(verdict):
        if int(found[1]) & 0xFF not in _DAMAGE and int(found[1]) != _SHORT_READ:
            raise StorageError(
                f"cannot read {path}: disk I/O error; {_OUTSIDE[sqlite3.SQLITE_IOERR]}", path=path
            )


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
