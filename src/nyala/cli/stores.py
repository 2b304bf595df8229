"""Opens stores, finds tables, and describes tables for output.

Only `sql`, `load --create`, `restore` and `demo` create stores, so that a mistyped path creates no
folder. If `sql`, `load --create` or `restore` fails, it removes its new store, unless the store has
a table.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from nyala.cli.base import cli_words, program, settings

if TYPE_CHECKING:
    from nyala.api.database import Database
    from nyala.api.scan import Scan
    from nyala.api.table import Table
    from nyala.schema.schema import ColumnSchema
    from nyala.tablet.state.root import TableState

__all__ = [
    "block_size_text",
    "check_file_names",
    "check_store_path",
    "describe_columns",
    "echo_why_empty",
    "find_table",
    "is_store",
    "partition_text",
    "readable_from",
    "reader",
    "require_bucket_store",
    "state_of",
    "storage_options_of_both",
    "store_exists",
    "writer",
]


@contextmanager
def reader(folder: str, storage_options: Mapping[str, Any] | None = None) -> Iterator[Database]:
    """Open the store read-only for the `with` block. Another process may write meanwhile.

    storage_options: credentials and settings of a bucket. Default: those that the user passed with
        `--option`.
    """
    from nyala.api.database import connect

    _require_store(folder)
    options = settings().storage_options if storage_options is None else storage_options
    with connect(folder, read_only=True, storage_options=options or None) as database:
        yield database


@contextmanager
def writer(folder: str, *, create: bool = False, maintenance: bool = True) -> Iterator[Database]:
    """Open the store for writing in a `with` block.

    create: create the store if it is missing; otherwise a missing store is an error.
    maintenance: whether to compact in the background.

    If another program has the store's folder open, the writes go through that program.

    If the `with` block fails and a new store has no table, the store is removed. A new store in a
    bucket stays, because another process may already be its writer; a message says that it stays.
    """
    from nyala.api.database import connect
    from nyala.env.paths import is_bucket_url

    made = _missing_folders(folder) if create else []
    if not create:
        _require_store(folder)
    try:
        with connect(
            folder, maintenance=maintenance, storage_options=settings().storage_options or None
        ) as database:
            try:
                yield database
            except BaseException:
                if create and is_bucket_url(folder):
                    _echo_empty_store(database, folder)
                raise
    except BaseException:
        if made:
            _remove_new_store(made)
        raise


def _missing_folders(path: str) -> list[str]:
    """Return the folders that `connect` would create, the store's own first. A bucket has none."""
    from nyala.env.paths import is_bucket_url

    if is_bucket_url(path):
        return []
    found = []
    path = os.path.abspath(os.path.expanduser(path))
    while not os.path.lexists(path):
        found.append(path)
        path = os.path.dirname(path)
    return found


def _echo_empty_store(database: Database, url: str) -> None:
    """Print that a new store without tables stays in the bucket."""
    from nyala.errors import Error

    with contextlib.suppress(Error):
        if not database.list_tables() and not settings().json:
            click.echo(f"{url} is now a store without tables; `table load --create` adds one.", err=True)


def _remove_new_store(made: Sequence[str]) -> None:
    """Remove a new store that no other process uses, and the parent folders created with it.

    made: the created folders, the store's own first. The store stays if another process has its
    lock (a writer), has created tables, or has a lease (a reader). It also stays after any error.
    """
    from nyala.api.database import connect
    from nyala.catalog.format import LEASES_NAME
    from nyala.catalog.store_lock import StoreLock
    from nyala.env import SYSTEM
    from nyala.errors import Error

    path, *parents = made
    removed = f"{path}.{os.getpid()}.gone"  # renamed first, so that no process opens a partly removed store
    with contextlib.suppress(Error, OSError), StoreLock(SYSTEM, path):
        with connect(path, read_only=True) as database:
            is_used = bool(database.list_tables())
        if not is_used and not os.listdir(os.path.join(path, LEASES_NAME)):
            os.rename(path, removed)
            shutil.rmtree(removed)
            for parent in parents:
                os.rmdir(parent)


def check_file_names(context: click.Context, parameter: click.Parameter, files: Any) -> Any:
    """Check the argument FILE or FILES, and return it unchanged.

    Raises InvalidArgumentError for a name that is not UTF-8.
    """
    from nyala.env.paths import utf8_path

    for file in [files] if isinstance(files, str) else files:
        utf8_path(file)
    return files


def check_store_path(context: click.Context, parameter: click.Parameter, folder: str) -> str:
    """Check the argument FOLDER, and return it unchanged.

    The URL of a bucket is checked later, when the bucket is opened. Raises StorageError for a file,
    and InvalidArgumentError for an unknown kind of URL or invalid UTF-8.
    """
    from nyala.env.paths import is_bucket_url, utf8_path
    from nyala.tablet.state.store_folder import check_folder_path

    utf8_path(folder)
    if is_bucket_url(folder):
        return folder
    check_folder_path(folder)
    if os.path.isfile(folder):
        from nyala.errors import StorageError

        raise StorageError(f"expected a store's folder, but {folder!r} is a file", path=folder)
    return folder


def _require_store(folder: str) -> None:
    """Raise StorageError if there is no store at FOLDER. The message says what to do instead."""
    from nyala.catalog.loading import find_store
    from nyala.env import SYSTEM
    from nyala.env.paths import is_bucket_url
    from nyala.errors import StorageError
    from nyala.tablet.state.store_folder import DATA_NAME, WAL_NAME

    if is_bucket_url(folder):
        require_bucket_store(folder)
    elif not store_exists(folder):
        there = "" if os.path.isdir(folder) else " (the folder does not exist)"
        if there and os.sep not in folder:
            there = " (the folder does not exist; FOLDER comes first, then TABLE)"
        others = [] if there else sorted(os.listdir(folder))
        if {WAL_NAME, DATA_NAME} & set(others):
            find_store(SYSTEM, folder)  # raises if this is a store without its `nyala.json`
        if others:
            how = (
                f"it has other files ({', '.join(others[:3])}); pass the folder that was passed to connect()"
            )
        else:
            how = (
                f"create one with `{program()} sql {shlex.quote(folder)}`, an example with `{program()} demo`, or one "
                "from your data with `table load --create`"
            )
        raise StorageError(f"there is no Nyala store at {folder!r}{there}: {how}", path=folder)


def is_store(path: str) -> bool:
    """Whether the path is the folder of a store, or the URL of any bucket."""
    from nyala.env.paths import is_bucket_url

    return is_bucket_url(path) or (os.path.isdir(path) and store_exists(path))


def store_exists(path: str) -> bool:
    """Whether there is a store in the folder or bucket. Raises the errors of `connect` for a bucket."""
    from nyala.catalog.checkpoint import identity_path
    from nyala.env import SYSTEM
    from nyala.env.paths import is_bucket_url
    from nyala.objects.open import open_objects
    from nyala.wal.objects.follower import read_identity

    if not is_bucket_url(path):
        return SYSTEM.files.exists(identity_path(path))
    with contextlib.closing(open_objects(path, settings().storage_options)) as objects:
        return read_identity(SYSTEM, objects) is not None


def storage_options_of_both(
    option: str, given: dict[str, Any], path: str, store: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the storage options for `path`, and the storage options for `store`.

    Some commands use both, for example to copy `store` to `path`. The options for a folder are
    always empty. The options for a store in a bucket are the values of --option. The options for a
    `path` in a bucket are the first that apply:

    1. `given`, if it has values;
    2. the values of --option, if `store` is a folder or has a URL of the same scheme as `path`;
    3. none.

    option: the name of the command's option that is only for `path`, such as --to-option.
    given: the values that the user passed with the option `option`.
    Raises: click.UsageError if `given` has values and `path` is a folder.
    """
    from nyala.env.paths import is_bucket_url

    if given and not is_bucket_url(path):
        raise click.UsageError(f"{option} is only for a bucket, but {path!r} is a folder")
    shared = settings().storage_options
    scheme, store_scheme = (url.partition(":")[0] if is_bucket_url(url) else "file" for url in (path, store))
    if not given and store_scheme in ("file", scheme):
        given = shared
    return given if is_bucket_url(path) else {}, {} if store_scheme == "file" else shared


def require_bucket_store(url: str) -> None:
    """Raise StorageError if the bucket has no store at the URL."""
    from nyala.errors import StorageError

    if not store_exists(url):
        raise StorageError(
            f"there is no Nyala store at {url!r}: create one with `{program()} sql {shlex.quote(url)}`, or from your "
            "data with `table load --create`",
            path=url,
        )


def find_table(database: Database, name: str | None) -> Table:
    """Return the table with this name. If name is None, return the only table of the store.

    Raises TableNotFoundError, or click.UsageError if the name is None and the store has several
    tables.
    """
    if name is not None:
        return database.table(name)
    names = database.list_tables()
    if len(names) == 1:
        return database.table(names[0])
    if not names:
        from nyala.errors import TableNotFoundError

        raise TableNotFoundError("the store has no tables: create one from a file with `table load --create`")
    raise click.UsageError(f"the store has {len(names)} tables; pass the name of one: {', '.join(names)}")


def state_of(database: Database, name: str) -> TableState:
    """Return the table's definition and tablets, which the public API does not show.

    Raises TableNotFoundError.
    """
    return database._root().table(name)


def partition_text(state: TableState) -> str:
    """Return the partitioning as text, such as `HASH (host, metric) BUCKETS 4, RANGE (time)`."""
    from nyala.partition.describe import describe_schema

    return describe_schema(state.entry.partition_schema, state.schema)


def readable_from(oldest: int) -> dict[str, Any]:
    """Return two fields of a JSON document: the oldest readable timestamp, and the same as ISO text.

    oldest: the timestamp; 0 if the whole history is readable. The text is then None.
    """
    from nyala.cli.output import moment

    return {"oldest_readable": oldest, "oldest_readable_time": moment(oldest)["time"] if oldest else None}


def echo_why_empty(rows: Scan) -> None:
    """Print why the scan has no rows, if Nyala knows a reason."""
    if why := rows._engine().why_empty():
        click.echo(cli_words(why), err=True)


def describe_columns(state: TableState) -> list[dict[str, Any]]:
    """Return the columns for JSON documents.

    "key": the position in the primary key, counted from 1, or null.
    """
    from nyala.presentation.cells import json_value

    return [
        {
            "name": column.name,
            "type": str(column.type),
            "key": position if position <= state.schema.key_count else None,
            "nullable": column.nullable,
            "default": json_value(_default(column)),
            "encoding": column.encoding,
            "compression": column.compression,
            "block_size": column.block_size_bytes,
            "comment": column.comment,
        }
        for position, column in enumerate(state.schema.columns, start=1)
    ]


def block_size_text(block_size_bytes: int | None) -> str:
    """Return for example "blocks of 65,536", or "" if the column has the default block size."""
    return "" if block_size_bytes is None else f"blocks of {block_size_bytes:,}"


def _default(column: ColumnSchema) -> Any:
    from nyala.schema.schema import NO_DEFAULT

    return None if column.write_default is NO_DEFAULT else column.write_default
