"""The statement that writes, the table that it changes, and the clauses that several statements share.

Source: docs/reference/sql.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from nyala.errors import ColumnNotFoundError, InvalidArgumentError
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.conversion.convert import convert
from nyala.schema.conversion.long_column import LongColumn
from nyala.schema.schema import AUTO_INCREMENT, NO_DEFAULT, ColumnSchema, Schema
from nyala.sql.change.per_row import check_one_value
from nyala.sql.change.rows import are_distinct, collected
from nyala.sql.context import Context, Source
from nyala.sql.names import spelled, spelled_column, table_name
from nyala.sql.select.connection import Session
from nyala.sql.select.running import StatementInterrupted
from nyala.sql.select.statement import reads_catalogue
from nyala.sql.tokens import TokenReader, quoted, tokens, with_names, with_neighbours
from nyala.sql.types import cast_to, literal
from nyala.suggestion import nearest
from nyala.tablet.state.root import TableState
from nyala.tablet.write.write_path import Request, prepare_request

# Arrow compares keys in memory, and takes about 200 bytes for each. DuckDB compares more keys than this.
_COMPARED_ROWS_MAX: Final = 1 << 18
_AGGREGATES: Final = (
    "In SET, VALUES, RETURNING and conditions, an aggregate function is possible only in a subquery, as in "
    "SET n = (SELECT count(*) FROM f)"
)


@dataclass(frozen=True)
class Target:
    """The table that a statement changes. alias: the statement's name for its rows, such as `t` in `UPDATE x AS t`."""

    table: str
    alias: str
    schema: Schema

    @property
    def keys(self) -> list[str]:
        return list(self.schema.key_names)

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    @property
    def insert_columns(self) -> list[str]:
        """The columns that an INSERT without a list of columns fills, in their order."""
        return list(self.schema.insert_names)

    def column(self, name: str) -> ColumnSchema:
        """Return the column with this name, ignoring case. Raises: ColumnNotFoundError."""
        found = spelled_column(name, self.columns)
        if found not in self.columns:
            hint = nearest(name, self.columns)
            raise ColumnNotFoundError(
                f"table {self.table!r} has no column {name!r}" + (f": did you mean {hint!r}?" if hint else "")
            )
        return self.schema.by_name(found)

    def read_column(self, reader: TokenReader) -> ColumnSchema:
        """Read `column` or `t.column`. Raises: ColumnNotFoundError; InvalidArgumentError for another table's column."""
        *qualifiers, name = reader.qualified()
        if qualifiers and [each.lower() for each in qualifiers] not in (
            [self.alias.lower()],
            [self.table.lower()],
        ):
            raise InvalidArgumentError(
                f"{'.'.join([*qualifiers, name])} cannot be set: the statement changes {self.table!r}"
            )
        return self.column(name)

    def read_columns(self, reader: TokenReader) -> list[str]:
        """Read `(column, …)`, and return the names of the columns. Raises: the errors of `read_column`."""
        reader.need("(")
        names = [self.read_column(reader).name]
        while reader.take(",") and not reader.at(")"):
            names.append(self.read_column(reader).name)
        reader.need(")")
        return names

    def read_insert_columns(self, reader: TokenReader) -> list[str]:
        """Read the `(column, …)` of an INSERT. Raises: as `read_column`; InvalidArgumentError for a wrong list."""
        names = self.read_columns(reader)
        if len(set(names)) < len(names):
            raise InvalidArgumentError(f"INSERT ({', '.join(names)}) names a column twice")
        if AUTO_INCREMENT in names and self.schema.auto_increment is not None:
            raise InvalidArgumentError(
                f"column {AUTO_INCREMENT!r} cannot be inserted: the store gives its values"
            )
        return names

    def unused(self, name: str) -> str:
        """Return a name that no column has: `name`, with underscores behind it if necessary."""
        while name in self.columns:
            name += "_"
        return name

    def alias_of(self, name: str) -> str:
        """Return the SQL text that names a column of this table in an expression, such as `"t"."price"`.

        In this example, `t` is the statement's alias of the table.
        name: the name of the column.
        """
        return f"{quoted(self.alias)}.{quoted(name)}"

    def is_named_in(self, expression: str) -> bool:
        """Whether an expression may use the target: it contains the target's name, or a column's name."""
        alias = self.alias.lower()
        names = {alias, *map(str.lower, self.columns)}
        return any(
            token.is_identifier
            and before.text != "."
            and token.name.lower() in ((alias,) if after.text == "." else names)
            for before, token, after in with_neighbours(tokens(expression))
        )

    def aliases_of(self, names: Iterable[str]) -> str:
        """Return the SQL text that lists columns of this table after SELECT, such as `"t"."id", "t"."price"`.

        In this example, `t` is the statement's alias of the table.
        names: the names of the columns.
        """
        return ", ".join(map(self.alias_of, names))


@dataclass(frozen=True)
class Statement(LazyValues):
    """A statement that writes, and the snapshot or transaction that it reads.

    with_clause: the text before INSERT, UPDATE, DELETE or MERGE.
    text: the whole statement.
    """

    context: Context
    source: Source
    with_clause: str
    text: str

    @lazy_value
    def _names_of_with(self) -> frozenset[str]:
        return frozenset(map(str.lower, with_names(tokens(self.with_clause))[0]))

    @lazy_value
    def _prefix(self) -> str:
        return unused_prefix(self.text)

    def unused(self, name: str) -> str:
        """Return `name` with a prefix. The prefix occurs nowhere in the statement, so the new name is unused."""
        return self._prefix + name

    def state(self, table: str) -> TableState:
        """Return the table's state at the moment that the statement reads."""
        return self.source[table]._view(None)[1]

    def hides(self, target: Target) -> bool:
        """Whether WITH defines the target's name."""
        return target.table.lower() in self._names_of_with

    def clause(self, target: Target) -> str:
        """Return `"table" AS "alias"` for FROM. Raises: InvalidArgumentError if WITH defines the table's name."""
        if self.hides(target):
            raise InvalidArgumentError(
                f"WITH defines {target.table!r}, and the statement changes the table of this name: use another name "
                "in WITH"
            )
        return f"{quoted(target.table)} AS {quoted(target.alias)}"

    def rows(self, select: str, objects: Mapping[str, Any] = MappingProxyType({})) -> pa.Table:
        """Return the rows of a SELECT over the store's tables and further tables.

        objects: the further tables, by name.
        Raises: as `Database.sql`.
        """
        try:
            bound = self.context.select(self.source, self.with_clause + select, objects)
        except InvalidArgumentError as error:
            text = str(error)
            if "must appear in the GROUP BY clause" in text:
                message = _AGGREGATES if self._prefix in text else f"{text}\n{_AGGREGATES}"
                error.args = (message, *error.args[1:])
            raise
        return collected(bound.to_reader())

    def rows_of_objects(self, select: str, objects: Mapping[str, Any] = MappingProxyType({})) -> pa.Table:
        """Return the rows of a SELECT. This is cheap if the SELECT reads only `objects`, and no table of the store.

        objects: Arrow tables or data frames, by their names in the SELECT.
        Raises: as `Database.sql`.
        """
        found = None if self.with_clause else self.try_objects(select, objects)
        return self.rows(select, objects) if found is None else found

    def try_objects(self, select: str, objects: Mapping[str, Any] = MappingProxyType({})) -> pa.Table | None:
        """Return the rows of a SELECT over `objects`; None if the SELECT names another table or fails.

        objects: Arrow tables or data frames, by their names in the SELECT.
        """
        import duckdb

        if reads_catalogue(select):
            return None
        context = self.context
        session = Session(context.database._connection(files=context.rights.files))
        context.running.add(session)
        try:
            for name, given in objects.items():
                session.cursor.register(name, given)
            reader = session.cursor.sql(
                select, params=context.parameters_of(select) or None
            ).to_arrow_reader()
            session.made.append(reader)
            return collected(reader)
        except duckdb.InterruptException as error:
            raise StatementInterrupted from error
        except (duckdb.Error, pa.ArrowException, OSError):
            return None

    def are_many(self, rows: pa.Table) -> bool:
        """Whether the rows are too many for Arrow to find repeated keys: it would need too much memory."""
        return bool(rows.num_rows > _COMPARED_ROWS_MAX)

    def are_distinct(self, rows: pa.Table, keys: Sequence[str]) -> bool:
        """Whether no two rows have the same key. keys: the key columns."""
        keyed = rows.select(keys)
        if not self.are_many(keyed):
            return are_distinct(keyed, keys)
        # DuckDB can use the disk.
        listed = ", ".join(map(quoted, keys))
        repeated = f"SELECT 1 FROM nyala_keys GROUP BY {listed} HAVING count(*) > 1 LIMIT 1"
        return bool(self.rows_of_objects(repeated, {"nyala_keys": keyed}).num_rows == 0)


def unused_prefix(text: str) -> str:
    """Return a prefix for names that does not occur in the text."""
    text = text.lower()
    candidates = itertools.chain(["nyala_"], (f"nyala{number}_" for number in itertools.count(1)))
    return next(each for each in candidates if each not in text)


def find_target(reader: TokenReader, source: Source, stops: Sequence[str]) -> Target:
    """Read `table [AS] [alias]`. stops: keywords that can follow the table, so that they are not its alias.

    Raises: TableNotFoundError, InvalidArgumentError.
    """
    given = table_name(reader)
    table = spelled(given, source.list_tables())
    alias = given
    following = reader.peek()
    if reader.take("AS") or (
        following is not None and following.is_identifier and following.keyword not in stops
    ):
        alias = reader.identifier()
    return Target(table, alias, source[table]._view(None)[1].schema)


def assignments(reader: TokenReader, target: Target, *stops: Sequence[str]) -> dict[str, str]:
    """Read the assignments of SET. Returns expressions by column, with casts to the types of the columns.

    stops: keywords that can follow SET, such as ("WHERE",). Reading ends before them.
    Raises: ColumnNotFoundError; InvalidArgumentError for a column that is set twice.
    """
    out: dict[str, str] = {}
    for text in reader.listed(*stops):
        for name, expression in _assigned(TokenReader(text), target):
            column = target.column(name)
            if column.name == AUTO_INCREMENT:
                raise InvalidArgumentError(
                    f"column {AUTO_INCREMENT!r} cannot be set: the store gives its values"
                )
            if column.name in out:
                raise InvalidArgumentError(f"column {column.name!r} is set twice")
            check_one_value(expression, f"SET {column.name}")
            out[column.name] = value_of(expression, column)
    return out


def _assigned(reader: TokenReader, target: Target) -> list[tuple[str, str]]:
    """Read one item of SET: `column = expression` or `(column, …) = (expression, …)`.

    Returns the pairs (column, expression).
    """
    if not reader.at("("):
        name = target.read_column(reader).name
        reader.need("=")
        return [(name, reader.rest())]
    names = target.read_columns(reader)
    reader.need("=")
    reader.take("ROW")
    if len(names) == 1 and not reader.at("("):
        return [(names[0], reader.rest())]
    values = TokenReader(reader.parenthesised()).listed()
    reader.finish()
    if len(values) != len(names):
        raise InvalidArgumentError(f"SET gives {len(values)} values for {len(names)} columns")
    return list(zip(names, values, strict=True))


def value_of(expression: str, column: ColumnSchema) -> str:
    """Return the expression, or the column's default for `DEFAULT`, with a cast to the column's type."""
    if expression.strip("() \t\n").upper() == "DEFAULT":
        return default_of(column)
    return cast_to(expression, column.type)


def default_of(column: ColumnSchema) -> str:
    """Return the column's default, or NULL, as an expression."""
    default = column.write_default
    return cast_to(literal(None if default is NO_DEFAULT else default, column.type), column.type)


def with_new_keys(
    statement: Statement, target: Target, insert: Request, rows: pa.Table
) -> tuple[Request, pa.Table]:
    """Return the insert and its rows with the next values of an auto-incrementing key, for RETURNING.

    Without such a key, or if the store would refuse the insert, both are returned unchanged. The
    caller must check the commit for conflicts, because another process can take the same values.
    """
    key = target.schema.auto_increment
    if key is None:
        return insert, rows
    prepared = prepare_request(statement.state(target.table), insert)
    values = prepared.columns.get(key.id)
    if prepared.errors or values is None:
        return insert, rows
    given = insert.data.append_column(key.name, values)
    return Request(target.table, "upsert", given), rows.append_column(key.name, values)


def as_stored(target: Target, rows: pa.Table) -> pa.Table:
    """Return the rows with the values that the table stores: for example, text is cut to VARCHAR(n).

    Rows that the store would refuse, and columns that are not the table's, are returned unchanged.
    """
    names = [name for name in target.columns if name in rows.column_names]
    stored = convert(rows.select(names), target.schema, operation="update", copy=False)
    if stored.errors:
        return rows
    for name, values in stored.columns.items():
        if isinstance(values, LongColumn):
            values = pa.chunked_array([part.array() for part in values.parts()])
        rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows


def returned(
    statement: Statement, target: Target, expressions: str | None, rows: pa.Table
) -> pa.Table | None:
    """Return the rows of `RETURNING expressions` with the stored values; None if there is no RETURNING.

    rows: the changed rows.
    Raises: as `Database.sql`.
    """
    if expressions is None:
        return None
    check_one_value(expressions, "RETURNING", is_list=True)
    rows = as_stored(target, rows)
    others = [name for name in rows.column_names if name not in target.columns]
    rows = rows.select([*others, *(name for name in target.columns if name in rows.column_names)])
    name = statement.unused("returned")
    # A plain column in the list makes DuckDB refuse aggregate functions.
    keys = target.aliases_of(target.keys)
    text = f"SELECT {keys}, {expressions}\nFROM {name} AS {quoted(target.alias)}"
    found = statement.rows_of_objects(text, {name: rows})
    return found.select(range(len(target.keys), found.num_columns))
