"""Plain, bitshuffle and dictionary: when a dictionary is used, and what the decoders refuse.

See tests/unit/cfile/encoding for the rules of every encoding, and for `auto`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.cfile import format
from nyala.cfile.compression import compress, decompress
from nyala.cfile.encoding import encoding_by_code
from nyala.cfile.encoding.base import EncodedValues
from nyala.cfile.encoding.bitshuffle import shuffle_bits, unshuffle_bits
from nyala.cfile.encoding.choice import choose_encoding
from nyala.cfile.encoding.dictionary import Dictionary, _code_dtype, _sample_repeats
from nyala.cfile.encoding.plain import decode_binary, encode_binary
from nyala.cfile.physical import physical, slice_bitmap
from nyala.schema.types import parse_type


def chosen(name: str, type: str, array: pa.Array) -> str:
    form = physical(parse_type(type))
    return choose_encoding(name, form, form.stored_array(array))[0].name


def test_many_distinct_values_fall_back_to_plain() -> None:
    """Mostly distinct values are stored plain, because a dictionary would store them twice."""
    distinct = pa.array([f"name {number}" for number in range(200_000)])
    assert chosen("dictionary", "string", distinct) == "plain"
    assert chosen("dictionary", "string", distinct.slice(0, 1000)) == "plain"
    large = pa.array([str(number) * 1000 for number in range(800)] * 3)
    assert chosen("dictionary", "string", large) == "plain", "the dictionary alone is above 2 MiB"
    assert chosen("dictionary", "string", large.slice(0, 700)) == "plain", "no text repeats"
    assert chosen("dictionary", "string", pa.concat_arrays([large.slice(0, 700)] * 3)) == "dictionary"
    assert not _sample_repeats(distinct), "a sample shows this, without a dictionary of all values"
    repeated = pa.array([f"name {number // 10}" for number in range(200_000)])
    assert chosen("dictionary", "string", repeated) == "dictionary", "only neighbouring rows are equal"
    assert chosen("dictionary", "string", pa.array([""] * 1000)) == "dictionary"
    assert chosen("dictionary", "string", pa.array([], pa.string())) == "plain"


def test_the_sample_decides_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the sample has no repeats, no dictionary is built."""
    repeated = pa.array(["red", "green"] * 100_000)
    assert chosen("dictionary", "string", repeated) == "dictionary"
    monkeypatch.setattr("nyala.cfile.encoding.dictionary._sample_repeats", lambda values: False)
    assert chosen("dictionary", "string", repeated) == "plain"


@pytest.mark.parametrize(("count", "width"), [(1, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4)])
def test_codes_are_as_narrow_as_the_dictionary_allows(count: int, width: int) -> None:
    """Codes have the fewest bytes that the number of entries allows."""
    assert _code_dtype(count).itemsize == width
    if count < 1000:
        words = pa.array([f"w{number:04}" for number in range(count)] * 20)
        form = physical(parse_type("string"))
        encoding, encoder, _ = choose_encoding("dictionary", form, form.stored_array(words))
        assert encoding.name == "dictionary" and encoder.dictionary is not None
        block = EncodedValues(encoder.encode(0, len(words)), len(words), encoder.dictionary.cast(pa.string()))
        assert encoding.decode(form, block).equals(words)


def of_words(encoder: Any, lower: int, upper: int) -> EncodedValues:
    data = encoder.encode(lower, upper)
    return EncodedValues(data, upper - lower, encoder.dictionary.cast(pa.string()))


def test_codes_are_bit_packed_unless_they_are_runs() -> None:
    """Codes are bit-packed. Long runs of equal codes are compressed instead, which is far smaller."""
    form = physical(parse_type("string"))
    numbers = np.random.default_rng(7).integers(0, 300, 5000)
    mixed = pa.array([f"w{n % 7}" for n in numbers])
    for words, layout in (
        (mixed, format.CODES_PACKED),
        (pa.array([f"w{n:09}" for n in numbers]), format.CODES_PACKED),
        (pa.array(["same"] * 5000), format.CODES_PACKED),
        (mixed.take(pc.sort_indices(mixed)), format.CODES_SHUFFLED),
    ):
        encoding, encoder, _ = choose_encoding("dictionary", form, form.stored_array(words))
        assert isinstance(encoding, Dictionary)
        for lower, upper in ((0, 5000), (1234, 4321), (4999, 5000)):
            block = of_words(encoder, lower, upper)
            if upper - lower > 1:
                assert block.data[0] == layout
            part = words.slice(lower, upper - lower)
            assert encoding.decode(form, block).equals(part)
            codes = encoding.block(form, block).decode(
                0, upper - lower, pa.dictionary(pa.int32(), pa.string())
            )
            assert codes.indices.type == pa.int32() and codes.dictionary_decode().equals(part)


@settings(max_examples=settings().max_examples)
@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(0, 40), st.booleans())
def test_binary_lengths(values: list[bytes], lower: int, large: bool) -> None:
    """Values of every length come back, also empty ones."""
    array = pa.array(values, pa.large_binary() if large else pa.binary()).slice(min(lower, len(values)))
    data = encode_binary(array)
    decoded = decode_binary(pa.binary(), EncodedValues(data, len(array), None))
    decoded.validate(full=True)
    assert decoded.to_pylist() == array.to_pylist()


def test_values_of_one_length_store_no_lengths() -> None:
    """A block whose values all have one length stores no list of lengths."""
    array = pa.array([b"12345678"] * 100)
    assert encode_binary(array).size == format.BINARY_HEADER.size + 800
    assert encode_binary(pa.array([b"", b"1"])).size == format.BINARY_HEADER.size + 2 + 1
    assert encode_binary(pa.array([b"", b"1" * 256])).size == format.BINARY_HEADER.size + 4 + 256
    assert encode_binary(pa.array([b"", b"1" * 65536])).size == format.BINARY_HEADER.size + 8 + 65536


@pytest.mark.parametrize(
    ("header", "body", "count"),
    [
        ((3, 1), b"\x01\x03abc", 2),  # lengths make 4
        ((3, 1), b"\x01\x01abc", 2),  # lengths make 2
        ((3, 3), b"\x01\x02\x00\x00\x00\x00abc", 2),  # no such width
        ((3, 0), b"abc", 2),  # not divisible
        ((4, 1), b"\x01\x02abc", 2),  # more bytes than the block has
        ((2, 1), b"\x01\x01abc", 2),  # fewer bytes than the block has
        ((3, 1), b"", 2),
        ((0, 0), b"a", 0),
    ],
)
def test_impossible_lengths_are_refused(header: tuple[int, int], body: bytes, count: int) -> None:
    """Lengths that exceed the block's bytes are refused before a value is read."""
    data = pa.py_buffer(format.BINARY_HEADER.pack(*header, bytes(3)) + body)
    with pytest.raises(ValueError, match="expected"):
        decode_binary(pa.binary(), EncodedValues(data, count, None))
    with pytest.raises(ValueError, match="expected a header"):
        decode_binary(pa.binary(), EncodedValues(data.slice(0, 7), count, None))


def test_impossible_blosc_frames_are_refused() -> None:
    """Blosc never gets a frame with wrong sizes, because it would write past its buffer."""
    values = np.arange(1000, dtype="<i4")
    frame = shuffle_bits(values).to_pybytes()
    assert np.array_equal(np.frombuffer(unshuffle_bits(pa.py_buffer(frame), 1000, 4), "<i4"), values)
    for count, width in ((999, 4), (1001, 4), (1000, 8), (500, 8)):
        with pytest.raises(ValueError, match="expected"):
            unshuffle_bits(pa.py_buffer(frame), count, width)
    for cut in (0, 15, 16, len(frame) - 1):
        with pytest.raises(ValueError, match="expected"):
            unshuffle_bits(pa.py_buffer(frame[:cut]), 1000, 4)
    for position in range(16):
        for bit in range(8):
            broken = bytearray(frame)
            broken[position] ^= 1 << bit
            try:
                unshuffle_bits(pa.py_buffer(bytes(broken)), 1000, 4)
            except ValueError as error:
                assert "expected" in str(error)


def test_bitshuffle_transposes_bits() -> None:
    """Bitshuffle transposes bits, not bytes: small numbers take a fifth of a byte shuffle."""
    values = np.random.default_rng(0).integers(0, 2, 100_000).astype("<i8")
    assert shuffle_bits(values).size < 100_000 / 8 * 1.5


def test_blocks_with_too_few_bytes_are_refused() -> None:
    """A block with another number of bytes than its values need is refused."""
    for type in ("bool", "int32", "decimal(38,0)"):
        form = physical(parse_type(type))
        plain = encoding_by_code(format.ENCODING_PLAIN)
        assert plain is not None
        with pytest.raises(ValueError, match="expected"):
            plain.decode(form, EncodedValues(pa.py_buffer(bytes(7)), 100, None))


def test_codes_beyond_the_dictionary_are_refused() -> None:
    """A code that is not less than the number of entries is refused."""
    form = physical(parse_type("string"))
    encoding = encoding_by_code(format.ENCODING_DICTIONARY)
    assert isinstance(encoding, Dictionary)
    data = shuffle_bits(np.array([0, 1, 2], "<u1"))
    with pytest.raises(ValueError, match="codes below 2, found 2"):
        encoding.decode(form, EncodedValues(data, 3, pa.array(["a", "b"])))
    with pytest.raises(ValueError, match="dictionary"):
        encoding.decode(form, EncodedValues(data, 3, None))
    abc = pa.array(["a", "b", "c"])
    for values in (
        b"",
        b"\0" * 9,  # no layout
        b"\1\2\0\0",  # half a header
        b"\1\2\0\0\0\0\0\0",  # no deltas
        b"\1\2\0\0\0\0\0\0\x24\0",  # a byte too many
        b"\1\2\0\0\0\0\0\0\x03",  # a delta of 3
        b"\1\2\0\0\1\0\0\0\x02",  # 1 + 2
        b"\1\0\0\0\3\0\0\0",  # 3 + nothing
        b"\1\0\0\0\xff\xff\xff\xff",
        b"\1\x21\0\0\0\0\0\0" + bytes(13),  # 33 bits
        b"\1\x20\0\0\0\0\0\0" + b"\xff" * 12,
    ):
        block = EncodedValues(pa.py_buffer(values), 3, abc)
        with pytest.raises(ValueError, match=r"expected .* found"):
            encoding.block(form, block)
    right = EncodedValues(pa.py_buffer(b"\1\2\0\0\0\0\0\0\x24"), 3, abc)
    assert encoding.decode(form, right).to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize("code", range(2, 6))
def test_absurd_lengths_are_refused_before_memory_is_taken(code: int) -> None:
    """A damaged length is refused before memory is allocated for it."""
    used, packed = compress(code, pa.py_buffer(bytes(1000)))
    assert used == code and decompress(code, packed, 1000).to_pybytes() == bytes(1000)
    with pytest.raises(ValueError, match="expected"):
        decompress(code, packed, 1 << 45)
    with pytest.raises(ValueError, match="expected"):
        decompress(code, packed, 10)
    with pytest.raises(ValueError, match="expected"):
        decompress(code, pa.py_buffer(b"\xff" * 40), 1000)
    with pytest.raises(ValueError, match="known compression"):
        decompress(code + 90, packed, 1000)


def test_threads_may_compress_at_the_same_time() -> None:
    """Threads that shared Arrow's zlib codec, which contains the state of a stream, would mix their bytes."""

    def compress_and_back(seed: int) -> bool:
        data = np.random.default_rng(seed).integers(0, 9, 50_000, np.uint8).tobytes()
        used, packed = compress(format.COMPRESSION_ZLIB, pa.py_buffer(data))
        return decompress(used, packed, len(data)).to_pybytes() == data

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(compress_and_back, range(40)))


@given(st.lists(st.booleans(), min_size=1, max_size=70), st.data())
def test_bitmaps_of_slices(bits: list[bool], data: st.DataObject) -> None:
    """The bitmap of a slice is right if the slice does not begin at a whole byte."""
    lower = data.draw(st.integers(0, len(bits) - 1))
    count = data.draw(st.integers(1, len(bits) - lower))
    bitmap = pa.array(bits).buffers()[1]
    part = bytes(slice_bitmap(bitmap, lower, count))
    expected = np.packbits(np.array(bits[lower : lower + count]), bitorder="little").tobytes()
    assert part == expected
