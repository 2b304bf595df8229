"""A table's schema: its columns with names and ids, and the validation of new schemas.

    build_schema({"host": "string", "time": "timestamp", "value": column("double", default=0.0)},
                 primary_key=["host", "time"])

      position   0      1      2
      name       host   time   value        for users; may change
      id         10     11     12           for files, log and deltas; never changes
                 `- key -'

Invariants
    S1  Key columns come first, in key order, and are NOT NULL.
    S2  A column's id is never reused, even after the column is dropped: `next_column_id` is greater than every id
        that was ever assigned.
    S3  Ids begin at 10, so that using an id as a position fails at once (like Kudu's debug builds).
    S4  `read_default` is the column's value in files written before the column existed. It never changes.
        `write_default` is the value for inserts that omit the column. It may be altered.
    S5  A default is a valid Python value of the column's type (a result of `cast_value`).

A Schema is immutable; an alteration (`nyala.schema.alteration`) creates a new one with the next `version`.
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
    """The type of NO_DEFAULT. An enum, so that it is one object in every process."""

    NO_DEFAULT = "no default"

    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = NoDefault.NO_DEFAULT


def allowed_encodings(type: ColumnType) -> tuple[str, ...]:
    """Return the encodings that a column of this type may have, "auto" first."""
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
    """Raise SchemaError, beginning with `where`, if a column of this type cannot have the encoding."""
    allowed = allowed_encodings(type)
    if encoding in allowed:
        return
    if encoding in _ENCODINGS:
        raise SchemaError(
            f"{where}type {type} does not support encoding {encoding!r}; use one of {', '.join(allowed)}"
        )
    raise SchemaError(f"{where}unknown encoding {encoding!r}; {_meant(encoding, allowed)}")


def check_nullable(nullable: Any) -> bool:
    """Return `nullable`. Raises: InvalidArgumentError unless it is True or False, with advice if it is an encoding."""
    if isinstance(nullable, bool):
        return nullable
    meant = ""
    if isinstance(nullable, str) and nullable in _ENCODINGS:
        meant = f'; to set the encoding, write encoding="{nullable}"'
    raise InvalidArgumentError(f"nullable must be True or False, got {nullable!r}{meant}")


def check_immutable(immutable: Any) -> bool:
    """Return `immutable`. Raises: InvalidArgumentError unless it is True or False."""
    if not isinstance(immutable, bool):
        raise InvalidArgumentError(f"immutable must be True or False, got {immutable!r}")
    return immutable


def check_compression(compression: Any, where: str) -> None:
    """Raise SchemaError, beginning with `where`, for an unknown compression."""
    if compression not in COMPRESSIONS:
        raise SchemaError(f"{where}unknown compression {compression!r}; {_meant(compression, COMPRESSIONS)}")


def _meant(value: Any, words: Sequence[str]) -> str:
    """Return the end of an error message: a similar word as a suggestion, and all valid words."""
    word = "none" if value is False else str(value).casefold()
    import difflib

    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}use one of {', '.join(words)}"


@dataclass(frozen=True)
class ColumnSpec:
    """A column as a user describes it: the result of `nyala.column(...)`. `build_schema` checks it."""

    type: ColumnType
    nullable: bool = True
    default: Any = None
    encoding: str = "auto"
    compression: str = "default"
    block_size_bytes: int | str | None = None  # the user's value, not parsed yet
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
        Value for inserts that omit the column. None: NULL if the column is nullable; otherwise the column is required.
    encoding
        "auto", or "plain", "bitshuffle", "rle", "for", "alp", "dictionary", "prefix", as the type allows.
    compression
        "default", "none", "lz4", "snappy", "zlib" or "zstd".
    block_size
        Bytes of a block before encoding: 512 to 16,777,216, or a text such as "64KiB". Default: 1 MiB, or 64 KiB for a
        primary key of one column.
    comment
        Text stored with the column.
    immutable
        Whether an insert sets the column for good: an upsert of an existing row leaves it as it is, and an update of
        it is the row error `immutable`.

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
"""The reserved name of the last key column of a table whose other key columns are not unique."""


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
        """Whether an insert must give this column: NOT NULL and without a default."""
        return not self.nullable and self.write_default is NO_DEFAULT

    def arrow_field(self) -> pa.Field:
        """Name, canonical Arrow type and nullability, as in scans."""
        return pa.field(self.name, self.type.arrow, nullable=self.nullable)

    def __str__(self) -> str:
        return f"{self.name} {self.type}" + ("" if self.nullable else " NOT NULL")


@dataclass(frozen=True)
class Schema(LazyValues):
    """The columns of a table, key columns first (S1). Immutable; pickles and goes through JSON unchanged."""

    columns: tuple[ColumnSchema, ...]
    key_count: int
    version: int = 0
    next_column_id: int = FIRST_COLUMN_ID
    layout_version: int = 0
    """The last version that changed stored data: columns, types, encodings. Older files are outdated."""
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    key_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    key_ids: tuple[int, ...] = field(init=False, repr=False, compare=False)
    canonical_plans: list[Any] = field(init=False, repr=False, compare=False, default_factory=list)
    """Plans that `nyala.schema.conversion.canonical_data` caches for this schema."""
    _by_name: Mapping[str, ColumnSchema] = field(init=False, repr=False, compare=False)
    _by_id: Mapping[int, ColumnSchema] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = tuple(column.name for column in self.columns)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "key_names", names[: self.key_count])
        object.__setattr__(self, "key_ids", tuple(column.id for column in self.key_columns))
        object.__setattr__(self, "_by_name", {column.name: column for column in self.columns})
        object.__setattr__(self, "_by_id", {column.id: column for column in self.columns})
        self.check()

    def check(self) -> None:
        """Assert the numbered invariants."""
        assert self._broken is None, self._broken

    @property
    def _broken(self) -> str | None:
        """The first numbered invariant that is violated, or None."""
        if not 1 <= self.key_count <= len(self.columns):
            return "S1: a table has a key"
        if any(column.nullable or not column.type.key_allowed for column in self.key_columns):
            return "S1: key columns are NOT NULL"
        if not len(self._by_name) == len(self._by_id) == len(self.columns):
            return "S2: names and ids are unique"
        if not all(FIRST_COLUMN_ID <= column.id < self.next_column_id for column in self.columns):
            return "S2, S3: every id is from FIRST_COLUMN_ID to below next_column_id"
        return None

    @property
    def key_columns(self) -> tuple[ColumnSchema, ...]:
        return self.columns[: self.key_count]

    @property
    def value_columns(self) -> tuple[ColumnSchema, ...]:
        """The columns that are not in the key."""
        return self.columns[self.key_count :]

    @property
    def auto_increment(self) -> ColumnSchema | None:
        """The key column whose values the store gives; None: the user gives the whole key."""
        return self.columns[self.key_count - 1] if self.key_names[-1] == AUTO_INCREMENT else None

    @property
    def insert_names(self) -> tuple[str, ...]:
        """The columns that an insert may give."""
        return (
            self.names if self.auto_increment is None else tuple(n for n in self.names if n != AUTO_INCREMENT)
        )

    @lazy_value
    def immutable_ids(self) -> frozenset[int]:
        """The ids of the columns that only an insert sets."""
        return frozenset([column.id for column in self.columns if column.immutable])

    @lazy_value
    def arrow_types(self) -> Mapping[int, pa.DataType]:
        """The Arrow type of each column, by its id."""
        return {column.id: column.type.arrow for column in self.columns}

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self.columns)

    def by_name(self, name: str) -> ColumnSchema:
        """Return a column by name. Raises: ColumnNotFoundError with a suggestion."""
        found = self._by_name.get(name)
        if found is None:
            raise ColumnNotFoundError(f"no column {name!r}" + name_hint(name, self.names))
        return found

    def by_quoted_name(self, name: str) -> ColumnSchema:
        """`by_name` for a name in double quotes. The error explains that SQL writes texts in single quotes."""
        if name not in self:
            text = "'" + name.replace("'", "''") + "'"
            raise ColumnNotFoundError(
                f"no column {name!r}; for a text write {text}: text takes single quotes, column names take double "
                f"quotes{name_hint(name, self.names)}"
            )
        return self._by_name[name]

    def by_id(self, id: int) -> ColumnSchema:
        """Return a column by id. Raises: KeyError if this version does not have it (dropped, or newer)."""
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
        """Return all fields as one line of JSON; `from_json` reads it."""
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

        Raises: ValueError, TypeError or LookupError for any other text, even if its checksum was right.
        """
        data = json.loads(text)
        numbers = [data[name] for name in ("key_count", "version", "next_column_id", "layout_version")]
        if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(f"invalid key count, version, next column id or layout version: {numbers}")
        key_count, version, next_column_id, layout_version = numbers
        columns = tuple(
            _column_from_json(column, place < key_count) for place, column in enumerate(data["columns"])
        )
        try:
            return Schema(columns, key_count, version, next_column_id, layout_version)
        except AssertionError as error:
            raise ValueError(str(error)) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # Through JSON, because that keeps one NaN object per process (see `_default_from_json`).
        return (Schema.from_json, (self.to_json(),))


def name_hint(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown column: "; did you mean 'host'?", or all columns."""
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
    """Build the first version of a table's schema, from the arguments of `create_table`.

    unique: False: the key gets one more column, whose values the store gives.
    Raises: SchemaError for an invalid schema, ColumnNotFoundError for an unknown key column.
    """
    specs = _read_spec(spec, limits)
    key = [primary_key] if isinstance(primary_key, str) else list(primary_key)
    check_not_reserved(*specs)
    if not unique and not specs:
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
    """Raises: SchemaError for the name of an auto-incrementing column."""
    if AUTO_INCREMENT in names:
        raise SchemaError(
            f"the column name {AUTO_INCREMENT!r} is reserved for the key column that create_table() adds without a "
            "primary_key or with unique=False: choose another name"
        )


def _schema_of(data: Any) -> str:
    """Return advice for a message if the user gave data instead of a schema."""
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
            f"for instance {{'id': 'int64', 'name': 'string'}}, got {type(spec).__name__}{_schema_of(spec)}"
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
    """Check and build one column of a new or existing table. Raises: SchemaError naming the column."""
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
    """Return the block size in bytes, from a number or a text such as '64KiB'; None is the default.

    Raises: SchemaError beginning with `where`.
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
    """Check a column's or table's comment: text within `max_comment_bytes`.

    Raises: SchemaError beginning with `where`.
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
    """Check a column's or table's name: text, not empty, no NUL, within `max_identifier_bytes` of UTF-8.

    Raises: SchemaError that begins with `what`.
    """
    if not isinstance(name, str):
        raise SchemaError(f"{what} {name!r} is not text; use a str")
    if not name:
        raise SchemaError(f"{what} is empty; give it a name")
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
    """`check_identifier` for a table's name. Raises: InvalidArgumentError."""
    try:
        check_identifier(name, "table name", limits)
    except SchemaError as error:
        raise InvalidArgumentError(str(error)) from None


# --- JSON -------------------------------------------------------------------------------------------
# A default without a JSON type is written as {"kind": "value"}. Reading it needs no column type: bytes and string
# defaults differ in JSON.


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
    """Read a column that `build_column` could have built (S5). Raises: ValueError."""
    id, name, nullable, text = (data[what] for what in ("id", "name", "nullable", "type"))
    if (
        type(id) is not int
        or type(nullable) is not bool
        or not isinstance(text, str)
        or not isinstance(name, str)
        or type(data["immutable"]) is not bool
    ):
        raise ValueError(f"invalid column {name!r}: id {id!r}, type {text!r}, nullable {nullable!r}")
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
                default = pa.scalar(default, kind.arrow)  # outside the years that a datetime supports
            spec = ColumnSpec(kind, nullable, None if default is NO_DEFAULT else default, *storage)
            if type(spec.block_size_bytes) is int and 0 <= spec.block_size_bytes < MIN_BLOCK_SIZE_BYTES:
                # Stored schemas may have smaller block sizes than users can set now.
                spec = replace(spec, block_size_bytes=None)
            # Validates all fields. A dropped column has a NUL in its stored name, which users cannot give.
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
        # One NaN object per process: tuples that contain it compare equal, like NaN in predicates.
        return math.nan if math.isnan(number) else number
    raise ValueError(f"unknown kind of default {kind!r}")
