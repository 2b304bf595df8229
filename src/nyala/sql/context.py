"""The inputs of one statement: the store, the transaction, the parameters and the rights.

Source: docs/how-to/sql.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

from nyala.errors import InvalidArgumentError, TableNotFoundError
from nyala.sql.python_values import plain_values
from nyala.sql.rights import Rights
from nyala.sql.select.running import Running
from nyala.sql.tokens import Token, parameters, replaced, tokens

if TYPE_CHECKING:
    from nyala.api.database import Database, Snapshot
    from nyala.api.transaction import Transaction
    from nyala.sql.select.result import SelectResult

Source: TypeAlias = Union["Snapshot", "Transaction"]
"""What a statement reads: the tables at a moment, or a transaction, which includes its own writes."""

NO_PARAMETERS: Final[Mapping[str, Any]] = MappingProxyType({})
_CATALOGUE_ROWS: Final = "nyala_catalogue"


@dataclass(frozen=True)
class Context:
    """The inputs of one statement.

    transaction: the open transaction of the statement; None: the statement is committed by itself.
    parameters: values by name; the first positional parameter has the name "1".
    at: the moment to read; None: now, or the moment of the transaction.
    source: the snapshot to read, for `Snapshot.sql`; None: the store at `at`.
    objects: tables outside the store that the statement can read, by name.
    running: receives the DuckDB sessions of the statement, so that another thread can interrupt
        them.
    """

    database: Database
    rights: Rights
    transaction: Transaction | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    at: Any = None
    source: Snapshot | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)
    running: Running = field(default_factory=Running)

    def readable(self) -> Source:
        """Return the snapshot or transaction that a SELECT reads.

        Raises: InvalidArgumentError for `at` inside a transaction.
        """
        if self.transaction is not None:
            if self.at is not None:
                raise InvalidArgumentError(
                    "at= is not possible inside a transaction, which reads the moment of its beginning: write "
                    "FROM t AT (TIMESTAMP => …), or run the statement after COMMIT"
                )
            return self.transaction
        return self.source or self.database._snapshot(self.at)

    def select(
        self, source: Source, text: str, objects: Mapping[str, Any] = MappingProxyType({})
    ) -> SelectResult:
        """Return the result of a SELECT. The rows are read later, when a method of the result returns them.

        source: the snapshot or transaction whose tables are read.
        objects: further tables by name, such as Arrow tables and data frames.
        If `text` reads descriptions of tables, such as `information_schema`, it is executed at once.
        Raises: as `Database.sql`.
        """
        from nyala.sql.select.attached import read_attached
        from nyala.sql.select.catalogue import answer
        from nyala.sql.select.moments import read_moments
        from nyala.sql.select.program_objects import find_object
        from nyala.sql.select.result import run
        from nyala.sql.select.statement import reads_catalogue

        objects = {**self.objects, **objects}
        if reads_catalogue(text):
            if objects:
                raise InvalidArgumentError(
                    "a statement reads either rows or descriptions of tables (DESCRIBE, information_schema), and this "
                    "one reads both: write two statements"
                )
            rows = answer(source, text, self.parameters_of(text))
            objects, text = {_CATALOGUE_ROWS: rows}, f"FROM {_CATALOGUE_ROWS}"
        attached = self.database._attached if self.rights.files else {}
        connection = self.database._connection(files=self.rights.files)
        reading = read_moments(self.database, attached, connection, source.timestamp, text, self.parameters)
        text, scans = reading.text, reading.scans
        if attached:
            text, others = read_attached(attached, text)
            scans = {**scans, **others}
        values = self.parameters_of(text) or None
        if reading.feeds:
            objects = {**objects, **reading.feeds}
        while True:
            try:
                result = run(connection, source, text, values, objects, scans, self.running)
                result._names_moments = bool(reading.scans or reading.feeds)
                return result
            except TableNotFoundError as error:
                name, data = find_object(source, self.rights, error, {*objects, *scans})
            if hasattr(data, "with_cheap_types"):
                scans = {**scans, name: data}
            else:
                objects = {**objects, name: data}

    def parameters_of(self, text: str) -> dict[str, Any]:
        """Return the values of the parameters that the text names, by name."""
        if not self.parameters:
            return {}
        named = {token.text[1:] for token in parameters(tokens(text))}
        return {name: value for name, value in self.parameters.items() if name in named}

    def check_writable(self, statement: str) -> None:
        """Check that the statement may change the store. Raises: InvalidArgumentError, ReadOnlyError."""
        if self.at is not None or self.source is not None:
            raise InvalidArgumentError(
                f"{statement} changes the present, and this SQL reads a moment in the past: use db.sql(…) without at="
            )
        self.database._writing()
        if self.transaction is None:
            self.database._open.refuse_in_block(f"{statement} by db.sql(…)", "the methods of the batch")


def with_numbered_parameters(text: str, found: Sequence[Token]) -> str:
    """Return the text with `$1`, `$2`, … in place of `?`, so that each clause names its parameters.

    Raises: InvalidArgumentError for a text with both `?` and `$name`.
    """
    given = list(parameters(found))
    marks = [token for token in given if token.text == "?"]
    if not marks:
        return text
    if len(marks) < len(given):
        raise InvalidArgumentError("the text has parameters of both kinds, ? and $name: use one kind")
    return replaced(
        text,
        [
            (token.begin, token.end, f"${i} " if text[token.end : token.end + 1].isalnum() else f"${i}")
            for i, token in enumerate(marks, 1)
        ],
    )


def parameters_by_name(text: str, found: Sequence[Token], given: Any) -> Mapping[str, Any]:
    """Return the values of the parameters by name.

    found: the tokens of the parameters, which are all written as `$1` or `$name`.
    given: a list for `$1`, `$2`, …, or a dict for `$name`.
    Raises: InvalidArgumentError for another type, and for missing and superfluous values.
    """
    if isinstance(given, Mapping):
        values = {str(name): value for name, value in given.items()}
    elif isinstance(given, list | tuple):
        values = {str(number): value for number, value in enumerate(given, 1)}
    elif given is None:
        values = {}
    else:
        raise InvalidArgumentError(f"parameters are a list for ? or a dict for $name, not {given!r}")
    named = {token.text[1:] for token in found}
    if missing := sorted(named - values.keys()):
        raise InvalidArgumentError(
            f"there is no value for parameter {missing[0]}: the statement has {len(named)} parameters, and "
            f"{len(values)} values were given"
        )
    if unknown := sorted(values.keys() - named):
        raise InvalidArgumentError(
            f"the statement has no parameter {unknown[0]}: it has {len(named)} parameters, and {len(values)} values "
            "were given"
        )
    return dict(zip(values, plain_values(list(values.values())), strict=True))
