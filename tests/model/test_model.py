"""The store against a plain dictionary of versions: any operations, at every moment of the past.

Kudu's fuzz test does to a tablet what this does to a store, and this also alters tables, drops ranges, restores,
repartitions, kills, and reads as other processes do. The dictionary is in `versions.py`, what is done in `session.py`,
what is asked in `looks.py`, and what comes next, by chance, in `machine.py`.

Keys are few, so that every key meets every phase. In most runs blocks hold two numbers, windows four rows and the log's
segments two kilobytes, so that few rows cross every border; in others they are as large as ever.

A failure prints its steps as code, which `tests.model.session.replay` runs again and `reduced` makes shorter; what was
a bug becomes a script under tests/scripts.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, note, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.figures import counted
from tests.model.bucket import BucketSession
from tests.model.machine import PLACE, StoreMachine
from tests.model.session import Session
from tests.model.shapes import COMPOSITE, INTEGER, SHAPES, STRING, Options, Shape
from tests.model.values import VALUES, encodings

EVERY_COLUMN = st.sampled_from([(type, encoding) for type in VALUES for encoding in encodings(type)])
ANY = st.builds(
    Options,
    tiny=st.sampled_from([True, True, False]),
    # From one byte on, or a few hundred: a batch is written as files and committed by the catalogue.
    direct_commit_bytes=st.sampled_from([64 << 20, 64 << 20, 1, 300]),
    rowset_target_bytes=st.sampled_from([32 << 20, 600]),
    block_size=st.sampled_from([None, 16]),
    more=st.lists(EVERY_COLUMN, max_size=3).map(tuple),
)
KEYS_ONLY = st.builds(Options, direct_commit_bytes=st.sampled_from([64 << 20, 1]), keys_only=st.just(True))


def run(
    shape: Shape, options: st.SearchStrategy[Options], examples: int, steps: int, *, large: bool = False,
    every_feed: bool = False, session_type: type[Session] = Session,
) -> None:  # fmt: skip
    chosen = {
        "shape": shape,
        "options": options,
        "large": large,
        "every_feed": every_feed,
        "session_type": session_type,
    }
    machine = type(f"{shape.name.capitalize()}Machine", (StoreMachine,), chosen)
    # Explaining a failure traces every line of every run: minutes, where the steps say more.
    phases = set(Phase) - {Phase.explain}
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, phases=phases)
    )


def examples(divisor: int) -> int:
    """So small a part of the profile's; not more than in `make test`, as the long form has tests of its own below."""
    return max(2, min(settings().max_examples, 100) // divisor)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_store_is_the_model(shape: Shape) -> None:
    """Every read at every moment gives what a dictionary of versions gives, whatever happened before."""
    run(shape, ANY, examples(6), 20)


def test_a_store_in_a_bucket_is_the_model() -> None:
    """The same with objects: a kill is a take-over, and readers follow the log."""
    run(COMPOSITE, ANY, examples(50), 15, session_type=BucketSession)


def test_tables_of_a_key_and_nothing_else() -> None:
    run(INTEGER, KEYS_ONLY, examples(30), 20)


def test_large_batches_and_many_changes_of_the_same_rows() -> None:
    """So many that they span blocks and groups of blocks as they are in use."""
    run(STRING, ANY, examples(50), 15, large=True)


def look_up_much(
    shape: Shape, more: list[tuple[str, str]], seeds: list[int], stretches: list[tuple[int, int, int]]
) -> None:
    """Rowsets of hundreds of rows in blocks as they are in use, and look-ups of few rows of one and many of another."""
    session = Session(shape, Options(tiny=False, more=tuple(more)))
    try:
        for place, seed in enumerate(seeds):
            columns = [column.name for column in session.models["t"].values()]
            session.do(("many", "t", "upsert", PLACE * place, PLACE, seed, columns))
            session.do(("flush", None, {}))
            session.do(("look_many", "t", -1, [(PLACE * place, PLACE, 1), (0, 1, 1)], 0, 0))
        session.do(("many", "t", "update", 7, 20, seeds[0], ["c", "more0"]))
        for moment in (-1, -2):
            session.do(("look_many", "t", moment, stretches, 0, 0))
            session.do(("look_many", "t", moment, [(0, PLACE, 1), (PLACE, 2, 5)], 2, 0))
        session.do(("care", "t", "compact"))
        session.do(("look_many", "t", -1, stretches, 0, 0))
    except BaseException:
        note(session.source())
        raise
    finally:
        session.close()


STRETCH = st.tuples(
    st.integers(0, 3 * PLACE), st.sampled_from([1, 2, 5, 40, PLACE]), st.sampled_from([1, 1, 2, 7])
)
LOOK_UPS = given(
    shape=st.sampled_from(list(SHAPES.values())),
    more=st.lists(EVERY_COLUMN, min_size=3, max_size=5),
    seeds=st.lists(st.integers(0, 2**16), min_size=2, max_size=3),
    stretches=st.lists(STRETCH, min_size=1, max_size=3),
)


@settings(max_examples=examples(12), phases=set(Phase) - {Phase.explain})
@LOOK_UPS
def test_few_rows_of_one_rowset_and_many_of_another(
    shape: Shape, more: list[tuple[str, str]], seeds: list[int], stretches: list[tuple[int, int, int]]
) -> None:
    """Values come from each rowset in the form that is cheapest there, and the forms have to fit together."""
    look_up_much(shape, more, seeds, stretches)


@pytest.mark.long
@settings(max_examples=150, phases=set(Phase) - {Phase.explain})
@LOOK_UPS
def test_few_rows_of_one_rowset_and_many_of_another_for_long(
    shape: Shape, more: list[tuple[str, str]], seeds: list[int], stretches: list[tuple[int, int, int]]
) -> None:
    what = "look-ups in large rowsets against a dictionary of versions, columns of any type and encoding"
    with counted(what, "examples") as tried:
        look_up_much(shape, more, seeds, stretches)
        tried.append(1)


@pytest.mark.long
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_store_is_the_model_hundreds_of_times(shape: Shape, part: int) -> None:
    """175 examples of up to 40 steps for each kind of key, in five parts; in every eighth all feeds between any two
    moments."""
    with counted(
        f"operations by chance against a dictionary of versions, {shape.name} key", "examples"
    ) as tried:
        run(shape, ANY, 35, 40, every_feed=True)
        tried.append(35)


@pytest.mark.long
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_large_batches_for_long(shape: Shape, part: int) -> None:
    with counted("large batches by chance against a dictionary of versions", "examples") as tried:
        run(shape, ANY, 40, 30, large=True)
        run(shape, KEYS_ONLY, 10, 30, large=True)
        tried.append(50)


def test_a_sequence_is_the_same_when_it_is_pasted() -> None:
    """What a failure prints runs as it stands, and does what was done."""
    session = Session(COMPOSITE, Options(direct_commit_bytes=300))
    try:
        rows = [dict(zip("snd", key, strict=True)) | {"d_": float("nan")} for key in COMPOSITE.keys[:3]]
        session.do(("write", "t", "insert", rows, "collect"))
        session.do(("flush", None, {"written": [("write", "t", "upsert", rows, "collect")]}))
        session.do(("alter", "t", [("add", "e", "int8", True, 3), ("drop range", None, 0, True)], {}))
        session.do(("kill", 7))
        session.do(("look_everywhere", True))
        source, moments = session.source(), session.moments
    finally:
        session.close()
    names: dict[str, Any] = {}
    exec(source, names)
    assert names["session"].moments == moments, "other moments: something else was done"
