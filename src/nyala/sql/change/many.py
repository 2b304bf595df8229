"""One statement over a table of parameters, in place of the same statement once for each row of parameters.

    INSERT INTO t VALUES (?, lower(?))        ──►  INSERT INTO t SELECT p0, lower(p1) FROM rows
    UPDATE t SET v = v + ? WHERE id = ?       ──►  UPDATE t SET v = v + p0 FROM rows WHERE t.id = p1
    DELETE FROM t WHERE id = $id              ──►  DELETE FROM t USING rows WHERE t.id = p0

Invariants
    MP1  The result is that of the single statements, one after the other. So UPDATE and DELETE must name each row
         by its whole key, once in all rows of parameters, and no statement may read other rows.

Cost: per column and not per row.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from nyala.errors import ColumnNotFoundError, InvalidArgumentError, TableNotFoundError
from nyala.sql.change.matching import as_key, key_terms
from nyala.sql.change.rows import are_distinct
from nyala.sql.change.target import Target, find_target
from nyala.sql.context import ROWS_OF_PARAMETERS, Source
from nyala.sql.python_values import plain_values
from nyala.sql.tokens import TokenReader, replaced, tokens

__all__ = ["statement_of_rows"]

# A statement with one of these words may read other rows, or return some.
_READING: Final = frozenset(("SELECT", "FROM", "USING", "WITH", "RETURNING", "TABLE"))


def statement_of_rows(source: Source, text: str, rows: Sequence[Any]) -> tuple[str, pa.Table] | None:
    """Return one statement, and the table ROWS_OF_PARAMETERS that it reads.

    rows: lists for `?`, or dicts for `$name`.
    None for statements and rows that must be executed one by one (MP1), and for those in which something is wrong.
    """
    found = tokens(text)
    given = [token for token in found if token.kind == "parameter"]
    places = {name: place for place, name in enumerate(dict.fromkeys(token.text for token in given))}
    is_positional = places.keys() == {"?"}
    if not given or ("?" in places and not is_positional):
        return None
    if any(token.keyword in _READING for token in found[3:]):
        return None
    table = _table(rows, len(given) if is_positional else [name[1:] for name in places])
    if table is None:
        return None
    numbers = range(len(given)) if is_positional else [places[token.text] for token in given]
    text = replaced(
        text,
        [
            (token.begin, token.end, f"{ROWS_OF_PARAMETERS}.p{number}")
            for token, number in zip(given, numbers, strict=True)
        ],
    )
    make = _MAKERS.get(found[0].keyword)
    try:
        one = None if make is None else make(source, text, table)
    except (InvalidArgumentError, TableNotFoundError, ColumnNotFoundError):
        return None
    return None if one is None else (one, table)


def _table(rows: Sequence[Any], given: int | list[str]) -> pa.Table | None:
    """Return the parameters as columns p0, p1, …; None if they have no common types, or some are missing.

    given: the number of positional parameters, or the names.
    """
    if isinstance(given, int):
        if not all(isinstance(row, list | tuple) and len(row) == given for row in rows):
            return None
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    else:
        if not all(isinstance(row, dict) and row.keys() == set(given) for row in rows):
            return None
        columns = [[row[name] for row in rows] for name in given]
    try:
        columns = [plain_values(column) for column in columns]
        if not all(map(_is_alike, columns)):
            return None
        arrays = [pa.array(column) for column in columns]
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return pa.table({f"p{place}": array for place, array in enumerate(arrays)})


def _is_alike(values: Sequence[Any]) -> bool:
    """Whether Arrow makes one column of the values without a conversion, which would change what is stored.

    Arrow takes the type of the first values: a later `datetime` would become a `date`, and 1 would become 1.0.
    """
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return True
    if len(kinds) > 1:
        return False
    kind = kinds.pop()
    if kind is dt.datetime:
        return len({value.tzinfo is None for value in values if value is not None}) == 1
    if kind is dt.time:  # Arrow has no times of day with a zone
        return all(value is None or value.tzinfo is None for value in values)
    if kind is decimal.Decimal:
        return len({value.as_tuple().exponent for value in values if value is not None}) == 1
    if kind is list:
        return _is_alike([item for value in values if value is not None for item in value])
    return kind not in (dict, tuple)


def _insert(source: Source, text: str, table: pa.Table) -> str | None:
    """Return `INSERT … SELECT … FROM rows [ON CONFLICT …]`."""
    reader = TokenReader(text)
    reader.until(("INTO",))
    reader.need("INTO")
    reader.take("TABLE")
    target = find_target(reader, source, ("VALUES",))
    columns = target.read_columns(reader) if reader.at("(") else target.insert_columns
    begin = reader.here
    reader.need("VALUES", "(")
    values = reader.listed()
    reader.need(")")
    words = {token.keyword for token in reader.tokens[reader.index :]}
    tail = _end(reader)
    if "DEFAULT" in {value.upper() for value in values} or ROWS_OF_PARAMETERS in tail:
        return None
    if tail and not tail.upper().startswith("ON"):
        return None
    if "UPDATE" in words:
        given = dict(zip(columns, values, strict=False))
        if not all(key in given for key in target.keys):
            return None
        if not _is_once(target, table, {key: given[key] for key in target.keys}):
            return None
    return f"{text[:begin]}SELECT {', '.join(values)}\nFROM {ROWS_OF_PARAMETERS} {tail}".rstrip()


def _change(source: Source, text: str, table: pa.Table) -> str | None:
    """Return `UPDATE … FROM rows WHERE …` or `DELETE … USING rows WHERE …`."""
    if table.num_rows < 2:
        return None
    reader = TokenReader(text)
    updates = reader.take("UPDATE")
    if not updates:
        reader.need("DELETE", "FROM")
    target = find_target(reader, source, ("SET", "WHERE"))
    if updates:
        reader.need("SET")
        for item in reader.listed(("WHERE",)):
            assigned = TokenReader(item)
            if assigned.at("(") or target.read_column(assigned).name in target.keys:
                return None
    begin = reader.here
    reader.need("WHERE")
    where = _with_qualified_keys(target, _end(reader))
    terms = key_terms(target, where)
    if terms is None or not _is_once(target, table, terms.keys):
        return None
    return f"{text[:begin]}{'FROM' if updates else 'USING'} {ROWS_OF_PARAMETERS} WHERE {where}"


def _end(reader: TokenReader) -> str:
    """Return the rest of a statement without the `;` at its end. Raises: InvalidArgumentError if another follows."""
    rest = reader.until((";",))
    reader.take(";")
    reader.finish()
    return rest


def _with_qualified_keys(target: Target, where: str) -> str:
    found = tokens(where)
    keys = {name.lower(): name for name in target.keys}
    edits = []
    for place, token in enumerate(found):
        before = found[place - 1].text if place else ""
        after = found[place + 1].text if place + 1 < len(found) else ""
        if token.is_identifier and token.name.lower() in keys and before != "." and after not in (".", "("):
            edits.append((token.begin, token.end, target.alias_of(keys[token.name.lower()])))
    return replaced(where, edits)


def _is_once(target: Target, table: pa.Table, keys: Mapping[str, str]) -> bool:
    """Whether each key is in the rows of parameters once, with values of the type of its columns.

    keys: a parameter or a constant for each column of the key.
    """
    found = {}
    for name, side in keys.items():
        if side.startswith(f"{ROWS_OF_PARAMETERS}."):
            column = table.column(side.rpartition(".")[2])
            found[name] = as_key(column, target.column(name))
            if found[name] is None:
                return False
    return bool(found) and are_distinct(pa.table(found).drop_null(), list(found))


_MAKERS: Final = {
    "INSERT": _insert,
    "UPSERT": _insert,
    "REPLACE": _insert,
    "UPDATE": _change,
    "DELETE": _change,
}
