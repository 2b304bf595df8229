"""Rows told from whole blocks as they are read (`sieve`), and the values of some of them (`read_values`): what each
column says by itself, for every layout of a block and every kind of constraint, and nothing of what no writer wrote."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.test_forged_frames import block_of

import nyala.cfile.kernels
from nyala.cfile import format
from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.kernels import Demand, Stretch
from nyala.cfile.reader import CFileReader
from nyala.cfile.straight import picked, sieved, values_of
from nyala.cfile.writer import CFileWriter
from nyala.env import PosixFiles
from nyala.schema.constraint import Constraint
from nyala.schema.types import parse_type

pytestmark = pytest.mark.skipif(not nyala.cfile.kernels.CAN_FETCH, reason="nothing was compiled")

ROWS = 6000
RANDOM = np.random.default_rng(43)


def numbers(below: int) -> list[int]:
    found: list[int] = RANDOM.integers(0, below, ROWS).tolist()
    return found


COLUMNS: dict[str, tuple[str, str, list[Any]]] = {
    "constant": ("int64", "for", [7] * ROWS),
    "tiny": ("int64", "for", [n * 100 for n in numbers(5)]),  # a unit
    "far apart": ("int64", "for", [[-5, 1 << 40, 3, 1 << 50, 12346][n] for n in numbers(5)]),
    "small": ("int32", "for", [n - 1500 for n in numbers(3001)]),
    "wide": ("int64", "for", [n * 7919 for n in numbers(1_000_003)]),
    "slope": ("int64", "for", [i * 1000 + n for i, n in enumerate(numbers(3))]),
    "jumps": ("int64", "for", list(itertools.accumulate(n**3 * 99 for n in numbers(7)))),
    "rises": ("int64", "for", list(itertools.accumulate(n + i // 100 for i, n in enumerate(numbers(64))))),
    "word": ("string", "dictionary", [f"word {n:02}" for n in numbers(11)]),
    "many": ("string", "dictionary", [f"word {n:03}" for n in numbers(601)]),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = os.fspath(tmp_path_factory.mktemp("sieving") / "f")
    with CFileWriter(PosixFiles(), path) as writer:
        for number, (spec, encoding, values) in enumerate(COLUMNS.values()):
            type = parse_type(spec)
            asked = ColumnWriteSpec(ColumnKey(BASE, 0, number), type, encoding, "none", 1 << 15)
            writer.append_column(asked, pa.array(values, type.arrow))
        writer.finish()
    return path


@pytest.fixture(scope="module")
def columns(path: str, compiled_kernels: ModuleType) -> Iterator[dict[str, ColumnReader]]:
    """All columns, read by each of the builds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nyala.cfile.kernels, "_kernels", compiled_kernels)
        reader = CFileReader(PosixFiles(), path, None)
        found = {name: reader.column(ColumnKey(BASE, 0, place)) for place, name in enumerate(COLUMNS)}
        yield {name: column for name, column in found.items() if column is not None}
        reader.close()


def constraint_of(values: list[Any], draw: Any) -> Constraint:
    """One that some of the values satisfy, or none, or all."""
    some = st.sampled_from(values)
    if isinstance(values[0], str):
        some = some | st.sampled_from(["", "word", "x"])
    else:
        some = some | st.integers(-(1 << 63), (1 << 63) - 1) | some.map(lambda value: max(value, -9) + 1)
    kind = draw(st.sampled_from(["range", "lower", "upper", "one", "few", "more"]))
    one, other = sorted((draw(some), draw(some)))
    if kind == "range":
        return Constraint(lower=one, upper=other, null="none")
    if kind in ("lower", "upper"):
        return Constraint(**{kind: one}, null="none")
    return Constraint.one_of([one, *draw(st.lists(some, max_size={"one": 0, "few": 6, "more": 30}[kind]))])


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data())
def test_the_rows_are_those_that_satisfy_all_constraints(
    columns: dict[str, ColumnReader], data: st.DataObject
) -> None:
    """And their values, whether the blocks are read for them or were for what was asked; of all blocks, or some. Of
    rows that have changed something else is said than of their blocks."""
    names = data.draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=4, unique=True))
    wanted = data.draw(st.lists(st.sampled_from(list(COLUMNS)), max_size=4, unique=True))
    constraints = {name: constraint_of(COLUMNS[name][2], data.draw) for name in names}
    unit = max(columns[name].rows_per_block for name in [*names, *wanted])
    lower = data.draw(st.integers(0, (ROWS - 1) // unit)) * unit
    upper = data.draw(st.sampled_from([ROWS, min(lower + unit, ROWS)]))
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    mask = data.draw(
        st.sampled_from([None, random.random(upper - lower) < 0.5, np.zeros(upper - lower, np.bool_)])
    )
    changed: dict[str, tuple[Any, Any] | None] = {}
    for name in names:
        share = data.draw(st.sampled_from([0.0, 0.01, 0.6]))
        rows = np.flatnonzero(random.random(upper - lower) < share).astype(np.int32)
        said = (random.random(len(rows)) < 0.4).astype(np.uint8)
        if not isinstance(COLUMNS[name][2][0], str) and columns[name].numbers_of(constraints[name]).is_empty:
            said[:] = 0  # what no number satisfies a changed one does not
        changed[name] = (rows, said) if share else data.draw(st.sampled_from([None, (rows, said)]))
    asked = [(columns[name], constraint, changed[name]) for name, constraint in constraints.items()]
    found = sieved(asked, {columns[name] for name in wanted}, lower, upper, mask, None)
    if found is None:
        odd = [name for name in names if columns[name].is_odd]
        assert len(odd) == 1, "it says which column it is"
        assert len(constraints[odd[0]].values or ()) > 8, "but for large sets in many bits all is told"
        columns[odd[0]].is_odd = False
        return
    matching = np.ones(upper - lower, np.bool_) if mask is None else mask.copy()
    for name, constraint in constraints.items():
        values = COLUMNS[name][2][lower:upper]
        is_admitted = {value: constraint.admits(value) for value in set(values)}
        its_matching = np.array([is_admitted[value] for value in values])
        news = changed[name]
        if news is not None:
            its_matching[news[0]] = news[1]
        matching &= its_matching
    assert found.rows.tolist() == np.flatnonzero(matching).tolist()
    assert found.mask.tolist() == matching.astype(np.uint8).tolist()
    some = found.rows[:: data.draw(st.integers(1, 3))].copy()
    if len(some):
        forms = [(columns[name], "codes" if columns[name].has_dictionary else "plain") for name in wanted]
        for name, array in zip(wanted, picked(forms, lower, upper, some, found, None), strict=True):
            assert array is not None
            assert array.to_pylist() == [COLUMNS[name][2][lower + row] for row in some.tolist()]


def test_all_values_are_those_that_were_written(columns: dict[str, ColumnReader]) -> None:
    """Otherwise the test above would be about columns that nothing declines."""
    forms = [(column, "codes" if column.has_dictionary else "plain") for column in columns.values()]
    for name, array in zip(columns, values_of(forms, 0, ROWS, None), strict=True):
        assert array is not None and array.to_pylist() == COLUMNS[name][2], name


def test_each_layout_of_a_block_is_among_the_columns(path: str, columns: dict[str, ColumnReader]) -> None:
    """An encoder that learns to choose another would leave one untested."""
    layouts = set()
    for name, (_, encoding, _) in COLUMNS.items():
        if encoding == "for":
            data = columns[name].source.read(0)[0]
            _, step, unit, layout, bits, _ = format.FOR_HEADER.unpack_from(data, 32)
            assert layout == format.FOR_LINE
            layouts.add((bool(step), unit > 1, bits > 16))
    assert {step for step, _, _ in layouts} == {unit for _, unit, _ in layouts} == {True, False}
    assert {is_wide for _, _, is_wide in layouts} == {True, False}


def test_few_rows_touch_few_blocks(columns: dict[str, ColumnReader]) -> None:
    """Blocks without a row that is left are neither read for what is asked next, nor for values."""
    small, wide = columns["small"], columns["wide"]
    value = COLUMNS["small"][2][0]
    stretch, _ = small.stretch("plain", 0, ROWS, None, rows=0)
    other, _ = wide.stretch("plain", 0, ROWS, None, rows=0)
    demands = [Demand(stretch, value, value, None), Demand(other, -(1 << 63), (1 << 63) - 1, None)]
    mask, out = np.empty(ROWS, np.uint8), np.empty(ROWS + 1, np.int64)
    only = np.zeros(ROWS, np.bool_)
    only[:700] = True
    assert small.source.file.sieve(demands, only, mask, out) == 1
    assert sum(stretch.touched) == -(-700 // small.rows_per_block), "of those that are given"
    assert list(other.touched) == [1] + [0] * (wide.block_count - 1)


def test_a_word_that_all_have_is_not_that_of_rows_that_have_changed(columns: dict[str, ColumnReader]) -> None:
    """What was asked would be given of them, and not what their block says, which is changed then."""
    word, words = columns["word"], COLUMNS["word"][2]
    others = np.flatnonzero(np.array(words) != words[0])[:5].astype(np.int32)
    asked = (word, Constraint.one_of([words[0]]), (others, np.ones(5, np.uint8)))
    found = sieved([asked], {word}, 0, ROWS, None, None)
    assert found is not None
    (array,) = picked([(word, "codes")], 0, ROWS, found.rows, found, None)
    assert array is not None
    assert (
        array.to_pylist() == [words[row] for row in found.rows.tolist()] and len(set(array.to_pylist())) > 1
    )


def test_the_mask_of_one_call_is_given_to_the_next(columns: dict[str, ColumnReader]) -> None:
    """So columns of several files are asked one after the other: what was left would be forgotten."""
    mask, out = np.empty(ROWS, np.uint8), np.empty(ROWS + 1, np.int64)
    left: set[int] = set(range(ROWS))
    given: Any = None
    for name, least, greatest in (("small", -1500, -1000), ("wide", 0, 4_000_000_000)):
        stretch, _ = columns[name].stretch("plain", 0, ROWS, None, rows=0)
        count = columns[name].source.file.sieve([Demand(stretch, least, greatest)], given, mask, out)
        left &= {row for row, value in enumerate(COLUMNS[name][2]) if least <= value <= greatest}
        assert out[:count].tolist() == sorted(left) and np.flatnonzero(mask).tolist() == sorted(left)
        given = mask.view(np.bool_)


def test_what_is_no_block_is_declined(compiled_kernels: ModuleType, tmp_path: Path) -> None:
    """A flipped bit, another block, a delta or a codeword that names nothing: told by nobody, and so asked again."""

    def found(block: bytes, codewords: int = 0, marked: list[int] | None = None) -> tuple[int, list[int]]:
        (tmp_path / "f").write_bytes(bytes(64) + block)
        mask, out = np.empty(100, np.uint8), np.full(101, -1, np.int64)
        stretch = Stretch(
            np.array([64], "<u8"), np.array([len(block)], "<u4"), 7, 100, 0, 100, 0,
            codewords - 1 if codewords else 1000, codewords > 0, None, 0, bytearray(1),
        )  # fmt: skip
        room = pa.allocate_buffer(1 << 12)
        marks = None if marked is None else np.array(marked, np.uint8)
        with open(tmp_path / "f", "rb") as file:
            crc = nyala.cfile.kernels._CRC32C
            count = compiled_kernels.sieve(
                file.fileno(), [Demand(stretch, 3, 5, None, marks)], None, mask, out, room, crc
            )
        return count, out[: max(count, 0)].tolist()

    line = format.FOR_HEADER.pack(0, 0, 1, format.FOR_LINE, 8, bytes(6)) + bytes(range(100))
    right = block_of(line, 100)
    assert found(right) == (3, [3, 4, 5])
    flipped = right[:70] + bytes([right[70] ^ 1]) + right[71:]
    assert found(flipped)[0] == found(right[:60])[0] == found(block_of(line, 99))[0] == -1
    words = format.CODEWORDS_HEADER.pack(format.CODEWORDS_PLANES, 8, bytes(2), 0) + bytes(range(100))
    fields = {"encoding": format.ENCODING_DICTIONARY}
    assert found(block_of(words, 100, **fields), 100) == (3, [3, 4, 5])
    assert found(block_of(words, 100, **fields), 99)[0] == -1, "a word that there is not"
    marked = [0, 1, 0, 1] * 25
    assert found(block_of(words, 100, **fields), 100, marked) == (50, list(range(1, 100, 2)))
    for few in (99, 50, 0):
        assert found(block_of(words, 100, **fields), 100, marked[:few])[0] == -1, "a codeword without a mark"
    later = format.CODEWORDS_HEADER.pack(format.CODEWORDS_PLANES, 8, bytes(2), 900) + bytes(range(100))
    assert found(block_of(later, 100, **fields), 1000, marked * 10) == (50, list(range(1, 100, 2)))
    for few in (999, 901, 900, 50):
        assert found(block_of(later, 100, **fields), 1000, (marked * 10)[:few])[0] == -1, "past all marks"


def test_a_sieve_that_is_none_is_refused(compiled_kernels: ModuleType) -> None:
    """A kernel that trusts its caller writes into memory of somebody else."""
    room, crc = pa.allocate_buffer(1 << 12), nyala.cfile.kernels._CRC32C
    right = Stretch(
        np.zeros(4, "<u8"), np.full(4, 64, "<u4"), 4, 60, 0, 60, 0, 9, False, None, 0, bytearray(4)
    )
    mask, out = np.empty(60, np.uint8), np.empty(61, np.int64)
    demand = Demand(right, 0, 9, None)
    assert compiled_kernels.sieve(0, [], None, mask, out, room, crc) == 60
    wrong: list[tuple[str, Demand, Any, Any, Any]] = [
        ("expected room for 61", demand, None, mask, out[:60]),
        ("expected 60 rows in the mask,", demand, None, np.empty(59, np.uint8), out),
        ("expected 60 rows in the mask that", demand, np.ones(59, np.bool_), mask, out),
        ("expected bounds in order", demand._replace(least=10), None, mask, out),
        ("expected marks", demand._replace(marked=np.ones(10, np.uint8)), None, mask, out),
        ("expected memory", demand._replace(values=np.zeros(17, np.uint8)[1:]), None, mask, out),
        ("expected ordinals", demand._replace(stretch=right._replace(upper=61)), None, mask, out),
        ("expected an answer", demand._replace(changed=(np.zeros(2, np.int32), mask[:1])), None, mask, out),
        *(
            (
                "expected changed rows",
                demand._replace(changed=(np.array(rows, np.int32), mask[:2])),
                None,
                mask,
                out,
            )
            for rows in ([-1, 5], [5, 60], [5, 5], [6, 5])
        ),
    ]
    for message, asked, given_, into, rows in wrong:
        with pytest.raises(ValueError, match=message):
            compiled_kernels.sieve(0, [asked], given_, into, rows, room, crc)
