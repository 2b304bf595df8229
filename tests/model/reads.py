"""The steps of a session that read: each compares the rows that the store returns with those of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nyala.errors import HistoryExpiredError, TableNotFoundError
from nyala.mvcc.timestamp import from_physical
from nyala.tablet.scan.token import read_token
from tests.model.values import Predicate, columns_of, holds, literals, nameable, plain, same, text
from tests.model.versions import NOW, Key, Row, Table

if TYPE_CHECKING:
    from nyala.api.database import Database
    from nyala.testing.clock import ManualClock
    from tests.model.session import Pin
    from tests.model.shapes import Shape


SHOWN_ROWS = 8


def assert_same(found: Any, wanted: Any, what: str) -> None:
    if not same(found, wanted):
        extra = [row for row in found if plain(row) not in plain(wanted)]
        missing = [row for row in wanted if plain(row) not in plain(found)]
        parts = {"unexpected": extra, "missing": missing, "found": found, "expected": wanted}
        raise AssertionError(
            f"{what}: "
            + "; ".join(f"{word} ({len(rows)}): {rows[:SHOWN_ROWS]}" for word, rows in parts.items())
        )


class Reads:
    """The part of a `Session` with the steps that only read.

    Their arguments are numbers, so that they fit any state: `number` chooses a moment, and `view` the
    writer or a reader process.
    """

    db: Database
    clock: ManualClock
    shape: Shape
    readers: list[Database]
    pinned: list[Pin]
    models: dict[str, Table]
    name_of: dict[str, str]
    moments: list[int]
    history_us: dict[str, int | None]
    marks: dict[str, int]

    def _table(self, name: str, db: Any = None) -> Any:
        return (db or self.db)[self.name_of[name]]

    def _moment(self, number: int, before: int = 0) -> int:
        return self.moments[number % len(self.moments)] - before

    def _view(self, number: int) -> Database:
        """Return the writer, or one of the reader processes."""
        return [self.db, *self.readers][number % (len(self.readers) + 1)]

    def _sees(self, name: str, where: Predicate | None, at: int = NOW) -> bool:
        """Whether the table has all columns of the predicate at the moment."""
        return where is None or columns_of(where) <= {column.name for column in self.models[name].columns(at)}

    def some_predicate(self, name: str, number: int, at: int, seen: int) -> Predicate:
        """Return a predicate on one column, chosen by `number`, and if possible on an existing value."""
        columns, rows = self.models[name].columns(seen), self.models[name].rows(at, seen)
        column = columns[number % len(columns)]
        values = [] if column.type == "bool" else literals(column.type)
        if not values or number % 11 == 0:
            return ("is null" if number % 2 else "is not null", column.name)
        there = [row[column.name] for row in rows if nameable(row[column.name])]
        value = there[number % len(there)] if there else values[number % len(values)]
        word = ("=", "<=", "between", "=", ">=")[number // len(columns) % 5]
        if word == "between":
            return (word, column.name, *sorted([value, there[-1] if there else value]))
        return (word, column.name, value)

    # ── history ───────────────────────────────────────────────────────────────────────────────────

    def _mark(self, name: str) -> int:
        """Return the oldest moment of the table that can be read now; 0: every moment (rules H1 and H4)."""
        history_us = self.history_us[name]
        if history_us is None:
            return 0
        mark = min(from_physical(self.clock.now_us() - history_us), self.db.now())
        return mark if mark > self.db._store.root.table(self.name_of[name]).entry.created else 0

    def _must_be_refused(self, name: str, at: int) -> bool:
        return at < max(self._mark(name), self.models[name].rewritten)

    def _may_be_refused(self, name: str, at: int) -> bool:
        """Whether history of the moment may have expired, perhaps while the table had a shorter history."""
        return at < max(self.marks[name], self._mark(name), self.models[name].rewritten)

    def _refused(self, name: str, at: int, error: HistoryExpiredError) -> None:
        assert self._may_be_refused(name, at), (name, at, error)
        assert f"table {self.name_of[name]!r}" in str(error)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────

    def do_read_at(
        self,
        name: str,
        number: int,
        before: int,
        schema: str,
        view: int,
        where: Predicate | None,
        names: list[str] | None = None,
    ) -> None:
        """Scan a table at a moment, or just before it (`before` = 1), with the columns of then or now."""
        model, at = self.models[name], self._moment(number, before)
        seen = NOW if schema == "current" else at
        known = {column.name for column in model.columns(seen)}
        if not self._sees(name, where, seen) or (names and not known.issuperset(names)):
            return
        table = self._table(name, self._view(view))
        missing = model.missing(at)
        what = f"{name} at {at} (schema {schema!r}, where {where})"
        predicate = None if where is None else text(where)
        try:
            scan = table.scan(names, predicate, at=at, order_by_key=True, schema=schema)
            found, count = scan.to_arrow(), scan.count()
        except HistoryExpiredError as error:
            if self._may_be_refused(name, at):
                return
            assert missing, (what, error)
            assert any(_named(one) in str(error) for one in missing), error
            if where is None:
                self._read_other_ranges(name, at, seen, schema, table)
            return
        except TableNotFoundError as error:
            assert not model.existed(at), (what, error)
            return
        assert model.existed(at), f"{what}: the table did not exist at this moment"
        assert not self._must_be_refused(name, at), what
        assert not (missing and where is None), f"{what}: rows of a dropped range are silently left out"
        lost = [row for row in model.lost_rows(at, seen) if where is None or holds(where, row) is True]
        assert not lost, f"{what}: rows of a dropped range are silently left out: {lost}"
        wanted = model.rows(at, seen, where)
        if names:
            wanted = [{column: row[column] for column in names} for row in wanted]
        assert found.schema == scan.schema
        assert_same(found.to_pylist(), wanted, what)
        assert count == len(wanted), f"count of {what}"

    def _read_other_ranges(self, name: str, at: int, seen: int, schema: str, table: Any) -> None:
        """Scan with predicates that exclude purged ranges, which must not raise an error."""
        model, on = self.models[name], self.shape.range_on
        assert on is not None
        column = model.key_names(seen)[on]
        gone = {(one.lower, one.upper) for one in model.missing(at)}
        for lower, upper in set(self.shape.ranges()) - gone:
            sides = [side for side in ((">=", column, lower), ("<", column, upper)) if side[2] is not None]
            where: Predicate = ("and", *sides)
            found = table.scan(where=text(where), at=at, order_by_key=True, schema=schema).to_arrow()
            assert_same(found.to_pylist(), model.rows(at, seen, where), f"{name} at {at} where {where}")

    def do_read_feed(
        self, name: str, since_number: int, until_number: int, net: bool, schema: str, view: int
    ) -> None:
        """Read a change feed between two moments, with the ranges that were dropped or restored."""
        since, until = sorted((self._moment(since_number), self._moment(until_number)))
        self._read_feed(name, since, until, net, schema, self._table(name, self._view(view)))

    def _read_feed(self, name: str, since: int, until: int, net: bool, schema: str, table: Any) -> None:
        model, seen = self.models[name], NOW if schema == "current" else until
        try:
            feed = table.changes(since, until, versions="net" if net else "all", schema=schema)
            found = feed.to_arrow().to_pylist()
            images = table.changes(
                since, until, versions="net" if net else "all", schema=schema, before=True
            ).to_arrow()
        except HistoryExpiredError as error:
            self._refused(name, since, error)
            return
        assert not self._must_be_refused(name, since)
        if net:
            found.sort(key=lambda row: model.key_of(row, seen))
        what = f"{'net' if net else 'all'} changes of {name} in ({since}, {until}], schema {schema!r}"
        assert_same(found, model.changes(since, until, seen, net), what)
        rows = images.to_pylist()
        if net:
            rows.sort(key=lambda row: model.key_of(row, seen))
        assert_same(rows, model.changes(since, until, seen, net, images=True), f"{what}, with values before")
        if not net:
            assert [row["_commit_version"] for row in found] == sorted(
                row["_commit_version"] for row in found
            )
        dropped = sorted(one.timestamp for one in feed.dropped_ranges)
        gone = [
            one
            for one in model.gone
            if one.held
            and one.created <= until
            and since < one.dropped
            and (one.purged or one.dropped <= until)
        ]
        # Ranges that were dropped in the interval, and undropped since.
        also = [
            one
            for one in (*model.gone, *model.ranges)
            if one.held
            and one not in gone
            and not one.purged
            and one.created <= until
            and not one.existed(until)
            and max((moment for moment in one.drops if moment <= until), default=0) > since
        ]
        moments = [one.dropped for one in gone] + [
            max(moment for moment in one.drops if moment <= until) for one in also
        ]
        assert dropped == sorted(moments), (what, feed.dropped_ranges)
        gone += also
        back = [
            one
            for one in (*model.gone, *model.ranges)
            if one.held and not one.purged and one.existed(until)
            and max((moment for moment in one.drops if moment <= until), default=0) > since
            and not one.existed(since)
        ]  # fmt: skip
        assert len(feed.restored_ranges) == len(back), (what, feed.restored_ranges)
        texts = " ".join(one.range for one in feed.dropped_ranges)
        assert all(_named(one) in texts for one in gone), texts

    def do_read_keys(self, name: str, number: int, view: int) -> None:
        """Look up all keys of the shape at a moment, by one call and one by one."""
        model, at = self.models[name], self._moment(number)
        table = self._table(name, self._view(view))
        names, state = model.key_names(at), model.state(at)
        keys = [
            key for key in self.shape.keys if not any(self._was_in(one, key) for one in model.missing(at))
        ]
        if not keys:
            return
        given = [dict(zip(names, key, strict=True)) for key in keys]
        wanted = [model.show(key, state[key], at) for key in keys if key in state]
        try:
            assert_same(table.get_many(given, at=at).to_pylist(), wanted, f"rows of {name} by key at {at}")
            one_by_one = [row for key in given if (row := table.get(key, at=at)) is not None]
            assert_same(one_by_one, wanted, f"single rows of {name} at {at}")
            assert not self._must_be_refused(name, at)
        except HistoryExpiredError as error:
            self._refused(name, at, error)

    def do_read_many(
        self, name: str, number: int, stretches: list[tuple[int, int, int]], columns: int, view: int
    ) -> None:
        """Look up many keys at a moment.

        stretches: (first number, count, stride) of keys as `do_many` writes them, which may repeat or
        be missing. columns: how many columns to return besides the key; 0: all.
        """
        model, at = self.models[name], self._moment(number)
        names, state, missing = model.key_names(at), model.state(at), model.missing(at)
        keys = [
            self.shape.nth_key(first + n * stride) for first, count, stride in stretches for n in range(count)
        ]
        keys = [key for key in keys if not any(self._was_in(one, key) for one in missing)]
        if not keys:
            return
        given = [dict(zip(names, key, strict=True)) for key in keys]
        wanted = [model.show(key, state[key], at) for key in keys if key in state]
        chosen = [*names, *(column.name for column in model.values(at)[-columns:])] if columns else None
        if chosen is not None:
            wanted = [{column: row[column] for column in chosen} for row in wanted]
        try:
            found = self._table(name, self._view(view)).get_many(given, chosen, at=at).to_pylist()
        except HistoryExpiredError as error:
            self._refused(name, at, error)
            return
        assert not self._must_be_refused(name, at)
        assert_same(found, wanted, f"rows of {name} by many keys at {at}")

    def _was_in(self, one: Any, key: Key) -> bool:
        return self.shape.range_on is not None and bool(one.has(key[self.shape.range_on]))

    def do_read_history(self, name: str, number: int) -> None:
        """Read the history of a key."""
        model = self.models[name]
        if not model.versions or self.history_us[name] is not None or model.rewritten:
            return
        key = sorted(model.versions)[number % len(model.versions)]
        found = self._table(name).history(dict(zip(model.key_names(), key, strict=True))).to_pylist()
        assert_same(found, model.history(key), f"the history of {key} in {name}")

    def do_read_sql(self, name: str, where: Predicate | None) -> None:
        """Read the present rows by SQL."""
        if not self._sees(name, where):
            return
        statement = f'SELECT * FROM "{self.name_of[name]}"' + (f" WHERE {text(where)}" if where else "")
        columns = [column.name for column in self.models[name].columns()]
        found: list[Row] = [dict(zip(columns, row, strict=True)) for row in self.db.sql(statement).fetchall()]
        found.sort(key=self.models[name].key_of)
        assert_same(found, self.models[name].rows(where=where), statement)

    def do_read_tokens(self, name: str, where: Predicate | None) -> None:
        """Read the present rows by scan tokens."""
        if not self._sees(name, where):
            return
        scan = self._table(name).scan(where=None if where is None else text(where))
        found = [
            row
            for token in scan.tokens()
            for batch in read_token(token, self.env)
            for row in batch.to_pylist()
        ]
        found.sort(key=self.models[name].key_of)
        assert_same(found, self.models[name].rows(where=where), f"the tokens of {name}")

    def do_read_now(self) -> None:
        """Read the present rows in all reader processes."""
        for reader in self.readers:
            assert reader.now() == self.db.now()
            for name, model in self.models.items():
                found = self._table(name, reader).scan(order_by_key=True).to_arrow().to_pylist()
                assert_same(found, model.rows(), f"the rows of {name} in a reader process")

    def do_read_pinned(self) -> None:
        """Read snapshots and scans that were taken by earlier steps."""
        for pin in self.pinned:
            found = pin.view.scan(order_by_key=True).to_arrow().to_pylist()
            assert_same(found, pin.rows, f"a pinned snapshot of {pin.name}")
            assert_same(pin.scan.to_arrow().to_pylist(), pin.rows, f"a scan of {pin.name} that was kept")

    def do_check(self) -> None:
        report = self.db.check()
        assert report.ok, report.problems

    def do_read_everywhere(self, every_feed: bool) -> None:
        """Read every moment and feeds between moments, and check the store.

        every_feed: read the feeds between all pairs of moments, which takes long. False: only two
        feeds from each moment.
        """
        count = len(self.moments)
        for name in self.models:
            for number in range(count):
                self.do_read_at(name, number, 0, "at", 0, None)
                self.do_read_at(name, number, 1, "current", 0, None)
                at = self._moment(number)
                where = self.some_predicate(name, number, at, at)
                self.do_read_at(name, number, 0, "at", 0, where)
                rest = count - number - 1
                some = {1, 1 + number * 7 % rest} if rest else set()
                for later in range(1, 1 + rest) if every_feed else some:
                    self.do_read_feed(name, number, number + later, later % 2 == 0, "at", 0)
        self.do_check()


def _named(one: Any) -> str:
    lower = "(unbounded" if one.lower is None else f"[{one.lower}"
    return f"{lower}, {'unbounded' if one.upper is None else one.upper})"
