"""Pattern: text of one length as numbers, of which a place has as many digits as characters may stand there."""

from __future__ import annotations

import math
import struct
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.encoding.test_every_encoding import mutate
from tests.unit.cfile.encoding.values import back, decoded, encoded, encoding_of, form_of
from tests.unit.cfile.memory import MemoryFiles
from tests.unit.cfile.test_roundtrip import written

from nyala.cfile import format
from nyala.cfile.encoding import choose_encoding, pattern
from nyala.cfile.encoding.frame_of_reference import FrameOfReference
from nyala.cfile.physical import physical
from nyala.schema.types import ColumnType

N = 9000
RANDOM = np.random.default_rng(9)


def bits_a_value(type: str, values: list[Any]) -> float:
    return 8 * back("pattern", type, pa.array(values, type)).size / len(values)


def frame(numbers: list[int]) -> bytes:
    form = physical(ColumnType("int64"))
    encoder = FrameOfReference().prepare(form, pa.array(numbers, pa.int64()))
    assert encoder is not None
    return encoder.encode(0, len(numbers)).to_pybytes()


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def block(alphabets: list[bytes], words: list[list[int]], **changed: Any) -> bytes:
    """As the page says; `changed`: what is said otherwise."""
    frames = [frame(numbers) for numbers in words]
    letters = b"".join(alphabets)
    lengths = changed.get("lengths", list(map(len, frames)))
    head = format.PATTERN_HEADER.pack(
        changed.get("length", len(alphabets)),
        changed.get("count", len(lengths)),
        changed.get("letters", len(letters)),
    )
    sizes = bytes(changed.get("sizes", [len(alphabet) - 1 for alphabet in alphabets]))
    body = head + sizes + letters + struct.pack(f"<{len(lengths)}I", *lengths)
    return padded(body) + b"".join(map(padded, frames))


def test_a_value_is_the_ranks_of_its_characters() -> None:
    """The example of the page, and of the module: places that are always alike cost nothing."""
    data = back("pattern", "string", pa.array(["K7-01", "K7-02", "M9-01"]))
    assert data.to_pybytes() == block([b"KM", b"79", b"-", b"0", b"12"], [[0, 1, 6]])


IDS: dict[str, tuple[Any, int]] = {
    "uuid": (lambda n: str(uuid.UUID(bytes=RANDOM.bytes(16), version=4)), 123),
    "md5": (lambda n: RANDOM.bytes(16).hex(), 129),
    "sha1": (lambda n: RANDOM.bytes(20).hex(), 162),
    "numbered": (lambda n: f"Customer#{n:09}", 1),
    "every seventh": (lambda n: f"{n * 7:08}", 1),
    "phone": (lambda n: f"+49-{RANDOM.integers(10**8, 10**9)}", 31),
    "date": (lambda n: f"2026-{1 + n % 12:02}-{1 + n % 28:02}", 14),
}


@pytest.mark.parametrize("kind", IDS)
def test_what_ids_and_numbers_take(kind: str) -> None:
    """Four bits of a hexadecimal digit, none of a dash, next to none of those that are numbered."""
    make, bits = IDS[kind]
    assert bits_a_value("string", [make(n) for n in range(N)]) < bits


def test_sorted_ones_are_steps() -> None:
    """Ids that begin with a time, as UUIDs of version 7 do, are the keys of a table: the first word ascends."""
    times = np.cumsum(RANDOM.integers(0, 2000, N)) + 1_700_000_000_000
    values = [f"{ms:012x}-{RANDOM.bytes(4).hex()}" for ms in times.tolist()]
    in_no_order = [values[place] for place in RANDOM.permutation(N)]
    assert bits_a_value("string", values) < 11 + 32 + 1
    assert bits_a_value("string", in_no_order) > 23 + 32


def test_words_have_as_many_places_as_fit() -> None:
    """48 bits: twelve hexadecimal digits, or six bytes of any kind; the rest is another word."""
    for alphabet, places in (
        (b"0123456789abcdef", 12),
        (bytes(range(256)), 6),
        (b"0123456789", 14),
        (b"01", 48),
    ):
        for length in (places, places + 1):
            of_place = np.frombuffer(alphabet, np.uint8)
            values = of_place[RANDOM.integers(0, len(alphabet), (3000, length))]
            values[: len(of_place)] = of_place[:, None]
            encoder = encoding_of("pattern").prepare(
                form_of("binary"), pa.array([v.tobytes() for v in values])
            )
            if alphabet == bytes(range(256)):
                assert encoder is None, "bytes of any kind take as much as they are"
                continue
            assert encoder is not None
            _, words, _ = format.PATTERN_HEADER.unpack_from(encoder.encode(0, len(values)))
            assert words == 1 + (length > places)


alphabets = st.lists(
    st.binary(min_size=1, max_size=9).map(lambda letters: bytes(sorted({*letters}))), min_size=1, max_size=40
)


@given(alphabets, st.integers(1, 30), st.integers(0, 2**32), st.booleans(), st.booleans())
def test_any_values_of_one_length_come_back(
    letters: list[bytes], rows: int, seed: int, is_sorted: bool, has_nulls: bool
) -> None:
    """Words of many places and of one, groups that end at eight bytes or at 4,096 spellings, NULLs anywhere."""
    rng = np.random.default_rng(seed)
    values: list[bytes | None] = [
        bytes(alphabet[rng.integers(len(alphabet))] for alphabet in letters) for _ in range(rows)
    ]
    values = sorted(value for value in values if value is not None) if is_sorted else values
    if has_nulls:
        values = [value if rng.random() < 0.5 else None for value in values]
    array = pa.array(values, pa.binary())
    encoder = encoding_of("pattern").prepare(form_of("binary"), array)
    if array.null_count == rows:
        assert encoder is None
        return
    bits = 8 * len(letters)
    if encoder is not None:
        back("pattern", "binary", array)
    else:
        used = [len({v[place] for v in values if v is not None}) for place in range(len(letters))]
        assert math.log2(math.prod(used)) > 0.8 * bits - 8


@pytest.mark.parametrize(
    "values",
    [["a", "bc"], ["", ""], ["x" * 129] * 2, ["é", "e"], [None, "ab", "a"], [None, None]],
)
def test_values_that_have_no_pattern_are_plain(values: list[Any]) -> None:
    """Longer ones and shorter, empty ones, very long ones: `choose_encoding` says so, whoever asked."""
    array = form_of("string").stored_array(pa.array(values, pa.string()))
    assert encoding_of("pattern").prepare(form_of("string"), array) is None
    assert choose_encoding("pattern", form_of("string"), array)[0].name == "plain"
    files = MemoryFiles()
    column = written(files, pa.array(values, pa.string()), "string", "pattern")
    assert column.read(0, len(values)).to_pylist() == values


def test_a_null_takes_the_value_before() -> None:
    """Or the first: its deltas cost the others nothing."""
    data = back("pattern", "string", pa.array([None, "K7-01", None, "M9-02"]))
    assert data.to_pybytes() == block([b"KM", b"79", b"-", b"0", b"12"], [[0, 0, 0, 7]])


def test_characters_may_be_cut() -> None:
    """é and ê are two places, of which the first is always the same."""
    assert back("pattern", "string", pa.array(["é", "ê"])).to_pybytes() == block(
        [b"\xc3", b"\xa9\xaa"], [[0, 1]]
    )


def test_a_block_depends_on_nothing_outside_of_it() -> None:
    """The column's alphabets are in each, also where a block has not all of their characters."""
    values = [f"{n:05}" for n in range(4000)]
    column = written(MemoryFiles(), pa.array(values), "string", "pattern", "default", 4096)
    assert column.block_count > 5
    assert column.read(1500, 1510).to_pylist() == values[1500:1510]


ONE = [b"ab", b"xyz"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "a header of 8 bytes"),
        (bytes(7), "a header of 8 bytes"),
        (block(ONE, [[0, 1, 5]], length=0), "1 to 128 bytes, found 0"),
        (block(ONE, [[0, 1, 5]], length=129), "1 to 128 bytes, found 129"),
        (block(ONE, [[0, 1, 5]], letters=6), "expected 5 bytes of alphabets, found 6"),
        (block(ONE, [[0, 1, 5]], letters=1 << 31), "bytes of alphabets and lengths of frames"),
        (block(ONE, [[0, 1, 5]], sizes=[1, 255]), "258 bytes of alphabets"),
        (block([b"ba", b"xyz"], [[0, 1, 5]]), "ascending order"),
        (block([b"aa", b"xyz"], [[0, 1, 5]]), "ascending order"),
        (block([b"ab", b"xzz"], [[0, 1, 5]]), "ascending order"),
        (block(ONE, [[0, 1, 6]]), "that the places can say"),
        (block(ONE, [[0, -1, 5]]), "that the places can say"),
        (block(ONE, [[0, 1, 2**62]]), "that the places can say"),
        (block(ONE, [[0, 1, 5], [0, 0, 0]]), "expected 1 words"),
        (block(ONE, []), "expected 1 words"),
        (block(ONE, [[0, 3, 1, 5, 0, 4, 2, 2, 5] * 9]), "for 3 values"),
        (block(ONE, [[0, 1, 5]], lengths=[8]), "frames of 8 bytes"),
        (block(ONE, [[0, 1, 5]]) + b"12345678", "frames of"),
        (block(ONE, [[0, 1, 5]])[:-8], "frames of"),
    ],
)
def test_blocks_that_nobody_wrote_are_refused(content: bytes, reason: str) -> None:
    """Text would be made of what lies behind the block, or of ranks that no alphabet has."""
    with pytest.raises(ValueError, match=reason):
        decoded("pattern", "binary", content, pa.array([b"ax", b"ay", b"bz"]))


def test_a_small_block_of_very_many_bytes_is_refused() -> None:
    """A hundred bytes that say they are a hundred megabytes."""
    rows = pa.array([b""] * (1 << 20))
    content = block([b"a"] * 128, [[0] * len(rows)])
    with pytest.raises(ValueError, match="at most 67108864 bytes of values, found 134217728"):
        decoded("pattern", "binary", content, rows)


def test_auto_takes_it_where_it_is_a_quarter_smaller() -> None:
    """And plain where a pattern says no more than LZ4 finds, or dictionary where values return."""
    form = form_of("string")

    def taken(values: list[str], **options: Any) -> str:
        return choose_encoding("auto", form, form.stored_array(pa.array(values)), **options)[0].name

    hashes = [RANDOM.bytes(16).hex() for _ in range(N)]
    assert taken(hashes) == "pattern"
    assert taken(sorted(hashes), is_index=True) == "pattern"
    assert taken([*hashes[:-1], "no hash"]) == "plain", "what is not like the samples is seen all the same"
    assert taken(hashes[:20] * 400) == "dictionary"
    assert taken(hashes[:20] * 400, is_index=True) in ("plain", "pattern")
    assert taken([f"{word} {n}" for n, word in enumerate(["alike", "or not"] * 3000)]) == "plain"


@pytest.mark.parametrize("has_nulls", [False, True])
def test_mutations_are_refused_or_harmless(has_nulls: bool) -> None:
    """Bytes that are nearly right get deepest into a decoder: lengths, alphabets, and numbers of words of several
    groups."""
    values = [RANDOM.bytes(9).hex().encode() + b"-%05d" % (n * 37) for n in range(100)]
    array = pa.array(
        [value if n % 7 or not has_nulls else None for n, value in enumerate(values)], pa.binary()
    )
    mutate("pattern", "binary", encoded("pattern", "binary", array).to_pybytes(), array)


def test_alphabets_that_take_more_than_they_save_are_not_stored() -> None:
    """They stand in every block: of 64 hexadecimal digits a kilobyte, in blocks of 512 bytes."""
    values = [RANDOM.bytes(32).hex() for _ in range(2000)]
    sizes = {}
    for encoding in ("pattern", "plain"):
        column = written(files := MemoryFiles(), pa.array(values), "string", encoding, "none", 512)
        assert column.encoding == "plain"
        sizes[encoding] = sum(map(len, files.content.values()))
    assert sizes["pattern"] == sizes["plain"]
    assert written(MemoryFiles(), pa.array(values), "string", "pattern", "none", 8192).encoding == "pattern"
    assert (
        written(MemoryFiles(), pa.array(values[:3]), "string", "pattern", "none", 512).encoding == "pattern"
    )


def test_what_blocks_have_in_common_is_kept_in_few_bytes() -> None:
    """It lies outside of memory_limit: a scan of a hundred files with long values kept a hundred megabytes."""
    layouts = pattern._Layouts(100_000)
    described = [bytes([1, 1]) + bytes([65 + n, 66 + n, 97, 98]) for n in range(20)]
    described += [bytes([63] * 8) + bytes(range(n, n + 64)) * 8 for n in range(4)]
    for one in [*described, *described[::-1]]:
        length = 2 if len(one) < 10 else 8
        found = layouts.of(length, one)
        assert found.groups[0][0].words.tolist() == pattern._layout(length, one).groups[0][0].words.tolist()
        assert layouts.of(length, one) is found
        assert sum(kept.nbytes for kept in layouts._kept.values()) == layouts._size_bytes <= 100_000
    assert 1 < len(layouts._kept) < 24
    alike = pattern._layout(8, described[-1])
    assert alike.nbytes == 8 * 4096, "groups alike have one table"
