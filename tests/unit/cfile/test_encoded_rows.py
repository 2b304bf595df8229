"""Words of a dictionary are compared all at once: the same as each by itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.memory import MemoryFiles
from tests.unit.cfile.test_roundtrip import written

from nyala.cfile.encoded_rows import admitted_words, rows_matching
from nyala.schema.constraint import ANY, EMPTY, NULL_ONLY, Constraint
from nyala.schema.types import parse_type

# Short and alike, so that words meet bounds; with zeros, and text whose order by code units is not that of its bytes.
TEXT = st.text(st.sampled_from("\0ab\x7f\xe4\ud7ff\uffff\U0001f600"), max_size=3)
BINARY = st.binary(max_size=2) | st.lists(st.sampled_from([0, 1, 127, 128, 255]), max_size=3).map(bytes)


@st.composite
def constraints(draw: st.DrawFn, type_name: str, values: st.SearchStrategy[str | bytes]) -> Constraint:
    def simple() -> Constraint:
        kind = draw(st.sampled_from(["between", "one_of", "any", "empty", "null", "not null"]))
        if kind == "one_of":
            return Constraint.one_of(draw(st.lists(values, max_size=4)))
        if kind == "between":
            return Constraint.between(
                parse_type(type_name),
                draw(st.none() | values),
                draw(st.none() | values),
                lower_inclusive=draw(st.booleans()),
                upper_inclusive=draw(st.booleans()),
            )
        return {"any": ANY, "empty": EMPTY, "null": NULL_ONLY, "not null": Constraint(null="none")}[kind]

    found = simple()
    for _ in range(draw(st.integers(0, 2))):
        found = found.intersect(simple()) if draw(st.booleans()) else found.union(simple())
    return found


@pytest.mark.parametrize(("type_name", "values"), [("string", TEXT), ("binary", BINARY)])
@given(data=st.data())
def test_words_are_told_at_once_as_each_by_itself(
    type_name: str, values: st.SearchStrategy[str | bytes], data: st.DataObject
) -> None:
    words = data.draw(st.lists(values, min_size=1, unique=True))
    constraint = data.draw(constraints(type_name, values))
    constraint.check()
    array = pa.array(words, type_name)
    if data.draw(st.booleans()):  # as a file has them
        array = pa.concat_arrays([array.slice(0, 0), array]).slice(1)
        words = words[1:]
    admitted = admitted_words(array, constraint)
    assert admitted.tolist() == [constraint.admits(word) for word in words]


def test_many_words_are_told_by_their_codewords(files: MemoryFiles) -> None:
    """A scan would decode every row of a column of 20,000 words to find one."""
    words = [f"word {n:05d}" for n in range(20_000)]
    rows = np.random.default_rng(2).integers(0, 20_000, 100_000)
    column = written(files, pa.array(words).take(pa.array(rows)), "string", "dictionary")
    encoded = column.encoded(0, 100_000)
    assert encoded is not None
    below = Constraint.between(parse_type("string"), "word 00100", "word 12000", upper_inclusive=False)
    for constraint, wanted in (
        (Constraint.one_of(["word 00017", "no word", "word 19999"]), (rows == 17) | (rows == 19_999)),
        (below, (rows >= 100) & (rows < 12_000)),
        (NULL_ONLY, np.zeros(100_000, np.bool_)),
    ):
        assert (encoded.matches(constraint) == wanted).all()
        asked = encoded.questions(constraint)
        assert (asked is None) == (constraint is NULL_ONLY)
        if asked is not None:
            assert rows_matching(asked, 100_000).tolist() == np.flatnonzero(wanted).tolist()
    not_null = encoded.questions(Constraint(null="none"))
    assert not_null is not None and len(rows_matching(not_null, 100_000)) == len(rows_matching([], 100_000))
