"""Creates a table, empty or with its first rows. The table may replace another one.

Under the commit lock:

    1  take a timestamp: the moment of the table's creation, and of its rows
    2  for each part of the rows: prepare it, resolve it, and write its files
    3  commit one change of the catalogue: the table, its files, and the drop of the replaced table

Invariants
    C1  The table appears with all its rows at the moment at which the replaced table disappears.
        Before the change nothing is visible, and the next open removes files left by a crash.
    C2  The ids of the table and its tablets are new. So no log record of an earlier table with the
        same name can be replayed into the new table.

Source: docs/design/writes-and-batches.md; docs/design/rules.md, P3 and R1.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nyala.catalog.model import TableEntry, TabletEntry
from nyala.env.interrupts import Interruptible, Uninterrupted, checkpoint
from nyala.errors import TableExistsError
from nyala.partition.model import Partition, PartitionSchema
from nyala.schema.limits import Limits
from nyala.schema.schema import Schema
from nyala.tablet.state.root import Root, TableState, TabletState
from nyala.tablet.write.direct_commit import write_effects
from nyala.tablet.write.part_commit import parts_of
from nyala.tablet.write.resolve import resolve
from nyala.tablet.write.write_path import Request, failure, prepare_request

if TYPE_CHECKING:
    from nyala.tablet.store import Store


@dataclass(frozen=True)
class NewTable:
    """The description of a table to create.

    history_us: how long history is kept, in microseconds; None: forever.
    """

    name: str
    schema: Schema
    partition_schema: PartitionSchema
    partitions: Sequence[Partition]
    comment: str = ""
    history_us: int | None = None

    def bare(self, limits: Limits) -> TableState:
        """Return the table without tablets. Its id is 0 until it is committed."""
        schema = self.schema
        entry = TableEntry(
            0,
            self.name,
            self.comment,
            self.history_us,
            schema,
            {schema.version: schema},
            self.partition_schema,
        )
        return TableState(entry, (), limits)


def create_table(
    store: Store, new: NewTable, rows: Sequence[Request] = (), *, replaces: bool = False
) -> None:
    """Create a table at one moment, with its first rows if any.

    rows:     at most one request, with the first rows of the table.
    replaces: drop an existing table of this name.
    Raises: TableExistsError; WriteError or a subclass if a row cannot be inserted; StorageError.
            Nothing changes then.
    """
    bare = new.bare(store.options.limits)
    target = dataclasses.replace(
        bare,
        tablets=tuple(
            TabletState(TabletEntry(store.allocate("tablet"), 0, partition, 0), store.new_memory(bare))
            for partition in new.partitions
        ),
    )
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        old = store.root.by_name.get(new.name)
        if old is None:
            _commit(store, target, rows, [])
        elif replaces:
            store.reserve.use(lambda: _commit(store, target, rows, [old]))
        else:
            raise TableExistsError(
                f"table {new.name!r} already exists: open it with table({new.name!r}), or pass exist_ok=True"
            )


def name_in_use(name: str) -> TableExistsError:
    """Return the error for a copy or a clone with the name of an existing table."""
    return TableExistsError(f"table {name!r} already exists: choose another name, or drop that table first")


def _commit(
    store: Store, target: TableState, rows: Sequence[Request], replaced: Sequence[TableState]
) -> None:
    """Write the first rows, and commit the new table and the drop of the replaced tables.

    Call it under the commit lock.
    """
    created = store.stamp()
    schema = target.schema
    entry = dataclasses.replace(
        target.entry, id=store.state.next_table_id, created=created, schema_since={schema.version: created}
    )
    table = dataclasses.replace(
        target,
        entry=entry,
        tablets=tuple(
            dataclasses.replace(
                tablet, entry=dataclasses.replace(tablet.entry, table_id=entry.id, created=created)
            )
            for tablet in target.tablets
        ),
    )
    change, before = store.dropping(replaced, created, purge=False)
    change.put_tables.append(entry)
    written: list[str] = []
    with contextlib.ExitStack() as failed:
        failed.callback(store.discard_files, written)
        with Interruptible():
            for request in rows:
                for part in _parts(store, request):
                    checkpoint()
                    changed: dict[int, TabletState] = {}
                    resolved = resolve(table, [prepare_request(table, part, borrow_above_bytes=0)])
                    if resolved.failed:
                        raise failure(resolved, [part])
                    write_effects(store, resolved, created, change, changed, written)
                    table = table.with_tablets(changed)
            store.sync_directories(written)
        change.put_tablets = [tablet.entry for tablet in table.tablets]

        def after(version: int) -> Root:
            return before.with_table(table, version)

        store.transact(change, after, forget_log=bool(change.drop_tables))
        failed.pop_all()


def _parts(store: Store, request: Request) -> Iterator[Request]:
    """Divide a request with an Arrow table into parts that fit into memory.

    A request with other data, such as rows from another process, is yielded as a whole.
    """
    if not isinstance(request.data, pa.Table):
        yield request
        return
    begin = 0
    for rows in parts_of(store, request.data):
        yield dataclasses.replace(request, data=rows, numbers=np.arange(begin, begin + rows.num_rows))
        begin += rows.num_rows
