"""The model of a table: a dictionary with all versions of each key, from which every read follows.

    versions[key] = [Version(timestamp, row, touched), …]       oldest first; row None: deleted

A row is a dictionary from column id to value, without the key. If it has no value for a column, the
column was added later, and the value is the default that the column had then. The model also has
the columns and range partitions of each moment. In methods, `at` is the moment of the rows and
`seen` is the moment whose columns are shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import nyala
from tests.model.values import VALUES, WIDER, Predicate, encodings, holds, plain

NOW = 2**63 - 1
Key = tuple[Any, ...]
Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column. `read`: its value in rows that are older. `write`: its value in inserts without it."""

    id: int
    name: str
    type: str
    nullable: bool = True
    read: Any = None
    write: Any = None
    in_key: bool = False

    @property
    def required(self) -> bool:
        """Whether every insert must give a value."""
        return self.in_key or (not self.nullable and self.write is None)


@dataclass
class Range:
    """A range partition, [lower, upper) of one key column.

    drops:  when it was dropped, undropped, dropped again, …
    held:   whether it ever had rows.
    own:    while it is dropped: the versions of its keys.
    purged: whether these can never be read again.
    """

    lower: Any
    upper: Any
    created: int
    drops: list[int] = field(default_factory=list)
    held: bool = False
    own: dict[Key, list[Version]] = field(default_factory=dict)
    purged: bool = False

    @property
    def dropped(self) -> int:
        return self.drops[-1] if len(self.drops) % 2 else NOW

    def existed(self, at: int) -> bool:
        return self.created <= at and sum(moment <= at for moment in self.drops) % 2 == 0

    def has(self, value: Any) -> bool:
        return (self.lower is None or self.lower <= value) and (self.upper is None or value < self.upper)


class Version(NamedTuple):
    """A version of a key. touched: ids of the changed columns; None: all (insert or delete)."""

    timestamp: int
    row: dict[int, Any] | None
    touched: frozenset[int] | None


def last(versions: Sequence[Version], at: int) -> dict[int, Any] | None:
    return next((version.row for version in reversed(versions) if version.timestamp <= at), None)


class Table:
    """One table. `range_on`: the index of the key column with range partitions; None: no ranges."""

    def __init__(self, columns: Sequence[Column], ranges: Sequence[Range], range_on: int | None) -> None:
        self.schemas: list[tuple[int, tuple[Column, ...]]] = [(0, tuple(columns))]
        self.versions: dict[Key, list[Version]] = {}
        self.ranges = list(ranges)
        self.range_on = range_on
        self.gone: list[Range] = []
        self.created = 0  # reading an earlier moment is an error
        self.drops: list[tuple[int, int]] = []  # (dropped, undropped)
        self.rewritten = 0  # the last repartition; earlier moments cannot be read
        self.next_id = len(columns)

    # ── columns and partitions ────────────────────────────────────────────────────────────────────

    def columns(self, at: int = NOW) -> tuple[Column, ...]:
        return next(columns for since, columns in reversed(self.schemas) if since <= at)

    def key_names(self, at: int = NOW) -> list[str]:
        return [column.name for column in self.columns(at) if column.in_key]

    def values(self, at: int = NOW) -> list[Column]:
        return [column for column in self.columns(at) if not column.in_key]

    def key_of(self, row: Mapping[str, Any], at: int = NOW) -> Key:
        return tuple(row[name] for name in self.key_names(at))

    def home(self, key: Key) -> Range | None:
        if self.range_on is None:
            return self.ranges[0]
        return next((one for one in self.ranges if one.has(key[self.range_on])), None)

    def existed(self, at: int) -> bool:
        return at >= self.created and not any(dropped <= at < undropped for dropped, undropped in self.drops)

    def forget(self, key: Key) -> None:
        """Remove all versions of the key."""
        for versions in (self.versions, *(one.own for one in (*self.ranges, *self.gone))):
            versions.pop(key, None)

    def missing(self, at: int) -> list[Range]:
        """Return the ranges with rows that existed at the moment and were purged later."""
        return [one for one in self.gone if one.purged and one.held and one.existed(at)]

    def other_ranges(self, at: int) -> list[Range]:
        """Return the ranges with rows that exist either now or at the moment, but not at both."""
        there = [one for one in (*self.ranges, *self.gone) if one.held and not one.purged]
        return [one for one in there if one.drops and one.existed(at) != (one in self.ranges)]

    def seen(self, at: int) -> dict[Key, list[Version]]:
        """Return the versions of all keys in the ranges that existed at the moment."""
        found: dict[Key, list[Version]] = {}
        for one in self.gone:
            if not one.purged and at != NOW and one.existed(at):
                found.update(one.own)
        for key, versions in self.versions.items():
            home = self.home(key)
            assert home is not None
            if at == NOW or home.existed(at) or (not home.drops and key not in found):
                found[key] = versions
        return found

    def has_place(self, key: Key, at: int) -> bool:
        """Whether a range that existed at the moment contains the key."""
        on = self.range_on
        ranges = [one for one in (*self.ranges, *self.gone) if one.existed(at)]
        return on is None or any(one.has(key[on]) for one in ranges)

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────

    def state(self, at: int = NOW) -> dict[Key, dict[int, Any]]:
        return {
            key: row for key, versions in self.seen(at).items() if (row := last(versions, at)) is not None
        }

    def show(self, key: Key, row: Mapping[int, Any], seen: int = NOW) -> Row:
        """Return a row with the columns of the moment `seen`."""
        values = iter(key)
        return {
            column.name: next(values) if column.in_key else row.get(column.id, column.read)
            for column in self.columns(seen)
        }

    def rows(self, at: int = NOW, seen: int = NOW, where: Predicate | None = None) -> list[Row]:
        """Return the rows at a moment, in key order."""
        shown = [self.show(key, row, seen) for key, row in sorted(self.state(at).items())]
        return shown if where is None else [row for row in shown if holds(where, row) is True]

    def lost_rows(self, at: int, seen: int) -> Iterator[Row]:
        """Yield the rows at the moment that cannot be read, because their range was purged."""
        for one in self.missing(at):
            for key, versions in one.own.items():
                row = last(versions, at)
                if row is not None:
                    yield self.show(key, row, seen)

    # ── changes ───────────────────────────────────────────────────────────────────────────────────

    def changes(self, since: int, until: int, seen: int, net: bool, images: bool = False) -> list[Row]:
        """Return the change feed: net changes by key, or all versions by timestamp and key.

        images: with the rows before each change.
        """
        out: list[tuple[Any, Row]] = []
        for key, versions in self.seen(until).items():
            shown_versions = self._visible(versions, since, until, seen)
            before = last(versions, since)
            was = before is not None
            if net and shown_versions:
                is_there = shown_versions[-1].row is not None
                if not was and not is_there:
                    continue
                shown_versions = [shown_versions[-1]]
            for version in shown_versions:
                if not net:
                    before = last(versions, version.timestamp - 1)
                shown = (
                    self._images(key, version, before, seen)
                    if images
                    else [self._change(key, version, was, seen)]
                )
                out += [((version.timestamp, key), row) for row in shown]
                was = version.row is not None
        out.sort(key=lambda one: one[0][1] if net else one[0])
        return [row for _, row in out]

    def history(self, key: Key, seen: int = NOW) -> list[Row]:
        """Return every version of a key, as changes."""
        out, was = [], False
        for version in self._visible(self.versions.get(key, ()), 0, NOW, seen):
            out.append(self._change(key, version, was, seen))
            was = version.row is not None
        return out

    def _visible(self, versions: Sequence[Version], since: int, until: int, seen: int) -> list[Version]:
        """Return the versions in (since, until] that change a column of the moment `seen`."""
        ids = {column.id for column in self.values(seen)}
        return [
            version
            for version in versions
            if since < version.timestamp <= until and (version.touched is None or version.touched & ids)
        ]

    def _change(self, key: Key, version: Version, was: bool, seen: int) -> Row:
        if version.row is None:
            shown = self.show(key, dict.fromkeys((c.id for c in self.values(seen)), None), seen)
        else:
            shown = self.show(key, version.row, seen)
        kind = "delete" if version.row is None else "update" if was else "insert"
        return self._marked(shown, kind, version.timestamp)

    def _images(self, key: Key, version: Version, before: dict[int, Any] | None, seen: int) -> list[Row]:
        """Return the rows before and after a change."""
        found = []
        for row, word in ((before, "preimage"), (version.row, "postimage")):
            if row is not None:
                kind = "insert" if before is None else "delete" if version.row is None else f"update_{word}"
                found.append(self._marked(self.show(key, row, seen), kind, version.timestamp))
        return found

    def _marked(self, shown: Row, kind: str, at: int) -> Row:
        return {
            **shown, "_change_type": kind, "_commit_version": at, "_commit_timestamp": nyala.to_datetime(at),
        }  # fmt: skip

    # ── writes ────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Draft:
        return Draft(self)

    def restored(self, to: int) -> Draft:
        """Return what `restore(to=…)` writes. Updates name every column in which any row differs."""
        draft, columns = Draft(self), self.values()

        def whole(row: Mapping[int, Any]) -> dict[int, Any]:
            return {column.id: row.get(column.id, column.read) for column in columns}

        then = {key: whole(row) for key, row in self.state(to).items()}
        now = {key: whole(row) for key, row in self.state().items()}
        differ = {
            key: {id for id in then[key] if plain(then[key][id]) != plain(now[key][id])}
            for key in then.keys() & now.keys()
        }
        named = frozenset[int]().union(*differ.values())
        for key, ids in differ.items():
            if ids:
                draft.put(key, {**self.state()[key], **then[key]}, named)
                draft.updated += 1
        for key in now.keys() - then.keys():
            draft.put(key, None, None)
            draft.deleted += 1
        for key in then.keys() - now.keys():
            draft.put(key, then[key], None)
            draft.inserted += 1
        return draft

    def rewrite(self, at: int, ranges: Sequence[Range]) -> None:
        """Repartition the table: the rows stay, and their history is removed."""
        self.versions = {key: [Version(at, row, None)] for key, row in self.state().items()}
        self.ranges, self.gone, self.rewritten = list(ranges), [], at
        for key in self.versions:
            home = self.home(key)
            assert home is not None
            home.held = True


class Draft:
    """A batch on one table before its commit. It has at most one effect per key."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.before = table.state()
        self.now = dict(self.before)
        self.touched: dict[Key, frozenset[int] | None] = {}
        self.inserted = self.updated = self.deleted = self.ignored = 0

    def put(self, key: Key, row: dict[int, Any] | None, touched: frozenset[int] | None) -> None:
        if row is None:
            self.now.pop(key, None)
        else:
            self.now[key] = row
        earlier = self.touched.get(key, frozenset())
        self.touched[key] = None if touched is None or earlier is None else earlier | touched

    def apply(self, operation: str, rows: Sequence[Row], ignore: bool = False) -> list[str]:
        """Apply an operation to rows in their order; return the codes of rows that fail."""
        columns = {column.name: column for column in self.table.values()}
        codes: list[str] = []
        for row in rows:
            key = self.table.key_of(row)
            given = {columns[name].id: value for name, value in row.items() if name in columns}
            there = self.now.get(key)
            if self.table.home(key) is None:
                codes.append("no-partition")
            elif operation == "insert" and there is not None:
                codes += self._passed_over(ignore, "already-present")
            elif operation in ("update", "delete") and there is None:
                codes += self._passed_over(ignore, "not-found")
            elif operation == "delete":
                self.put(key, None, None)
                self.deleted += 1
            elif there is None:
                self.put(key, {**{c.id: c.write for c in columns.values()}, **given}, None)
                self.inserted += 1
            else:
                self.put(key, {**there, **given}, frozenset(given))
                self.updated += 1
        return codes

    def _passed_over(self, ignore: bool, code: str) -> list[str]:
        self.ignored += ignore
        return [] if ignore else [code]

    def commit(self, timestamp: int) -> None:
        columns = frozenset(column.id for column in self.table.values())
        for key, touched in self.touched.items():
            before, after = self.before.get(key), self.now.get(key)
            if before is not None and after is not None:
                touched = columns if touched is None else touched
                if not touched:
                    continue
            elif before is None and after is None:
                continue
            else:
                touched = None
            home = self.table.home(key)
            assert home is not None
            home.held = True
            self.table.versions.setdefault(key, []).append(Version(timestamp, after, touched))


class Alteration:
    """An alteration before its commit. `take` applies a step, or returns False if it is impossible."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.columns = list(table.columns())
        self.ranges = list(table.ranges)
        self.dropped: list[tuple[Range, bool]] = []
        self.undropped: list[Range] = []
        self.next_id = table.next_id

    def at(self, name: str) -> int | None:
        return next((index for index, column in enumerate(self.columns) if column.name == name), None)

    def _overlaps(self, lower: Any, upper: Any) -> bool:
        return any(
            (one.upper is None or lower is None or lower < one.upper)
            and (upper is None or one.lower is None or one.lower < upper)
            for one in self.ranges
        )

    def take(self, step: Sequence[Any]) -> bool:
        match step:
            case ("add", name, type, nullable, default, *_):
                if self.at(name) is not None or (default is None and not nullable):
                    return False
                self.columns.append(Column(self.next_id, name, type, nullable, default, default))
                self.next_id += 1
            case ("add range", lower, upper):
                if self._overlaps(lower, upper):
                    return False
                self.ranges.append(Range(lower, upper, -1))
            case ("drop range", lower, upper, purge):
                found = next((one for one in self.ranges if (one.lower, one.upper) == (lower, upper)), None)
                if found is None or found in self.undropped:
                    return False
                self.ranges.remove(found)
                self.dropped.append((found, purge))
            case ("undrop range", lower, upper):
                there = [
                    one
                    for one in self.table.gone
                    if (one.lower, one.upper) == (lower, upper)
                    and not one.purged
                    and one not in self.undropped
                ]
                new = [
                    one
                    for one, purge in self.dropped
                    if not purge and (one.lower, one.upper) == (lower, upper)
                ]
                if not there or new or self._overlaps(lower, upper):
                    return False
                back = max(there, key=lambda one: one.dropped)
                self.undropped.append(back)
                self.ranges.append(back)
            case (kind, name, *rest):
                index = self.at(name)
                if index is None:
                    return False
                column = self.columns[index]
                if not _suits(column.type, kind, rest):
                    return False
                if kind == "rename" and self.at(rest[0]) is None:
                    self.columns[index] = dataclasses.replace(column, name=rest[0])
                elif kind == "storage":
                    pass
                elif column.in_key:
                    return False
                elif kind == "drop":
                    del self.columns[index]
                elif kind == "widen":
                    self.columns[index] = dataclasses.replace(column, type=rest[0])
                elif kind == "default":
                    self.columns[index] = dataclasses.replace(column, write=rest[0])
                elif kind == "nullable" and not column.nullable:
                    self.columns[index] = dataclasses.replace(column, nullable=True)
                else:
                    return False
        return True

    def commit(self, at: int) -> None:
        table = self.table
        table.schemas.append((at, tuple(self.columns)))
        table.next_id = self.next_id
        for one, purge in self.dropped:
            assert table.range_on is not None
            if one.created >= 0:
                one.drops.append(at)
                one.purged = purge
                one.own = {
                    key: versions for key, versions in table.versions.items() if one.has(key[table.range_on])
                }
                table.versions = {k: v for k, v in table.versions.items() if k not in one.own}
                table.gone.append(one)
        for one in self.undropped:
            one.drops.append(at)
            table.gone.remove(one)
            table.versions |= one.own
            one.own = {}
        for one in self.ranges:
            one.created = at if one.created < 0 else one.created
        table.ranges = self.ranges


def _suits(type: str, kind: str, rest: Sequence[Any]) -> bool:
    """Whether a step fits a column of this type.

    It may not: the step was drawn for a column with the same name, which another alteration has
    replaced meanwhile.
    """
    match kind:
        case "widen":
            return rest[0] in WIDER.get(type, ())
        case "default":
            return rest[0] is None or any(repr(rest[0]) == repr(value) for value in VALUES[type])
        case "storage":
            return rest[0]["encoding"] in encodings(type)
    return True
