"""Creates tables from backups, in the process that writes the store.

For each table, `restore` creates an empty table with a temporary name (`tablet/state/unfinished.py`),
and writes the rows of the backups in batches of about 64 MB. Then all tables get their names in one
change of the catalogue. If a restore is killed before this change, tables with temporary names are
left. The next open drops them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from nyala import compute as pc
from nyala.backup.layout import Backup, PartFile
from nyala.backup.read import RestoreStep, read_part, restored_schema
from nyala.catalog.model import CatalogChange
from nyala.env import SYSTEM
from nyala.env.interrupts import Uninterrupted
from nyala.errors import Error, InvalidArgumentError, TableExistsError, TableNotFoundError, WriteError
from nyala.tablet.jobs.staged_files import StagedRows
from nyala.tablet.jobs.staged_rows import apply_changes
from nyala.tablet.scan import read_path
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec
from nyala.tablet.state.unfinished import unfinished_name
from nyala.tablet.tables.creation import NewTable, create_table
from nyala.tablet.write.write_path import Request, write

if TYPE_CHECKING:
    from nyala.tablet.store import Store

BATCH_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Restored:
    """A restored table: its name, its name in the backup, the backup's moment, and its row count."""

    name: str
    source: str
    until: int
    rows: int


def check_free(names: Sequence[str], taken: Mapping[str, object]) -> None:
    """Raise TableExistsError if a name is in `taken`, InvalidArgumentError if two are equal."""
    for name in names:
        if name in taken:
            raise TableExistsError(
                f"table {name!r} already exists: restore under another name, or drop the table first"
            )
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InvalidArgumentError(f"two backups would be restored as table {double!r}: pass different names")


def restore(
    store: Store,
    plans: Mapping[str, tuple[Backup, list[RestoreStep]]],
    progress: Callable[[int, int], None],
) -> list[Restored]:
    """Create tables from backups.

    plans: a dict from the name of each new table to the backup to restore and its steps.
    progress: called with the number of finished files and of all files.
    Raises: TableExistsError; CorruptionError, StorageError if a backup cannot be read. Then no table
        was created.
    """
    check_free(list(plans), store.root.by_name)
    total = sum(len(step.files) for _, steps in plans.values() for step in steps)
    done = 0
    with contextlib.ExitStack() as unfinished:
        filled = {}
        for wanted, (target, steps) in plans.items():
            name = filled[wanted] = unfinished.enter_context(filling(store, target, wanted))
            with restoring(name, wanted):
                for step in steps:
                    for file in step.files:
                        for rows in _in_batches(target, step, file):
                            apply_rows(store, name, step, rows)
                        done += 1
                        progress(done, total)
        _rename(store, filled)
    return [
        Restored(wanted, target.table, target.until, _count(store, wanted))
        for wanted, (target, _) in plans.items()
    ]


def _rename(store: Store, filled: Mapping[str, str]) -> None:
    """Give tables their final names in one change of the catalogue.

    filled: a dict from the final name of each table to its temporary name.
    """
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        after = root = store.root
        check_free(list(filled), root.by_name)
        change = CatalogChange(timestamp=store.clock.latest)
        for wanted, name in filled.items():
            table = root.table(name)
            entry = dataclasses.replace(table.entry, name=wanted)
            change.put_tables.append(entry)
            after = after.with_table(dataclasses.replace(table, entry=entry))
        store.transact(change, after.at_version)


@contextlib.contextmanager
def filling(store: Store, target: Backup, wanted: str) -> Iterator[str]:
    """Create an empty table for the rows of a backup; yield its temporary name.

    After the `with` block, drop the table unless it was renamed.

    wanted: the final name of the table, for error messages.
    """
    name = unfinished_name(SYSTEM, wanted)
    with restoring(name, wanted):
        partitions = [partition for _, partition in target.partitions]
        create_table(
            store,
            NewTable(
                name, target.schema, target.partition_schema, partitions, target.comment, target.history_us
            ),
        )
    try:
        yield name
    finally:
        with contextlib.suppress(TableNotFoundError):
            store.drop_tables([name], purge=True)


@contextlib.contextmanager
def restoring(filled: str, wanted: str) -> Iterator[None]:
    """In errors of the block, replace the temporary name `filled` by the final name `wanted`."""
    try:
        yield
    except Error as error:
        text = str(error).replace(repr(filled), repr(wanted))
        where = f"table {wanted!r}"
        text = text.removeprefix(where)
        error.args = (f"{where} (being restored){'' if text[:1] in ':, ' else ': '}{text}", *error.args[1:])
        if isinstance(error, WriteError) and error.errors is not None:
            at = error.errors.schema.get_field_index("message")
            messages = pc.replace_substring(error.errors.column(at), repr(filled), repr(wanted))
            error.errors = error.errors.set_column(at, "message", messages)
        raise


def apply_rows(store: Store, name: str, step: RestoreStep, rows: pa.Table) -> None:
    """Write rows of one backup into the table `name`, as one batch.

    step: the backup that the rows come from. The rows of a full backup are inserted. The rows of an
        incremental backup are applied as changes.
    """
    if step.is_full:
        keyed = store.root.table(name).schema.auto_increment is None
        write(store, [Request(name, "insert" if keyed else "upsert", rows)])
    else:
        apply_changes(store, name, StagedRows(rows))


def rows_of(target: Backup, step: RestoreStep, file: PartFile) -> Iterator[pa.RecordBatch]:
    """Read the rows of one file of a backup with `read_part`.

    If `read_part` raises an error, this function names the table and the tablet in the error's
    message.
    """
    try:
        yield from read_part(target, step, file)
    except Error as error:
        error.args = (f"backup of table {target.table!r}, tablet {file.tablet}: {error}", *error.args[1:])
        raise


def _in_batches(target: Backup, step: RestoreStep, file: PartFile) -> Iterator[pa.Table]:
    schema = restored_schema(target, step)
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in rows_of(target, step, file):
        held.append(batch)
        size += batch.nbytes
        if size >= BATCH_BYTES:
            yield pa.Table.from_batches(held, schema=schema)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held, schema=schema)


def _count(store: Store, name: str) -> int:
    table = store.root.table(name)
    spec, counters = ScanSpec(table.schema, (), store.marks.applied), ScanCounters()
    return read_path.count(read_path.plan(table, spec, counters), spec, counters)
