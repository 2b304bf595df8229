"""Merging compaction: the rows of several rowsets as one image, each key once, with the whole of its past.

    rowset A   k: born 3, 'a' ... 'b' at 7, dead 9            one key, several lives: it was deleted in A, whose row
    rowset B   k: born 12, 'c', alive                         stays there dead (R5), and was inserted again later

    merged     k: base 'c', alive
               UNDO value     (12: 'b') (7: 'a')              before 12 the value was what A's row ended with
               UNDO LIVENESS  (12: False) (9: True) (3: False)

Of a key's rows the one that lived last gives the base; all other lives become history. For LIVENESS the records of all
rows simply stand together: a birth says "not there before", which is what every other row says of that moment too. Any
other column keeps the records that lie within a life, and gets one more at each birth but the first: before it, the
value was what the life before ended with.

One row may have several lives, and those of two rows may alternate: when A, whose row was dead by then, was merged with
C before it was merged with B, in whose time the key lived between.

    A and C    k: 3 to 9, and again from 20 on                B    k: 12 to 15

Invariants
    G1  The lives of a key do not overlap, whichever rows they are of: one ends before the next begins (R5). Rows of
        which this is not so are CorruptionError: that is a key alive twice, or an ended life that was changed.
    G2  What the merged image says of a key at a snapshot T >= cut is what that of the inputs' rows says which is
        alive at T; if none is, the key is dead.
    G3  A row that is dead since `cut` or before is left out, and with it what is older than the birth of a younger row.

Pure: images in, an image out. Source: docs/design/kudu.md, "Rows in flush and compaction"; Kudu tablet design,
"Merging compactions". Departure: by column and in arrays, where Kudu walks lists of changes row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.delta.applier import patch
from nyala.delta.run import LIVENESS, DeltaRun, Rowids, Timestamps, build_run, take
from nyala.errors import CorruptionError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.image import RowSetImage
from nyala.rowset.meta import NO_ROWID
from nyala.schema.schema import Schema

__all__ = ["merge_images"]

_FOR_EVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Lives:
    """The lives of keys that have more than one row, by key and then time. Rows count through all images.

    rows:   of which row each life is.
    begins: 0 when the row was there at every readable snapshot before its first known change.
    ends:   the timestamp of its deletion; for ever when it goes on.
    older:  those that are followed by another life of the same key, the next one.
    """

    rows: Rowids
    begins: Timestamps
    ends: Timestamps
    older: npt.NDArray[np.int64]

    def hold(self, rows: Rowids, times: Timestamps) -> npt.NDArray[np.bool_]:
        """Whether each moment lies within a life of its row, after its beginning and before its end."""
        count = len(self.rows)
        order = np.lexsort(
            (
                np.arange(count + len(rows)) >= count,
                np.concatenate([self.begins, times]),
                np.concatenate([self.rows, rows]),
            )
        )
        # The last life that begins then or before: of another row, where this one has none.
        last = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
        asked = order >= count
        found = np.empty(len(rows), np.int64)
        found[order[asked] - count] = np.where(last >= 0, order[last], 0)[asked]
        inside: npt.NDArray[np.bool_] = (
            (self.rows[found] == rows) & (self.begins[found] < times) & (times < self.ends[found])
        )
        return inside


_NO_LIVES = _Lives(*(np.empty(0, np.int64) for _ in range(4)))


def merge_images(images: Sequence[RowSetImage], schema: Schema, cut: int, where: str) -> RowSetImage:
    """One image of the rows of several, all as of one moment; `positions` counts the inputs' rows end to end.

    schema: the columns to keep. cut: snapshots before it need not be readable. where: for messages, which rowsets.
    Raises: CorruptionError (G1, and D1 to D3 of histories that contradict one another).
    Cost:   O(rows · columns) of Arrow's `take`, a sort of the keys where images overlap, and of the UNDO records.
    """
    images = [image.without_history(cut) for image in images]
    offsets = np.concatenate([[0], np.cumsum([image.row_count for image in images])]).astype(np.int64)
    total = int(offsets[-1])
    keys = EncodedKeys.concat([image.keys for image in images])
    past = _records(images, LIVENESS, offsets)
    if keys.is_strictly_ascending():
        heads, place, lives = np.arange(total), np.arange(total), _NO_LIVES
    else:
        heads, place, lives = _one_place_a_key(images, keys, past, where)
    shared = np.zeros(total, np.bool_)
    shared[lives.rows] = True
    columns: dict[int, pa.Array] = {}
    undo: dict[int, DeltaRun] = {}
    in_order = len(heads) == total and bool((heads == np.arange(total)).all())
    key_ids = {column.id for column in schema.key_columns}
    for column in schema.columns:
        base = pa.concat_arrays([image.columns[column.id] for image in images])
        columns[column.id] = base if in_order else take(base, heads)
        if column.id in key_ids:
            continue
        run = _undo_of(_records(images, column.id, offsets), base, place, lives, shared)
        if run is not None:
            undo[column.id] = run
    if past is not None:
        undo[LIVENESS] = build_run("undo", place[past[0]], past[1], past[2])
    for column_id, run in undo.items():
        if (at := run.disorder()) is not None:
            of = "of liveness" if column_id == LIVENESS else f"of column {column_id}"
            raise CorruptionError(
                f"{where}: the UNDO records {of} contradict one another: record {at} of row {run.rowids[at]} is out of "
                "order (D1 to D3), so a file of changes belongs to another rowset"
            )
    alive = _alive(images)[heads]
    # Rows of an input that `without_history` left out have no place.
    somewhere = np.append(place, NO_ROWID)
    positions = [
        somewhere[np.where(image.positions >= 0, image.positions + offset, total)]
        for image, offset in zip(images, offsets[:-1].tolist(), strict=True)
    ]
    return RowSetImage(
        keys if in_order else keys.take(heads),
        columns,
        None if alive.all() else pa.array(alive),
        undo,
        np.concatenate(positions),
    )


_Records = tuple[Rowids, Timestamps, pa.Array]
"""(rows through all images, timestamps, values) of UNDO; within a row descending in time, as in their runs."""


def _records(
    images: Sequence[RowSetImage], column_id: int, offsets: npt.NDArray[np.int64]
) -> _Records | None:
    found = [
        (run.rowids + offset, run.timestamps, run.values)
        for image, offset in zip(images, offsets[:-1].tolist(), strict=True)
        if (run := image.undo.get(column_id)) is not None and len(run)
    ]
    if not found:
        return None
    rows, times, values = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(times), pa.concat_arrays(values)


def _alive(images: Sequence[RowSetImage]) -> npt.NDArray[np.bool_]:
    return np.concatenate([image.alive() for image in images])


def _one_place_a_key(
    images: Sequence[RowSetImage], keys: EncodedKeys, past: _Records | None, where: str
) -> tuple[Rowids, Rowids, _Lives]:
    """(heads: of each key, in key order, the row that lived last; place: of each row, that of its key; lives)."""
    total = len(keys)
    order = keys.sort_indices()
    same = keys.take(order).equal_neighbours()
    group = np.concatenate([[0], np.cumsum(~same)])
    place = np.empty(total, np.int64)
    place[order] = group
    heads = order[np.append(True, ~same)]
    if not same.any():
        return heads, place, _NO_LIVES
    shared = np.zeros(total, np.bool_)
    shared[order[1:][same]] = shared[order[:-1][same]] = True
    rows, begins, ends = _lives_of(np.flatnonzero(shared), _alive(images), past, where)
    # By the end: of one key at most one goes on for ever (G1).
    in_time = np.lexsort((ends, begins, place[rows]))
    rows, begins, ends = rows[in_time], begins[in_time], ends[in_time]
    followed = place[rows[1:]] == place[rows[:-1]]
    older = np.flatnonzero(followed)
    wrong = older[ends[older] >= begins[older + 1]]
    if len(wrong):
        at = int(wrong[0])
        raise CorruptionError(
            f"{where}: the key {keys.at(int(rows[at])).hex()} has two rows whose lives overlap: one ends at "
            f"{ends[at]}, the next begins at {begins[at + 1]} (G1)"
        )
    last = np.append(~followed, True)
    heads[place[rows[last]]] = rows[last]
    return heads, place, _Lives(rows, begins, ends, older)


def _lives_of(
    wanted: Rowids, alive: npt.NDArray[np.bool_], past: _Records | None, where: str
) -> tuple[Rowids, Timestamps, Timestamps]:
    """(rows, begins, ends) of the lives of these rows: from each birth to the death that follows."""
    rows, times = np.empty(0, np.int64), np.empty(0, np.int64)
    before = np.empty(0, np.bool_)
    if past is not None:
        mine = np.isin(past[0], wanted)
        rows, times = past[0][mine][::-1], past[1][mine][::-1]  # ascending in time within each row
        before = past[2].to_numpy(zero_copy_only=False).astype(np.bool_)[mine][::-1]
    # Who was there before his first change began at 0, and who is there now ends never.
    first = np.append(True, rows[1:] != rows[:-1])[: len(rows)]
    early = rows[first & before]
    silent = np.setdiff1d(wanted, rows)
    now = wanted[alive[wanted]]
    begun = np.concatenate([rows[~before], early, silent])
    begins = np.concatenate([times[~before], np.zeros(len(early) + len(silent), np.int64)])
    ended = np.concatenate([rows[before], now])
    ends = np.concatenate([times[before], np.full(len(now), _FOR_EVER)])
    begun_order, ended_order = np.lexsort((begins, begun)), np.lexsort((ends, ended))
    begun, ended = begun[begun_order], ended[ended_order]
    if len(begun) != len(ended) or (begun != ended).any():
        raise CorruptionError(f"{where}: a row is born while it is alive, or dies while it is dead (G1)")
    return begun, begins[begun_order], ends[ended_order]


def _undo_of(
    records: _Records | None,
    base: pa.Array,
    place: Rowids,
    lives: _Lives,
    shared: npt.NDArray[np.bool_],
) -> DeltaRun | None:
    """A column's UNDO at the merged rows. Of keys with several rows, what each life had, and what it ended with."""
    if records is None:
        none = np.empty(0, np.int64)
        records = none, none, base.slice(0, 0)
    rows, times, values = records
    if not len(lives.older):
        return build_run("undo", place[rows], times, values) if len(rows) else None
    enders, births = lives.older, lives.older + 1
    kept = ~shared[rows]
    kept[~kept] = lives.hold(rows[~kept], times[~kept])
    at = np.flatnonzero(kept)
    ended = _values_before(lives.rows[enders], lives.ends[enders], records, base)
    return build_run(
        "undo",
        np.concatenate([place[rows[at]], place[lives.rows[enders]]]),
        np.concatenate([times[at], lives.begins[births]]),
        pa.concat_arrays([take(values, at), ended]),
    )


def _values_before(rows: Rowids, moments: Timestamps, records: _Records, base: pa.Array) -> pa.Array:
    """What each row's value was just before its moment: what the oldest record of then or later says, or the base."""
    known, times, values = records
    count = len(rows)
    order = np.lexsort(
        (
            np.arange(count + len(known)) >= count,
            np.concatenate([moments, times]),
            np.concatenate([rows, known]),
        )
    )
    # From behind: the next record, which is of another row where this one has none.
    ahead = np.where(order >= count, np.arange(len(order)), len(order))
    ahead = np.minimum.accumulate(ahead[::-1])[::-1]
    asked = order < count
    found = np.full(count, -1, np.int64)
    found[order[asked]] = np.append(order - count, -1)[ahead[asked]]
    same = found >= 0
    same[same] = known[found[same]] == rows[same]
    return patch(take(base, rows), np.flatnonzero(same), take(values, found[same]))
