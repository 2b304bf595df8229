"""Merged images have one row per key with its whole history, compared with a dictionary of lives."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampled import is_long_run
from tests.unit.delta.applied import applied

from nyala.delta.run import LIVENESS, DeltaRun, build_run
from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.rowset.compaction.merging import merge_images
from nyala.rowset.image import RowSetImage
from nyala.schema.schema import Schema, build_schema

Values = tuple[int | None, str | None]

SCHEMAS = {
    "int": build_schema({"k": "int64", "v": "int32", "t": "string"}, ["k"]),
    "text": build_schema({"k": "string", "v": "int32", "t": "string"}, ["k"]),
    "composite": build_schema({"k": "int64", "l": "string", "v": "int32", "t": "string"}, ["k", "l"]),
}
TYPES = (pa.int32(), pa.string())
LAST = 60


@dataclass
class Life:
    """One life of a key, in one rowset, from the insertion at `born` to the delete at `dead`.

    dead: None if the key is still alive. updates: by timestamp.
    """

    key: int
    rowset: int
    born: int
    dead: int | None
    values: Values
    updates: dict[int, tuple[int, int | str | None]] = field(default_factory=dict)  # time: (column, value)

    def at(self, snapshot: int) -> Values | None:
        if snapshot < self.born or (self.dead is not None and snapshot >= self.dead):
            return None
        values = list(self.values)
        for time in sorted(self.updates):
            if time <= snapshot:
                column, value = self.updates[time]
                values[column] = value  # type: ignore[call-overload]
        return (values[0], values[1])


def expected(lives: list[Life], snapshot: int) -> dict[int, Values]:
    return {life.key: values for life in lives if (values := life.at(snapshot)) is not None}


def key_columns(schema: Schema, keys: list[int]) -> list[pa.Array]:
    if schema.key_count == 2:
        return [
            pa.array([k // 3 for k in keys], pa.int64()),
            pa.array(["\0" * (k % 3) for k in keys], pa.string()),
        ]
    if schema.columns[0].type.name == "string":
        return [pa.array([f"{k:02}" for k in keys], pa.string())]
    return [pa.array(keys, pa.int64())]


def image_of(schema: Schema, lives: list[Life], number: int, cut: int = 0) -> RowSetImage:
    """Return the image of rowset `number` at LAST, with the history that snapshots from `cut` need."""
    mine: dict[int, list[Life]] = {}
    for life in sorted(lives, key=lambda life: life.born):
        if life.rowset == number:
            mine.setdefault(life.key, []).append(life)
    keys = sorted(mine)
    base: list[list[object]] = [[], []]
    alive: list[bool] = []
    undo: dict[int, list[tuple[int, int, object]]] = {LIVENESS: [], 0: [], 1: []}
    for row, key in enumerate(keys):
        values: list[object] | None = None
        for life in mine[key]:
            undo[LIVENESS].append((row, life.born, False))
            if values is not None:  # a REINSERT changes every column
                undo[0].append((row, life.born, values[0]))
                undo[1].append((row, life.born, values[1]))
            values = list(life.values)
            for time in sorted(life.updates):
                column, value = life.updates[time]
                undo[column].append((row, time, values[column]))
                values[column] = value
            if life.dead is not None:
                undo[LIVENESS].append((row, life.dead, True))
        assert values is not None
        base[0].append(values[0])
        base[1].append(values[1])
        alive.append(mine[key][-1].dead is None)
    arrays = [*key_columns(schema, keys), *(pa.array(v, t) for v, t in zip(base, TYPES, strict=True))]
    ids = {LIVENESS: LIVENESS, 0: schema.by_name("v").id, 1: schema.by_name("t").id}
    runs = {ids[name]: run_of(records, name) for name, records in undo.items()}
    image = RowSetImage(
        KeyCodec([c.type for c in schema.key_columns]).encode(key_columns(schema, keys)),
        {column.id: array for column, array in zip(schema.columns, arrays, strict=True)},
        None if all(alive) else pa.array(alive),
        {number: run for number, run in runs.items() if len(run)},
        np.arange(len(keys)),
    )
    image.check()
    return image.without_history(cut)


def run_of(records: list[tuple[int, int, object]], name: int) -> DeltaRun:
    rows, times, values = ([record[index] for record in records] for index in range(3))
    kind = pa.bool_() if name == LIVENESS else TYPES[name]
    return build_run("undo", np.array(rows, np.int64), np.array(times, np.int64), pa.array(values, kind))


def read(schema: Schema, image: RowSetImage, snapshot: int) -> dict[bytes, Values]:
    """Return the rows of an image at a snapshot, by encoded key."""
    count = image.row_count
    base = pa.array(np.ones(count, np.bool_)) if image.liveness is None else image.liveness

    def column(number: int, array: pa.Array) -> list[object]:
        past = image.undo.get(number)
        return applied(array, 0, [] if past is None else [past], [], snapshot).to_pylist()

    alive = column(LIVENESS, base)
    v, t = (column(c.id, image.columns[c.id]) for c in schema.value_columns)
    return {image.keys.at(row): (v[row], t[row]) for row in range(count) if alive[row]}  # type: ignore[misc]


NUMBERS = st.none() | st.integers(-3, 3)
TEXTS = st.none() | st.sampled_from(["", "x", "long " * 4])


@st.composite
def histories(draw: st.DrawFn) -> list[Life]:
    """Draw keys with up to four lives each, and the rowset of each life."""
    lives = []
    for key in draw(st.lists(st.integers(0, 9), unique=True, max_size=6)):
        times = sorted(draw(st.lists(st.integers(1, LAST - 1), min_size=1, max_size=8, unique=True)))
        for index in range(0, len(times), 2):
            born, dead = times[index], times[index + 1] if index + 1 < len(times) else None
            inside = st.integers(born + 1, (LAST if dead is None else dead) - 1)
            updates = {}
            if born + 1 < (dead or LAST):
                for time in draw(st.lists(inside, max_size=3, unique=True)):
                    column = draw(st.integers(0, 1))
                    updates[time] = (column, draw(TEXTS if column else NUMBERS))
            values = (draw(NUMBERS), draw(TEXTS))
            lives.append(Life(key, draw(st.integers(0, 2)), born, dead, values, updates))
    return lives


@pytest.mark.parametrize("kind", SCHEMAS)
@given(
    lives=histories(),
    order=st.permutations([0, 1, 2]),
    cut=st.integers(0, LAST),
    earlier=st.lists(st.integers(0, LAST), min_size=3, max_size=3),
)
@settings(max_examples=settings().max_examples * (4 if is_long_run() else 1))
def test_g2_the_merged_image_reads_like_its_inputs(
    kind: str, lives: list[Life], order: list[int], cut: int, earlier: list[int]
) -> None:
    """At every snapshot from the cut on, the image has the rows of its inputs.

    The inputs have dead rows, rows with several lives, lives that alternate between rows, NULLs, and
    cuts of their own. A merged image is merged again.
    """
    schema = SCHEMAS[kind]
    cuts = [min(earlier[number], cut) for number in order]
    images = [image_of(schema, lives, number, own) for number, own in zip(order, cuts, strict=True)]
    merged = merge_images(images, schema, cut, "rowsets 1, 2, 3")
    merged.check()
    two = merge_images(images[:2], schema, max(cuts[:2]), "rowsets 1, 2")
    stepwise = merge_images([two, images[2]], schema, cut, "rowsets 4, 3")
    stepwise.check()
    codec = KeyCodec([c.type for c in schema.key_columns])
    encoded = {life.key: codec.encode(key_columns(schema, [life.key])).at(0) for life in lives}
    moments = {0, cut, LAST, *(t for life in lives for t in (life.born, life.dead or LAST, *life.updates))}
    for snapshot in sorted({moment - back for moment in moments for back in (0, 1) if moment - back >= cut}):
        wanted = {encoded[key]: values for key, values in expected(lives, snapshot).items()}
        assert read(schema, merged, snapshot) == wanted, f"at {snapshot}"
        assert read(schema, stepwise, snapshot) == wanted, f"in two steps, at {snapshot}"
    # G3: keys that are dead since the cut are left out, and every other row has its position.
    needed = {encoded[life.key] for life in lives if life.dead is None or life.dead > cut}
    assert {merged.keys.at(row) for row in range(merged.row_count)} == needed
    for run in merged.undo.values():
        assert run.timestamp_min > cut
    sources = [
        (number, key)
        for number in order
        for key in sorted({life.key for life in lives if life.rowset == number})
    ]
    kept = {(life.rowset, life.key) for life in lives if life.dead is None or life.dead > cut}
    assert len(merged.positions) == len(sources)
    for source, place in zip(sources, merged.positions.tolist(), strict=True):
        assert (place >= 0) == (source in kept)
        assert place < 0 or merged.keys.at(place) == encoded[source[1]]


def alive_from(key: int, rowset: int, born: int, dead: int | None = None, value: int = 0) -> Life:
    return Life(key, rowset, born, dead, (value, f"{value}"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param((3, None), (5, None), id="alive twice"),
        pytest.param((3, None), (5, 8), id="a life within a life"),
        pytest.param((3, 9), (9, None), id="dead and born at one moment"),
        pytest.param((3, 9), (7, None), id="born before the other died"),
        pytest.param((3, 9), (1, 4), id="died after the other was born"),
    ],
)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_g1_overlapping_lives_are_corruption(
    first: tuple[int, int | None], second: tuple[int, int | None], order: tuple[int, int]
) -> None:
    """If a key is alive in two rows at a time, the error names the rowsets, the key and the times."""
    schema = SCHEMAS["int"]
    lives = [alive_from(2, 0, *first), alive_from(2, 1, *second), alive_from(1, 0, 1), alive_from(7, 1, 1)]
    images = [image_of(schema, lives, number) for number in order]
    with pytest.raises(
        CorruptionError, match=r"rowsets 8, 9: the key 8000000000000002 has two rows whose lives overlap"
    ):
        merge_images(images, schema, 0, "rowsets 8, 9")


def test_g1_a_second_row_beside_one_without_birth_is_corruption() -> None:
    """A row without UNDO has lived since before the history, so a second row of its key overlaps."""
    schema = SCHEMAS["int"]
    lives = [alive_from(2, 0, 3), alive_from(2, 1, 7, 9)]
    images = [image_of(schema, lives, 0, cut=3), image_of(schema, lives, 1)]
    with pytest.raises(CorruptionError, match="has two rows whose lives overlap.*next begins at 7"):
        merge_images(images, schema, 3, "rowsets 8, 9")


def test_g1_a_row_that_dies_twice_is_corruption() -> None:
    """Two deletions of a row without an insertion between them are damage."""
    schema = SCHEMAS["int"]
    lives = [alive_from(2, 0, 3, 9), alive_from(2, 1, 12)]
    images = [image_of(schema, lives, number) for number in (0, 1)]
    twice = run_of([(0, 3, False), (0, 7, True), (0, 9, True)], LIVENESS)
    broken = RowSetImage(
        images[0].keys, images[0].columns, images[0].liveness, {LIVENESS: twice}, images[0].positions
    )
    with pytest.raises(CorruptionError, match="rowsets 8, 9: a row .* deleted while it is dead"):
        merge_images([broken, images[1]], schema, 0, "rowsets 8, 9")


def test_a_column_without_undo_ends_with_its_base_value() -> None:
    """Without UNDO of the column, the first row's value holds until the second row is inserted."""
    schema = SCHEMAS["int"]
    lives = [alive_from(1, 0, 1, 5, value=10), alive_from(1, 1, 8, value=20)]
    merged = merge_images([image_of(schema, lives, number) for number in (1, 0)], schema, 0, "")
    key = merged.keys.at(0)
    assert read(schema, merged, 4) == {key: (10, "10")}
    assert read(schema, merged, 8) == {key: (20, "20")}
