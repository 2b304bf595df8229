"""Encodes calls of the writer's methods as requests, for a process that shares the store.

    {"do": "call", "name": "drop_tables", "key": "5f…", "arguments": {"names": ["t"], "purge": false}}

`CALLS` lists the methods of `LocalWriter` that another process may call, with the kind of each
argument. A kind has one function that encodes a value as JSON, and one that decodes and checks it.
Rows are sent as attachments of the request. If they have more than ATTACHED_MAX_BYTES, they are
written to a file in a staging folder instead.

Invariants
    C1  Received bytes are never executed or unpickled. Each argument is checked here, or by the
        method as if a user had given it.
    C2  The sender converts rows to the types of the table. A row that cannot be converted is sent
        as NULLs, with its error.
    C3  The sender keeps staged files until it has the answer.

Source: docs/design/processes-and-locks.md, "A second process that writes".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from nyala.env import Env, process_mark
from nyala.errors import ROW_ERROR_CODES, Error, InvalidArgumentError
from nyala.handover.commits import figures
from nyala.handover.local_writer import SeenTable, TableDraft
from nyala.partition.model import PartitionSchema, find_problem
from nyala.schema.arrow_ipc import from_ipc, to_ipc
from nyala.schema.conversion.convert import InputColumns, convert
from nyala.schema.conversion.long_column import Column, row_slices
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.expressions.nodes import Expr, Node, as_node
from nyala.schema.expressions.nodes_json import from_json, to_json
from nyala.schema.expressions.parser import parse_predicate
from nyala.schema.limits import Limits
from nyala.schema.schema import ColumnSchema, Schema, check_comment, check_identifier, check_table_name
from nyala.tablet.jobs.load_job import partition_from_json, partition_to_json
from nyala.tablet.jobs.staged_files import read_rows, write_staged
from nyala.tablet.jobs.staging import make_staging, plain_name, staging_folder
from nyala.tablet.state.idempotency import is_call_key
from nyala.tablet.state.messages import check_message
from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.root import TableState
from nyala.tablet.state.tags import check_tag_name
from nyala.tablet.state.validation import validating
from nyala.tablet.tables.creation import NewTable
from nyala.tablet.write.conditions import Condition, NewestBy, When
from nyala.tablet.write.prepare import OPERATION_NAMES, OPERATIONS, PreparedOperation
from nyala.tablet.write.prepare_rows import MixedRows, prepare_rows
from nyala.tablet.write.where_writes import Select, ToDelete, ToUpdate
from nyala.tablet.write.write_path import Request

if TYPE_CHECKING:
    from nyala.handover.local_writer import LocalWriter

# Larger rows of a request are staged as a file.
ATTACHED_MAX_BYTES: Final = 1 << 20
_STAGING_TTL_S: Final = 24 * 3600.0
_HISTORY_MAX_US: Final = 10**17  # as `parse_history`
# The most rows of a request without columns, which is only a number.
_EMPTY_ROWS_MAX: Final = 1 << 20
_INSERTS: Final = [OPERATION_NAMES.index(name) for name in ("insert", "insert-ignore")]
_UPSERT: Final = OPERATION_NAMES.index("upsert")


# ------------------------------------------------------------------------------------------------ rows


class Outgoing:
    """Collects the rows of one request, as attachments and staged files."""

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path
        self._bytes = 0
        self._staging: tuple[str, str] | None = None
        self.attachments: list[bytes] = []

    def add(self, rows: pa.Table) -> int | list[str]:
        """Add rows to the request, and return what the writer needs to find them.

        Returns: the number of an attachment; or, if the attachments would exceed
            ATTACHED_MAX_BYTES, the key of a staging folder and the name of a file in it.
        """
        if self._bytes + rows.nbytes <= ATTACHED_MAX_BYTES:
            body = bytes(to_ipc(rows))
            self._bytes += len(body)
            self.attachments.append(body)
            return len(self.attachments) - 1
        if self._staging is None:
            self._staging = make_staging(self._env, self._path, _STAGING_TTL_S, process_mark())
        key, folder = self._staging
        name = f"{self._env.randomness.token_hex(8)}.arrow"
        write_staged(self._env, os.path.join(folder, name), rows.schema, iter(rows.to_batches()))
        return [key, name]

    def discard(self) -> None:
        """Remove the staged files. Call this after the answer: until then the writer reads them."""
        if self._staging is not None:
            with contextlib.suppress(Error):  # the writer removes them after _STAGING_TTL_S
                self._env.files.remove_tree(self._staging[1])


@dataclass(frozen=True)
class Incoming:
    """The attachments of a received request, and what is needed to read and check its arguments.

    path: the store's folder or URL.
    published: the newest moment that readers may see.
    """

    env: Env
    path: str
    attachments: Sequence[bytes]
    limits: Limits
    published: int

    def rows(self, place: Any) -> pa.Table:
        """Return rows of the request, after checking them.

        place: what `Outgoing.add` returned: the number of an attachment; or [key, name], the key of
            a staging folder and the name of a file in it.
        Raises: CorruptionError; ValueError, LookupError, TypeError if the request has no such rows.
        """
        if isinstance(place, int):
            found = from_ipc(self.attachments[place])
            found.validate(full=True)
            return found
        key, name = place
        return read_rows(self.env, os.path.join(staging_folder(self.path, key), plain_name(name)))


def converted(table: TableState, request: Request) -> Request:
    """Return the request with its data converted to the columns and types of `table`.

    Raises: SchemaError or InvalidArgumentError if the data as a whole cannot be written, for
        example because of an unknown column.
    """
    if request.operation == "apply":
        return of_prepared(request, table, prepare_rows(table, request.data))
    found = convert(
        request.data, table.schema, columns="key" if request.operation == "delete" else "all",
        operation=request.operation, borrow_above_bytes=ATTACHED_MAX_BYTES, limits=table.limits,
        sequence=request.condition.column if isinstance(request.condition, NewestBy) else None,
    )  # fmt: skip
    data = InputColumns(_chunked(found.columns, found.row_count), found.row_count, given=found.given)
    return replace(request, data=data, errors=found.errors)


def of_prepared(request: Request, table: TableState, operation: PreparedOperation) -> Request:
    """Return a request that sends the rows of an operation that this process has prepared.

    Rows that the operation ignores are not sent. `Request.numbers` then has the row number of each
    sent row in the user's data, for error messages. If the table's key is auto-incrementing, the
    rows already have keys, which an insert would not accept. So an insert becomes an upsert.
    """
    name = request.operation
    names: dict[int, str] = {column.id: column.name for column in table.schema.columns}
    columns, given = dict(operation.columns), dict(operation.given)
    codes, errors, count, sent = operation.codes, operation.errors, operation.row_count, None
    if len(operation.ignored_rows):
        sent = np.setdiff1d(np.arange(count), operation.ignored_rows)
        count, places = len(sent), pa.array(sent)
        columns = {number: array.take(places) for number, array in columns.items()}
        given = {number: rows[sent] for number, rows in given.items()}
        codes, errors = None if codes is None else codes[sent], _errors_of(errors, sent)
    if table.schema.auto_increment is not None:
        name = "upsert" if name == "insert" else name
        codes = None if codes is None else np.where(np.isin(codes, _INSERTS), _UPSERT, codes)
    data: Any = InputColumns(
        _chunked({names[number]: array for number, array in columns.items()}, count),
        count,
        given={names[number]: rows for number, rows in given.items()},
    )
    if codes is not None:
        data = MixedRows(OPERATION_NAMES, codes.tolist(), data, errors)
    condition = request.condition
    if condition is None and operation.sequence is not None:
        # The rows that lose were left out above, but the writer must remember the deletes' versions.
        condition = NewestBy(names[operation.sequence])
    numbers = request.numbers
    if sent is not None:
        numbers = sent if numbers is None else numbers[sent]
    return replace(
        request, operation=name, data=data, errors=errors, numbers=numbers, condition=condition,
        ignore=request.ignore and name == request.operation,
    )  # fmt: skip


def _errors_of(errors: RowErrors, rows: np.ndarray) -> RowErrors:
    """Return the errors of some rows under new row numbers: row `rows[i]` becomes row i.

    rows: the old numbers of these rows, ascending.
    """
    found = RowErrors()
    for row, code, message in zip(errors.rows.tolist(), errors.codes, errors.messages, strict=True):
        place = int(np.searchsorted(rows, row))
        if place < len(rows) and rows[place] == row:
            found.add([place], code, message)
    return found


def _chunked(columns: Mapping[str, Column], row_count: int) -> dict[str, pa.ChunkedArray]:
    parts = [part for _, _, part in row_slices(columns, row_count)]
    if not parts:
        return dict(columns)
    return {name: pa.chunked_array([part[name] for part in parts]) for name in columns}


def _encode_request(request: Request, out: Outgoing) -> dict[str, Any]:
    has_codes = isinstance(request.data, MixedRows)
    rows: InputColumns = request.data.rows if has_codes else request.data
    tables = {
        "rows": pa.table(dict(rows.columns)),
        "given": pa.table({name: pa.array(given) for name, given in rows.given.items()}),
        "codes": pa.table({"code": pa.array(request.data.codes, pa.uint8())} if has_codes else {}),
        "errors": _errors_table(request.errors) if request.errors else pa.table({}),
        "numbers": pa.table(
            {} if request.numbers is None else {"row": pa.array(request.numbers, pa.int64())}
        ),
    }
    return {
        "table": request.table,
        "operation": request.operation,
        "ignore": request.ignore,
        "count": rows.row_count,
        "condition": _encode_condition(request.condition),
        **{name: out.add(table) if table.num_columns else None for name, table in tables.items()},
    }


def _decode_request(value: Any, data: Incoming) -> Request:
    fields = _typed(dict, value)
    count, operation = _typed(int, fields["count"]), fields["operation"]
    if operation not in (*OPERATIONS, "apply"):
        raise ValueError(f"unknown operation {operation!r}")
    tables = {
        name: None if fields[name] is None else data.rows(fields[name])
        for name in ("rows", "given", "codes", "errors", "numbers")
    }
    for name in ("rows", "given", "codes", "numbers"):
        found = tables[name]
        if found is not None and len(found) != count:
            raise ValueError(f"{name!r} has {len(found)} rows, expected {count}")
    columns = _columns(tables["rows"])
    given = {name: _numpy(array, pa.bool_()) for name, array in _columns(tables["given"]).items()}
    if not set(given) <= set(columns):
        raise ValueError(f"'given' names the columns {sorted(given)}, but the rows have {sorted(columns)}")
    if not columns and not 0 <= count <= _EMPTY_ROWS_MAX:
        raise ValueError(f"a request without columns cannot have {count} rows")
    rows: Any = InputColumns(columns, count, given=given)
    errors = RowErrors() if tables["errors"] is None else _decode_errors(tables["errors"], count)
    if operation == "apply":
        codes = _numpy(_columns(tables["codes"])["code"], pa.uint8())
        if len(codes) and codes.max() >= len(OPERATION_NAMES):
            raise ValueError(f"unknown operation number {codes.max()}")
        rows = MixedRows(OPERATION_NAMES, codes.tolist(), rows, errors)
    return Request(
        _typed(str, fields["table"]), operation, rows, _typed(bool, fields["ignore"]),
        numbers=None if tables["numbers"] is None else _numpy(_columns(tables["numbers"])["row"], pa.int64()),
        condition=_decode_condition(fields["condition"]), errors=errors,
    )  # fmt: skip


def _encode_condition(condition: Condition | None) -> Any:
    if isinstance(condition, NewestBy):
        return ["newest by", condition.column]
    return None if condition is None else ["when", to_json(condition.tree)]


def _decode_condition(value: Any) -> Condition | None:
    if value is None:
        return None
    kind, content = value
    if kind == "newest by":
        return NewestBy(_typed(str, content))
    if kind == "when":
        return When(from_json(_typed(str, content)))
    raise ValueError(f"unknown kind of condition: {kind!r}")


def _columns(table: pa.Table | None) -> dict[str, pa.ChunkedArray]:
    return {} if table is None else dict(zip(table.column_names, table.columns, strict=True))


def _numpy(array: pa.ChunkedArray, type: pa.DataType) -> np.ndarray:
    """Return the values as NumPy. Raises: ValueError if the type differs or a value is NULL."""
    if array.type != type or array.null_count:
        raise ValueError(
            f"expected a column of {type} without NULLs, got {array.type} with {array.null_count} NULLs"
        )
    values: np.ndarray = array.to_numpy()
    return values


def _errors_table(errors: RowErrors) -> pa.Table:
    return pa.table(
        {
            "row": pa.array(errors.rows, pa.int64()),
            "code": pa.array(errors.codes, pa.string()),
            "message": pa.array(errors.messages, pa.string()),
        }
    )


def _decode_errors(rows: pa.Table, count: int) -> RowErrors:
    numbers, codes, messages = (rows.column(name).to_pylist() for name in ("row", "code", "message"))
    by_code: dict[str, tuple[list[int], list[str]]] = {}
    for number, code, message in zip(numbers, codes, messages, strict=True):
        if code not in ROW_ERROR_CODES or not 0 <= number < count or not isinstance(message, str):
            raise ValueError(
                f"the list of failed rows has row {number!r} with code {code!r} and message {message!r:.100}: expected "
                f"a row from 0 to {count - 1}, a known code and a text"
            )
        found = by_code.setdefault(code, ([], []))
        found[0].append(number)
        found[1].append(message)
    errors = RowErrors()
    for code, (failed, texts) in by_code.items():
        errors.add(failed, code, texts)
    return errors


# ------------------------------------------------------------------------------------------------ other arguments


def _typed(kind: Any, value: Any) -> Any:
    """Return the value if it has the type `kind`. Raises: ValueError."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"expected {getattr(kind, '__name__', kind)}, got {value!r}")
    return value


def _encode_where(where: Any) -> str | None:
    if where is None:
        return None
    return to_json(parse_predicate(where) if isinstance(where, str) else as_node(where))


def _encode_select(select: Select, out: Outgoing) -> Any:
    fields: dict[str, Any] = {"where": _encode_where(select.where)}
    if isinstance(select, ToUpdate):
        fields["set"] = {name: _encode_value(name, value, out) for name, value in select.assignments.items()}
    return fields


def _encode_value(name: str, value: Any, out: Outgoing) -> Any:
    """Encode a column's new value: an expression, a JSON value, or otherwise an Arrow scalar."""
    if isinstance(value, Expr | Node):
        return ["expression", to_json(as_node(value))]
    if value is None or type(value) in (bool, int, float, str):
        return ["value", value]
    try:
        scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
        return ["scalar", out.add(pa.table({"value": pa.repeat(scalar, 1)}))]
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidArgumentError(
            f"column {name!r}: the value {value!r} cannot be sent to the process that writes the store ({error}): pass "
            "a number, text, bytes, a date, a datetime, a Decimal or a pyarrow scalar"
        ) from None


def _decode_select(value: Any, data: Incoming) -> Select:
    where = None if value["where"] is None else from_json(_typed(str, value["where"]))
    if "set" not in value:
        if where is None:
            raise ValueError("a delete needs a condition")
        return ToDelete(where)
    return ToUpdate(
        {_typed(str, name): _decode_value(new, data) for name, new in value["set"].items()}, where
    )


def _decode_value(value: Any, data: Incoming) -> Any:
    kind, content = value
    if kind == "expression":
        return from_json(_typed(str, content))
    if kind == "value" and (content is None or type(content) in (bool, int, float, str)):
        return content
    if kind == "scalar":
        (scalar,) = data.rows(content).column("value")
        return scalar
    raise ValueError(f"expected the new value of a column, got {value!r:.100}")


@dataclass(frozen=True)
class _Kind:
    """Two functions for one kind of argument: one encodes it as JSON, one decodes and checks it."""

    encode: Callable[[Any, Outgoing], Any]
    decode: Callable[[Any, Incoming], Any]


def _json(decode: Callable[[Any, Incoming], Any]) -> _Kind:
    """Return the functions that encode and decode an argument which is sent unchanged as JSON.

    decode: checks a received value, and returns it.
    """
    return _Kind(lambda value, out: value, decode)


def _plain(kind: Any) -> _Kind:
    return _json(lambda value, data: _typed(kind, value))


def _optional(kind: _Kind) -> _Kind:
    return _Kind(
        lambda value, out: None if value is None else kind.encode(value, out),
        lambda value, data: None if value is None else kind.decode(value, data),
    )


def _tuple_of(kind: _Kind) -> _Kind:
    return _Kind(
        lambda value, out: [kind.encode(each, out) for each in value],
        lambda value, data: tuple(kind.decode(each, data) for each in _typed(list, value)),
    )


def _record(make: Callable[..., Any], **kinds: _Kind) -> _Kind:
    """Return the functions that encode a dataclass object as a dict of its fields, and decode it.

    make:  creates the dataclass object from its fields.
    kinds: for each field, the functions that encode and decode it.
    """
    return _Kind(
        lambda value, out: {name: kind.encode(getattr(value, name), out) for name, kind in kinds.items()},
        lambda value, data: make(**{name: kind.decode(value[name], data) for name, kind in kinds.items()}),
    )


def _check_new_name(value: Any, data: Incoming) -> Any:
    check_table_name(value, data.limits)
    return value


def _check_comment(value: Any, data: Incoming) -> Any:
    check_comment(value, "", data.limits)
    return value


def _check_moment(value: Any, data: Incoming) -> Any:
    """Return the timestamp `value` if it is not after the newest moment that readers may see.

    data: the request, which has this newest moment. Raises: ValueError.
    """
    if not 0 <= _typed(int, value) <= data.published:
        raise ValueError(f"the moment {value} is not between 0 and {data.published}, the newest one")
    return value


def _check_history(value: Any, data: Incoming) -> Any:
    """Return the length of a history if it is valid: microseconds, or None for "forever".

    Raises: ValueError.
    """
    if value is not None and not 0 <= _typed(int, value) <= _HISTORY_MAX_US:
        raise ValueError(f"the history of {value} microseconds is not between 0 and {_HISTORY_MAX_US}")
    return value


def _check_new_table(value: Any, data: Incoming) -> NewTable:
    new: NewTable = _NEW_TABLE_FIELDS.decode(value, data)
    _check_columns(new.schema, (), data.limits)
    problem = find_problem(new.partition_schema, new.partitions, new.schema)
    if problem is not None:
        raise ValueError(problem)
    return new


_TEXT: Final = _plain(str)
_TEXTS: Final = _tuple_of(_TEXT)
_INTEGER: Final = _plain(int)
_INTEGERS: Final = _tuple_of(_INTEGER)
_FLAG: Final = _plain(bool)
_SECONDS: Final = _plain(int | float)
_MOMENT: Final = _json(_check_moment)
_HISTORY: Final = _json(_check_history)
_NEW_NAME: Final = _json(_check_new_name)
_TAG: Final = _json(lambda value, data: check_tag_name(value))
_MESSAGE: Final = _json(lambda value, data: check_message(value))
_ROWS: Final = _Kind(lambda value, out: out.add(value), lambda value, data: data.rows(value))
_REQUESTS: Final = _tuple_of(_Kind(_encode_request, _decode_request))
_SELECT: Final = _Kind(_encode_select, _decode_select)
_SCHEMA: Final = _Kind(
    lambda value, out: value.to_json(), lambda value, data: Schema.from_json(_typed(str, value))
)
_LEVELS: Final = _Kind(
    lambda value, out: value.to_json(), lambda value, data: PartitionSchema.from_json(_typed(str, value))
)
_PARTITIONS: Final = _tuple_of(
    _Kind(
        lambda value, out: partition_to_json(value),
        lambda value, data: partition_from_json(_typed(dict, value)),
    )
)
_NEW_TABLE_FIELDS: Final = _record(
    NewTable,
    name=_NEW_NAME,
    schema=_SCHEMA,
    partition_schema=_LEVELS,
    partitions=_PARTITIONS,
    comment=_json(_check_comment),
    history_us=_HISTORY,
)
_NEW_TABLE: Final = _Kind(_NEW_TABLE_FIELDS.encode, _check_new_table)
_DRAFT: Final = _record(
    TableDraft,
    name=_TEXT,
    comment=_TEXT,
    history_us=_HISTORY,
    schema=_SCHEMA,
    kept=_INTEGERS,
    dropped=_INTEGERS,
    purged=_INTEGERS,
    added=_PARTITIONS,
)
_SEEN: Final = _tuple_of(_record(SeenTable, table_id=_INTEGER, schema_version=_INTEGER, tablets=_INTEGERS))


@dataclass(frozen=True)
class Call:
    """A method of `LocalWriter` that another process may call.

    keyed: whether the method has a parameter `key`, an idempotency key: a second call with the same
        key does nothing.
    """

    arguments: Mapping[str, _Kind]
    keyed: bool = False


CALLS: Final[Mapping[str, Call]] = {
    "write": Call({"requests": _REQUESTS, "collect": _FLAG, "message": _MESSAGE}, keyed=True),
    "write_selected": Call(
        {"name": _TEXT, "operation": _TEXT, "select": _SELECT, "collect": _FLAG, "message": _MESSAGE},
        keyed=True,
    ),
    "restore": Call({"table_id": _INTEGER, "to": _MOMENT, "message": _MESSAGE}, keyed=True),
    "commit_set": Call(
        {"requests": _REQUESTS, "seen": _SEEN, "since": _INTEGER, "message": _MESSAGE, "collect": _FLAG},
        keyed=True,
    ),
    "create_table": Call({"new": _NEW_TABLE, "rows": _REQUESTS, "replaces": _FLAG}, keyed=True),
    "drop_tables": Call({"names": _TEXTS, "purge": _FLAG}, keyed=True),
    "undrop_table": Call({"table_id": _INTEGER, "new_name": _NEW_NAME}, keyed=True),
    "purge_dropped": Call({"name": _plain(str | None)}),
    "clone_table": Call({"name": _TEXT, "new_name": _NEW_NAME, "at": _optional(_MOMENT), "replaces": _FLAG}),
    "alter_to": Call({"table_id": _INTEGER, "before": _DRAFT, "after": _DRAFT}, keyed=True),
    "copy_table": Call(
        {
            "table_id": _INTEGER,
            "at": _MOMENT,
            "new_name": _NEW_NAME,
            "partition_schema": _LEVELS,
            "partitions": _PARTITIONS,
        }
    ),
    "repartition": Call({"table_id": _INTEGER, "partition_schema": _LEVELS, "partitions": _PARTITIONS}),
    "tag": Call({"name": _TAG, "at": _optional(_MOMENT)}, keyed=True),
    "drop_tag": Call({"name": _TEXT}, keyed=True),
    "flush": Call({"name": _plain(str | None)}),
    "compact": Call({"name": _TEXT}),
    "vacuum": Call({"name": _TEXT, "dry_run": _FLAG}),
    "purge": Call({"name": _TEXT, "keys": _ROWS, "wait_s": _SECONDS, "message": _MESSAGE}),
    "purge_status": Call({"name": _TEXT}),
    "maintenance_status": Call({}),
    "pause_maintenance": Call({}),
    "resume_maintenance": Call({}),
    "stats": Call({}),
    "settings": Call({}),
}
"""By name, the methods of `LocalWriter` that another process may call."""


# ------------------------------------------------------------------------------------------------ calls


def encode_call(
    name: str,
    arguments: Mapping[str, Any],
    key: str | None,
    out: Outgoing,
    forget: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the request that makes the writer call its method `name` with these arguments.

    key: the idempotency key of this call.
    out: receives the rows of the arguments.
    forget: keys of earlier calls that will not be repeated, so the writer may forget them.
    Raises: InvalidArgumentError if a value cannot be sent.
    """
    kinds = CALLS[name].arguments
    return {
        "do": "call",
        "name": name,
        "key": key,
        "forget": list(forget),
        "arguments": {argument: kinds[argument].encode(value, out) for argument, value in arguments.items()},
    }


def answer_call(
    writer: LocalWriter, request: Mapping[str, Any], attachments: Sequence[bytes], *, pinned: bool = False
) -> tuple[dict[str, Any], list[bytes]]:
    """Execute a call of another process; return the answer and its attachments.

    pinned: only for the commit of a transaction. True: this process has discarded no history since
        the transaction began. False: some may have expired.
    Raises: errors of the call; InvalidArgumentError, CorruptionError if the request is invalid, and
        then nothing was done.
    """
    name, key = request.get("name"), request.get("key")
    call = CALLS.get(name) if isinstance(name, str) else None
    if call is None or not isinstance(name, str):
        raise InvalidArgumentError(
            f"the process that writes the store does not know the call {name!r}: use the same version of Nyala in that "
            "process and in the process that called it"
        )
    store = writer.store
    with validating(f"request to {name.replace('_', ' ')}"):
        data = Incoming(store.env, store.root_path, attachments, writer.limits, store.view()[1])
        given = _typed(dict, request["arguments"])
        if set(given) != set(call.arguments):
            raise ValueError(f"found the arguments {sorted(given)}, expected {sorted(call.arguments)}")
        arguments = {
            argument: kind.decode(given[argument], data) for argument, kind in call.arguments.items()
        }
        if call.keyed:
            if key is not None and not is_call_key(_typed(str, key)):
                raise ValueError(f"the idempotency key {key!r:.100} was not made by `call_key`")
            arguments["key"] = key
        _check_together(arguments, writer.limits)
        forget = [_typed(str, each) for each in _typed(list, request["forget"])]
    if forget:
        store.forget_calls(forget)
    if name == "commit_set":
        arguments["pinned"] = pinned
    done = getattr(writer, name)(**arguments)
    if isinstance(done, WriteResult):
        done = [done]
    if isinstance(done, list):
        bodies = [bytes(to_ipc(part)) for result in done for part in (result.errors, _outcomes_table(result))]
        return {"results": [figures(result) for result in done]}, bodies
    return {"done": done}, []


def _check_together(arguments: Mapping[str, Any], limits: Limits) -> None:
    """Check arguments that depend on each other. Raises: ValueError, SchemaError, InvalidArgumentError."""
    if "new" in arguments:
        new, rows = arguments["new"], arguments["rows"]
        if len(rows) > 1 or any((each.table, each.operation) != (new.name, "insert") for each in rows):
            raise ValueError(f"a request that creates a table may have one insert at most, found {len(rows)}")
    if "after" in arguments:
        before, after = arguments["before"], arguments["after"]
        if after.name != before.name:
            check_table_name(after.name, limits)
        check_comment(after.comment, f"table {after.name!r}: ", limits)
        _check_columns(after.schema, before.schema.columns, limits)
    if "seen" in arguments and len(arguments["seen"]) != len(arguments["requests"]):
        raise ValueError(
            f"found {len(arguments['requests'])} requests for {len(arguments['seen'])} tables, expected "
            "one request for each table"
        )


def _check_columns(schema: Schema, known: Sequence[ColumnSchema], limits: Limits) -> None:
    """Check the columns that are not in `known`, as `build_schema` does.

    Raises: SchemaError, ValueError.
    """
    for column in schema.columns:
        if column not in known:
            check_identifier(column.name, "column name", limits)
            check_comment(column.comment, f"column {column.name!r}: ", limits)
    if len(known) < len(schema.columns) > limits.max_columns:
        raise ValueError(
            f"{len(schema.columns)} columns exceed the limit of {limits.max_columns} (max_columns)"
        )


def _outcomes_table(result: WriteResult) -> pa.Table:
    outcomes = result._outcomes
    return pa.table({} if outcomes is None else {"outcome": pa.array(outcomes, pa.uint8())})


def decode_answer(answer: Mapping[str, Any], attachments: Sequence[bytes]) -> Any:
    """Return the result of a call from its answer. A call that writes rows returns a list of results."""
    if "results" not in answer:
        return answer["done"]
    tables = [from_ipc(body) for body in attachments]
    return [
        WriteResult(
            **counts,
            errors=errors,
            _outcomes=outcomes.column(0).to_numpy() if outcomes.num_columns else None,
        )
        for counts, errors, outcomes in zip(answer["results"], tables[::2], tables[1::2], strict=True)
    ]
