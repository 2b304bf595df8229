"""MERGE INTO.

    MERGE INTO t USING s ON … WHEN MATCHED AND c1 THEN … WHEN NOT MATCHED THEN …

The source is read once. Each WHEN clause is one SELECT over the matched pairs, or over the rows without a
partner. It leaves out rows that an earlier clause has taken. Its rows are the operands of an
update, a delete or an insert; all operations are one batch.

Invariants
    MG1  A row of the target is updated or deleted by one row of the source at most; otherwise the
         statement is refused.

Source: SQL:2016 part 2, 14.12 (merge statement).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from nyala.errors import InvalidArgumentError
from nyala.schema.schema import AUTO_INCREMENT
from nyala.sql.change.assigned import Assigned, in_order
from nyala.sql.change.by_source import key_terms
from nyala.sql.change.change import Change, Plan
from nyala.sql.change.target import (
    Statement,
    Target,
    assignments,
    default_of,
    find_target,
    numbered,
    returned,
    value_of,
)
from nyala.sql.context import Source
from nyala.sql.select.moments import parsable
from nyala.sql.tokens import TokenReader, quoted, tokens
from nyala.sql.types import cast_to
from nyala.tablet.write.write_path import Request

__all__ = ["plan_merge"]

_ACTION = "merge_action"
_WHEN: Final = (("WHEN", "MATCHED"), ("WHEN", "NOT", "MATCHED"), ("RETURNING",))

Kind: TypeAlias = Literal["MATCHED", "NOT MATCHED BY TARGET", "NOT MATCHED BY SOURCE"]


@dataclass
class _Merge:
    """A MERGE while its clauses are read."""

    statement: Statement
    source: Source
    target: Target
    alias: str  # of the source
    rows: pa.Table  # of the source
    on: str
    whole: bool  # whether all columns of changed rows are needed, for RETURNING
    taken: dict[Kind, list[str]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    count: int = 0  # of changed rows
    changed_keys: list[pa.Table] = field(default_factory=list)
    returned: list[pa.Table] = field(default_factory=list)

    def select(self, listed: str, kind: Kind, condition: str) -> pa.Table:
        """Return a SELECT over the rows of a clause that no earlier clause has taken."""
        name = self.statement.unused("source")
        given = f"{name} AS {quoted(self.alias)}"
        target = self.statement.clause(self.target)
        pairs = {
            "MATCHED": f"{target} JOIN {given}",
            "NOT MATCHED BY TARGET": f"{given} ANTI JOIN {target}",
            "NOT MATCHED BY SOURCE": f"{target} ANTI JOIN {given}",
        }[kind]
        terms = [f"NOT coalesce(({before}\n), FALSE)" for before in self.taken.get(kind, [])]
        terms.append(f"coalesce(({condition}\n), FALSE)")
        return self.statement.rows(
            self.source,
            f"SELECT {listed}\nFROM {pairs} ON ({self.on}\n) WHERE {' AND '.join(terms)}",
            {name: self.rows},
        )


def plan_merge(statement: Statement, text: str) -> Plan:
    """Return the plan of a MERGE."""

    def plan(source: Source) -> Change:
        reader = TokenReader(text)
        reader.need("MERGE", "INTO")
        target = find_target(reader, source, ("USING",))
        reader.need("USING")
        given = reader.until(("ON",), ("USING",))
        alias, rows = _source_rows(statement, source, given)
        on = _condition(reader, target, alias)
        if not reader.at_any(*_WHEN[:2]):
            raise reader.error("expected WHEN MATCHED or WHEN NOT MATCHED")
        whole = _has_returning(reader)
        merge = _Merge(statement, source, target, alias, rows, on, whole)
        while reader.take("WHEN"):
            _clause(reader, merge)
        returning = reader.rest() if reader.take("RETURNING") else None
        reader.finish()
        keys = [table for table in merge.changed_keys if table.num_rows]
        if keys and not statement.are_distinct(source, pa.concat_tables(keys), target.keys):
            raise InvalidArgumentError(
                f"MERGE: several rows of the source match one row of {target.table!r}, and the result would depend on "
                "their order. Nothing was written: make the source distinct by the columns of ON"
            )

        if returning is not None and not merge.returned:
            _note(merge, "", merge.target.schema.arrow_schema(None).empty_table())
        changed = pa.concat_tables(merge.returned, promote_options="permissive") if merge.returned else rows
        return Change(
            in_order(merge.requests),
            merge.count,
            returned(statement, source, target, returning and _listed(returning), changed),
        )

    return plan


def _has_returning(reader: TokenReader) -> bool:
    ahead = TokenReader(reader.text[reader.here :])
    ahead.until(("RETURNING",))
    return ahead.at("RETURNING")


def _source_rows(statement: Statement, source: Source, given: str) -> tuple[str, pa.Table]:
    """Return the source's alias and its rows."""
    reader = TokenReader(parsable(f"SELECT * FROM {given}"))  # without the clauses of moments
    reader.need("SELECT", "*", "FROM")
    name = ""
    if not reader.at("("):
        name = reader.qualified()[-1]
    if reader.at("("):
        reader.parenthesised()
    reader.take("AS")
    following = reader.peek()
    if following is not None and following.is_identifier:
        name = reader.identifier()
    return name or statement.unused("given"), statement.rows(source, f"SELECT * FROM {given}")


def _condition(reader: TokenReader, target: Target, alias: str) -> str:
    """Read `ON condition` or `USING (columns)`."""
    if reader.take("USING"):
        return " AND ".join(
            f"{target.alias_of(target.column(name).name)} = {quoted(alias)}.{quoted(name)}"
            for name in reader.names()
        )
    reader.need("ON")
    return reader.until(*_WHEN)


def _clause(reader: TokenReader, merge: _Merge) -> None:
    """Read a WHEN clause, and add what it does."""
    kind: Kind = "MATCHED"
    if not reader.take("MATCHED"):
        reader.need("NOT", "MATCHED")
        kind = "NOT MATCHED BY SOURCE" if reader.take("BY", "SOURCE") else "NOT MATCHED BY TARGET"
        reader.take("BY", "TARGET")
    condition = reader.until(("THEN",)) if reader.take("AND") else "TRUE"
    reader.need("THEN")
    if reader.take("DO", "NOTHING"):
        pass
    elif reader.take("ERROR"):
        message = reader.until(*_WHEN)
        if merge.select("1 AS one", kind, condition).num_rows:
            raise InvalidArgumentError(
                f"MERGE: WHEN {kind} … THEN ERROR was reached{': ' + message if message else ''}. Nothing was written"
            )
    elif reader.take("DELETE"):
        _delete(merge, kind, condition)
    elif reader.take("UPDATE"):
        _update(reader, merge, kind, condition)
    elif reader.take("INSERT"):
        _insert(reader, merge, kind, condition)
    else:
        raise reader.error("expected UPDATE, DELETE, INSERT, DO NOTHING or ERROR")
    merge.taken.setdefault(kind, []).append(condition)


def _refuse(merge: _Merge, kind: Kind, action: str) -> None:
    if (kind == "NOT MATCHED BY TARGET") != (action == "INSERT"):
        raise InvalidArgumentError(f"MERGE: WHEN {kind} cannot {action}")


def _delete(merge: _Merge, kind: Kind, condition: str) -> None:
    _refuse(merge, kind, "DELETE")
    target = merge.target
    rows = merge.select(target.of_alias(target.columns if merge.whole else target.keys), kind, condition)
    old = rows.select(target.keys)
    _add(merge, "DELETE", [Request(target.table, "delete", old)], old, rows)


def _update(reader: TokenReader, merge: _Merge, kind: Kind, condition: str) -> None:
    _refuse(merge, kind, "UPDATE")
    target = merge.target
    if reader.take("SET", "*") or not reader.at("SET"):
        same = _keys_of_condition(merge)
        sets = {
            name: _of_source(merge, name, given)
            for name, given in _whole_source(reader, merge, "UPDATE")
            if same.get(name) != given.lower()
        }
    else:
        reader.need("SET")
        sets = assignments(reader, target, *_WHEN)
    assigned = Assigned(target, sets, merge.whole)
    rows = merge.select(assigned.listed, kind, condition)
    _add(merge, "UPDATE", assigned.requests(rows), assigned.old_keys(rows), rows.select(assigned.names))


def _keys_of_condition(merge: _Merge) -> dict[str, str]:
    """Return the columns of the key with the source's columns that ON equates them with: SET * leaves these."""
    terms = key_terms(merge.target, merge.on)
    if terms is None:
        return {}
    found = {name: [token.name.lower() for token in tokens(side)] for name, side in terms.keys.items()}
    return {name: side[2] for name, side in found.items() if side[:2] == [merge.alias.lower(), "."]}


def _whole_source(reader: TokenReader, merge: _Merge, action: str) -> list[tuple[str, str]]:
    """Read `[BY NAME | BY POSITION] [*]`, and return the table's columns with the source's columns for them.

    Raises: ColumnNotFoundError, InvalidArgumentError if the source has other columns than the table.
    """
    by_name = reader.take("BY", "NAME")
    if not by_name:
        reader.take("BY", "POSITION")
    reader.take("*")
    target, given = merge.target, merge.rows.column_names
    if target.schema.auto_increment is not None and (by_name or len(given) == len(target.insert_columns) + 1):
        given = [name for name in given if name.lower() != AUTO_INCREMENT]  # the store gives its values
    if by_name:
        return [(target.column(name).name, name) for name in given]
    names = target.insert_columns
    if len(given) != len(names):
        raise InvalidArgumentError(
            f"MERGE: {action} takes the source's columns by their positions: {target.table!r} has {len(names)} columns "
            f"({', '.join(names)}), and the source has {len(given)} ({', '.join(given)}). List the columns, or write "
            f"{action} BY NAME"
        )
    return list(zip(names, given, strict=True))


def _of_source(merge: _Merge, name: str, given: str) -> str:
    """Return a column of the source as a value of the table's column."""
    return cast_to(f"{quoted(merge.alias)}.{quoted(given)}", merge.target.column(name).type)


def _insert(reader: TokenReader, merge: _Merge, kind: Kind, condition: str) -> None:
    _refuse(merge, kind, "INSERT")
    target = merge.target
    if reader.ended or reader.at_any(("*",), ("BY",), *_WHEN):
        pairs = _whole_source(reader, merge, "INSERT")
        names = [name for name, _ in pairs]
        values = [_of_source(merge, name, given) for name, given in pairs]
    elif reader.take("DEFAULT", "VALUES"):
        names = target.insert_columns
        values = [default_of(target.column(name)) for name in names]
    else:
        names = target.insert_columns
        if reader.at("("):
            names = [target.column(name).name for name in reader.names()]
        if AUTO_INCREMENT in names and target.schema.auto_increment is not None:
            raise InvalidArgumentError(
                f"column {AUTO_INCREMENT!r} cannot be inserted: the store gives its values"
            )
        reader.need("VALUES")
        given = TokenReader(reader.parenthesised()).listed()
        if len(given) != len(names):
            raise InvalidArgumentError(f"MERGE: INSERT gives {len(given)} values for {len(names)} columns")
        values = [value_of(value, target.column(name)) for name, value in zip(names, given, strict=True)]
    listed = [f"{value} AS {quoted(name)}" for name, value in zip(names, values, strict=True)]
    if merge.whole:
        left_out = [name for name in target.insert_columns if name not in names]
        listed += [f"{default_of(target.column(name))} AS {quoted(name)}" for name in left_out]
    rows = merge.select(", ".join(listed), kind, condition)
    request = Request(target.table, "insert", rows.select(names))
    if merge.whole:
        request, rows = numbered(merge.source, target, request, rows)
        _note(merge, "INSERT", rows)
    merge.requests.append(request)
    merge.count += request.data.num_rows


def _add(merge: _Merge, action: str, requests: list[Request], old_keys: pa.Table, rows: pa.Table) -> None:
    """Add what a clause does to rows of the table."""
    merge.requests += requests
    merge.changed_keys.append(old_keys)
    merge.count += rows.num_rows
    if merge.whole:
        _note(merge, action, rows)


def _listed(returning: str) -> str:
    """Return the expressions of RETURNING, where `*` does not have the name of the action."""
    items = TokenReader(returning).listed()
    stars = [TokenReader(item).tokens[-1:] for item in items]
    return ", ".join(
        f"{item} EXCLUDE ({_ACTION})" if star and star[0].text == "*" else item
        for item, star in zip(items, stars, strict=True)
    )


def _note(merge: _Merge, action: str, rows: pa.Table) -> None:
    """Keep changed rows for RETURNING, with the name of the action as DuckDB has it."""
    merge.returned.append(rows.append_column(_ACTION, pa.array([action] * rows.num_rows, pa.string())))
