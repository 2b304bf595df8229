"""Encodes the whole catalogue as JSON for a checkpoint, and a change of the catalogue for the log.

A `Shape` describes one kind of entry, such as a tablet. For each JSON field it gives the field's
name, its JSON type, and the attribute of the entry whose value the field contains. The encoders,
the decoders and the tables of the documentation page (see Source) are derived from the shapes.

Decoders raise ValueError for invalid content, and their callers add the file's name. The file's
checksum was right, so invalid content means that the file was forged, or that Nyala has a bug.

Source: docs/format/catalog.md.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, TypeVar

from nyala.catalog.model import (
    CatalogChange,
    CatalogState,
    CommitMessage,
    CommittedKey,
    DeltaEntry,
    PartEntry,
    PurgedRange,
    RowSetEntry,
    TableEntry,
    TabletEntry,
    TagEntry,
)
from nyala.cfile.column import ColumnKey, ColumnPlace
from nyala.partition.model import Partition, PartitionSchema
from nyala.schema.schema import Schema

_T = TypeVar("_T")

_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_PLACE_NUMBERS: Final = 5  # role, delta group, column id, offset, length


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"expected an integer, found {value!r:.100}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"expected text, found {value!r:.100}")
    return value


def _bytes(value: Any) -> bytes:
    return bytes.fromhex(_text(value))


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"expected a list, found {value!r:.100}")
    return value


def _integers(value: Any) -> tuple[int, ...]:
    numbers = tuple(_list(value))
    if not {*map(type, numbers)} <= {int}:
        raise ValueError(f"expected integers, found {numbers!r:.100}")
    return numbers


def _nullable(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else decode(value)


def _same(value: Any) -> Any:
    return value


def _encode_places(places: Iterable[ColumnPlace]) -> list[int]:
    out: list[int] = []
    for place in places:
        key = place.key
        out += (key.role, key.group, key.column_id, place.offset, place.length)
    return out


def _decode_places(value: Any) -> tuple[ColumnPlace, ...]:
    numbers = _integers(value)
    if len(numbers) % _PLACE_NUMBERS or (numbers and min(numbers[3::5] + numbers[4::5]) < 0):
        raise ValueError(
            "expected five integers for each column (role, group, column id, offset, length), with offset and "
            f"length not negative, got {numbers!r:.100}"
        )
    keys = [_column_key(*column) for column in zip(numbers[0::5], numbers[1::5], numbers[2::5], strict=True)]
    return tuple(map(ColumnPlace, keys, numbers[3::5], numbers[4::5]))


@functools.lru_cache(maxsize=65_536)
def _column_key(role: int, group: int, column_id: int) -> ColumnKey:
    """Return the ColumnKey that identifies a column within its file.

    Equal arguments give the same object. This saves memory, because the columns of most files have
    the same keys.

    role: a number for the kind of values, such as base values or rowids (`format.ROLES`).
    group: a number, with two uses. In a delta file, columns with the same number share one column
        of rowids and one of timestamps. For a column of encoded keys, the file has the key of every
        2^group-th row.
    """
    return ColumnKey(role, group, column_id)


@dataclass(frozen=True)
class Kind:
    """A kind of values: how they are encoded as JSON, and how they are decoded and checked."""

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_INT: Final = Kind("integer", _same, _integer)
_INT_OR_NULL: Final = Kind("integer or null", _same, _nullable(_integer))
_TEXT: Final = Kind("text", _same, _text)
_HEX: Final = Kind("hexadecimal text", bytes.hex, _bytes)
_HEX_OR_NULL: Final = Kind("hexadecimal text or null", _nullable(bytes.hex), _nullable(_bytes))
_INTS: Final = Kind("list of integers", list, _integers)
_PLACES: Final = Kind("list of integers, five for each column", _encode_places, _decode_places)
_SCHEMA: Final = Kind(
    "text (JSON)", lambda schema: schema.to_json(), lambda text: Schema.from_json(_text(text))
)
_LEVELS: Final = Kind(
    "text (JSON)", lambda schema: schema.to_json(), lambda text: PartitionSchema.from_json(_text(text))
)


@dataclass(frozen=True)
class Shape:
    """Describes one type of entry: its name in the JSON, and its fields.

    fields: for each field its name in the JSON, its kind, and the attribute of the entry.
    """

    name: str
    fields: tuple[tuple[str, Kind, str], ...]

    def encode(self, entry: Any) -> dict[str, Any]:
        out = {}
        for name, kind, attribute in self.fields:
            value = entry
            for part in attribute.split("."):
                value = getattr(value, part)
            out[name] = kind.encode(value)
        return out

    def decode(self, value: Any) -> dict[str, Any]:
        """Return the decoded fields by name. Raises: ValueError if one is missing, unknown or invalid."""
        if type(value) is not dict or len(value) != len(self.fields):
            raise ValueError(f"expected the {len(self.fields)} fields of {self.name}, found {value!r:.200}")
        try:
            return {name: kind.decode(value[name]) for name, kind, _ in self.fields}
        except KeyError as error:
            raise ValueError(f"an entry of {self.name} lacks the field {error}") from None


def _plain(*names: str, kind: Kind = _INT) -> tuple[tuple[str, Kind, str], ...]:
    return tuple((name, kind, name) for name in names)


STORE: Final = Shape(
    "store",
    (
        ("store_id", _TEXT, "store_id"),
        *_plain(
            "created_us", "version", "timestamp_max", "wal_start",
            "next_table_id", "next_tablet_id", "next_rowset_id", "next_delta_id",
        ),
    ),
)  # fmt: skip
TABLES: Final = Shape(
    "tables",
    (
        ("id", _INT, "id"),
        ("name", _TEXT, "name"),
        ("comment", _TEXT, "comment"),
        ("history_us", _INT_OR_NULL, "history_us"),
        ("schema_version", _INT, "schema.version"),
        ("partition_schema", _LEVELS, "partition_schema"),
        *_plain("history_start", "created"),
        ("rewritten", _INT, "rewritten_at"),
        ("drops", _INTS, "drops"),
        ("tagged", _INTS, "tagged"),
        ("purged_keys", _INT, "purged_keys"),
    ),
)
SCHEMAS: Final = Shape("schemas", (("schema", _SCHEMA, "schema"), ("since", _INT, "since")))
PURGED_RANGES: Final = Shape(
    "purged_ranges",
    (
        ("range_lower", _HEX_OR_NULL, "lower"),
        ("range_upper", _HEX_OR_NULL, "upper"),
        ("created", _INT, "created"),
        ("drops", _INTS, "drops"),
    ),
)
TABLETS: Final = Shape(
    "tablets",
    (
        *_plain("id", "table_id"),
        ("hash_buckets", _INTS, "partition.hash_buckets"),
        ("range_lower", _HEX_OR_NULL, "partition.range_lower"),
        ("range_upper", _HEX_OR_NULL, "partition.range_upper"),
        *_plain("inserts_durable", "created"),
        ("drops", _INTS, "drops"),
        ("auto_id", _INT, "auto_id"),
    ),
)
_FILE: Final = (
    *_plain("path", "file_id", kind=_TEXT),
    ("size_bytes", _INT, "size_bytes"),
    ("places", _PLACES, "places"),
)
ROWSETS: Final = Shape(
    "rowsets",
    (
        *_plain("id", "tablet_id", "row_count"),
        *_plain("key_min", "key_max", kind=_HEX),
        *_plain("deltas_durable", "schema_version"),
        *_FILE,
    ),
)
PARTS: Final = Shape("parts", (*_plain("id", "rowset_id"), *_FILE))
DELTAS: Final = Shape(
    "deltas",
    (
        *_plain("id", "rowset_id"),
        ("kind", _TEXT, "kind"),
        *_plain("timestamp_min", "timestamp_max", "record_count"),
        ("column_ids", _INTS, "column_ids"),
        *_FILE,
    ),
)
COMMITTED_KEYS: Final = Shape(
    "committed_keys", (("key", _TEXT, "key"), *_plain("timestamp", "version"), ("result", _TEXT, "result"))
)

MESSAGES: Final = Shape("messages", (("timestamp", _INT, "timestamp"), ("message", _TEXT, "message")))

TAGS: Final = Shape("tags", (("name", _TEXT, "name"), ("timestamp", _INT, "timestamp")))

SHAPES: Final = (
    STORE, TABLES, SCHEMAS, PURGED_RANGES, TABLETS, ROWSETS, PARTS, DELTAS, COMMITTED_KEYS, MESSAGES,
    TAGS,
)  # fmt: skip


# --- entries ----------------------------------------------------------------------------------------


def _encode_table(table: TableEntry) -> dict[str, Any]:
    versions = [
        SCHEMAS.encode(SimpleNamespace(schema=schema, since=table.schema_since.get(version, 0)))
        for version, schema in table.schemas.items()
    ]
    purged = [PURGED_RANGES.encode(gone) for gone in table.purged]
    return {**TABLES.encode(table), "schemas": versions, "purged_ranges": purged}


def _decode_table(value: Any) -> TableEntry:
    own = dict(value)
    versions = [SCHEMAS.decode(each) for each in _list(own.pop("schemas", None))]
    ranges = [PURGED_RANGES.decode(each) for each in _list(own.pop("purged_ranges", None))]
    fields = TABLES.decode(own)
    schemas = {each["schema"].version: each["schema"] for each in versions}
    since = {each["schema"].version: each["since"] for each in versions}
    return TableEntry(
        fields["id"], fields["name"], fields["comment"], fields["history_us"],
        schemas[fields["schema_version"]], MappingProxyType(schemas), fields["partition_schema"],
        fields["history_start"], fields["created"], MappingProxyType(since),
        tuple([PurgedRange(e["range_lower"], e["range_upper"], e["created"], e["drops"]) for e in ranges]),
        fields["rewritten"], fields["drops"], fields["tagged"], fields["purged_keys"],
    )  # fmt: skip


def _decode_tablet(value: Any) -> TabletEntry:
    found = TABLETS.decode(value)
    partition = Partition(found["hash_buckets"], found["range_lower"], found["range_upper"])
    return TabletEntry(
        found["id"],
        found["table_id"],
        partition,
        found["inserts_durable"],
        found["created"],
        found["drops"],
        found["auto_id"],
    )


def _decoder(shape: Shape, entry: Callable[..., _T]) -> Callable[[Any], _T]:
    """Return a function that decodes an entry of this shape.

    It passes the decoded fields by name to `entry`, the class of the entry.
    """
    return lambda value: entry(**shape.decode(value))


_decode_key: Final = _decoder(COMMITTED_KEYS, CommittedKey)
_decode_tag: Final = _decoder(TAGS, TagEntry)
# The encoder and the decoder of each kind of entry that has an id.
_ENTRIES: Final[Mapping[str, tuple[Callable[[Any], dict[str, Any]], Callable[[Any], Any]]]] = {
    "tables": (_encode_table, _decode_table),
    "tablets": (TABLETS.encode, _decode_tablet),
    "rowsets": (ROWSETS.encode, _decoder(ROWSETS, RowSetEntry)),
    "parts": (PARTS.encode, _decoder(PARTS, PartEntry)),
    "deltas": (DELTAS.encode, _decoder(DELTAS, DeltaEntry)),
    "messages": (MESSAGES.encode, _decoder(MESSAGES, CommitMessage)),
}


# --- state and change -------------------------------------------------------------------------------


def encode_state(state: CatalogState) -> bytes:
    """Return the whole catalogue as JSON. Cost: 0.3 s for 10,000 rowsets of 20 columns."""
    out: dict[str, Any] = {"store": STORE.encode(state)}
    for name, (encode, _) in _ENTRIES.items():
        out[name] = [encode(entry) for entry in getattr(state, name).values()]
    out["garbage"] = dict(state.garbage)
    out["committed_keys"] = [COMMITTED_KEYS.encode(key) for key in state.committed_keys.values()]
    out["tags"] = [TAGS.encode(tag) for tag in state.tags.values()]
    return _JSON.encode(out).encode()


def decode_state(data: bytes) -> CatalogState:
    """Return the catalogue that `encode_state` encoded. Raises: ValueError if `data` is invalid."""
    return _decoded(data, _state)


def _state(fields: dict[str, Any]) -> CatalogState:
    store = STORE.decode(fields.pop("store", None))
    entries: dict[str, Any] = {
        name: MappingProxyType({entry.id: entry for entry in map(decode, _list(fields.pop(name)))})
        for name, (_, decode) in _ENTRIES.items()
    }
    garbage = {_text(path): _integer(version) for path, version in fields.pop("garbage").items()}
    keys = [_decode_key(key) for key in _list(fields.pop("committed_keys"))]
    tags = [_decode_tag(tag) for tag in _list(fields.pop("tags"))]
    _check_empty(fields)
    state = CatalogState(
        **store,
        **entries,
        garbage=MappingProxyType(garbage),
        committed_keys=MappingProxyType({key.key: key for key in keys}),
        tags=MappingProxyType({tag.name: tag for tag in tags}),
    )
    problem = next(state.problems(), None)
    if problem is not None:
        raise ValueError(problem)
    return dataclasses.replace(state, shared=state.named_twice())


def encode_change(change: CatalogChange, version: int) -> bytes:
    """Return a change as JSON, without its empty fields.

    version: the version of the catalogue after the change.
    """
    out: dict[str, Any] = {"version": version, "timestamp": change.timestamp}
    for name, (encode, _) in _ENTRIES.items():
        if put := getattr(change, f"put_{name}"):
            out[f"put_{name}"] = [encode(entry) for entry in put]
        if drop := getattr(change, f"drop_{name}"):
            out[f"drop_{name}"] = list(drop)
    for name in ("garbage", "shared", "collected", "drop_committed_keys", "drop_tags"):
        if paths := getattr(change, name):
            out[name] = list(paths)
    if change.wal_start is not None:
        out["wal_start"] = change.wal_start
    if change.committed_keys:
        out["committed_keys"] = [COMMITTED_KEYS.encode(key) for key in change.committed_keys]
    if change.put_tags:
        out["put_tags"] = [TAGS.encode(tag) for tag in change.put_tags]
    return _JSON.encode(out).encode()


def decode_change(data: bytes) -> tuple[int, CatalogChange]:
    """Return the version and the change that `encode_change` encoded.

    Raises: ValueError if `data` is invalid.
    """
    return _decoded(data, _change)


def _change(fields: dict[str, Any]) -> tuple[int, CatalogChange]:
    version = _integer(fields.pop("version", None))
    change = CatalogChange(timestamp=_integer(fields.pop("timestamp", None)))
    for name, (_, decode) in _ENTRIES.items():
        setattr(change, f"put_{name}", [decode(entry) for entry in _list(fields.pop(f"put_{name}", []))])
        setattr(change, f"drop_{name}", list(_integers(fields.pop(f"drop_{name}", []))))
    for name in ("garbage", "shared", "collected", "drop_committed_keys", "drop_tags"):
        setattr(change, name, [_text(path) for path in _list(fields.pop(name, []))])
    if "wal_start" in fields:
        change.wal_start = _integer(fields.pop("wal_start"))
    change.committed_keys = [_decode_key(key) for key in _list(fields.pop("committed_keys", []))]
    change.put_tags = [_decode_tag(tag) for tag in _list(fields.pop("put_tags", []))]
    _check_empty(fields)
    return version, change


def _check_empty(fields: Mapping[str, Any]) -> None:
    if fields:
        raise ValueError(
            f"this version of Nyala does not know the fields {sorted(fields)!r:.200}: use the version that wrote the "
            "store"
        )


def _decoded(data: bytes, decode: Callable[[dict[str, Any]], _T]) -> _T:
    try:
        fields = json.loads(data)
        if type(fields) is not dict:
            raise ValueError(f"expected a JSON object, found {fields!r:.100}")
        return decode(fields)
    except (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError) as error:
        # `Schema` and `Partition` raise AssertionError if a text breaks their invariants.
        raise ValueError(f"this is not a catalogue: {type(error).__name__}: {error}") from error
