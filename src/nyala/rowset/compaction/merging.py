"""Merging compaction: merges the rows of several rowsets into one image, with their history.

An *image* is a rowset as arrays in memory: rows in key order, and their history. Each input rowset
becomes an image. The new rowset is written from the merged image.

A *life* of a row is the time from an insertion to the next delete. If a key is deleted and inserted
again, its dead row stays in one rowset, and its live row may be in another. The merged image has
one row for the key:

    rowset A    key k: inserted at 3 with 'a', updated at 7 to 'b', deleted at 9
    rowset B    key k: inserted at 12 with 'c'

    image       base           'c', alive
                UNDO value     before 12: 'b'     before 7: 'a'
                UNDO LIVENESS  before 12: dead    before 9: alive    before 3: dead

The base values come from the row with the last life. LIVENESS gets the UNDO records of all rows.
Any other column keeps the records of each life. At the beginning of each later life it gets a new
record, with the last value of the life before: in the example "before 12: 'b'".

After earlier compactions a row may have several lives, and the lives of two rows may alternate.
Example: one row lives from 3 to 9 and from 20 on, another from 12 to 15.

Invariants
    G1  The lives of a key do not overlap, even if they are in different rows. Otherwise a
        CorruptionError is raised.
    G2  At any snapshot T >= cut, the merged row has the values of the input row that is alive at T.
        If no input row is alive then, the merged row is dead. `cut` is the oldest moment that
        readers may still need.
    G3  A row that has been dead since `cut` or longer is dropped with its history, even if
        another row with the same key stays.

The functions do not read or write files: they take images and return an image. Source:
docs/design/kudu.md, "Rows in flush and compaction"; Kudu tablet design, "Merging compactions". Kudu
merges lists of changes row by row.
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

_FOR_EVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Lives:
    """When rows were inserted and deleted, only for keys that have several rows.

    A life is the time from an insertion of a row to its next deletion. Lives are sorted by key and
    time.

    rows:   the row of each life. Row numbers continue from one input image to the next.
    begins: the timestamp of each life's insertion; 0 if it is older than the history.
    ends:   the timestamp of each life's deletion; `_FOR_EVER` if the row is alive.
    older:  the indexes of lives that are not the last one of their key. The next life of the same
            key is at the next index.
    """

    rows: Rowids
    begins: Timestamps
    ends: Timestamps
    older: npt.NDArray[np.int64]

    def hold(self, rows: Rowids, times: Timestamps) -> npt.NDArray[np.bool_]:
        """Return one bool per change: whether the changed row was alive at the time of the change.

        rows, times: the row and the timestamp of each change.

        A row is alive from an insertion to the next deletion. For a change at the time of the
        insertion, the result is False. At the time of the deletion it is True, because a delete may
        also change a value of the row. For example, `apply_changes(sequence=…)` of a table does
        this: when it deletes a row, it writes the sequence number of the delete into the row.
        """
        count = len(self.rows)
        order = np.lexsort(
            (
                np.arange(count + len(rows)) >= count,
                np.concatenate([self.begins, times]),
                np.concatenate([self.rows, rows]),
            )
        )
        # The last life that begins up to the time. If this row has none, it is of another row.
        last = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
        is_query = order >= count
        found = np.empty(len(rows), np.int64)
        found[order[is_query] - count] = np.where(last >= 0, order[last], 0)[is_query]
        inside: npt.NDArray[np.bool_] = (
            (self.rows[found] == rows) & (self.begins[found] < times) & (times <= self.ends[found])
        )
        return inside


_NO_LIVES = _Lives(*(np.empty(0, np.int64) for _ in range(4)))


def merge_images(images: Sequence[RowSetImage], schema: Schema, cut: int, where: str) -> RowSetImage:
    """Merge the rows of several images, which show the same moment, into one image.

    An image is a rowset as arrays in memory: rows in key order, and their history. The result's
    `positions` says for each source row which row of the result it became, or -1. First come the
    source rows of the first image, then those of the second, and so on.

    schema: the columns to keep.
    cut:    history that only snapshots before this timestamp need is dropped.
    where:  the names of the rowsets, for error messages.
    Raises: CorruptionError if a key is alive in two rows at once, or UNDO records contradict each
            other.
    """
    images = [image.without_history(cut) for image in images]
    offsets = np.concatenate([[0], np.cumsum([image.row_count for image in images])]).astype(np.int64)
    total = int(offsets[-1])
    keys = EncodedKeys.concat([image.keys for image in images])
    past = _records(images, LIVENESS, offsets)
    alive = np.concatenate([image.alive() for image in images])
    if keys.is_strictly_ascending():
        heads, position, lives = np.arange(total), np.arange(total), _NO_LIVES
    else:
        heads, position, lives = _merge_keys(keys, alive, past, where)
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
        run = _undo_of(_records(images, column.id, offsets), base, position, lives, shared)
        if run is not None:
            undo[column.id] = run
    if past is not None:
        undo[LIVENESS] = build_run("undo", position[past[0]], past[1], past[2])
    for column_id, run in undo.items():
        if (at := run.disorder()) is not None:
            name = "LIVENESS" if column_id == LIVENESS else f"column {column_id}"
            raise CorruptionError(
                f"{where}: the UNDO records of {name} contradict each other: record {at} of row {run.rowids[at]} is "
                "out of order. A delta file is wrong for its rowset: restore the table from a backup"
            )
    merged_alive = alive[heads]
    # Rows of an input that `without_history` dropped have no position.
    position_or_none = np.append(position, NO_ROWID)
    positions = [
        position_or_none[np.where(image.positions >= 0, image.positions + offset, total)]
        for image, offset in zip(images, offsets[:-1].tolist(), strict=True)
    ]
    return RowSetImage(
        keys if in_order else keys.take(heads),
        columns,
        None if merged_alive.all() else pa.array(merged_alive),
        undo,
        np.concatenate(positions),
    )


_Records = tuple[Rowids, Timestamps, pa.Array]
"""(rows, timestamps, values) of UNDO records; the records of a row are newest first.

Row numbers continue from one input rowset to the next.
"""


def _records(
    images: Sequence[RowSetImage], column_id: int, offsets: npt.NDArray[np.int64]
) -> _Records | None:
    """Return a column's UNDO records in all input rowsets; None if there are no records.

    images: the input rowsets, as arrays in memory.
    offsets: for each image, the number of rows in all images before it. It is added to the row
        numbers of the image.
    """
    found = [
        (run.rowids + offset, run.timestamps, run.values)
        for image, offset in zip(images, offsets[:-1].tolist(), strict=True)
        if (run := image.undo.get(column_id)) is not None and len(run)
    ]
    if not found:
        return None
    rows, times, values = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(times), pa.concat_arrays(values)


def _merge_keys(
    keys: EncodedKeys, alive: npt.NDArray[np.bool_], past: _Records | None, where: str
) -> tuple[Rowids, Rowids, _Lives]:
    """Group all rows by key, and return (heads, positions, lives).

    heads:     for each key, in key order, the row whose base values the merged row gets.
    positions: for each row, the number of its merged row.
    lives:     when rows were inserted and deleted, for the keys that have several rows.

    keys, alive: the key of each row, and whether the row is alive now.
    past:  the UNDO records of LIVENESS: when the rows were inserted and deleted.
    where: the names of the rowsets, for error messages.
    Raises: CorruptionError if two rows of a key are alive at the same time.
    """
    total = len(keys)
    order = keys.sort_indices()
    same = keys.take(order).equal_neighbours()
    group = np.concatenate([[0], np.cumsum(~same)])
    position = np.empty(total, np.int64)
    position[order] = group
    heads = order[np.append(True, ~same)]
    if not same.any():
        return heads, position, _NO_LIVES
    shared = np.zeros(total, np.bool_)
    shared[order[1:][same]] = shared[order[:-1][same]] = True
    rows, begins, ends = _lives_of(np.flatnonzero(shared), alive, past, where)
    # Sorted also by end: at most one life of a key has no end (G1).
    in_time = np.lexsort((ends, begins, position[rows]))
    rows, begins, ends = rows[in_time], begins[in_time], ends[in_time]
    followed = position[rows[1:]] == position[rows[:-1]]
    older = np.flatnonzero(followed)
    wrong = older[ends[older] >= begins[older + 1]]
    if len(wrong):
        at = int(wrong[0])
        raise CorruptionError(
            f"{where}: the key {keys.at(int(rows[at])).hex()} has two rows whose lives overlap: one ends at "
            f"{ends[at]}, the next begins at {begins[at + 1]}"
        )
    last = np.append(~followed, True)
    heads[position[rows[last]]] = rows[last]
    return heads, position, _Lives(rows, begins, ends, older)


def _lives_of(
    shared_rows: Rowids, alive: npt.NDArray[np.bool_], past: _Records | None, where: str
) -> tuple[Rowids, Timestamps, Timestamps]:
    """Return when rows were inserted and deleted, as (rows, insertion times, deletion times).

    The arrays have one value per insertion. The insertion time is 0 if it is older than the
    history. The deletion time is `_FOR_EVER` if the row is alive.

    shared_rows: the rows to return. Each of them has a key that several rows have.
    alive: whether each row of all input rowsets is alive now.
    past:  the UNDO records of LIVENESS: when the rows were inserted and deleted.
    where: the names of the rowsets, for error messages.
    Raises: CorruptionError if a live row is inserted, or a dead row deleted.
    """
    rows, times = np.empty(0, np.int64), np.empty(0, np.int64)
    before = np.empty(0, np.bool_)
    if past is not None:
        mine = np.isin(past[0], shared_rows)
        rows, times = past[0][mine][::-1], past[1][mine][::-1]  # ascending in time within each row
        before = past[2].to_numpy(zero_copy_only=False).astype(np.bool_)[mine][::-1]
    # If a row was alive before its first record, that life begins at 0.
    first = np.append(True, rows[1:] != rows[:-1])[: len(rows)]
    early = rows[first & before]
    unchanged = np.setdiff1d(shared_rows, rows)
    now = shared_rows[alive[shared_rows]]
    begun = np.concatenate([rows[~before], early, unchanged])
    begins = np.concatenate([times[~before], np.zeros(len(early) + len(unchanged), np.int64)])
    ended = np.concatenate([rows[before], now])
    ends = np.concatenate([times[before], np.full(len(now), _FOR_EVER)])
    begun_order, ended_order = np.lexsort((begins, begun)), np.lexsort((ends, ended))
    begun, ended = begun[begun_order], ended[ended_order]
    if len(begun) != len(ended) or (begun != ended).any():
        raise CorruptionError(f"{where}: a row is inserted while it is alive, or deleted while it is dead")
    return begun, begins[begun_order], ends[ended_order]


def _undo_of(
    records: _Records | None,
    base: pa.Array,
    position: Rowids,
    lives: _Lives,
    shared: npt.NDArray[np.bool_],
) -> DeltaRun | None:
    """Return a column's UNDO records for the merged rows; None if there are no records.

    records, base: the column's UNDO records and base values, for the rows of all input rowsets.
    position: for each of these rows, the number of the merged row that replaces it.
    lives:  when rows were inserted and deleted, for the keys that have several rows.
    shared: for each row, whether another row has the same key.
    """
    if records is None:
        none = np.empty(0, np.int64)
        records = none, none, base.slice(0, 0)
    rows, times, values = records
    if not len(lives.older):
        return build_run("undo", position[rows], times, values) if len(rows) else None
    enders, births = lives.older, lives.older + 1
    kept = ~shared[rows]
    kept[~kept] = lives.hold(rows[~kept], times[~kept])
    at = np.flatnonzero(kept)
    ended = _values_before(lives.rows[enders], lives.ends[enders], records, base)
    return build_run(
        "undo",
        np.concatenate([position[rows[at]], position[lives.rows[enders]]]),
        np.concatenate([times[at], lives.begins[births]]),
        pa.concat_arrays([take(values, at), ended]),
    )


def _values_before(rows: Rowids, moments: Timestamps, records: _Records, base: pa.Array) -> pa.Array:
    """Return each row's value just before its moment.

    This is the value of the row's oldest UNDO record at or after the moment. A row without such a
    record has its base value.
    """
    known, times, values = records
    count = len(rows)
    order = np.lexsort(
        (
            np.arange(count + len(known)) >= count,
            np.concatenate([moments, times]),
            np.concatenate([rows, known]),
        )
    )
    # The next record from the moment on. If this row has none, it is of another row.
    ahead = np.where(order >= count, np.arange(len(order)), len(order))
    ahead = np.minimum.accumulate(ahead[::-1])[::-1]
    is_query = order < count
    found = np.full(count, -1, np.int64)
    found[order[is_query]] = np.append(order - count, -1)[ahead[is_query]]
    same = found >= 0
    same[same] = known[found[same]] == rows[same]
    return patch(take(base, rows), np.flatnonzero(same), take(values, found[same]))
