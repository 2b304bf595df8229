"""The state machine with which Hypothesis chooses random steps and their values.

Each rule draws a step as plain values, which fit the present state of the model, for example its
columns. The session applies the step to the store and to the model. If a step fails, all steps
are printed as code.
"""

from __future__ import annotations

from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from nyala.schema import schema
from tests.model.session import Between, Session, Step
from tests.model.shapes import Options, Shape
from tests.model.values import COMPRESSIONS, VALUES, WIDER, Predicate, encodings, literals
from tests.model.versions import NOW, Column, Row

Data = st.DataObject

TABLES = st.sampled_from(["t", "t", "t", "u", "p"])
OPERATIONS = st.sampled_from(["insert", "upsert", "upsert", "update", "delete"])
HOW = st.sampled_from(["raise", "collect", "ignore", "ignore"])
NUMBER = st.integers(0, 99)
NAMES = ["a", "b", "e", "é", 'col "x"', "order", "k2"]
NEW_TYPES = ["int8", "int16", "float", "decimal(4,1)", "varchar(2)", "binary", "bool", "date", "timestamp"]
PLACE = 300  # large batches begin near a multiple of this number, so their keys are in few rowsets
HISTORIES = st.sampled_from([0.0, 0.005, 0.05, 10.0])


class StoreMachine(RuleBasedStateMachine):
    """Random steps on a store and its model. Subclasses set the shape of tables and the options."""

    shape: ClassVar[Shape]
    options: ClassVar[st.SearchStrategy[Options]]
    every_feed: ClassVar[bool] = False  # whether a sequence may end by reading the feeds between all moments
    large: ClassVar[bool] = False
    session_type: ClassVar[type[Session]] = Session
    session: Session
    feeds: bool

    @initialize(data=st.data())
    def open(self, data: Data) -> None:
        self.session = self.session_type(self.shape, data.draw(self.options, label="options"))
        self.feeds = self.every_feed and data.draw(st.integers(0, 7), label="every feed") == 0
        if data.draw(st.integers(0, 4), label="not empty"):
            self._fill()

    def _fill(self) -> None:
        """Write and flush rows, so that tablets have two rowsets, and two REDO files for one of them."""
        keys = list(self.shape.keys)
        for some in (keys[::2], keys[1::2], keys[::3], keys[::2]):
            for name, model in self.session.models.items():
                rows = [
                    dict(zip(model.key_names(), key, strict=True))
                    | {c.name: VALUES[c.type][number % 3 - 1] for c in model.values()}
                    for number, key in enumerate(some)
                    if model.home(key) is not None
                ]
                self._do("write", name, "upsert", rows, "raise")
            self._do("flush", None, {})

    def teardown(self) -> None:
        if hasattr(self, "session"):
            try:
                self._do("read_now")
                self._do("read_pinned")
                self._do("read_everywhere", self.feeds)
            finally:
                self.session.close()

    def _do(self, *step: Any) -> None:
        try:
            self.session.do(step)
        except BaseException:
            note(self.session.source())
            raise

    # ── random values ─────────────────────────────────────────────────────────────────────────────

    def _columns(self, name: str, at: int = NOW) -> list[Column]:
        return self.session.models[name].values(at)

    def _rows(self, data: Data, name: str, operation: str) -> list[Row]:
        """Draw rows with the same columns, often only those of the key."""
        model = self.session.models[name]
        among = list(self.shape.keys)
        if data.draw(st.integers(0, 7), label="only keys with a partition"):
            among = [key for key in among if model.home(key) is not None] or among
        if data.draw(st.integers(0, 3), label="only keys that succeed"):
            live = model.state()
            fit = [key for key in among if (key in live) == (operation in ("update", "delete"))]
            among = fit if fit and operation != "upsert" else among
        keys = data.draw(st.lists(st.sampled_from(among), min_size=1, max_size=5), label="keys")
        columns = []
        if operation != "delete":
            columns = [c for c in self._columns(name) if c.required or data.draw(st.booleans())]
        if operation == "update" and not columns:
            columns = self._columns(name)[:1]
        return [
            dict(zip(model.key_names(), key, strict=True))
            | {c.name: data.draw(_value(c), label=c.name) for c in columns}
            for key in keys
        ]

    def _write(self, data: Data) -> Step:
        name, operation = data.draw(TABLES, label="table"), data.draw(OPERATIONS, label="operation")
        if operation == "update" and not self._columns(name):
            operation = "upsert"
        return ("write", name, operation, self._rows(data, name, operation), data.draw(HOW, label="how"))

    def _where(self, data: Data, columns: list[Column], depth: int = 0) -> Predicate:
        kind = data.draw(st.sampled_from(["one", "one", "not", "and", "or"]) if depth < 2 else st.just("one"))
        if kind == "not":
            return ("not", self._where(data, columns, depth + 1))
        if kind != "one":
            return (kind, *(self._where(data, columns, depth + 1) for _ in range(2)))
        column = data.draw(st.sampled_from(columns), label="column")
        values = literals(column.type)
        words = ["is null", "is not null", "is null", "is not null"]
        if values and column.type != "bool":
            words = ["=", "=", "<>", "<", "<=", ">", ">=", "in", "between", "is null", "is not null"]
            words += ["like"] * (column.type.startswith(("string", "varchar")))
        word = data.draw(st.sampled_from(words), label="word")
        if word == "like":
            return (word, column.name, data.draw(st.sampled_from(["a%", "%b%", "_", "", "%", "日%"])))
        if word.startswith("is"):
            return (word, column.name)
        value = st.sampled_from(values)
        if word == "in":
            return (word, column.name, data.draw(st.lists(value, min_size=1, max_size=3)))
        return (word, column.name, *(data.draw(value) for _ in range(2 if word == "between" else 1)))

    def _predicate(self, data: Data, name: str, at: int = NOW) -> Predicate:
        if data.draw(st.booleans(), label="of a row"):
            return self.session.some_predicate(name, data.draw(NUMBER), at, at)
        return self._where(data, list(self.session.models[name].columns(at)))

    def _alteration(self, data: Data, name: str) -> Step:
        """Draw an alteration of one to four steps. The session skips impossible ones."""
        model, steps = self.session.models[name], []
        columns = list(model.columns())
        for _ in range(data.draw(st.integers(1, 4), label="steps")):
            kinds = ["rename", "storage", "name"] + ["history"] * (name == "u")
            kinds += [] if self.session.options.keys_only or name == "p" else ["add", "add"]
            kinds += (
                ["drop", "widen", "default", "nullable", "widen"]
                if len(columns) > len(self.shape.key)
                else []
            )
            kinds += ["add range", "drop range", "drop range"] if self.shape.range_on is not None else []
            # Not for table "u": dropped ranges expire with its short history.
            kinds += ["undrop range"] * 2 if self.shape.range_on is not None and name != "u" else []
            kind = data.draw(st.sampled_from(kinds), label="kind")
            column = data.draw(st.sampled_from(columns), label="column")
            match kind:
                case "add":
                    type = data.draw(st.sampled_from(NEW_TYPES))
                    default = data.draw(st.one_of(st.none(), st.sampled_from(list(VALUES[type]))))
                    added = data.draw(st.sampled_from(NAMES))
                    if added in (one.name for one in columns):
                        continue
                    nullable = default is None or data.draw(st.booleans())
                    steps.append(("add", added, type, nullable, default, self._storage(data, type)))
                    columns.append(Column(-1, added, type, nullable))
                case "rename":
                    steps.append((kind, column.name, data.draw(st.sampled_from(NAMES))))
                case "storage":
                    steps.append((kind, column.name, self._storage(data, column.type)))
                case "widen" if column.type in WIDER and not column.in_key:
                    steps.append((kind, column.name, data.draw(st.sampled_from(list(WIDER[column.type])))))
                case "default" if not column.in_key:
                    value = data.draw(st.one_of(st.none(), st.sampled_from(list(VALUES[column.type]))))
                    steps.append((kind, column.name, value))
                case "drop" | "nullable":
                    steps.append((kind, column.name))
                case "add range":
                    steps.append((kind, *data.draw(st.sampled_from(self.shape.ranges()))))
                case "drop range" if len(model.ranges) > 1:
                    chosen = data.draw(st.sampled_from(model.ranges))
                    steps.append((kind, chosen.lower, chosen.upper, data.draw(st.booleans(), label="purge")))
                    if data.draw(st.integers(0, 3)) == 0:
                        steps.append(("add range", chosen.lower, chosen.upper))
                case "undrop range":
                    steps.append((kind, *data.draw(st.sampled_from(self.shape.ranges()))))
                case "history":
                    steps.append((kind, data.draw(HISTORIES)))
                case "name":
                    steps.append((kind, data.draw(st.sampled_from([name, f"{name}2", "é"]))))
            # Later steps of this alteration do not use a column that this step renames or widens.
            columns = [one for one in columns if one is not column or kind in ("storage", "name")] or columns
        return ("alter", name, steps or [("name", name)], {})

    def _storage(self, data: Data, type: str) -> dict[str, Any]:
        return {
            "encoding": data.draw(st.sampled_from(encodings(type))),
            "compression": data.draw(st.sampled_from(COMPRESSIONS)),
            "block_size": data.draw(st.sampled_from([None, schema.MIN_BLOCK_SIZE_BYTES, 4096])),
        }

    def _step_between(self, data: Data, phase: str, locked: bool) -> Step:
        """Draw a step between the phases of another one. locked: flushes would wait for that one."""
        kinds = ["write", "write", "write", "read"] + ([] if locked else ["flush", "collect", "compact"])
        kinds += ["alter"] * (phase != "begun")
        match data.draw(st.sampled_from([*kinds, "kill"] if data.draw(st.integers(0, 3)) == 0 else kinds)):
            case "write":
                return self._write(data)
            case "alter":
                return self._alteration(data, data.draw(st.sampled_from(["t", "u"])))
            case "flush":
                return ("flush", data.draw(st.sampled_from(["t", None])), {})
            case "collect":
                return ("maintain", "t", "collect")
            case "compact":
                return ("compact", "t", data.draw(NUMBER), ("major", data.draw(NUMBER), [0, 1, 2]), {})
            case "kill":
                return ("kill", data.draw(st.one_of(st.none(), NUMBER)))
            case _:
                return self._read_at(data, data.draw(TABLES))

    def _with_others_between(self, data: Data, locked: bool, *step: Any) -> None:
        """Do a step, and draw steps between its phases, which are added to its last argument."""

        def ask(phase: str) -> Step | None:
            if data.draw(st.integers(0, 2), label=phase) == 0:
                return None
            return self._step_between(data, phase, locked)

        self.session.ask_between = ask
        between: Between = step[-1]
        assert between == {}
        try:
            self._do(*step)
        finally:
            self.session.ask_between = lambda phase: None

    def _read_at(self, data: Data, name: str) -> Step:
        session, model = self.session, self.session.models[name]
        number, before = data.draw(NUMBER, label="moment"), data.draw(st.integers(0, 1))
        schema = data.draw(st.sampled_from(["at", "current"]), label="schema")
        seen = NOW if schema == "current" else session._moment(number, before)
        where = self._predicate(data, name, seen) if data.draw(st.booleans(), label="where") else None
        names = None
        if data.draw(st.booleans(), label="some columns"):
            every = [column.name for column in model.columns(seen)]
            names = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
        return ("read_at", name, number, before, schema, data.draw(NUMBER), where, names)

    # ── writes ────────────────────────────────────────────────────────────────────────────────────

    @rule(data=st.data())
    def write(self, data: Data) -> None:
        self._do(*self._write(data))

    @rule(data=st.data())
    def write_again(self, data: Data) -> None:
        """Write rows, because writes should be drawn twice as often as other rules."""
        self._do(*self._write(data))

    @rule(data=st.data(), end=st.sampled_from(["commit", "commit", "abort"]))
    def batch(self, data: Data, end: str) -> None:
        """Write to several tables by one batch."""
        parts = []
        for _ in range(data.draw(st.integers(2, 4), label="parts")):
            _, name, operation, rows, _ = self._write(data)
            parts.append((name, operation, rows))
        self._do("batch", parts, end)

    @rule(data=st.data(), name=TABLES, operation=OPERATIONS, first=st.integers(0, 40), seed=NUMBER)
    def write_many(self, data: Data, name: str, operation: str, first: int, seed: int) -> None:
        """Write a large batch."""
        columns = self._columns(name)
        names = [c.name for c in columns if c.required or data.draw(st.booleans())]
        if operation == "update" and not names:
            operation = "delete"
        count = data.draw(st.integers(1, 400) if self.large else st.integers(1, 12), label="count")
        first += PLACE * data.draw(st.integers(0, 2), label="place") if self.large else 0
        self._do("many", name, operation, first, count, seed, names)

    @rule(data=st.data())
    def repeat(self, data: Data) -> None:
        """Write the same rows many times, so that their changes take several blocks."""
        step = self._write(data)
        count = data.draw(st.integers(2, 150) if self.large else st.integers(2, 9), label="times")
        if step[2] in ("upsert", "update"):
            self._do("repeat", count, step)

    @rule(data=st.data(), name=TABLES)
    def delete_where(self, data: Data, name: str) -> None:
        self._do("delete_where", name, self._predicate(data, name))

    @rule(data=st.data(), name=TABLES)
    def update_where(self, data: Data, name: str) -> None:
        columns = self._columns(name)
        if not columns:
            return
        changes: dict[str, tuple[str, Any]] = {}
        for column in data.draw(st.lists(st.sampled_from(columns), min_size=1, max_size=2, unique=True)):
            others = [
                c.name for c in columns if c.type == column.type and (column.nullable or not c.nullable)
            ]
            if data.draw(st.booleans()):
                changes[column.name] = ("column", data.draw(st.sampled_from(others)))
            else:
                changes[column.name] = ("value", data.draw(_value(column)))
        self._do("update_where", name, changes, self._predicate(data, name))

    @rule(name=TABLES, first=st.integers(0, 40), count=st.integers(1, 6))
    def purge(self, name: str, first: int, count: int) -> None:
        self._do("purge", name, first, count)

    @rule(name=TABLES, number=NUMBER)
    def restore(self, name: str, number: int) -> None:
        self._do("restore", name, number)

    # ── alterations ───────────────────────────────────────────────────────────────────────────────

    @rule(data=st.data(), name=st.sampled_from(["t", "t", "u", "p"]))
    def alter(self, data: Data, name: str) -> None:
        self._with_others_between(data, False, *self._alteration(data, name))

    @rule(data=st.data(), name=TABLES, buckets=st.integers(1, 3))
    def repartition(self, data: Data, name: str, buckets: int) -> None:
        if data.draw(st.integers(0, 5), label="seldom"):
            return  # a repartition removes the history that other rules read
        ranges = data.draw(st.lists(st.sampled_from(self.shape.ranges()), min_size=1, unique=True))
        self._do("repartition", name, buckets, sorted(ranges, key=self.shape.ranges().index))

    @rule(name=st.sampled_from(["t", "p"]), meanwhile=st.sampled_from(["flush", "crash", ""]), number=NUMBER)
    def drop_and_undrop(self, name: str, meanwhile: str, number: int) -> None:
        self._do("drop_and_undrop", name, meanwhile, number)

    @rule(name=TABLES, number=st.one_of(st.none(), NUMBER))
    def clone(self, name: str, number: int | None) -> None:
        self._do("clone", name, number)

    @rule(name=TABLES, number=NUMBER)
    def copy(self, name: str, number: int) -> None:
        self._do("copy", name, number)

    # ── flushes and compactions ───────────────────────────────────────────────────────────────────

    @rule(data=st.data(), name=st.sampled_from(["t", "u", None]))
    def flush(self, data: Data, name: str | None) -> None:
        self._with_others_between(data, True, "flush", name, {})

    @rule()
    def flush_all(self) -> None:
        self._do("flush", None, {})

    @rule(data=st.data())
    def write_between_flushes(self, data: Data) -> None:
        self._do("flush", None, {})
        self._do(*self._write(data))
        self._do("flush", None, {})

    def _add_redo_file(self, data: Data, name: str) -> None:
        """Update a row on disk, or delete it if the table has only key columns, and flush the change."""
        model = self.session.models[name]
        self._do("flush", None, {})
        live = sorted(model.state())
        if not live:
            return
        key = live[data.draw(NUMBER, label="row") % len(live)]
        row = dict(zip(model.key_names(), key, strict=True))
        columns = self._columns(name)[:2]
        row |= {c.name: data.draw(_value(c), label=c.name) for c in columns}
        self._do("write", name, "update" if columns else "delete", [row], "raise")
        self._do("flush", None, {})

    @rule(name=TABLES)
    def flush_deltas(self, name: str) -> None:
        self._do("flush_deltas", name)

    @rule(data=st.data(), name=st.sampled_from(["t", "t", "t", "u"]), number=NUMBER)
    def compact_again(self, data: Data, name: str, number: int) -> None:
        """Merge rowsets, because this should be drawn more often than other compactions."""
        plan = ("merge", [0, 1, 2, 3], data.draw(st.integers(1, 2)))
        self._with_others_between(data, False, "compact", name, number, plan, {})

    @rule(data=st.data(), name=TABLES, number=NUMBER)
    def compact_something(self, data: Data, name: str, number: int) -> None:
        plan: Step
        match data.draw(
            st.sampled_from(["merge", "merge", "major", "minor", "undo", "expire"]), label="plan"
        ):
            case "merge":
                rowsets = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True))
                plan = ("merge", rowsets, data.draw(st.integers(1, 3)))
            case "major":
                plan = ("major", data.draw(NUMBER), data.draw(st.lists(st.integers(0, 7), min_size=1)))
            case "expire":
                plan = ("expire",)
            case kind:
                if data.draw(st.booleans(), label="two files of changes"):
                    self._add_redo_file(data, name)
                    self._add_redo_file(data, name)
                first, count = data.draw(st.integers(0, 3)), data.draw(st.integers(2, 4))
                plan = ("minor", data.draw(NUMBER), first, count, "undo" if kind == "undo" else "redo")
        self._with_others_between(data, False, "compact", name, number, plan, {})

    @rule(name=TABLES, kind=st.sampled_from(["compact", "vacuum", "deltas", "collect"]))
    def maintain(self, name: str, kind: str) -> None:
        self._do("maintain", name, kind)

    @rule(seconds=st.sampled_from([1e-6, 0.001, 0.02, 0.06, 3.0]))
    def wait(self, seconds: float) -> None:
        self._do("wait", seconds)

    # ── opening and killing ───────────────────────────────────────────────────────────────────────

    @rule()
    def reopen(self) -> None:
        self._do("reopen")

    @rule(seed=st.one_of(st.none(), NUMBER))
    def kill(self, seed: int | None) -> None:
        self._do("kill", seed)

    @rule()
    def reader(self) -> None:
        self._do("reader")

    @rule(view=NUMBER)
    def pin(self, view: int) -> None:
        self._do("pin", view)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    @rule(data=st.data(), name=TABLES)
    def read_at(self, data: Data, name: str) -> None:
        self._do(*self._read_at(data, name))

    @rule(
        name=TABLES,
        moments=st.tuples(NUMBER, NUMBER),
        net=st.booleans(),
        schema=st.sampled_from(["at", "current"]),
        view=NUMBER,
    )
    def read_changes(self, name: str, moments: tuple[int, int], net: bool, schema: str, view: int) -> None:
        self._do("read_feed", name, *moments, net, schema, view)

    @rule(name=TABLES, number=NUMBER, view=NUMBER)
    def read_keys(self, name: str, number: int, view: int) -> None:
        self._do("read_keys", name, number, view)
        self._do("read_history", name, view)

    @rule(data=st.data(), name=TABLES, number=NUMBER, columns=st.integers(0, 3), view=NUMBER)
    def read_many_keys(self, data: Data, name: str, number: int, columns: int, view: int) -> None:
        most, places = (PLACE, 2) if self.large else (12, 0)
        first = st.builds(
            lambda first, place: first + PLACE * place, st.integers(0, 40), st.integers(0, places)
        )
        stretch = st.tuples(first, st.sampled_from([1, 2, 5, most]), st.sampled_from([1, 1, 2, 7]))
        stretches = data.draw(st.lists(stretch, min_size=1, max_size=3), label="stretches")
        self._do("read_many", name, number, stretches, columns, view)

    @rule(data=st.data(), name=TABLES, sql=st.booleans())
    def read_by_sql_or_tokens(self, data: Data, name: str, sql: bool) -> None:
        """Read the present rows by SQL or by scan tokens."""
        self._do("read_sql" if sql else "read_tokens", name, self._predicate(data, name))

    @rule()
    def read_old_views(self) -> None:
        self._do("read_now")
        self._do("read_pinned")

    @rule()
    def a_check_finds_nothing(self) -> None:
        self._do("check")


def _value(column: Column) -> st.SearchStrategy[Any]:
    values = st.sampled_from(list(VALUES[column.type]))
    return st.one_of(st.none(), values) if column.nullable else values
