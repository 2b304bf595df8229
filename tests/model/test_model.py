"""Random operations on a store, compared with a dictionary of versions at every moment of the past.

It is like Kudu's fuzz test of a tablet, and also alters tables, drops ranges, restores, repartitions,
kills the process, and reads from other processes.

    machine.py     chooses random steps
    session.py     applies a step to the store and to the model
    reads.py       reads the store and compares the results with the model
    versions.py    the model: a dictionary of versions
    shapes.py      kinds of tables, and tiny limits

Keys are few, so that each is written, flushed and merged often. In most runs blocks have two numbers,
splits four rows, and segments of the log 2 KB, so that a few rows need several of them.

A failure prints its steps as code, which `tests.model.session.replay` repeats and `reduced` makes
shorter. A fault that was found becomes a script under tests/scripts.
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
    # Batches of at least this size are written as files: sometimes all, or those of a few rows.
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
    # Without `explain`, which traces every line of every run for minutes.
    phases = set(Phase) - {Phase.explain}
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, phases=phases)
    )


def examples(divisor: int) -> int:
    """Return a part of the profile's examples, in long runs no more than in `make test`."""
    return max(2, min(settings().max_examples, 100) // divisor)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_store_agrees_with_its_model(shape: Shape) -> None:
    """After random steps, each read at each moment returns what the dictionary of versions has."""
    run(shape, ANY, examples(6), 20)


def test_a_store_in_a_bucket_agrees_with_its_model() -> None:
    """In a bucket, another process takes over after a kill, and readers follow the log."""
    run(COMPOSITE, ANY, examples(50), 15, session_type=BucketSession)


def test_tables_with_only_key_columns() -> None:
    """The store agrees with its model if tables have only key columns."""
    run(INTEGER, KEYS_ONLY, examples(30), 20)


def test_large_batches_and_many_changes_of_the_same_rows() -> None:
    """Rows and changes take several blocks, also without tiny limits."""
    run(STRING, ANY, examples(50), 15, large=True)


def look_up_few_and_many(
    shape: Shape, more: list[tuple[str, str]], seeds: list[int], stretches: list[tuple[int, int, int]]
) -> None:
    """Write rowsets of hundreds of rows, and look up few rows of one rowset and many of another."""
    session = Session(shape, Options(tiny=False, more=tuple(more)))
    try:
        for place, seed in enumerate(seeds):
            columns = [column.name for column in session.models["t"].values()]
            session.do(("many", "t", "upsert", PLACE * place, PLACE, seed, columns))
            session.do(("flush", None, {}))
            session.do(("read_many", "t", -1, [(PLACE * place, PLACE, 1), (0, 1, 1)], 0, 0))
        session.do(("many", "t", "update", 7, 20, seeds[0], ["c", "more0"]))
        for moment in (-1, -2):
            session.do(("read_many", "t", moment, stretches, 0, 0))
            session.do(("read_many", "t", moment, [(0, PLACE, 1), (PLACE, 2, 5)], 2, 0))
        session.do(("maintain", "t", "compact"))
        session.do(("read_many", "t", -1, stretches, 0, 0))
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
    """Few values are read in another form than many, and a look-up concatenates both."""
    look_up_few_and_many(shape, more, seeds, stretches)


@pytest.mark.long
@settings(max_examples=150, phases=set(Phase) - {Phase.explain})
@LOOK_UPS
def test_few_rows_of_one_rowset_and_many_of_another_for_long(
    shape: Shape, more: list[tuple[str, str]], seeds: list[int], stretches: list[tuple[int, int, int]]
) -> None:
    what = "look-ups in large rowsets against a dictionary of versions, columns of any type and encoding"
    with counted(what, "examples") as tried:
        look_up_few_and_many(shape, more, seeds, stretches)
        tried.append(1)


@pytest.mark.long
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_store_agrees_with_its_model_hundreds_of_times(shape: Shape, part: int) -> None:
    """Run 175 examples of up to 40 steps for each shape. Every eighth reads the feeds of all moments."""
    with counted(
        f"operations by chance against a dictionary of versions, {shape.name} key", "examples"
    ) as tried:
        run(shape, ANY, 35, 40, every_feed=True)
        tried.append(35)


@pytest.mark.long
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_large_batches_for_long(shape: Shape, part: int) -> None:
    """The store agrees with its model if batches are large."""
    with counted("large batches by chance against a dictionary of versions", "examples") as tried:
        run(shape, ANY, 40, 30, large=True)
        run(shape, KEYS_ONLY, 10, 30, large=True)
        tried.append(50)


def test_printed_steps_repeat_the_sequence() -> None:
    """The code that a failure prints can be executed, and does the same steps."""
    session = Session(COMPOSITE, Options(direct_commit_bytes=300))
    try:
        rows = [dict(zip("snd", key, strict=True)) | {"d_": float("nan")} for key in COMPOSITE.keys[:3]]
        session.do(("write", "t", "insert", rows, "collect"))
        session.do(("flush", None, {"written": [("write", "t", "upsert", rows, "collect")]}))
        session.do(("alter", "t", [("add", "e", "int8", True, 3), ("drop range", None, 0, True)], {}))
        session.do(("kill", 7))
        session.do(("read_everywhere", True))
        source, moments = session.source(), session.moments
    finally:
        session.close()
    names: dict[str, Any] = {}
    exec(source, names)
    assert names["session"].moments == moments
