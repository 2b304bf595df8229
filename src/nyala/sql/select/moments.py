"""Rewrites the parts of a SELECT that DuckDB does not know: tables at a moment, change feeds, and schema names.

    FROM t AT (TIMESTAMP => now() - INTERVAL 1 DAY)      or  AT (VERSION => 'tag')
    FROM t FOR SYSTEM_TIME AS OF '2026-11-01'            or  FOR SYSTEM_VERSION AS OF 7
    FROM t TIMESTAMP AS OF '2026-11-01'                  or  VERSION AS OF 'tag'
    FROM changes('t', since => 'tag', until => now(), before => true)
    FROM nyala.main.t                                    or  public.t

A scan at the moment, or the feed, is registered in DuckDB under a new name, and the text gets this
name: `FROM t AT (VERSION => 7)` becomes `FROM "t@1" AS "t"`. So DuckDB pushes predicates into scans
of the past, too. DuckDB evaluates the moment, an expression of constants and parameters, before the
statement.

Invariants
    M1  A clause is found only behind the name of a table: after FROM, JOIN, or a comma in FROM.
    M2  The text keeps its line breaks, so that DuckDB's errors name the right lines.

A statement is analysed only if it contains one of five words, such as `at`. Most do not.
Source: SQL:2011 part 2, 7.6 (system-versioned tables); DuckDB, "Time Travel"; Spark SQL, "Time travel".
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nyala.errors import InvalidArgumentError
from nyala.sql.names import spelled
from nyala.sql.tokens import QUERIES, TokenReader, cached_for_short, main_keyword, quoted, replaced, tokens

if TYPE_CHECKING:
    from nyala.api.change_feed import ChangeFeed
    from nyala.api.database import Database, Snapshot
    from nyala.api.engine_scan import EngineScan
    from nyala.sql.select.connection import Connection

_WORDS: Final = re.compile(r"\b(?:at|of|changes|public|nyala)\b", re.IGNORECASE)
_EXPLICIT: Final = frozenset(("TIMESTAMP", "VERSION"))
_AS_OF: Final = {
    "SYSTEM_TIME": "TIMESTAMP",
    "TIMESTAMP": "TIMESTAMP",
    "SYSTEM_VERSION": "VERSION",
    "VERSION": "VERSION",
}
_ARROWS: Final = ("=>", ":=")
# Words that begin the next part of a statement, and so are no alias.
_ENDS_FROM: Final = frozenset(
    "WHERE GROUP HAVING ORDER LIMIT OFFSET FETCH WINDOW QUALIFY UNION INTERSECT EXCEPT SELECT SET RETURNING".split()
)
NO_NAMES: Final = _ENDS_FROM | frozenset(
    "FROM JOIN INNER LEFT RIGHT FULL CROSS NATURAL ASOF POSITIONAL SEMI ANTI ON USING TABLESAMPLE PIVOT UNPIVOT FOR AS "
    "VALUES WITH LATERAL AND OR NOT".split()
)
_THEN_TABLE: Final = frozenset(("TABLE", "PIVOT", "UNPIVOT", "SUMMARIZE", "DESCRIBE"))
_QUALIFIERS: Final = frozenset((("public",), ("nyala",), ("nyala", "main"), ("nyala", "public")))
_OPERATORS: Final = frozenset(("+", "-", "*", "/", "%", "||"))
_UNITS: Final = frozenset(
    "MICROSECOND MILLISECOND SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR DECADE CENTURY MILLENNIUM".split()
)
_FEED_ARGUMENTS: Final = ("since", "until", "before", "versions")


@dataclass(frozen=True)
class Reading:
    """The rewritten statement, and its scans and change feeds by their names in the text."""

    text: str
    scans: Mapping[str, EngineScan] = field(default_factory=dict)
    feeds: Mapping[str, Feed] = field(default_factory=dict)


class Feed:
    """A change feed as an Arrow stream for DuckDB.

    failure: the first error of a read. It is kept here, because DuckDB reports only its text.
    """

    def __init__(self, feed: ChangeFeed) -> None:
        self._feed = feed
        self.failure: BaseException | None = None

    def __arrow_c_schema__(self) -> Any:
        return self._feed.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self._feed.schema, self._batches()).__arrow_c_stream__()

    def _batches(self) -> Iterable[Any]:
        try:
            yield from self._feed.to_reader()
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = self.failure or error
            raise


def parsable(text: str) -> str:
    """Return the text of a statement in a form that DuckDB's parser accepts.

    A table `nyala_t` replaces each table at a moment, `t AT (…)`, and each change feed, `changes(…)`.
    """
    if not _WORDS.search(text):
        return text
    clauses = _clauses(text)
    edits = [edit for moment in clauses.moments for edit in moment.edits("nyala_t", text)]
    edits += [edit for feed in clauses.feeds for edit in feed.edits("nyala_t", text)]
    return replaced(text, edits) if edits else text


def read_moments(
    database: Database,
    attached: Mapping[str, Database],
    connection: Connection,
    timestamp: int,
    text: str,
    parameters: Mapping[str, Any],
) -> Reading:
    """Replace tables at a moment, change feeds and schema names in a statement by names for DuckDB.

    attached: other stores by name, whose tables are `store.table`.
    connection: evaluates the moments.
    timestamp: the moment of the statement. A feed without `until` ends there.
    Raises: InvalidArgumentError for a wrong clause or moment; TableNotFoundError,
    HistoryExpiredError.
    """
    if not _WORDS.search(text):
        return Reading(text)
    clauses = _clauses(text)
    if not clauses.moments and not clauses.feeds:
        return Reading(replaced(text, clauses.edits) if clauses.edits else text)
    value = _Values(connection, parameters)
    edits = list(clauses.edits)
    scans: dict[str, EngineScan] = {}
    feeds: dict[str, Feed] = {}
    taken = {name.lower() for name in database.list_tables()}
    snapshots: dict[Any, Snapshot] = {}
    for moment in clauses.moments:
        at = value.moment(moment.expression, moment.kind, moment.table)
        snapshot = snapshots.get((moment.store, moment.expression))
        if snapshot is None:
            snapshot = attached.get(moment.store, database)._snapshot(at)
            snapshots[moment.store, moment.expression] = snapshot
        name = spelled(moment.table, {*snapshot._pinned().by_name, *snapshot.list_tables()})
        made = _unused(moment.table, taken)
        scans[made] = snapshot[name].scan()._engine()
        edits += moment.edits(made, text)
    for feed in clauses.feeds:
        name = value.table(feed.table)
        store, _, table = name.partition(".")
        source = attached.get(store.lower()) if table else None
        source, name = (database, name) if source is None else (source, table)
        name = spelled(name, source.list_tables())
        given = {each: value.of(text, f"{each} of changes") for each, text in feed.arguments.items()}
        given["since"] = value.checked(given["since"], f"since of the changes of {name!r}")
        if given.get("until") is not None:
            given["until"] = value.checked(given["until"], f"until of the changes of {name!r}")
        else:
            given["until"] = timestamp if source is database else source.now()
        made = _unused("changes", taken)
        feeds[made] = Feed(source[name].changes(**given))
        edits += feed.edits(made, text)
    return Reading(replaced(text, edits), scans, feeds)


def _unused(name: str, taken: set[str]) -> str:
    """Return a name that is not in `taken`, and add it there."""
    number = 1
    while (made := f"{name}@{number}").lower() in taken:
        number += 1
    taken.add(made.lower())
    return made


class _Values:
    """Evaluates expressions of constants and parameters, each once."""

    def __init__(self, connection: Connection, parameters: Mapping[str, Any]) -> None:
        self._connection = connection
        self._parameters = parameters
        self._known: dict[str, Any] = {}

    def of(self, expression: str, what: str) -> Any:
        """Return the value of the expression. what: its name in an error. Raises: InvalidArgumentError."""
        if expression not in self._known:
            self._known[expression] = self._evaluated(expression, what)
        return self._known[expression]

    def table(self, expression: str) -> str:
        name = self.of(expression, "the table of changes")
        if not isinstance(name, str):
            raise InvalidArgumentError(
                f"changes takes a table's name as text, as in changes('t', …), not {name!r}"
            )
        return name

    def moment(self, expression: str, kind: str, table: str) -> Any:
        """Return the moment at which a table is read, as `scan(at=…)` takes it."""
        what = f"the moment of {table!r}"
        value = self.checked(self.of(expression, what), what)
        if kind == "VERSION" and isinstance(value, dt.datetime):
            raise InvalidArgumentError(
                f"{what} is a time, and VERSION takes a timestamp of Nyala or a tag: write AT (TIMESTAMP => …)"
            )
        return value

    def checked(self, value: Any, what: str) -> Any:
        """Return a value of SQL as a moment of Python. Raises: InvalidArgumentError for NULL."""
        if value is None:
            raise InvalidArgumentError(f"{what} is NULL: give a time, a timestamp of Nyala or a tag")
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
        if isinstance(value, decimal.Decimal) and value == value.to_integral_value():
            return int(value)
        return value

    def _evaluated(self, expression: str, what: str) -> Any:
        import duckdb

        found = tokens(expression)
        if len(found) == 1:
            (token,) = found
            if token.kind == "parameter":
                return self._parameters[token.text[1:]]
            if token.plain_text is not None:
                return token.plain_text
            if token.kind == "number" and token.text.isdecimal():
                return int(token.text)
        names = {token.text[1:] for token in found if token.kind == "parameter"}
        given = {name: self._parameters[name] for name in names}
        with contextlib.closing(self._connection.cursor()) as cursor:
            try:
                ((value,),) = cursor.execute(f"SELECT {expression}", *([given] if given else [])).fetchall()
            except (duckdb.BinderException, duckdb.CatalogException) as error:
                raise InvalidArgumentError(
                    f"{what} must be an expression of constants and parameters, not {expression.strip()!r}: "
                    f"{str(error).splitlines()[0]}"
                ) from error
            except duckdb.Error as error:
                raise InvalidArgumentError(
                    f"{what} cannot be computed from {expression.strip()!r}: {str(error).splitlines()[0]}"
                ) from error
        return value


# ------------------------------------------------------------------------------------------------ clauses


@dataclass(frozen=True)
class _Moment:
    """A table with a clause that names its moment, such as `t AT (VERSION => 7)`.

    store: the qualifier of the table in lower case, which may be an attached store; or "".
    begin, end: where the table's name begins and ends in the text.
    clause_begin, clause_end: where the clause begins and ends.
    kind: "TIMESTAMP" or "VERSION".
    expression: the text of the moment, `7` in the example.
    """

    store: str
    table: str
    begin: int
    end: int
    clause_begin: int
    clause_end: int
    kind: str
    expression: str
    has_alias: bool

    def edits(self, made: str, text: str) -> list[tuple[int, int, str]]:
        alias = "" if self.has_alias else f" AS {quoted(self.table)}"
        lines = "\n" * text.count("\n", self.clause_begin, self.clause_end)
        return [(self.begin, self.end, quoted(made)), (self.clause_begin, self.clause_end, alias + lines)]


@dataclass(frozen=True)
class _FeedCall:
    """A call `changes(…)` at [begin, end) of the text.

    table: the text of the first argument. arguments: the texts of the other arguments, by name.
    """

    table: str
    begin: int
    end: int
    arguments: Mapping[str, str]
    has_alias: bool

    def edits(self, made: str, text: str) -> list[tuple[int, int, str]]:
        alias = "" if self.has_alias else " AS changes"
        return [(self.begin, self.end, quoted(made) + alias + "\n" * text.count("\n", self.begin, self.end))]


@dataclass(frozen=True)
class NamedTable:
    """The name of a table at [begin, end) of the text, with its qualifiers: `other.t` has the names other and t."""

    names: Sequence[str]
    begin: int
    end: int
    has_alias: bool


@cached_for_short
def _clauses(text: str) -> _Finder:
    """Find the tables of a statement, their clauses such as AT (…), and the calls of `changes`.

    Raises: InvalidArgumentError for an incomplete clause.
    """
    finder = _Finder(text)
    finder.run()
    return finder


def tables_in(text: str) -> Sequence[NamedTable]:
    """Return the tables that a statement names after FROM, JOIN and similar keywords."""
    return _clauses(text).tables


_SOURCES_AFTER_USING: Final = ("MERGE", "DELETE")


@dataclass
class _Frame:
    """The state of `_Finder` inside one pair of parentheses, or outside of all parentheses.

    is_query: the text between the parentheses is a query.
    in_from: the next token is in a FROM clause.
    """

    is_query: bool
    in_from: bool = False


class _Finder:
    """Goes through the tokens of a statement, and finds the names of tables after FROM and JOIN.

    edits: replacements of schema names such as `public`, as (begin, end, new text).
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.moments: list[_Moment] = []
        self.feeds: list[_FeedCall] = []
        self.tables: list[NamedTable] = []
        self.edits: list[tuple[int, int, str]] = []
        self._cut: set[str] = set()  # tables whose schema name was replaced
        self._of_with = self._names_of_with()

    def run(self) -> None:
        frames = [_Frame(is_query=True)]
        main = main_keyword(self.tokens)
        place, at_table, first = 0, False, True
        while place < len(self.tokens):
            token, frame = self.tokens[place], frames[-1]
            word = token.keyword
            if at_table and token.is_identifier and word not in NO_NAMES:
                place, at_table, first = self._table(place), False, False
                continue
            stays = at_table and word == "LATERAL"
            if word == "(":
                following = self._keyword(place + 1)
                is_query = following in QUERIES
                frames.append(_Frame(is_query, in_from=at_table and not is_query))
                at_table, first = at_table and not is_query, True
                place += 1
                continue
            if word == ")":
                if len(frames) > 1:
                    frames.pop()
            elif word == "SELECT":
                frame.is_query, frame.in_from = True, False
            elif word == "FROM":
                stays = frame.is_query and self._keyword(place - 1) != "DISTINCT"
                frame.in_from = frame.in_from or stays
            elif word in _THEN_TABLE and first:
                stays = True
            elif word == "USING" and len(frames) == 1 and main in _SOURCES_AFTER_USING:
                stays = True
                frame.in_from = main == "DELETE"
            elif frame.in_from and word in ("JOIN", ","):
                stays = True
            elif word in _ENDS_FROM:
                frame.in_from = False
            at_table, first = stays, False
            place += 1
        self._cut_columns()

    # -------------------------------------------------------------------------------------------- a table

    def _table(self, place: int) -> int:
        """Read a table's name at token `place`, its alias, and a clause such as AT (…).

        Returns the index of the token after them.
        """
        names, after = self._path(place)
        if self._keyword(after) == "(":
            return self._feed(place, after) if [each.lower() for each in names] == ["changes"] else after
        self._qualifier(names, place, after)
        first, end = self.tokens[place], self.tokens[after - 1].end
        alias = self._after_alias(after)
        self.tables.append(NamedTable(names, first.begin, end, alias != after))
        for begin in dict.fromkeys((after, alias)):
            found = self._clause(begin)
            if found is None:
                continue
            kind, expression, behind = found
            if names[-1].lower() in self._of_with:
                raise self._error(
                    begin,
                    f"only tables of the store have moments, and {names[-1]!r} is defined in WITH: write the moment "
                    "inside of that query",
                )
            self.moments.append(
                _Moment(
                    names[-2].lower() if len(names) == 2 else "",
                    names[-1],
                    first.begin,
                    end,
                    self.tokens[begin].begin,
                    self.tokens[behind - 1].end,
                    kind,
                    expression,
                    has_alias=begin != after or self._after_alias(behind) != behind,
                )
            )
            self.edits = [edit for edit in self.edits if edit[0] != first.begin]
            return behind
        return after

    def _path(self, place: int) -> tuple[list[str], int]:
        names = [self.tokens[place].name]
        place += 1
        while (
            self._keyword(place) == "."
            and place + 1 < len(self.tokens)
            and self.tokens[place + 1].is_identifier
        ):
            names.append(self.tokens[place + 1].name)
            place += 2
        return names, place

    def _qualifier(self, names: list[str], place: int, after: int) -> None:
        if tuple(name.lower() for name in names[:-1]) in _QUALIFIERS:
            self.edits.append((self.tokens[place].begin, self.tokens[after - 2].end, "main."))
            self._cut.add(names[-1].lower())

    def _cut_columns(self) -> None:
        """Replace the prefix `public` in column names such as `public.t.k` by DuckDB's schema `main`.

        The other names of a store's schema, such as `nyala.public`, are replaced, too. A column name
        is changed only if FROM also names its table with such a prefix. Adds the changes to `edits`.
        """
        if not self._cut:
            return
        done = {edit[0] for edit in self.edits}
        for place, token in enumerate(self.tokens):
            if not token.is_identifier or token.begin in done or self._keyword(place - 1) == ".":
                continue
            names, after = self._path(place)
            if len(names) > 2 and tuple(each.lower() for each in names[:-2]) in _QUALIFIERS:
                if names[-2].lower() in self._cut:
                    self.edits.append((token.begin, self.tokens[after - 4].end, "main."))

    def _after_alias(self, place: int) -> int:
        """Return the index of the token after an alias at token `place`; `place` if no alias begins there."""
        behind = place + 1 if self._keyword(place) == "AS" else place
        if behind >= len(self.tokens):
            return place
        token = self.tokens[behind]
        if not token.is_identifier or token.keyword in NO_NAMES:
            return place
        return behind + 1

    # -------------------------------------------------------------------------------------------- a moment

    def _clause(self, place: int) -> tuple[str, str, int] | None:
        """Read a clause such as `AT (VERSION => 7)` at token `place`; None if no such clause begins there.

        Returns ("TIMESTAMP" or "VERSION", the text of the moment, index of the token after the clause).
        """
        if self._keyword(place) == "AT" and self._keyword(place + 1) == "(":
            kind = self._keyword(place + 2)
            if kind not in _EXPLICIT or self._keyword(place + 3) not in _ARROWS:
                return None
            close = self._closing(place + 1)
            return kind, self._text(place + 4, close, place), close + 1
        begin = place + 1 if self._keyword(place) == "FOR" else place
        named = _AS_OF.get(self._keyword(begin))
        if named is None or self._keyword(begin + 1) != "AS" or self._keyword(begin + 2) != "OF":
            return None
        behind = self._expression(begin + 3)
        return named, self._text(begin + 3, behind, place), behind

    def _expression(self, place: int) -> int:
        """Return the index of the token after the expression that begins at token `place`."""
        place = self._operand(place)
        while self._keyword(place) in _OPERATORS:
            place = self._operand(place + 1)
        return place

    def _operand(self, place: int) -> int:
        while self._keyword(place) in ("+", "-"):
            place += 1
        if place >= len(self.tokens):
            raise self._error(place, "expected a moment")
        token, word = self.tokens[place], self._keyword(place)
        if word == "(":
            place = self._closing(place) + 1
        elif word == "INTERVAL":
            place = self._operand(place + 1)
            if self._keyword(place).rstrip("S") in _UNITS:
                place += 1
        elif token.kind in ("text", "number", "parameter"):
            place += 1
        elif token.is_identifier and word not in NO_NAMES:
            place = self._path(place)[1]
            for words in (("WITH", "TIME", "ZONE"), ("WITHOUT", "TIME", "ZONE")):
                if all(self._keyword(place + i) == each for i, each in enumerate(words)):
                    place += 3
            if self._keyword(place) == "(":
                place = self._closing(place) + 1
            elif place < len(self.tokens) and self.tokens[place].kind == "text":  # TIMESTAMP '…'
                place += 1
        else:
            raise self._error(place, "expected a moment")
        while self._keyword(place) == "::":
            place = self._path(place + 1)[1]
            if self._keyword(place) == "(":
                place = self._closing(place) + 1
        if [self._keyword(place + i) for i in range(3)] == ["AT", "TIME", "ZONE"]:
            place = self._operand(place + 3)
        return place

    # -------------------------------------------------------------------------------------------- a feed

    def _feed(self, place: int, opening: int) -> int:
        """Read a change feed, `changes('t', since => …)`, and add it to `feeds`.

        place, opening: the indexes of the tokens `changes` and `(`.
        Returns the index of the token after the call.
        """
        close = self._closing(opening)
        arguments: dict[str, str] = {}
        table = ""
        inside = TokenReader(self.text[self.tokens[opening].end : self.tokens[close].begin])
        for number, item in enumerate(inside.listed()):
            reader = TokenReader(item)
            if (arrow := reader.peek(1)) is not None and arrow.keyword in _ARROWS:
                name = reader.identifier().lower()
                if name not in _FEED_ARGUMENTS or name in arguments:
                    raise self._error(
                        place, f"changes takes the arguments {', '.join(_FEED_ARGUMENTS)}, each once"
                    )
                reader.next()
                if reader.ended:
                    raise self._error(place, "expected an expression")
                arguments[name] = reader.rest()
            elif number == 0:
                table = item
            else:
                raise self._error(
                    place, "the arguments of changes after the table need names, as in since => …"
                )
        if not table or "since" not in arguments:
            raise self._error(place, "changes needs the name of a table and since: changes('t', since => …)")
        behind = close + 1
        self.feeds.append(
            _FeedCall(
                table,
                self.tokens[place].begin,
                self.tokens[close].end,
                arguments,
                has_alias=self._after_alias(behind) != behind,
            )
        )
        return behind

    # -------------------------------------------------------------------------------------------- tokens

    def _keyword(self, place: int) -> str:
        return self.tokens[place].keyword if 0 <= place < len(self.tokens) else ""

    def _text(self, begin: int, end: int, place: int) -> str:
        if begin >= end:
            raise self._error(place, "expected an expression")
        return self.text[self.tokens[begin].begin : self.tokens[end - 1].end]

    def _closing(self, opening: int) -> int:
        """Return the index of the bracket that closes the bracket at `opening`. Raises: InvalidArgumentError."""
        depth = 0
        for place in range(opening, len(self.tokens)):
            text = self.tokens[place].text
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
            if depth == 0:
                return place
        raise self._error(opening, "a bracket is not closed")

    def _names_of_with(self) -> frozenset[str]:
        found = set()
        for place, token in enumerate(self.tokens):
            if token.is_identifier and self._keyword(place - 1) in ("WITH", "RECURSIVE", ","):
                behind = place + 1
                if self._keyword(behind) == "(":
                    with contextlib.suppress(InvalidArgumentError):
                        behind = self._closing(behind) + 1
                if self._keyword(behind) != "AS":
                    continue
                while self._keyword(behind + 1) in ("NOT", "MATERIALIZED"):
                    behind += 1
                if self._keyword(behind + 1) == "(":
                    found.add(token.name.lower())
        return frozenset(found)

    def _error(self, place: int, problem: str) -> InvalidArgumentError:
        position = self.tokens[place].begin if place < len(self.tokens) else len(self.text)
        line = self.text.count("\n", 0, position) + 1
        return InvalidArgumentError(f"LINE {line}: {problem}")
