"""Column files in memory that count their reads, and values of every type."""

from __future__ import annotations

import decimal
import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from nyala.errors import StorageError
from nyala.schema.types import ColumnType, parse_type

TYPE_SPECS = (
    *("bool", "int8", "int16", "int32", "int64", "date", "timestamp", "float", "double"),
    *("decimal(9,2)", "decimal(18,0)", "decimal(38,10)", "varchar(40)", "string", "binary"),
)


@dataclass
class MemoryFiles:
    """The part of `Files` that column files use. After `fail_after_bytes`, the disk is full."""

    content: dict[str, bytes] = field(default_factory=dict)
    appends: list[int] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)
    syncs: int = 0
    opens: int = 0
    fail_after_bytes: int | None = None
    is_remote: bool = False

    def create(self, path: str) -> _Appended:
        assert path not in self.content
        self.content[path] = b""
        return _Appended(self, path)

    def open(self, path: str) -> _Opened:
        self.opens += 1
        return _Opened(self, path)

    def size(self, path: str) -> int:
        return len(self.content[path])

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        self.content.pop(path, None)


@dataclass
class _Appended:
    files: MemoryFiles
    path: str

    @property
    def size_bytes(self) -> int:
        return len(self.files.content[self.path])

    def append(self, *parts: Any) -> int:
        offset = self.size_bytes
        data = b"".join(parts)
        self.files.appends.append(len(data))
        limit = self.files.fail_after_bytes
        if limit is not None and offset + len(data) > limit:
            raise StorageError("the disk is full", path=self.path, errno=28)
        self.files.content[self.path] += data
        return offset

    def sync(self) -> None:
        self.files.syncs += 1

    def close(self) -> None:
        pass


@dataclass
class _Opened:
    files: MemoryFiles
    path: str

    def size_bytes(self) -> int:
        return len(self.files.content[self.path])

    def read(self, offset: int, length: int) -> bytes:
        if length:
            self.files.reads.append((offset, length))
        return self.files.content[self.path][offset : offset + length]

    def read_into(self, offset: int, memory: Any) -> int:
        view = memoryview(memory).cast("B")
        data = self.read(offset, len(view))
        view[: len(data)] = data
        return len(data)

    def forget(self, offset: int, length: int) -> bool:
        return False

    def close(self) -> None:
        pass


@functools.cache
def make_values(spec: str | ColumnType, count: int, seed: int = 0, null_share: float = 0.0) -> pa.Array:
    """Return `count` values of a type, including its extremes and some NULLs."""
    type = parse_type(spec)
    random = np.random.default_rng(seed)
    small = random.integers(-100, 100, count)
    nulls = random.random(count) < null_share
    edges: list[Any]
    values: list[Any]
    if type.name == "bool":
        edges, values = [], (small > 0).tolist()
    elif type.is_floating:
        edges, values = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0], (small / 4).tolist()
    elif type.name == "decimal":
        assert type.value_min is not None and type.value_max is not None
        unscaled = [type.value_min, type.value_max, *small.tolist()][:count]
        context = decimal.Context(prec=50)
        values = [decimal.Decimal(number).scaleb(-(type.scale or 0), context) for number in unscaled]
        edges = []
    elif type.name in ("string", "varchar"):
        edges, values = ["", "é", "\U0001f992", "a\0", "x" * 40], [f"name-{number % 7}" for number in small]
    elif type.name == "binary":
        edges, values = [b"", b"\0", b"\xff" * 40], [bytes([number % 5]) * 3 for number in small.tolist()]
    else:
        edges, values = [type.value_min, type.value_max], small.tolist()
    values = (edges + values)[:count]
    holes = [None if null else value for null, value in zip(nulls, values, strict=True)]
    if type.name in ("date", "timestamp"):
        storage = pa.int32() if type.name == "date" else pa.int64()
        return pa.array(holes, storage).cast(type.arrow)
    return pa.array(holes, type.arrow)


def same(left: pa.Array, right: pa.Array) -> bool:
    """Compare bit by bit: NaN equals NaN, and -0.0 differs from 0.0."""
    if pa.types.is_floating(left.type):
        bits = pa.int32() if left.type == pa.float32() else pa.int64()
        left, right = left.view(bits), right.view(bits)
    return bool(left.equals(right))
