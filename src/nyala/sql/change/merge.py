"""Executes MERGE INTO, which updates, deletes and inserts rows of a table by the rows of a source.

    MERGE INTO t USING s ON … WHEN MATCHED AND c1 THEN … WHEN NOT MATCHED THEN …

The statement reads the source `s` once. ON divides the rows into three kinds: matching pairs of a
row of `t` and a row of `s`, rows of `s` without a match, and rows of `t` without a match. Each WHEN
clause is for one kind. A SELECT over this kind computes the rows that the clause updates, deletes or
inserts. If several clauses are for one kind, a SELECT before them decides for each row which clause
takes it. All writes are one batch.

Invariants
    MG1  At most one row of the source updates or deletes a row of the target. Otherwise the
         statement is refused.
    MG2  At most one clause takes a row. The condition of a clause is evaluated only once for a row,
         because the condition may be volatile: like random(), it may change from call to call.
    MG3  The three kinds do not overlap. Each kind evaluates ON again. So a volatile ON is refused
         if there are clauses for several kinds.

Source: SQL:2016 part 2, 14.12 (merge statement).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from nyala.errors import InvalidArgumentError
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.schema import AUTO_INCREMENT
from nyala.sql.change.assigned import Assigned, in_order
from nyala.sql.change.change import Change
from nyala.sql.change.matching import key_terms
from nyala.sql.change.per_row import check_no_window, check_one_value
from nyala.sql.change.target import (
    Statement,
    Target,
    assignments,
    default_of,
    find_target,
    returned,
    value_of,
    with_new_keys,
)
from nyala.sql.select.moments import NO_NAMES, parsable
from nyala.sql.tokens import TokenReader, quoted, replaced, tokens, with_neighbours
from nyala.sql.types import VOLATILE, cast_to
from nyala.tablet.write.write_path import Request

_ACTION = "merge_action"
_WHEN: Final = (("WHEN", "MATCHED"), ("WHEN", "NOT", "MATCHED"), ("RETURNING",))

Kind: TypeAlias = Literal["MATCHED", "NOT MATCHED BY TARGET", "NOT MATCHED BY SOURCE"]


@dataclass(frozen=True)
class _When:
    """A WHEN clause of MERGE.

    place: its number in the statement, from 0.
    kind: for which rows it is, such as MATCHED.
    condition: the text after AND; "TRUE" without AND.
    action: the text after THEN.
    """

    place: int
    kind: Kind
    condition: str
    action: str


@dataclass
class _Merge(LazyValues):
    """A MERGE whose clauses are being computed."""

    statement: Statement
    target: Target
    alias: str  # of the source
    rows: pa.Table  # of the source
    on: str
    clauses: Sequence[_When]
    all_columns: bool  # also compute the columns that do not change, for RETURNING
    requests: list[Request] = field(default_factory=list)
    count: int = 0  # of changed rows
    changed_keys: list[pa.Table] = field(default_factory=list)
    returned: list[pa.Table] = field(default_factory=list)
    _decided: dict[Kind, pa.Table] = field(default_factory=dict)

    def select(self, listed: str, clause: _When) -> pa.Table:
        """Return the result of `SELECT listed` over the rows that the WHEN clause changes or inserts.

        Each row belongs to the first WHEN clause whose condition is true for it.
        listed: the expressions after SELECT.
        """
        if len(self._of_kind(clause.kind)) == 1:
            joined = f"{self._joined(clause.kind)} WHERE ({clause.condition}\n)"
            return self._rows(f"SELECT {listed}\nFROM {joined}", self.rows)
        decided = self._decided.get(clause.kind)
        if decided is None:
            decided = self._decided[clause.kind] = self._decide(clause.kind)
        unused, target = self.statement.unused, self.statement.clause(self.target)
        name = unused("decided")
        decides = f"{name}.{unused('clause')} = {clause.place}"
        same_row = f"{quoted(self.alias)}.{self._number} = {name}.{unused('number')}"
        same_key = " AND ".join(
            f"{self.target.alias_of(key)} = {name}.{unused(f'key{place}')}"
            for place, key in enumerate(self.target.keys)
        )
        joined = {
            "MATCHED": f"{target} JOIN {name} ON {same_key} JOIN {self._given} ON {same_row} WHERE {decides}",
            "NOT MATCHED BY TARGET": f"{self._given} SEMI JOIN {name} ON {same_row} AND {decides}",
            "NOT MATCHED BY SOURCE": f"{target} SEMI JOIN {name} ON {same_key} AND {decides}",
        }[clause.kind]
        return self._rows(f"SELECT {listed}\nFROM {joined}", self._numbered, {name: decided})

    def _decide(self, kind: Kind) -> pa.Table:
        """Decide which WHEN clause changes each row: the first clause whose condition is true for the row.

        kind: which rows and clauses, such as MATCHED.
        Returns one row per decision, with the key of the table's row, the number of the source's
        row, and the number of the clause (NULL: no clause).
        """
        unused = self.statement.unused
        listed = []
        if kind != "NOT MATCHED BY TARGET":
            keys = enumerate(self.target.keys)
            listed = [f"{self.target.alias_of(key)} AS {unused(f'key{place}')}" for place, key in keys]
        if kind != "NOT MATCHED BY SOURCE":
            listed.append(f"{quoted(self.alias)}.{self._number} AS {unused('number')}")
        cases = " ".join(f"WHEN ({each.condition}\n) THEN {each.place}" for each in self._of_kind(kind))
        listed.append(f"CASE {cases} END AS {unused('clause')}")
        return self._rows(f"SELECT {', '.join(listed)}\nFROM {self._joined(kind)}", self._numbered)

    def _joined(self, kind: Kind) -> str:
        target = self.statement.clause(self.target)
        pairs = {
            "MATCHED": f"{target} JOIN {self._given}",
            "NOT MATCHED BY TARGET": f"{self._given} ANTI JOIN {target}",
            "NOT MATCHED BY SOURCE": f"{target} ANTI JOIN {self._given}",
        }[kind]
        return f"{pairs} ON ({self.on}\n)"

    def _of_kind(self, kind: Kind) -> list[_When]:
        return [each for each in self.clauses if each.kind == kind]

    @property
    def _given(self) -> str:
        """The text that names the source in a FROM clause."""
        return f"{self.statement.unused('source')} AS {quoted(self.alias)}"

    @property
    def _number(self) -> str:
        """The name of the additional column in which `_numbered` numbers the rows of the source.

        No column of the source has this name. The numbers identify the rows of the source.
        """
        name = self.statement.unused("number")
        while name in map(str.lower, self.rows.column_names):
            name += "_"
        return name

    @lazy_value
    def _numbered(self) -> pa.Table:
        """The rows of the source, with an additional column of row numbers."""
        return self.rows.append_column(self._number, pa.array(np.arange(self.rows.num_rows)))

    def _rows(
        self, select: str, rows: pa.Table, objects: Mapping[str, pa.Table] = MappingProxyType({})
    ) -> pa.Table:
        return self.statement.rows(select, {self.statement.unused("source"): rows, **objects})


def compute_merge(statement: Statement, text: str) -> Change:
    """Return the `Change` of a MERGE: the write operations, and the rows of RETURNING.

    statement: the whole statement, with the snapshot or transaction that it reads.
    text: the statement without its WITH clause, and without schemas before table names.
    """
    reader = TokenReader(text)
    reader.need("MERGE", "INTO")
    target = find_target(reader, statement.source, ("USING",))
    reader.need("USING")
    given = reader.until(("ON",), ("USING",))
    alias, rows = _source_rows(statement, given)
    on = _condition(reader, target, alias)
    if not reader.at_any(*_WHEN[:2]):
        raise reader.error("expected WHEN MATCHED or WHEN NOT MATCHED")
    clauses: list[_When] = []
    while reader.take("WHEN"):
        clauses.append(_when(reader, len(clauses)))
    if len({clause.kind for clause in clauses}) > 1:
        _check_not_volatile(on)
    merge = _Merge(statement, target, alias, rows, on, clauses, reader.at("RETURNING"))
    for clause in clauses:
        _execute(merge, clause)
    returning = reader.rest() if reader.take("RETURNING") else None
    reader.finish()
    keys = [table for table in merge.changed_keys if table.num_rows]
    if keys and not statement.are_distinct(pa.concat_tables(keys), target.keys):
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
        returned(statement, target, returning and _without_action(merge, returning), changed),
    )


def _source_rows(statement: Statement, given: str) -> tuple[str, pa.Table]:
    """Return the alias of the source of MERGE, and the rows of the source.

    given: the text after USING, such as `file.csv AS f` or `(SELECT …) AS s`.
    """
    text = f"SELECT * FROM {given}"
    reader = TokenReader(parsable(text))
    reader.need("SELECT", "*", "FROM")
    return _alias(reader) or statement.unused("given"), statement.rows(text)


def _alias(reader: TokenReader) -> str:
    """Read a table, a file or a query with its alias. Returns the name by which SQL can refer to its columns.

    This is the alias. Without an alias, it is the name of the table, or of the file without its ending.
    Returns "" for a query without an alias.
    """
    name = ""
    first = reader.peek()
    if first is not None and first.kind == "text":
        name = PurePath(reader.next().text[1:-1]).stem
    elif not reader.at("("):
        name = reader.qualified()[-1]
    if reader.at("("):
        inside = TokenReader(reader.parenthesised())
        if not name and _is_name(inside) and not inside.at("TABLE"):  # (t)
            of_table = _alias(inside)
            name = of_table if inside.ended else ""
    return reader.identifier() if reader.take("AS") or _is_name(reader) else name


def _is_name(reader: TokenReader) -> bool:
    token = reader.peek()
    return token is not None and token.is_identifier and token.keyword not in NO_NAMES


def _condition(reader: TokenReader, target: Target, alias: str) -> str:
    """Read `ON condition` or `USING (columns)`. Returns a condition."""
    if reader.take("USING"):
        return " AND ".join(
            f"{target.alias_of(target.column(name).name)} = {quoted(alias)}.{quoted(name)}"
            for name in reader.names()
        )
    reader.need("ON")
    return reader.until(*_WHEN)


def _check_not_volatile(on: str) -> None:
    for _, token, after in with_neighbours(tokens(on)):
        if token.is_identifier and token.name.upper() in VOLATILE and after.text == "(":
            raise InvalidArgumentError(
                f"MERGE: ON calls {token.text}, whose value changes from call to call, so that a row could be both "
                "matched and not matched: compute it in a subquery of the source"
            )


def _when(reader: TokenReader, place: int) -> _When:
    """Read a clause of MERGE after WHEN: `[NOT] MATCHED [BY SOURCE | BY TARGET] [AND condition] THEN action`.

    place: the number of the clause in the statement, from 0.
    Raises: InvalidArgumentError.
    """
    kind: Kind = "MATCHED"
    if not reader.take("MATCHED"):
        reader.need("NOT", "MATCHED")
        kind = "NOT MATCHED BY SOURCE" if reader.take("BY", "SOURCE") else "NOT MATCHED BY TARGET"
        reader.take("BY", "TARGET")
    condition = reader.until(("THEN",)) if reader.take("AND") else "TRUE"
    _check_expression(condition, f"WHEN {kind}")
    reader.need("THEN")
    return _When(place, kind, condition, reader.until(*_WHEN))


def _check_expression(expression: str, what: str) -> None:
    check_one_value(expression, f"MERGE: {what}")
    check_no_window(expression, f"MERGE: {what}")


def _execute(merge: _Merge, clause: _When) -> None:
    """Compute a WHEN clause, and add its writes to `merge`."""
    reader = TokenReader(clause.action)
    if reader.take("DO", "NOTHING"):
        pass
    elif reader.take("ERROR"):
        message = reader.rest()
        if merge.select("1 AS one", clause).num_rows:
            raise InvalidArgumentError(
                f"MERGE: WHEN {clause.kind} … THEN ERROR was reached{': ' + message if message else ''}. Nothing was "
                "written"
            )
    elif reader.take("DELETE"):
        _delete(merge, clause)
    elif reader.take("UPDATE"):
        _update(reader, merge, clause)
    elif reader.take("INSERT"):
        _insert(reader, merge, clause)
    else:
        raise reader.error("expected UPDATE, DELETE, INSERT, DO NOTHING or ERROR")
    reader.finish()


def _refuse(clause: _When, action: str) -> None:
    if (clause.kind == "NOT MATCHED BY TARGET") != (action == "INSERT"):
        raise InvalidArgumentError(f"MERGE: WHEN {clause.kind} cannot {action}")


def _delete(merge: _Merge, clause: _When) -> None:
    _refuse(clause, "DELETE")
    target = merge.target
    rows = merge.select(target.aliases_of(target.columns if merge.all_columns else target.keys), clause)
    old = rows.select(target.keys)
    _add(merge, "DELETE", [Request(target.table, "delete", old)], old, rows)


def _update(reader: TokenReader, merge: _Merge, clause: _When) -> None:
    _refuse(clause, "UPDATE")
    target = merge.target
    if reader.take("SET", "*") or not reader.at("SET"):
        same = _keys_of_condition(merge)
        sets = {
            name: _of_source(merge, name, given)
            for name, given in _source_columns(reader, merge, "UPDATE")
            if same.get(name) != given.lower()
        }
    else:
        reader.need("SET")
        sets = assignments(reader, target)
        for name, expression in sets.items():
            check_no_window(expression, f"MERGE: SET {name}")
    assigned = Assigned(target, sets, merge.all_columns)
    rows = merge.select(assigned.listed, clause)
    _add(
        merge,
        "UPDATE",
        assigned.requests(merge.statement, rows),
        assigned.old_keys(rows),
        rows.select(assigned.names),
    )


def _keys_of_condition(merge: _Merge) -> dict[str, str]:
    """Return {key column: source column} of the terms `key column = source column` of ON.

    SET * need not set these key columns, because the values are equal already.
    """
    terms = key_terms(merge.target, merge.on)
    if terms is None:
        return {}
    found = {name: [token.name.lower() for token in tokens(side)] for name, side in terms.keys.items()}
    return {name: side[2] for name, side in found.items() if side[:2] == [merge.alias.lower(), "."]}


def _source_columns(reader: TokenReader, merge: _Merge, action: str) -> list[tuple[str, str]]:
    """Read `[BY NAME | BY POSITION] [*]`, which means that all columns of the source are written.

    Returns pairs (column of the table, column of the source).
    Raises: ColumnNotFoundError if the table has no column with the name that BY NAME uses.
    Raises: InvalidArgumentError if the source and the table have different numbers of columns; also
    if the source has the table's columns in another order, unless BY NAME or BY POSITION is given.
    """
    by_name = reader.take("BY", "NAME")
    by_position = not by_name and reader.take("BY", "POSITION")
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
    wanted, found = ([name.lower() for name in each] for each in (names, given))
    if not by_position and found != wanted and sorted(found) == sorted(wanted):
        raise InvalidArgumentError(
            f"MERGE: the columns of the source are those of {target.table!r} in another order: write {action} BY NAME"
        )
    return list(zip(names, given, strict=True))


def _of_source(merge: _Merge, name: str, given: str) -> str:
    """Return the source's column `given` with a cast to the type of the table's column `name`."""
    return cast_to(f"{quoted(merge.alias)}.{quoted(given)}", merge.target.column(name).type)


def _insert(reader: TokenReader, merge: _Merge, clause: _When) -> None:
    _refuse(clause, "INSERT")
    target = merge.target
    if reader.ended or reader.at_any(("*",), ("BY",)):
        pairs = _source_columns(reader, merge, "INSERT")
        names = [name for name, _ in pairs]
        values = [_of_source(merge, name, given) for name, given in pairs]
    elif reader.take("DEFAULT", "VALUES"):
        names = target.insert_columns
        values = [default_of(target.column(name)) for name in names]
    else:
        names = target.read_insert_columns(reader) if reader.at("(") else target.insert_columns
        reader.need("VALUES")
        given = TokenReader(reader.parenthesised()).listed()
        if len(given) != len(names):
            raise InvalidArgumentError(f"MERGE: INSERT gives {len(given)} values for {len(names)} columns")
        for value in given:
            _check_expression(value, "INSERT")
        values = [value_of(value, target.column(name)) for name, value in zip(names, given, strict=True)]
    listed = [f"{value} AS {quoted(name)}" for name, value in zip(names, values, strict=True)]
    left_out = [name for name in target.insert_columns if name not in names] if merge.all_columns else []
    listed += [f"{default_of(target.column(name))} AS {quoted(name)}" for name in left_out]
    # A plain column in the list makes DuckDB refuse aggregate functions.
    first = quoted(merge.rows.column_names[0])
    listed.append(f"{quoted(merge.alias)}.{first} AS {quoted(target.unused('first'))}")
    rows = merge.select(", ".join(listed), clause).select([*names, *left_out])
    request = Request(target.table, "insert", rows.select(names))
    if merge.all_columns:
        request, rows = with_new_keys(merge.statement, target, request, rows)
        _note(merge, "INSERT", rows)
    merge.requests.append(request)
    merge.count += request.data.num_rows


def _add(merge: _Merge, action: str, requests: list[Request], old_keys: pa.Table, rows: pa.Table) -> None:
    """Add the writes of an UPDATE or DELETE clause to `merge`, and count its rows there.

    action: "UPDATE" or "DELETE", the value of the column `merge_action` in RETURNING.
    requests: the writes of the clause. An UPDATE of a key column also deletes and inserts rows.
    old_keys: the keys of the rows before the change.
    rows: the changed rows, which are kept if the statement has RETURNING.
    """
    merge.requests += requests
    merge.changed_keys.append(old_keys)
    merge.count += rows.num_rows
    if merge.all_columns:
        _note(merge, action, rows)


def _without_action(merge: _Merge, returning: str) -> str:
    """Return the expressions of RETURNING, changed so that `*` does not include `merge_action`."""
    if not _has_action(merge):
        return returning
    found = tokens(returning)
    edits = []
    for place, token in enumerate(found):
        before = found[place - 1].text if place else ","
        is_call = before == "(" and place > 1 and found[place - 2].keyword == "COLUMNS"
        if token.text != "*" or not (before in (",", ".") or is_call):
            continue
        following = [each.keyword for each in found[place + 1 : place + 3]]
        if following[:1] not in (["EXCLUDE"], ["EXCEPT"]):
            edits.append((token.end, token.end, f" EXCLUDE ({_ACTION})"))
        elif following[1] == "(":
            edits.append((found[place + 2].end, found[place + 2].end, f"{_ACTION}, "))
        else:
            only = found[place + 2]
            edits.append((only.begin, only.end, f"({_ACTION}, {only.text})"))
    return replaced(returning, edits)


def _has_action(merge: _Merge) -> bool:
    """Whether RETURNING can name `merge_action`: not if the table has a column of this name."""
    return _ACTION not in map(str.lower, merge.target.columns)


def _note(merge: _Merge, action: str, rows: pa.Table) -> None:
    """Keep changed rows for RETURNING, with a column `merge_action`, as in DuckDB."""
    if _has_action(merge):
        rows = rows.append_column(_ACTION, pa.array([action] * rows.num_rows, pa.string()))
    merge.returned.append(rows)
