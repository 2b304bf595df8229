"""The methods by which the public API changes a store, if this process is the store's writer.

    Database, Table, Batch, Transaction ──► Writer ─┬─ LocalWriter     this process is the writer
                                                    └─ RemoteWriter    another process is (`remote_writer`)

The writer's process also executes the calls of other processes by its `LocalWriter` (`calls`,
`writer_session`).

A parameter named `key` is the idempotency key of a call from another process. A call with the key
of an earlier call does nothing, and returns the result of the earlier call (H1 of `commits`).

Methods import the modules that only they need, so that opening a store takes little time.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from nyala.errors import ConflictError, InvalidArgumentError, TableExistsError, TableNotFoundError
from nyala.tablet.state.result import WriteResult

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.partition.model import Partition, PartitionSchema
    from nyala.schema.limits import Limits
    from nyala.schema.schema import Schema
    from nyala.tablet.alter import Draft, Step
    from nyala.tablet.compaction.lifecycle import Runner
    from nyala.tablet.maintenance import Maintenance
    from nyala.tablet.state.root import TableState
    from nyala.tablet.store import Store
    from nyala.tablet.tables.creation import NewTable
    from nyala.tablet.write.transaction import OpenTransaction
    from nyala.tablet.write.where_writes import Select
    from nyala.tablet.write.write_path import Request


class Progress(Protocol):
    """Receives the progress of a compaction, as `presentation.progress.CompactionProgress` does."""

    def step(self, done: int, total: int) -> None: ...

    def rows(self, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class TableDraft:
    """A table before or after an alteration, as another process sends it.

    kept:    ids of the table's tablets that are not dropped
    dropped: ids of the tablets of dropped ranges
    purged:  ids of the tablets to remove at once, with their data
    added:   partitions that get new tablets
    """

    name: str
    comment: str
    history_us: int | None
    schema: Schema
    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    purged: tuple[int, ...]
    added: tuple[Partition, ...]

    @staticmethod
    def of(draft: Draft) -> TableDraft:
        kept, dropped, purged = (
            tuple(tablet.id for tablet in tablets) for tablets in (draft.kept, draft.dropped, draft.purged)
        )
        return TableDraft(
            draft.name, draft.comment, draft.history_us, draft.schema, kept, dropped, purged, draft.added
        )

    def equals(self, other: TableDraft) -> bool:
        return dataclasses.replace(self, schema=other.schema) == other and (
            self.schema.to_json() == other.schema.to_json()
        )


@dataclass(frozen=True)
class SeenTable:
    """Identifies the state of a table on which another process based a write."""

    table_id: int
    schema_version: int
    tablets: tuple[int, ...]

    @staticmethod
    def of(table: TableState) -> SeenTable:
        return SeenTable(table.id, table.schema.version, tuple(tablet.id for tablet in table.tablets))


class LocalWriter:
    """The writer of a store whose lock this process holds. Thread-safe.

    Most methods call the function or the `Store` method of the same name in the package `tablet`.
    Its docstring says what the method does and raises.
    """

    def __init__(self, store: Store, maintenance: Maintenance) -> None:
        self.store = store
        self.maintenance: Final = maintenance

    @property
    def limits(self) -> Limits:
        return self.store.options.limits

    @property
    def memory_limit_bytes(self) -> int:
        return self.store.memory_limit_bytes

    def check_writable(self) -> None:
        self.store.check_writable()

    # ------------------------------------------------------------------------------------------ rows

    def write(
        self,
        requests: Sequence[Request],
        *,
        collect: bool = False,
        message: str | None = None,
        key: str | None = None,
    ) -> list[WriteResult]:
        from nyala.tablet.write.write_path import write

        if (earlier := self._earlier(key)) is not None:
            return [earlier] * len(requests)
        return write(self.store, requests, collect=collect, idempotency_key=key, message=message)

    def write_selected(
        self,
        name: str,
        operation: str,
        select: Select,
        *,
        collect: bool = False,
        message: str | None = None,
        key: str | None = None,
    ) -> WriteResult:
        from nyala.tablet.write.where_writes import write_selected

        if (earlier := self._earlier(key)) is not None:
            return earlier
        return write_selected(
            self.store, name, operation, select, collect=collect, message=message, idempotency_key=key
        )

    def restore(
        self, table_id: int, to: int, message: str | None = None, *, key: str | None = None
    ) -> WriteResult:
        from nyala.tablet.tables.restore import restore

        if (earlier := self._earlier(key)) is not None:
            return earlier
        return restore(self.store, table_id, to, message, key)

    def _earlier(self, key: str | None) -> WriteResult | None:
        """Return the result of an earlier call with this key, even if its table no longer exists."""
        if key is None:
            return None
        from nyala.tablet.write.write_path import find_committed

        return find_committed(self.store, key)

    # ------------------------------------------------------------------------------------------ transactions

    def begin(self, timeout_s: float) -> OpenTransaction:
        from nyala.tablet.write.transaction import begin

        return begin(self.store, timeout_s=timeout_s, bytes_max=self.memory_limit_bytes // 4)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep out the writes of all other threads and processes while the `with` block runs."""
        from nyala.tablet.write.write_path import make_room

        # Make room first: another thread flushes a full memory, and it needs these locks.
        make_room(self.store)
        with self.store.flush_lock, self.store.commit_lock:
            yield

    def commit_set(
        self,
        requests: Sequence[Request],
        seen: Sequence[SeenTable],
        since: int,
        message: str | None = None,
        collect: bool = True,
        *,
        pinned: bool = False,
        key: str | None = None,
    ) -> list[WriteResult]:
        """Commit the writes of a transaction of another process; return one result per request.

        requests: one for each table that the transaction changed.
        seen: the table of each request, as the transaction saw it.
        since: the timestamp of the transaction's snapshot.
        collect: leave failing rows out and report them; otherwise a failing row stops the commit.
        pinned: True: this writer has discarded no history since the transaction began. False: some
            history after `since` may have expired.
        key: the idempotency key. If a batch with this key was committed before, return its result.
        Raises: ConflictError if a table, or a row that the transaction wrote, was changed after
            `since`, or if this cannot be known; WriteError if a row fails and `collect` is False.
        """
        from nyala.tablet.write.write_path import altered_error, commit_checked, prepare_request

        if (earlier := self._earlier(key)) is not None:
            return [earlier] * len(requests)
        store = self.store
        root = store.root
        prepared = []
        for request, before in zip(requests, seen, strict=True):
            table = root.tables.get(before.table_id)
            if table is None:
                raise altered_error(request.table, "was dropped")
            if SeenTable.of(table) != before:
                raise altered_error(request.table, "was altered")
            if not pinned and since < store.history_cut(table.entry):
                raise ConflictError(
                    f"the history of table {table.name!r} since the transaction began may be gone, because the "
                    "process that kept it has ended. Nothing was written: begin again",
                    table.name,
                )
            prepared.append((table, prepare_request(table, request)))
        # The transaction has already applied the conditions.
        requests = [dataclasses.replace(request, condition=None) for request in requests]
        return commit_checked(
            store, requests, prepared, since=since, collect=collect, idempotency_key=key, message=message
        )

    # ------------------------------------------------------------------------------------------ tables

    def create_table(
        self, new: NewTable, rows: Sequence[Request] = (), replaces: bool = False, *, key: str | None = None
    ) -> None:
        from nyala.tablet.tables.creation import create_table

        self.store.change_once(key, lambda: create_table(self.store, new, rows, replaces=replaces))

    def drop_tables(self, names: Sequence[str], purge: bool, *, key: str | None = None) -> None:
        self.store.change_once(key, lambda: self.store.drop_tables(names, purge=purge))

    def undrop_table(self, table_id: int, new_name: str, *, key: str | None = None) -> None:
        self.store.change_once(key, lambda: self.store.undrop_table(table_id, new_name))

    def purge_dropped(self, name: str | None) -> int:
        """Remove the files of dropped tables and ranges; return the freed bytes.

        name: only dropped tables with this name, and dropped ranges of the table with this name;
            None: all.
        """
        freed = self.store.purge_dropped(name)
        self.store.collect_garbage()
        return freed

    def clone_table(self, name: str, new_name: str, at: int | None, replaces: bool = False) -> None:
        from nyala.tablet.tables.cloning import clone_table

        clone_table(self.store, name, new_name, at, replaces=replaces)

    def alter(self, table_id: int, steps: Sequence[Step]) -> str:
        """Alter a table; return its name."""
        from nyala.tablet.alter import alter

        return alter(self.store, table_id, steps).name

    def alter_to(
        self, table_id: int, before: TableDraft, after: TableDraft, *, key: str | None = None
    ) -> None:
        """Replace the table `before` by the table `after`, which another process computed from it.

        Raises: ConflictError if the table is no longer equal to `before`; the errors that `alter`
            raises.
        """
        from nyala.tablet.alter import alter

        def step(draft: Draft) -> Draft:
            if not TableDraft.of(draft).equals(before):
                raise ConflictError(
                    f"table {draft.name!r} was altered by another thread or process at the same time, so nothing was "
                    "changed: read the table's schema again, and repeat the alteration",
                    draft.name,
                )
            if after.name != draft.name and after.name in draft.taken:
                raise TableExistsError(
                    f"cannot rename {draft.name!r} to {after.name!r}: a table with this name already exists"
                )
            known = {tablet.id: tablet for tablet in (*draft.kept, *draft.dropped)}
            if not {*after.kept, *after.dropped, *after.purged} <= set(known):
                raise InvalidArgumentError(
                    f"the alteration of table {draft.name!r} names tablets that the table does not have"
                )
            kept, dropped, purged = (
                tuple(known[number] for number in numbers)
                for numbers in (after.kept, after.dropped, after.purged)
            )
            altered = dataclasses.replace(
                draft, name=after.name, comment=after.comment, history_us=after.history_us, schema=after.schema,
                kept=kept, dropped=dropped, purged=purged, added=after.added,
            )  # fmt: skip
            _check_partitions(altered.partition_schema, altered.partitions, altered.schema)
            return altered

        self.store.change_once(key, lambda: alter(self.store, table_id, [step]))

    def copy_table(
        self,
        table_id: int,
        at: int,
        new_name: str,
        partition_schema: PartitionSchema,
        partitions: Collection[Partition],
    ) -> None:
        from nyala.tablet.tables.copying import copy_table

        self.store.check_writable()
        root, _ = self.store.view()
        if table_id not in root.tables:
            raise TableNotFoundError("the table was dropped before it could be copied")
        source = root.tables[table_id].as_of(at)
        _check_partitions(partition_schema, partitions, source.schema)
        copy_table(self.store, root, source, at, new_name, partition_schema, partitions)

    def repartition(
        self, table_id: int, partition_schema: PartitionSchema, partitions: Collection[Partition]
    ) -> None:
        from nyala.tablet.tables.copying import repartition

        table = self.store.root.tables.get(table_id)
        if table is not None:
            _check_partitions(partition_schema, partitions, table.schema)
        repartition(self.store, table_id, partition_schema, partitions)

    def tag(self, name: str, at: int | None, *, key: str | None = None) -> int:
        with contextlib.nullcontext() if at is None else self.store.flush_lock:  # `Store.tag` needs this lock
            made = self.store.change_once(key, lambda: self.store.tag(name, at))
        found = self.store.tags().get(name) if made is None else made
        if found is None:
            raise InvalidArgumentError(
                f"another process has dropped the tag {name!r} since it was set: set it again"
            )
        return found.timestamp

    def drop_tag(self, name: str, *, key: str | None = None) -> None:
        self.store.change_once(key, lambda: self.store.drop_tag(name))

    # ------------------------------------------------------------------------------------------ maintenance

    def flush(self, name: str | None = None) -> dict[str, Any]:
        """Flush a table, or all tables; return the fields of a `FlushResult` as a dict."""
        from nyala.tablet.flush.lifecycle import flush

        store = self.store
        tablets = None if name is None else {tablet.id for tablet in store.root.table(name).tablets}
        return dataclasses.asdict(flush(store, tablets))

    def compact(self, name: str, work: Progress | None = None) -> dict[str, Any]:
        from nyala.presentation.progress import CompactionProgress
        from nyala.tablet.manual_maintenance import compact_table

        work = work or CompactionProgress(None)
        report = compact_table(self.store, name, self._runner(work), work.step)
        return dataclasses.asdict(report)

    def vacuum(self, name: str, dry_run: bool, work: Progress | None = None) -> dict[str, Any]:
        from nyala.presentation.progress import CompactionProgress
        from nyala.tablet.manual_maintenance import vacuum_table

        return vacuum_table(
            self.store, name, dry_run=dry_run, runner=self._runner(work or CompactionProgress(None))
        )

    def purge(self, name: str, keys: pa.Table, wait_s: float, message: str | None) -> dict[str, Any]:
        from nyala.tablet.purge import purge

        return dataclasses.asdict(purge(self.store, name, keys, wait_s, message))

    def purge_status(self, name: str) -> dict[str, Any]:
        from nyala.tablet.purge import remaining

        return dataclasses.asdict(remaining(self.store, self.store.root.table(name).id))

    def _runner(self, work: Progress) -> Runner:
        """Return a function that runs a small compaction in this thread, and a large one in a
        worker process.

        work: receives the progress of the compactions.
        """
        return self.maintenance.compactor.runner(self.store, on_progress=work.rows)

    def maintenance_status(self) -> dict[str, Any]:
        return dataclasses.asdict(self.maintenance.status())

    def pause_maintenance(self) -> None:
        self.maintenance.pause()

    def resume_maintenance(self) -> None:
        self.maintenance.resume()

    def stats(self) -> dict[str, Any]:
        return self.store.stats()

    def settings(self) -> dict[str, Any]:
        """Return the writer's size limits, which each process that shares the store must use too.

        The result is {"limits": the fields of `Limits`}.
        """
        return {"limits": dataclasses.asdict(self.limits)}


def _check_partitions(levels: PartitionSchema, partitions: Collection[Partition], schema: Schema) -> None:
    """Check that the partitions fit the schema and the hash and range levels of a table.

    For a request of another process, which may be wrong. Raises: InvalidArgumentError.
    """
    from nyala.partition.model import find_problem

    problem = find_problem(levels, tuple(partitions), schema)
    if problem is not None:
        raise InvalidArgumentError(f"the partitions are invalid: {problem}")
