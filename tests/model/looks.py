"""Everything that a store is asked, and what its model says that the answer is."""

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
        told = {"too much": extra, "missing": missing, "found": found, "wanted": wanted}
        raise AssertionError(
            f"{what}: "
            + "; ".join(f"{word} ({len(rows)}): {rows[:SHOWN_ROWS]}" for word, rows in told.items())
        )


class Looks:
    """The part of a `Session` that reads: steps that change nothing."""

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
        """The writer, or one of the processes that only read."""
        return [self.db, *self.readers][number % (len(self.readers) + 1)]

    def _sees(self, name: str, where: Predicate | None, at: int = NOW) -> bool:
        """Are the predicate's columns there?"""
        return where is None or columns_of(where) <= {column.name for column in self.models[name].columns(at)}

    def some_predicate(self, name: str, number: int, at: int, seen: int) -> Predicate:
        """One that a zone map may answer, of a value that a row has, if there is any; others for other numbers."""
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

    # ── how far back ────────────────────────────────────────────────────────────────────────────────────────────────

    def _mark(self, name: str) -> int:
        """Older moments of the table cannot be read now (H1); 0 when all can (H4)."""
        history_us = self.history_us[name]
        if history_us is None:
            return 0
        mark = min(from_physical(self.clock.now_us() - history_us), self.db.now())
        return mark if mark > self.db._store.root.table(self.name_of[name]).entry.created else 0

    def _must_be_refused(self, name: str, at: int) -> bool:
        return at < max(self._mark(name), self.models[name].rewritten)

    def _may_be_refused(self, name: str, at: int) -> bool:
        """What is older than a mark that once was may have been thrown away then."""
        return at < max(self.marks[name], self._mark(name), self.models[name].rewritten)

    def _refused(self, name: str, at: int, error: HistoryExpiredError) -> None:
        assert self._may_be_refused(name, at), (name, at, error)
        assert f"table {self.name_of[name]!r}" in str(error)

    # ── one look each ───────────────────────────────────────────────────────────────────────────────────────────────

    def do_look_back(
        self,
        name: str,
        number: int,
        before: int,
        schema: str,
        view: int,
        where: Predicate | None,
        names: list[str] | None = None,
    ) -> None:
        """A scan at a moment, or just before it, through its columns or through those of now."""
        model, at = self.models[name], self._moment(number, before)
        seen = NOW if schema == "current" else at
        known = {column.name for column in model.columns(seen)}
        if not self._sees(name, where, seen) or (names and not known.issuperset(names)):
            return
        table = self._table(name, self._view(view))
        missing = model.missing(at)
        what = f"{name} at {at} (schema {schema!r}, where {where})"
        told = None if where is None else text(where)
        try:
            scan = table.scan(names, told, at=at, order_by_key=True, schema=schema)
            found, count = scan.to_arrow(), scan.count()
        except HistoryExpiredError as error:
            if self._may_be_refused(name, at):
                return
            assert missing, (what, error)
            assert any(_named(one) in str(error) for one in missing), error
            if where is None:
                self._look_beside_the_lost(name, at, seen, schema, table)
            return
        except TableNotFoundError as error:
            assert not model.existed(at), (what, error)
            return
        assert model.existed(at), f"{what}: a moment at which the table was not there"
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

    def _look_beside_the_lost(self, name: str, at: int, seen: int, schema: str, table: Any) -> None:
        """A predicate that leaves dropped ranges out reads the others."""
        model, on = self.models[name], self.shape.range_on
        assert on is not None
        column = model.key_names(seen)[on]
        gone = {(one.lower, one.upper) for one in model.missing(at)}
        for lower, upper in set(self.shape.ranges()) - gone:
            sides = [side for side in ((">=", column, lower), ("<", column, upper)) if side[2] is not None]
            where: Predicate = ("and", *sides)
            found = table.scan(where=text(where), at=at, order_by_key=True, schema=schema).to_arrow()
            assert_same(found.to_pylist(), model.rows(at, seen, where), f"{name} at {at} where {where}")

    def do_look_feed(
        self, name: str, since_number: int, until_number: int, net: bool, schema: str, view: int
    ) -> None:
        """The changes between two moments, and the ranges that went and are told."""
        since, until = sorted((self._moment(since_number), self._moment(until_number)))
        self._look_feed(name, since, until, net, schema, self._table(name, self._view(view)))

    def _look_feed(self, name: str, since: int, until: int, net: bool, schema: str, table: Any) -> None:
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
        told = sorted(one["timestamp"] for one in feed.dropped_ranges)
        gone = [
            one
            for one in model.gone
            if one.held
            and one.created <= until
            and since < one.dropped
            and (one.purged or one.dropped <= until)
        ]
        # One that was dropped twice in the interval, or undropped after it.
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
        assert told == sorted(moments), (what, feed.dropped_ranges)
        gone += also
        back = [
            one
            for one in (*model.gone, *model.ranges)
            if one.held and not one.purged and one.existed(until)
            and max((moment for moment in one.drops if moment <= until), default=0) > since
            and not one.existed(since)
        ]  # fmt: skip
        assert len(feed.restored_ranges) == len(back), (what, feed.restored_ranges)
        texts = " ".join(one["range"] for one in feed.dropped_ranges)
        assert all(_named(one) in texts for one in gone), texts

    def do_look_keys(self, name: str, number: int, view: int) -> None:
        """Every key of the shape at once, and one after another, at a moment."""
        model, at = self.models[name], self._moment(number)
        table = self._table(name, self._view(view))
        names, state = model.key_names(at), model.state(at)
        keys = [
            key for key in self.shape.keys if not any(self._was_in(one, key) for one in model.missing(at))
        ]
        if not keys:
            return
        asked = [dict(zip(names, key, strict=True)) for key in keys]
        wanted = [model.show(key, state[key], at) for key in keys if key in state]
        try:
            assert_same(table.get_many(asked, at=at).to_pylist(), wanted, f"rows of {name} by key at {at}")
            one_by_one = [row for key in asked if (row := table.get(key, at=at)) is not None]
            assert_same(one_by_one, wanted, f"single rows of {name} at {at}")
            assert not self._must_be_refused(name, at)
        except HistoryExpiredError as error:
            self._refused(name, at, error)

    def do_look_many(
        self, name: str, number: int, stretches: list[tuple[int, int, int]], columns: int, view: int
    ) -> None:
        """Keys as `do_many` writes them, by first one, count and stride: few of one rowset and many of another, some
        twice, some that are not there; and of how many columns beside the key, 0 for all."""
        model, at = self.models[name], self._moment(number)
        names, state, missing = model.key_names(at), model.state(at), model.missing(at)
        keys = [
            self.shape.nth_key(first + n * stride) for first, count, stride in stretches for n in range(count)
        ]
        keys = [key for key in keys if not any(self._was_in(one, key) for one in missing)]
        if not keys:
            return
        asked = [dict(zip(names, key, strict=True)) for key in keys]
        wanted = [model.show(key, state[key], at) for key in keys if key in state]
        chosen = [*names, *(column.name for column in model.values(at)[-columns:])] if columns else None
        if chosen is not None:
            wanted = [{column: row[column] for column in chosen} for row in wanted]
        try:
            found = self._table(name, self._view(view)).get_many(asked, chosen, at=at).to_pylist()
        except HistoryExpiredError as error:
            self._refused(name, at, error)
            return
        assert not self._must_be_refused(name, at)
        assert_same(found, wanted, f"rows of {name} by many keys at {at}")

    def _was_in(self, one: Any, key: Key) -> bool:
        return self.shape.range_on is not None and bool(one.has(key[self.shape.range_on]))

    def do_look_history(self, name: str, number: int) -> None:
        """Every version of a key that has had any."""
        model = self.models[name]
        if not model.versions or self.history_us[name] is not None or model.rewritten:
            return
        key = sorted(model.versions)[number % len(model.versions)]
        found = self._table(name).history(dict(zip(model.key_names(), key, strict=True))).to_pylist()
        assert_same(found, model.history(key), f"the history of {key} in {name}")

    def do_look_sql(self, name: str, where: Predicate | None) -> None:
        """What DuckDB makes of the rows of now."""
        if not self._sees(name, where):
            return
        asked = f'SELECT * FROM "{self.name_of[name]}"' + (f" WHERE {text(where)}" if where else "")
        columns = [column.name for column in self.models[name].columns()]
        found: list[Row] = [dict(zip(columns, row, strict=True)) for row in self.db.sql(asked).fetchall()]
        found.sort(key=self.models[name].key_of)
        assert_same(found, self.models[name].rows(where=where), asked)

    def do_look_tokens(self, name: str, where: Predicate | None) -> None:
        """What tokens of a scan give to whoever reads them."""
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

    def do_look_now(self) -> None:
        """Readers see what the writer has published, at once."""
        for reader in self.readers:
            assert reader.now() == self.db.now()
            for name, model in self.models.items():
                found = self._table(name, reader).scan(order_by_key=True).to_arrow().to_pylist()
                assert_same(found, model.rows(), f"the rows of {name} in a process that only reads")

    def do_look_at_pinned(self) -> None:
        """Snapshots and scans of long ago."""
        for pin in self.pinned:
            found = pin.view.scan(order_by_key=True).to_arrow().to_pylist()
            assert_same(found, pin.rows, f"a pinned snapshot of {pin.name}")
            assert_same(pin.scan.to_arrow().to_pylist(), pin.rows, f"a scan of {pin.name} that was kept")

    def do_look_check(self) -> None:
        report = self.db.check()
        assert report.ok, report.problems

    def do_look_everywhere(self, every_feed: bool) -> None:
        """Every moment, and every feed between two of them; or else of each moment those to the next and to one later.

        All of them are a square of the moments: two thirds of a sequence's time.
        """
        count = len(self.moments)
        for name in self.models:
            for number in range(count):
                self.do_look_back(name, number, 0, "at", 0, None)
                self.do_look_back(name, number, 1, "current", 0, None)
                at = self._moment(number)
                where = self.some_predicate(name, number, at, at)
                self.do_look_back(name, number, 0, "at", 0, where)
                rest = count - number - 1
                some = {1, 1 + number * 7 % rest} if rest else set()
                for later in range(1, 1 + rest) if every_feed else some:
                    self.do_look_feed(name, number, number + later, later % 2 == 0, "at", 0)
        self.do_look_check()


def _named(one: Any) -> str:
    lower = "(unbounded" if one.lower is None else f"[{one.lower}"
    return f"{lower}, {'unbounded' if one.upper is None else one.upper})"
