"""One block through one encoding, and columns that are hard to encode."""

from __future__ import annotations

import itertools
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from tests.unit.cfile.memory import TYPE_SPECS, same

from nyala.cfile import format
from nyala.cfile.encoding import ENCODINGS
from nyala.cfile.encoding.base import EncodedValues, Encoding
from nyala.cfile.encoding.choice import choose_encoding
from nyala.cfile.physical import Physical, physical
from nyala.cfile.writer import rows_per_block_log2
from nyala.schema.schema import allowed_encodings
from nyala.schema.types import parse_type

ALLOWED = [
    (type, encoding)
    for type in TYPE_SPECS
    for encoding in allowed_encodings(parse_type(type))
    if encoding
    # The form of these depends on the column; see test_encodings.
    not in ("auto", "dictionary")
]


def form_of(type: str) -> Physical:
    return physical(parse_type(type))


def encoding_of(name: str) -> Encoding:
    return next(encoding for encoding in ENCODINGS if encoding.name == name)


def encoded(name: str, type: str, array: pa.Array) -> pa.Buffer:
    """Return the bytes of a column with at least one value, as one block."""
    form = form_of(type)
    stored = form.stored_array(array).drop_null()
    encoder = encoding_of(name).prepare(form, stored)
    assert encoder is not None and encoder.dictionary is None
    return encoder.encode(0, len(stored))


def decoded(
    name: str, type: str, data: pa.Buffer | bytes, array: pa.Array, dictionary: pa.Array | None = None
) -> pa.Array:
    """Return the values of a block with these bytes and as many values as `array`."""
    buffer = pa.py_buffer(data) if isinstance(data, bytes) else data
    block = EncodedValues(buffer, len(array) - array.null_count, dictionary)
    return encoding_of(name).decode(form_of(type), block)


def back(name: str, type: str, array: pa.Array) -> pa.Buffer:
    """Encode, decode and compare every bit; return the encoded bytes."""
    data = encoded(name, type, array)
    found = decoded(name, type, data, array)
    found.validate(full=True)
    assert found.type == array.type and same(found, array.drop_null()), (name, found, array)
    return data


def chosen(name: str, type: str, array: pa.Array, compression: int = format.COMPRESSION_DEFAULT) -> str:
    form = form_of(type)
    block_rows = 1 << rows_per_block_log2(form, array, format.BLOCK_SIZE_BYTES_DEFAULT)
    stored = form.stored_array(array).drop_null()
    block_rows = max(1, block_rows * len(stored) // max(1, len(array)))
    return choose_encoding(name, form, stored, compression, block_rows=block_rows)[0].name


@st.composite
def blocks(draw: st.DrawFn, type: str) -> pa.Array:
    """Draw 1 to 300 values of a type: any, few distinct, one, runs or a line; sorted or not; some NULLs."""
    column = parse_type(type)
    count = draw(st.integers(1, 300))
    if column.name == "bool":
        one: st.SearchStrategy[object] = st.booleans()
    elif column.is_floating:
        width = 32 if column.name == "float" else 64
        one = st.floats(width=width, allow_nan=False) | st.just(float("nan"))
    elif column.is_variable:
        length = column.length or 40
        text = st.text(max_size=length) if column.is_text else st.binary(max_size=40)
        common = st.sampled_from(["", "key-", "a\0", "\U0001f992" * 5])
        one = text if not column.is_text else st.builds(lambda a, b: (a + b)[:length], common, text)
    else:
        assert column.value_min is not None and column.value_max is not None
        least, greatest = column.value_min, column.value_max
        one = st.integers(least, greatest) | st.integers(max(least, -300), min(greatest, 300))
        one |= st.sampled_from([least, greatest, least + 1, greatest - 1])
    distinct = draw(st.lists(one, min_size=1, max_size=draw(st.sampled_from([1, 3, 300]))))
    if draw(st.booleans()):
        values = list(itertools.islice(itertools.cycle(distinct), count))
    else:
        runs = draw(st.integers(1, count))
        values = [value for value in distinct for _ in range(runs)][:count]
    if draw(st.booleans()) and not column.is_floating:
        values.sort()
    if not (column.name == "bool" or column.is_floating or column.is_variable) and draw(st.booleans()):
        first, step = draw(st.integers(-100, 100)), draw(st.integers(-3, 3))
        line = [first + step * place + draw(st.integers(0, 1)) for place in range(min(count, 30))]
        values = [value for value in line if column.value_min <= value <= column.value_max] or [0]
    if draw(st.booleans()):
        gaps = draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
        gaps[draw(st.integers(0, len(values) - 1))] = False  # blocks of NULLs only have no values
        values = [None if gap else value for gap, value in zip(gaps, values, strict=True)]
    return arrow_of(type, values)


def arrow_of(type: str, values: list[object]) -> pa.Array:
    """Return Python values (unscaled integers for decimals) as the type's Arrow array."""
    column = parse_type(type)
    if column.name in ("date", "timestamp"):
        return pa.array(values, pa.int32() if column.name == "date" else pa.int64()).view(column.arrow)
    if column.name == "decimal":
        sign_digits = [
            None
            if value is None
            else Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -(column.scale or 0)))
            for value in values
        ]
        return pa.array(sign_digits, column.arrow)
    return pa.array(values, column.arrow)


def int64(values: object) -> pa.Array:
    return pa.array(np.asarray(values, np.int64))
