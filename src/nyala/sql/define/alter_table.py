"""Executes ALTER TABLE. All actions of one statement, separated by commas, are one change of the catalogue.

    ALTER TABLE t ADD COLUMN c INT DEFAULT 5, DROP COLUMN d, RENAME COLUMN a TO b
    ALTER TABLE t ALTER COLUMN c TYPE BIGINT
    ALTER TABLE t ALTER COLUMN c SET DEFAULT 7      or  DROP DEFAULT, DROP NOT NULL, SET ENCODING rle, …
    ALTER TABLE t ADD RANGE PARTITION 10 <= VALUES < 20

Source: docs/reference/sql.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nyala.errors import InvalidArgumentError
from nyala.partition.alteration import ranges_of
from nyala.partition.ranges import RangeBound, encode_range
from nyala.sql.context import Context
from nyala.sql.define.columns import constant, read_columns, storage_words
from nyala.sql.define.create_table import read_history
from nyala.sql.define.partitions import read_bound
from nyala.sql.names import spelled, spelled_column, table_name
from nyala.sql.result import FixedResult, without_rows
from nyala.sql.tokens import TokenReader, quoted
from nyala.sql.types import sql_type

if TYPE_CHECKING:
    from nyala.api.alter import Alteration
    from nyala.api.database import Database

_NO_NEW_KEY: Final = (
    "the key of a table cannot change: make another table with CREATE TABLE … PRIMARY KEY (…) AS SELECT, and "
    "rename it"
)


def alter_table(context: Context, reader: TokenReader) -> FixedResult:
    """Execute ALTER TABLE. reader: the statement after the word ALTER.

    Raises: as `Table.alter`; InvalidArgumentError.
    """
    database = context.database
    reader.need("TABLE")
    if_exists = reader.take("IF", "EXISTS")
    name = spelled(table_name(reader), database.list_tables())
    if if_exists and name not in database:
        return without_rows("ALTER TABLE", database.now())
    table = database.table(name)
    actions = reader.listed()
    reader.finish()
    with table.alter() as alteration:
        for action in actions:
            _apply(alteration, database, TokenReader(action))
    return without_rows("ALTER TABLE", database.now())


def _apply(alteration: Alteration, database: Database, reader: TokenReader) -> None:
    """Read one action of ALTER TABLE, such as `ADD COLUMN c INT`, and add it to `alteration`.

    Raises: as `Alteration`; InvalidArgumentError.
    """
    if reader.take("RENAME"):
        _rename(alteration, database, reader)
    elif reader.take("ADD"):
        _add(alteration, reader)
    elif reader.take("DROP"):
        _drop(alteration, reader)
    elif reader.take("UNDROP"):
        if not _takes_range(reader):
            raise reader.error("expected RANGE PARTITION")
        bound = read_bound(reader)
        alteration.undrop_range(bound.lower, bound.upper, **_inclusive(bound))
    elif reader.take("ALTER") or reader.take("CHANGE"):
        _change(alteration, reader)
    elif reader.take("SET"):
        _set(alteration, reader)
    else:
        raise reader.error("expected ADD, DROP, UNDROP, RENAME, ALTER COLUMN, CHANGE or SET")
    reader.finish()


def _rename(alteration: Alteration, database: Database, reader: TokenReader) -> None:
    if reader.take("TO"):
        others = [name for name in database.list_tables() if name != alteration._table.name]
        alteration.rename(spelled(table_name(reader), others))
        return
    reader.take("COLUMN")
    old = reader.identifier()
    reader.need("TO")
    alteration.rename_column(exact_column(alteration, old), reader.identifier())


def _add(alteration: Alteration, reader: TokenReader) -> None:
    if_not_exists = reader.take("IF", "NOT", "EXISTS")
    if _takes_range(reader):
        bound = read_bound(reader)
        if not if_not_exists or not _has_range(alteration, bound):
            alteration.add_range(bound.lower, bound.upper, **_inclusive(bound))
        return
    _ = reader.take("COLUMNS") or reader.take("COLUMN")
    if_not_exists = reader.take("IF", "NOT", "EXISTS") or if_not_exists
    if reader.at("PRIMARY", "KEY"):
        raise InvalidArgumentError(_NO_NEW_KEY)
    items = TokenReader(reader.parenthesised()).listed() if reader.at("(") else [reader.rest()]
    described = read_columns(items)
    if described.key is not None:
        raise InvalidArgumentError(_NO_NEW_KEY)
    present = [column.name.lower() for column in alteration.schema.columns]
    for name, spec in described.by_name.items():
        if not (if_not_exists and name.lower() in present):
            alteration.add_column(name, spec)


def _drop(alteration: Alteration, reader: TokenReader) -> None:
    if_exists = reader.take("IF", "EXISTS")
    if _takes_range(reader):
        bound = read_bound(TokenReader(reader.until(("PURGE",))))
        purge = reader.take("PURGE")
        if not if_exists or _has_range(alteration, bound):
            alteration.drop_range(bound.lower, bound.upper, purge=purge, **_inclusive(bound))
        return
    if reader.at("PRIMARY", "KEY") or (reader.at("CONSTRAINT") and reader.peek(1) is not None):
        raise InvalidArgumentError(
            f"the only constraints of a table are its key and NOT NULL, and {_NO_NEW_KEY}"
        )
    reader.take("COLUMN")
    if_exists = reader.take("IF", "EXISTS") or if_exists
    name = reader.identifier()
    present = [column.name.lower() for column in alteration.schema.columns]
    if not if_exists or name.lower() in present:
        alteration.drop_column(exact_column(alteration, name))
    reader.take("RESTRICT")


def _change(alteration: Alteration, reader: TokenReader) -> None:
    """Read `ALTER [COLUMN] c …`, or Impala's `CHANGE c new_name new_type`, and add the change to `alteration`.

    Raises: InvalidArgumentError.
    """
    impala = reader.tokens[0].keyword == "CHANGE"
    reader.take("COLUMN")
    name = exact_column(alteration, reader.identifier())
    if impala:
        new = reader.identifier()
        spec = read_columns([f"{quoted(new)} {reader.rest()}"]).by_name[new]
        if str(spec.type) != str(alteration.schema.by_name(name).type):
            alteration.alter_column(name, type=spec.type)
        if new != name:
            alteration.rename_column(name, new)
        return
    if reader.take("SET", "DATA", "TYPE") or reader.take("TYPE") or reader.take("SET", "TYPE"):
        wider = read_columns([f"{quoted(name)} {reader.until(('USING',))}"]).by_name[name].type
        if not reader.ended:
            raise InvalidArgumentError(
                "ALTER … TYPE takes no USING, because a type can only become wider: for another type add a column, and "
                "fill it with UPDATE"
            )
        alteration.alter_column(name, type=wider)
    elif reader.take("SET", "DEFAULT"):
        kind = sql_type(alteration.schema.by_name(name).type)
        alteration.alter_column(name, default=constant(f"CAST(({reader.rest()}) AS {kind})"))
    elif reader.take("DROP", "DEFAULT"):
        alteration.alter_column(name, default=None)
    elif reader.take("DROP", "NOT", "NULL"):
        alteration.alter_column(name, nullable=True)
    elif reader.take("SET", "NOT", "NULL"):
        alteration.alter_column(name, nullable=False)
    elif reader.take("SET"):
        words: dict[str, Any] = {}
        while (found := storage_words(reader)) is not None:
            words |= found
        if not words:
            raise reader.error("expected DEFAULT, TYPE, ENCODING, COMPRESSION, BLOCK_SIZE or COMMENT")
        alteration.alter_column(name, **words)
    else:
        raise reader.error("expected TYPE, SET …, DROP DEFAULT or DROP NOT NULL")


def _set(alteration: Alteration, reader: TokenReader) -> None:
    """Read `SET COMMENT '…'` or `SET TBLPROPERTIES ('nyala.history' = '30d')`, and add it to `alteration`."""
    if reader.take("COMMENT"):
        alteration.set_comment(str(constant(reader.next().text)))
    else:
        reader.need("TBLPROPERTIES")
        alteration.set_history(read_history(reader))


def exact_column(alteration: Alteration, name: str) -> str:
    """Return the column's name as the table spells it after the actions so far."""
    return spelled_column(name, [column.name for column in alteration.schema.columns])


def _takes_range(reader: TokenReader) -> bool:
    """Whether a range partition follows. Reads RANGE PARTITION, or Impala's PARTITION."""
    return reader.take("RANGE", "PARTITION") or (
        any(token.keyword in ("VALUE", "VALUES", "UNBOUNDED") for token in reader.tokens)
        and reader.take("PARTITION")
    )


def _has_range(alteration: Alteration, bound: RangeBound) -> bool:
    """Whether the table has exactly this range after the actions so far. Raises: InvalidArgumentError."""
    draft = alteration._draft
    assert draft is not None
    columns = draft.partition_schema.range_columns(draft.schema)
    return bool(columns) and encode_range(bound, columns) in ranges_of(draft.partitions)


def _inclusive(bound: RangeBound) -> dict[str, bool]:
    return {"lower_inclusive": bound.lower_inclusive, "upper_inclusive": bound.upper_inclusive}
