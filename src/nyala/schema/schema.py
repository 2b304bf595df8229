"""A table's schema: its columns with names, ids and defaults. Builds and checks the schema of a new
table.

    build_schema({"host": "string", "time": "timestamp", "value": column("double", default=0.0)},
                 primary_key=["host", "time"])

      position   0      1      2
      name       host   time   value        what users write; may change
      id         10     11     12           what files, log and deltas contain; never changes
                 `- key -'

Invariants
    S1  Key columns come first, in key order, and are NOT NULL.
    S2  A column's id is never used again, even after the column is dropped: `next_column_id` is
        greater than every id that the table ever had.
    S3  Ids begin at 10, so that code that confuses an id with a position fails at once (Kudu's
        debug builds do so).
    S4  `read_default` is the value of the column in rows that are older than the column. It never
        changes. `write_default` is the value of the column in an insert that omits it. Users may
        change it.
    S5  A default is a Python value of the column's type, as `cast_value` returns it.

A Schema is immutable. An alteration (`nyala.schema.alteration`) creates a new Schema with the next
`version`.
Source: Kudu schema design, "Column Design", "Column Encoding" (Table 1), "Primary Key Design",
"Known Limitations"; default rules from Kudu's ColumnSchema.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import enum
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NewType

import pyarrow as pa

from nyala.errors import ColumnNotFoundError, InvalidArgumentError, SchemaError
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.conversion.cast import cast_value
from nyala.schema.equality import compared_as_tuples
from nyala.schema.limits import DEFAULT_LIMITS, LARGEST, Limits
from nyala.schema.sizes import size_in_bytes, whole_number
from nyala.schema.types import ColumnType, parse_type
from nyala.suggestion import nearest

__all__ = [
    "COMPRESSIONS",
    "FIRST_COLUMN_ID",
    "NO_DEFAULT",
    "ColumnId",
    "ColumnSchema",
    "ColumnSpec",
    "NoDefault",
    "Schema",
    "allowed_encodings",
    "build_column",
    "build_schema",
    "check_block_size",
    "check_comment",
    "check_identifier",
    "check_nullable",
    "check_table_name",
    "column",
    "name_hint",
]

ColumnId = NewType("ColumnId", int)

MIN_BLOCK_SIZE_BYTES: Final = 512
MAX_BLOCK_SIZE_BYTES: Final = 16 * 1024 * 1024
FIRST_COLUMN_ID: Final = 10  # S3

COMPRESSIONS: Final = ("default", "none", "lz4", "snappy", "zlib", "zstd")
_INTEGER_ENCODINGS: Final = ("auto", "plain", "bitshuffle", "rle", "for")
_FLOAT_ENCODINGS: Final = ("auto", "plain", "bitshuffle", "alp")
_TEXT_ENCODINGS: Final = ("auto", "plain", "prefix", "dictionary")
_ENCODINGS: Final = (*_INTEGER_ENCODINGS, *_FLOAT_ENCODINGS, *_TEXT_ENCODINGS)


class NoDefault(enum.Enum):
    """The type of NO_DEFAULT, which marks a column without a default.

    It is an enum, so that `x is NO_DEFAULT` is also right after pickling.
    """

    NO_DEFAULT = "no default"

    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = NoDefault.NO_DEFAULT


def allowed_encodings(type: ColumnType) -> tuple[str, ...]:
    """Return the names of the encodings that a column of this type may have; "auto" is first."""
    if type.is_integer or type.name in ("date", "timestamp"):
        return _INTEGER_ENCODINGS
    if type.is_variable:
        return _TEXT_ENCODINGS
    if type.name == "bool":
        return ("auto", "plain", "rle")
    if type.name == "decimal":
        return ("auto", "plain", "bitshuffle", "for")
    return _FLOAT_ENCODINGS


def check_encoding(encoding: Any, type: ColumnType, where: str) -> None:
    """Raise SchemaError if a column of this type cannot have the encoding. `where` begins the
    message.
    """
    allowed = allowed_encodings(type)
    if encoding in allowed:
        return
    if encoding in _ENCODINGS:
        raise SchemaError(
            f"{where}type {type} does not support encoding {encoding!r}; use one of {', '.join(allowed)}"
        )
    raise SchemaError(f"{where}unknown encoding {encoding!r}; {_valid_words(encoding, allowed)}")


def check_nullable(nullable: Any) -> bool:
    """Return `nullable` if it is True or False. Raises: InvalidArgumentError otherwise."""
    if isinstance(nullable, bool):
        return nullable
    meant = ""
    if isinstance(nullable, str) and nullable in _ENCODINGS:
        meant = f'; to set the encoding, write encoding="{nullable}"'
    raise InvalidArgumentError(f"nullable must be True or False, got {nullable!r}{meant}")


def check_immutable(immutable: Any) -> bool:
    """Return `immutable` if it is True or False. Raises: InvalidArgumentError otherwise."""
    if not isinstance(immutable, bool):
        raise InvalidArgumentError(f"immutable must be True or False, got {immutable!r}")
    return immutable


def check_compression(compression: Any, where: str) -> None:
    """Raise SchemaError for an unknown compression. `where` begins the message."""
    if compression not in COMPRESSIONS:
        raise SchemaError(
            f"{where}unknown compression {compression!r}; {_valid_words(compression, COMPRESSIONS)}"
        )


def _valid_words(value: Any, words: Sequence[str]) -> str:
    """Return the end of an error message: the valid word that `value` resembles, and all valid
    words.
    """
    word = "none" if value is False else str(value).casefold()
    import difflib

    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}use one of {', '.join(words)}"


@dataclass(frozen=True)
class ColumnSpec:
    """A column as a user describes it with `nyala.column(...)`. `build_schema` checks it later."""

    type: ColumnType
    nullable: bool = True
    default: Any = None
    encoding: str = "auto"
    compression: str = "default"
    block_size_bytes: int | str | None = None  # as the user gave it, such as "64KiB"
    comment: str = ""
    immutable: bool = False


def column(
    type: str | pa.DataType | ColumnType,
    nullable: bool = True,
    default: Any = None,
    encoding: str = "auto",
    compression: str = "default",
    block_size: int | str | None = None,
    comment: str = "",
    immutable: bool = False,
) -> ColumnSpec:
    """Describe a column, for `create_table` and `add_column`.

    Parameters
    ----------
    type
        A name ("int64", "decimal(15,2)", "varchar(40)" …) or a pyarrow.DataType.
    nullable
        Whether the column may hold NULL. Primary key columns are always NOT NULL.
    default
        Value for inserts that omit the column. None means no default: such an insert stores NULL,
        or fails if the column is NOT NULL.
    encoding
        "auto", "plain", "bitshuffle", "rle", "for", "alp", "dictionary" or "prefix". Each type
        allows some of these.
    compression
        "default", "none", "lz4", "snappy", "zlib" or "zstd".
    block_size
        Bytes of a block before encoding: 512 to 16,777,216, or a text such as "64KiB". Default: 2
        MiB, or 64 KiB for a primary key of one column.
    comment
        Text that is stored with the column.
    immutable
        Whether the value never changes after the insert of its row. An upsert of an existing row
        then keeps the old value, and an update of the column fails with the row error `immutable`.

    Raises
    ------
    SchemaError
        The type is unknown.
    InvalidArgumentError
        `nullable` or `immutable` is not True or False. `create_table` checks the other arguments.

    Examples
    --------
    >>> schema = {"id": "int64", "unit": column("string", nullable=False, default="ms")}
    >>> units = db.create_table("units", schema, ["id"])
    >>> units.insert([{"id": 1}]).inserted
    1
    >>> units.scan().to_arrow().to_pylist()
    [{'id': 1, 'unit': 'ms'}]
    """
    return ColumnSpec(
        parse_type(type),
        check_nullable(nullable),
        default,
        encoding,
        compression,
        block_size,
        comment,
        check_immutable(immutable),
    )


AUTO_INCREMENT: Final = "auto_incrementing_id"
"""The reserved name of a key column that the store fills with numbers, in a table whose own key is
not unique.
"""


@compared_as_tuples
@dataclass(frozen=True)
class ColumnSchema:
    """One column of one version of a table's schema."""

    id: ColumnId
    name: str
    type: ColumnType
    nullable: bool
    read_default: Any = NO_DEFAULT
    write_default: Any = NO_DEFAULT
    encoding: str = "auto"
    compression: str = "default"
    block_size_bytes: int | None = None
    comment: str = ""
    immutable: bool = False

    @property
    def required(self) -> bool:
        """Whether an insert must give a value, because the column is NOT NULL and has no default."""
        return not self.nullable and self.write_default is NO_DEFAULT

    def arrow_field(self) -> pa.Field:
        """Return the Arrow field of the column in the schema of a scan."""
        return pa.field(self.name, self.type.arrow, nullable=self.nullable)

    def __str__(self) -> str:
        return f"{self.name} {self.type}" + ("" if self.nullable else " NOT NULL")


@dataclass(frozen=True)
class Schema(LazyValues):
    """The columns of a table. The key columns come first, in key order. Immutable.

    A copy that was made by pickling, or by `to_json` and `from_json`, equals the original.
    """

    columns: tuple[ColumnSchema, ...]
    key_count: int
    version: int = 0
    next_column_id: int = FIRST_COLUMN_ID
    layout_version: int = 0
    """The last version that changed how files are written: columns, types or encodings."""
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    key_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    key_ids: tuple[int, ...] = field(init=False, repr=False, compare=False)
    canonical_plans: list[Any] = field(init=False, repr=False, compare=False, default_factory=list)
    """A cache of `nyala.schema.conversion.canonical_data`: how to check data of some Arrow schemas.
    """
    _by_name: Mapping[str, ColumnSchema] = field(init=False, repr=False, compare=False)
    _by_id: Mapping[int, ColumnSchema] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = tuple(column.name for column in self.columns)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "key_names", names[: self.key_count])
        object.__setattr__(self, "key_ids", tuple(column.id for column in self.key_columns))
        object.__setattr__(self, "_by_name", {column.name: column for column in self.columns})
        object.__setattr__(self, "_by_id", {column.id: column for column in self.columns})
        assert 1 <= self.key_count <= len(self.columns), "S1: a table has a key"
        assert not any(c.nullable or not c.type.key_allowed for c in self.key_columns), (
            "S1: keys are NOT NULL"
        )
        assert len(self._by_name) == len(self._by_id) == len(self.columns), "S2: names and ids are unique"
        ids_in_range = all(FIRST_COLUMN_ID <= column.id < self.next_column_id for column in self.columns)
        assert ids_in_range, "S2, S3: every id is from FIRST_COLUMN_ID to below next_column_id"

    @property
    def key_columns(self) -> tuple[ColumnSchema, ...]:
        return self.columns[: self.key_count]

    @property
    def value_columns(self) -> tuple[ColumnSchema, ...]:
        """The columns that are not in the key."""
        return self.columns[self.key_count :]

    @property
    def auto_increment(self) -> ColumnSchema | None:
        """The key column that the store fills with numbers; None if users give all key columns."""
        return self.columns[self.key_count - 1] if self.key_names[-1] == AUTO_INCREMENT else None

    @property
    def insert_names(self) -> tuple[str, ...]:
        """The names of the columns that an insert may contain: all but an auto-incrementing key."""
        return (
            self.names if self.auto_increment is None else tuple(n for n in self.names if n != AUTO_INCREMENT)
        )

    @lazy_value
    def immutable_ids(self) -> frozenset[int]:
        """The ids of the columns whose values never change after the insert of their row."""
        return frozenset([column.id for column in self.columns if column.immutable])

    @lazy_value
    def arrow_types(self) -> Mapping[int, pa.DataType]:
        """The Arrow type of each column, by column id."""
        return {column.id: column.type.arrow for column in self.columns}

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self.columns)

    def by_name(self, name: str) -> ColumnSchema:
        """Return the column with this name. Raises: ColumnNotFoundError, with a similar name as a
        suggestion.
        """
        found = self._by_name.get(name)
        if found is None:
            raise ColumnNotFoundError(f"no column {name!r}" + name_hint(name, self.names))
        return found

    def by_quoted_name(self, name: str) -> ColumnSchema:
        """Return the column for a name that an SQL text has in double quotes.

        Raises: ColumnNotFoundError. It explains that texts take single quotes, because the user may
        have meant a text.
        """
        if name not in self:
            text = "'" + name.replace("'", "''") + "'"
            raise ColumnNotFoundError(
                f"no column {name!r}; if you mean a text, write {text}: text takes single quotes, column names take "
                f"double quotes{name_hint(name, self.names)}"
            )
        return self._by_name[name]

    def by_id(self, id: int) -> ColumnSchema:
        """Return the column with this id. Raises: KeyError if this version of the schema has no
        such column.
        """
        return self._by_id[id]

    def has_id(self, id: int) -> bool:
        return id in self._by_id

    def is_key(self, name: str) -> bool:
        return name in self.key_names

    def project(self, names: Sequence[str]) -> tuple[ColumnSchema, ...]:
        """Return the named columns, in the given order.

        Raises: ColumnNotFoundError for an unknown name, SchemaError for a duplicate name.
        """
        columns = tuple(self.by_name(name) for name in names)
        if len({column.name for column in columns}) < len(columns):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise SchemaError(f"duplicate column {twice!r}; name each column once")
        return columns

    def arrow_schema(self, names: Sequence[str] | None = None) -> pa.Schema:
        """Return the Arrow schema of all columns, or of the named columns in the given order."""
        if names is None:
            return self._arrow_schema
        return pa.schema([column.arrow_field() for column in self.project(names)])

    @lazy_value
    def _arrow_schema(self) -> pa.Schema:
        return pa.schema([column.arrow_field() for column in self.columns])

    def to_json(self) -> str:
        """Return the schema as one line of JSON that `from_json` reads."""
        return json.dumps(
            {
                "version": self.version,
                "layout_version": self.layout_version,
                "next_column_id": self.next_column_id,
                "key_count": self.key_count,
                "columns": [_column_to_json(column) for column in self.columns],
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> Schema:
        """Read the text of `to_json`.

        Raises: ValueError, TypeError or LookupError for any other text. All rules of a schema are
        checked, because a damaged text may have a right checksum.
        """
        data = json.loads(text)
        names = ("key_count", "version", "next_column_id", "layout_version")
        for name in names:
            if type(data[name]) is not int or not 0 <= data[name] < 1 << 63:
                raise ValueError(f"expected an integer from 0 to 2^63 - 1 as {name}, found {data[name]!r}")
        key_count, version, next_column_id, layout_version = (data[name] for name in names)
        columns = tuple(
            _column_from_json(column, place < key_count) for place, column in enumerate(data["columns"])
        )
        try:
            return Schema(columns, key_count, version, next_column_id, layout_version)
        except AssertionError as error:
            raise ValueError(str(error)) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # `from_json` replaces a NaN by the one NaN object of this process, which pickle would not
        # do.
        return (Schema.from_json, (self.to_json(),))


def name_hint(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown column: "; did you mean 'host'?", or the column
    names.
    """
    names = list(names)
    near = nearest(str(name), names)
    if near is not None:
        return f"; did you mean {near!r}?"
    shown = ", ".join(repr(known) for known in names[:12]) + (", …" if len(names) > 12 else "")
    return f"; the columns are {shown}"


# --- building ---------------------------------------------------------------------------------------


def build_schema(
    spec: pa.Schema | Mapping[str, str | pa.DataType | ColumnType | ColumnSpec],
    primary_key: Sequence[str] | str,
    limits: Limits = DEFAULT_LIMITS,
    *,
    unique: bool = True,
) -> Schema:
    """Build the schema of a new table from the arguments of `create_table`.

    unique: whether the key columns identify a row. If not, the key gets one more column, which the
    store fills.
    Raises: SchemaError for an invalid schema, ColumnNotFoundError for an unknown key column.
    """
    specs = _read_spec(spec, limits)
    key = [primary_key] if isinstance(primary_key, str) else list(primary_key)
    check_not_reserved(*specs)
    if not specs:
        raise SchemaError("the schema has no columns; name at least one")
    if not key and unique:
        raise SchemaError("the primary key is empty; name at least one column in primary_key=[...]")
    for name in key:
        if name not in specs:
            raise ColumnNotFoundError(
                f"primary key column {name!r} is not in the schema" + name_hint(name, specs)
            )
        if key.count(name) > 1:
            raise SchemaError(f"duplicate primary key column {name!r}; name each column once")
    if not unique:
        key = [*key, AUTO_INCREMENT]
        specs = {**specs, AUTO_INCREMENT: ColumnSpec(parse_type("int64"), nullable=False)}
    if len(specs) > limits.max_columns:
        raise SchemaError(
            f"{len(specs)} columns exceed the limit of {limits.max_columns} per table (max_columns); split the table"
        )
    ordered = [*key, *(name for name in specs if name not in set(key))]
    columns = tuple(
        build_column(FIRST_COLUMN_ID + position, name, specs[name], in_key=position < len(key), limits=limits)
        for position, name in enumerate(ordered)
    )
    return Schema(columns, key_count=len(key), version=0, next_column_id=FIRST_COLUMN_ID + len(columns))


def check_not_reserved(*names: str) -> None:
    """Raise SchemaError if one of the names is reserved for the key column that the store fills."""
    if AUTO_INCREMENT in names:
        raise SchemaError(
            f"the column name {AUTO_INCREMENT!r} is reserved for the key column that create_table() adds without a "
            "primary_key or with unique=False: choose another name"
        )


def _advice_on_data(data: Any) -> str:
    """Return the advice of an error message for a user who gave data in place of a schema."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return "; pass its .schema"
    if type(data).__name__ == "DataFrame":
        return "; for pandas pass pyarrow.Schema.from_pandas(df, preserve_index=False), for polars df.to_arrow().schema"
    return "; dict(…) converts a list of pairs" if isinstance(data, list | tuple) else ""


def _read_spec(spec: Any, limits: Limits) -> dict[str, ColumnSpec]:
    if isinstance(spec, pa.Schema):
        for name in spec.names:
            if spec.names.count(name) > 1:
                raise SchemaError(f"duplicate column {name!r} in the schema; rename one of them")
        entries: list[tuple[Any, Any]] = [(f.name, (f.type, f.nullable)) for f in spec]
    elif isinstance(spec, Mapping):
        entries = list(spec.items())
    else:
        raise SchemaError(
            "schema must be a pyarrow.Schema or a dict of column name to type, "
            f"for instance {{'id': 'int64', 'name': 'string'}}, got {type(spec).__name__}{_advice_on_data(spec)}"
        )
    specs: dict[str, ColumnSpec] = {}
    for name, entry in entries:
        check_identifier(name, "column name", limits)
        try:
            if isinstance(entry, ColumnSpec):
                specs[name] = entry
            elif isinstance(entry, tuple) and isinstance(spec, pa.Schema):
                specs[name] = ColumnSpec(parse_type(entry[0]), nullable=entry[1])
            else:
                specs[name] = ColumnSpec(parse_type(entry))
        except SchemaError as error:
            raise SchemaError(f"column {name!r}: {error}") from None
    return specs


def build_column(
    id: int, name: str, spec: ColumnSpec, *, in_key: bool, limits: Limits = DEFAULT_LIMITS
) -> ColumnSchema:
    """Check a user's column and build it. Raises: SchemaError; the message begins with the column's
    name.
    """
    check_identifier(name, "column name", limits)
    where = f"column {name!r}: "
    if in_key and not spec.type.key_allowed:
        raise SchemaError(
            f"{where}type {spec.type} is not allowed in a primary key; use another column, or a type other than "
            "bool, float and double"
        )
    check_encoding(spec.encoding, spec.type, where)
    check_compression(spec.compression, where)
    try:
        default = cast_value(spec.default, spec.type, limits.max_cell_bytes)
    except SchemaError as error:
        raise SchemaError(f"{where}invalid default: {error}") from None
    if default is None:
        default = NO_DEFAULT
    check_comment(spec.comment, where, limits)
    if in_key and spec.immutable:
        raise SchemaError(f"{where}a key column never changes: leave immutable=True out")
    return ColumnSchema(
        id=ColumnId(id),
        name=name,
        type=spec.type,
        nullable=bool(spec.nullable) and not in_key,
        read_default=default,
        write_default=default,
        encoding=spec.encoding,
        compression=spec.compression,
        block_size_bytes=check_block_size(spec.block_size_bytes, where),
        comment=spec.comment,
        immutable=spec.immutable,
    )


def check_block_size(block_size: Any, where: str) -> int | None:
    """Return a block size in bytes, given as a number or a text such as '64KiB'.

    None, which means the default, stays None.

    Raises: SchemaError; `where` begins the message.
    """
    if block_size is None:
        return None
    size = size_in_bytes(block_size) if isinstance(block_size, str) else whole_number(block_size)
    if size is None or not MIN_BLOCK_SIZE_BYTES <= size <= MAX_BLOCK_SIZE_BYTES:
        raise SchemaError(
            f"{where}block_size must be {MIN_BLOCK_SIZE_BYTES} to {MAX_BLOCK_SIZE_BYTES} bytes, such as 65536 or "
            f"'64KiB', or None for the default; got {block_size!r}"
        )
    return size


def check_comment(comment: Any, where: str, limits: Limits = DEFAULT_LIMITS) -> None:
    """Check the comment of a column or table: a text within `max_comment_bytes`.

    Raises: SchemaError; `where` begins the message.
    """
    if not isinstance(comment, str):
        raise SchemaError(f"{where}the comment {comment!r} is not text; use a str")
    size = len(comment.encode(errors="replace"))
    if size > limits.max_comment_bytes:
        raise SchemaError(
            f"{where}the comment has {size} bytes, more than the limit of {limits.max_comment_bytes} "
            "(max_comment_bytes); shorten it"
        )


def check_identifier(name: Any, what: str, limits: Limits = DEFAULT_LIMITS) -> None:
    """Check the name of a column or table: a text without NUL, not empty, within
    `max_identifier_bytes` of UTF-8.

    Raises: SchemaError; `what` begins the message.
    """
    if not isinstance(name, str):
        raise SchemaError(f"{what} {name!r} is not text; use a str")
    if not name:
        raise SchemaError(f"{what} is an empty text; use at least one character")
    if "\0" in name:
        raise SchemaError(f"{what} {name!r} contains a NUL character; leave it out")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise SchemaError(f"{what} {name!r} is not valid Unicode; leave out the lone surrogates") from None
    if size > limits.max_identifier_bytes:
        raise SchemaError(
            f"{what} {name[:20] + '…'!r} has {size} bytes, more than the limit of {limits.max_identifier_bytes} "
            "(max_identifier_bytes); shorten it"
        )


def check_table_name(name: Any, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise InvalidArgumentError if the name of a table is empty, too long or otherwise invalid."""
    try:
        check_identifier(name, "table name", limits)
    except SchemaError as error:
        raise InvalidArgumentError(str(error)) from None


# --- JSON -------------------------------------------------------------------------------------------
# A default that JSON has no type for is written as {"kind": "value"}, such as {"bytes": "AAE="}.
# The reader therefore needs no column type to tell bytes from text.


def _column_to_json(column: ColumnSchema) -> dict[str, Any]:
    return {
        "id": column.id,
        "name": column.name,
        "type": str(column.type),
        "nullable": column.nullable,
        "read_default": _default_to_json(column.read_default),
        "write_default": _default_to_json(column.write_default),
        "encoding": column.encoding,
        "compression": column.compression,
        "block_size_bytes": column.block_size_bytes,
        "comment": column.comment,
        "immutable": column.immutable,
    }


def _column_from_json(data: Mapping[str, Any], in_key: bool) -> ColumnSchema:
    """Read the JSON of a column. Raises: ValueError for a column that `build_column` would not
    build.
    """
    id, name, nullable, text = (data[what] for what in ("id", "name", "nullable", "type"))
    for what, wanted in (("id", int), ("name", str), ("nullable", bool), ("type", str), ("immutable", bool)):
        if type(data[what]) is not wanted:
            raise ValueError(
                f"column {name!r}: expected a value of type {wanted.__name__} as {what}, found {data[what]!r}"
            )
    read_default, write_default = (
        _default_from_json(data[what]) for what in ("read_default", "write_default")
    )
    storage = (
        data["encoding"],
        data["compression"],
        data["block_size_bytes"],
        data["comment"],
        data["immutable"],
    )
    try:
        kind = parse_type(text)
        for default in (read_default, write_default):
            if isinstance(default, int) and kind.name == "timestamp":
                default = pa.scalar(default, kind.arrow)  # outside the years 1 to 9999 of a datetime
            spec = ColumnSpec(kind, nullable, None if default is NO_DEFAULT else default, *storage)
            if type(spec.block_size_bytes) is int and 0 <= spec.block_size_bytes < MIN_BLOCK_SIZE_BYTES:
                # A stored schema may have a smaller block size than users may set now.
                spec = replace(spec, block_size_bytes=None)
            # `build_column` checks all fields. The stored name of a dropped column contains a NUL,
            # which it refuses.
            build_column(id, name.replace("\0", "_"), spec, in_key=in_key, limits=LARGEST)
    except SchemaError as error:
        raise ValueError(str(error)) from error
    return ColumnSchema(ColumnId(id), name, kind, nullable, read_default, write_default, *storage)


def _default_to_json(value: Any) -> Any:
    if value is NO_DEFAULT:
        return {"none": True}
    if isinstance(value, decimal.Decimal):
        return {"decimal": str(value)}
    if isinstance(value, dt.datetime):
        return {"timestamp": value.isoformat()}
    if isinstance(value, dt.date):
        return {"date": value.isoformat()}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, float):
        return {"float": value.hex()}  # exact, also for -0.0, inf and nan
    assert value is None or isinstance(value, bool | int | str), f"S5: {value!r}"
    return value


def _default_from_json(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    ((kind, value),) = data.items()
    if kind == "none":
        return NO_DEFAULT
    if kind == "decimal":
        return decimal.Decimal(value)
    if kind == "timestamp":
        return dt.datetime.fromisoformat(value)
    if kind == "date":
        return dt.date.fromisoformat(value)
    if kind == "bytes":
        return base64.b64decode(value)
    if kind == "float":
        number = float.fromhex(value)
        # Always the same NaN object, so that tuples that contain it are equal.
        return math.nan if math.isnan(number) else number
    raise ValueError(f"unknown kind of default {kind!r}")
