"""The names of a backup's files, its metadata, and the folder or bucket in which backups are.

    folder/<table>/<until>/part-….parquet      rows of one tablet: columns c<column id>, and _action
                          /backup.json         the metadata; a folder without it is not a backup
           <table>/.<until>-<owner>-<token>/   a backup in progress; renamed to <until> when complete
           %store/<until>.json                 names the backups of all tables of a store at one moment

`until` is the moment of the backup. `owner` is a text that identifies the process that writes it
(`env.process_mark`). The folder of a backup in progress is called its work folder.

A bucket has no renames. There the files of a backup in progress are in <until>/<owner>-<token>/, and
backup.json is put last, by put-if-absent. `%store` is called `=store` there. No table has a folder of
this name, because the names of tables are escaped.

Invariants
    B1  backup.json exists only if all files that it names exist and are synced. Then the folder gets
        its final name; in a bucket, backup.json completes the backup. So an interrupted backup is not
        a backup, and no backup changes an earlier one.
    B2  Columns are identified by their ids. So a renamed column is found, and a dropped column is not
        restored. If a column was added after a backup, the rows of this backup get its default.
    B7  The record of a whole store (in %store) is written after all backups that it names. These
        backups are of the same moment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

import google_crc32c

from nyala.env import SYSTEM, Env, Files
from nyala.env.paths import is_bucket_url, plain_url, utf8_path
from nyala.errors import CorruptionError, InvalidArgumentError, StorageError
from nyala.objects.address import bucket_of, open_env
from nyala.objects.open import StorageOptions, open_objects
from nyala.objects.settle import settle
from nyala.partition.model import Partition, PartitionSchema
from nyala.schema.schema import Schema
from nyala.tablet.jobs.load_job import partition_from_json, partition_to_json
from nyala.tablet.state.store_folder import check_folder_path

VERSION: Final = 3
METADATA: Final = "backup.json"
ACTION: Final = "_action"
# The name of a backup's folder, and of the folder of a backup in progress. A timestamp has at most 19
# digits.
NAME: Final = re.compile(r"(\d{1,19})(?:-full)?")
WORK: Final = re.compile(r"\.(\d+)-([0-9a-f]{40}|-)-[0-9a-f]{16}")
BUCKET_WORK: Final = re.compile(r"([0-9a-f]{40}|-)-[0-9a-f]{16}")
RECORD: Final = re.compile(r"(\d{1,19})\.json")
ADVICE: Final = "restore the original files, or move the backup's folder elsewhere"
"""The advice in errors about damaged metadata."""
_UNCACHED: Final = 0  # bytes of the cache of a bucket's files


# ------------------------------------------------------------------------------------------------ places


class Place(Protocol):
    """A folder, or a prefix of a bucket, that contains backups. An `Address` is a `Place`, too."""

    @property
    def path(self) -> str: ...
    @property
    def in_bucket(self) -> bool: ...
    @property
    def env(self) -> Env: ...


@dataclass(frozen=True)
class OpenedPlace:
    """A `Place` that `open_place` opened. For a bucket, `env` holds the user's credentials."""

    path: str
    env: Env

    @property
    def in_bucket(self) -> bool:
        return is_bucket_url(self.path)


@contextlib.contextmanager
def open_place(
    folder: str | os.PathLike[str], storage_options: StorageOptions | None
) -> Iterator[OpenedPlace]:
    """Yield the folder or bucket that contains backups; close its connections after the block.

    folder: the path of a folder, or the URL of a bucket with a prefix.
    storage_options: credentials and settings of the bucket; must be None for a folder.
    Raises: InvalidArgumentError, ImportError, StorageError.
    """
    path: object = os.fspath(folder) if isinstance(folder, os.PathLike) else folder
    if not isinstance(path, str) or not path:
        raise InvalidArgumentError(f"a backup needs a folder: pass its path or its URL, not {folder!r}")
    if is_bucket_url(path):
        env = open_env(open_objects(path, storage_options), cache_bytes=_UNCACHED)
        try:
            yield OpenedPlace(plain_url(path), env)
        finally:
            env.files.close()
        return
    if storage_options is not None:
        raise InvalidArgumentError(
            f"storage_options are for a backup in a bucket: pass a URL, such as 's3://bucket/backups', not {path!r}"
        )
    check_folder_path(path)
    yield OpenedPlace(utf8_path(os.path.expanduser(path)), SYSTEM)


def path_in(place: Place, *names: str) -> str:
    """Return the path or URL of a file or folder inside the place."""
    return "/".join((place.path.rstrip("/"), *names))


def folder_of(place: Place, table: str) -> str:
    """Return the name of the folder that contains the backups of the table `table`.

    A code replaces each character that a folder's name cannot have. For example, "/" becomes "%2F"
    on a local disk, and "=2F" in a bucket. In a bucket, codes replace all special characters.
    """
    if place.in_bucket:
        name = quote(table, safe="").replace("~", "%7E").replace("%", "=")
        return f"=2E{name[1:]}" if name.startswith(".") else name
    name = table.replace("%", "%25").replace("/", "%2F")
    return name.replace(".", "%2E") if name in (".", "..") else name


def table_of(place: Place, folder: str) -> str:
    """Return the table whose backups are in a folder of this name: the inverse of `folder_of`."""
    return unquote(folder.replace("=", "%") if place.in_bucket else folder)


def records_path(place: Place) -> str:
    """Return the path of the folder with one record (JSON file) for each backup of a whole store.

    No table has a folder of this name.
    """
    return path_in(place, "=store" if place.in_bucket else "%store")


def names_in(files: Files, path: str) -> list[str]:
    """Return the names in a folder; none if `path` is a file, because users may put files there."""
    try:
        return files.list_dir(path)
    except StorageError as error:
        if error.errno != errno.ENOTDIR:
            raise
        return []


# ------------------------------------------------------------------------------------------------ metadata


class PartFile(NamedTuple):
    """A file of a backup: its name, tablet id, number of rows, size, and the CRC-32C of its bytes."""

    name: str
    tablet: int
    rows: int
    bytes: int
    crc: int


@dataclass(frozen=True)
class Backup:
    """A backup of a table: the content of backup.json.

    rewritten_at: the timestamp of the last repartition, copy or clone, which rewrote all rows of the
        table without history; 0: never. The JSON calls it "rewritten".
    since: the moment of the backup on which this one depends; None for a full backup.
    until: the moment of this backup.
    """

    place: Place
    store: str
    """The id of the store. Two stores may have tables of one name and id."""
    table: str
    table_id: int
    rewritten_at: int
    since: int | None
    until: int
    schema: Schema
    partition_schema: PartitionSchema
    partitions: tuple[tuple[int, Partition], ...]
    history_us: int | None
    comment: str
    name: str
    """The folder's name: `until`, or `until`-full if that moment already has an incremental backup."""
    files: tuple[PartFile, ...] = ()
    work: str = ""
    """The name of the folder while the backup is in progress."""

    @property
    def identity(self) -> tuple[str, int, int]:
        """The store, the table, and the timestamp at which all of its rows were last rewritten.

        An incremental backup depends on an earlier backup with the same identity.
        """
        return self.store, self.table_id, self.rewritten_at

    @property
    def path(self) -> str:
        return path_in(self.place, folder_of(self.place, self.table), self.name)

    @property
    def work_path(self) -> str:
        return path_in(self.place, folder_of(self.place, self.table), self.work)

    @property
    def files_at(self) -> Files:
        """The object that reads and writes files in the folder or bucket of the backup."""
        return self.place.env.files

    def to_json(self) -> bytes:
        return _sealed(
            {
                "version": VERSION,
                "store": self.store,
                "table": self.table,
                "table_id": self.table_id,
                "rewritten": self.rewritten_at,
                "since": self.since,
                "until": self.until,
                "schema": json.loads(self.schema.to_json()),
                "partition_schema": json.loads(self.partition_schema.to_json()),
                "tablets": [{"id": number, **partition_to_json(p)} for number, p in self.partitions],
                "history_us": self.history_us,
                "comment": self.comment,
                "files": [list(file) for file in self.files],
            }
        )

    @staticmethod
    def read(place: Place, path: str) -> Backup:
        """Read backup.json. Raises: CorruptionError if it is damaged or of another version; StorageError."""
        with _damage_raises(path):
            fields = _read_sealed(place, path)
            return Backup(
                place, fields["store"], fields["table"], fields["table_id"], fields["rewritten"], fields["since"],
                fields["until"], Schema.from_json(json.dumps(fields["schema"])),
                PartitionSchema.from_json(json.dumps(fields["partition_schema"])),
                tuple((tablet["id"], partition_from_json(tablet)) for tablet in fields["tablets"]),
                fields["history_us"], fields["comment"], os.path.basename(os.path.dirname(path)),
                tuple(PartFile(*file) for file in fields["files"]),
            )  # fmt: skip


@dataclass(frozen=True)
class StoreRecord:
    """The backups of all tables of a store at one moment.

    tables: a dict from table name to the name of the backup's folder.
    """

    store: str
    until: int
    tables: Mapping[str, str]

    def path(self, place: Place) -> str:
        return f"{records_path(place)}/{self.until}.json"

    def write(self, place: Place) -> None:
        """Write the record durably."""
        files, path = place.env.files, self.path(place)
        files.make_dirs(os.path.dirname(path))
        files.write_atomic(
            path,
            _sealed(
                {"version": VERSION, "store": self.store, "until": self.until, "tables": dict(self.tables)}
            ),
        )
        files.sync_dir(os.path.dirname(path))

    @staticmethod
    def read(place: Place, path: str) -> StoreRecord:
        """Read a record. Raises: CorruptionError if it is damaged; StorageError."""
        with _damage_raises(path):
            fields = _read_sealed(place, path)
            return StoreRecord(fields["store"], fields["until"], dict(fields["tables"]))


def put_metadata(place: Place, path: str, data: bytes) -> None:
    """Create backup.json in a bucket. Raises: StorageError if it exists with other content.

    path, data: the URL and the content of the file.
    """
    bucket = bucket_of(place.env)
    assert bucket is not None
    if settle(place.env, bucket, path.removeprefix(f"{bucket.url}/"), data) is not None:
        raise StorageError(
            "this backup was not completed, because another program has completed a backup of the same table and "
            f"timestamp in the meantime: {path}. Repeat the backup",
            path=path,
            errno=errno.EEXIST,
        )


def _sealed(fields: dict[str, Any]) -> bytes:
    """Return the fields as JSON, with one more field: the CRC-32C of the others."""
    return json.dumps({**fields, "crc": _crc_of(fields)}, indent=1).encode()


def _read_sealed(place: Place, path: str) -> dict[str, Any]:
    """Read the JSON file `path` with a backup's metadata, and return its fields without the CRC.

    Raises: CorruptionError if the version is not supported, or if the CRC is wrong.
    """
    fields: dict[str, Any] = json.loads(place.env.files.read_all(path))
    if fields["version"] != VERSION:
        raise CorruptionError(
            f"backup version {fields['version']} is not supported, only {VERSION}: back up to another folder",
            path,
        )
    crc = fields.pop("crc")
    if crc != _crc_of(fields):
        raise CorruptionError(
            f"the backup's metadata is damaged: expected checksum {crc}, found {_crc_of(fields)}: {ADVICE}",
            path,
        )
    return fields


@contextlib.contextmanager
def _damage_raises(path: str) -> Iterator[None]:
    """Convert errors of decoding metadata in the `with` block to CorruptionError."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError(f"the backup's metadata cannot be read ({error}): {ADVICE}", path) from error


def _crc_of(fields: dict[str, Any]) -> int:
    return int(google_crc32c.value(json.dumps(fields, sort_keys=True).encode()))
