"""Merging compaction: the rows of several rowsets as one image, each key once, with the whole of its past.

    rowset A   k: born 3, 'a' ... 'b' at 7, dead 9            one key, several lives: it was deleted in A, whose row
    rowset B   k: born 12, 'c', alive                         stays there dead (R5), and was inserted again later

    merged     k: base 'c', alive
               UNDO value     (12: 'b') (7: 'a')              before 12 the value was what A's row ended with
               UNDO LIVENESS  (12: False) (9: True) (3: False)

Of a key's rows the youngest gives the base; the others become history before its birth. For LIVENESS the records of all
of them simply stand together: the birth of the younger row says "not there before", which is what the older row's base
says too. Any other column needs one record more at that birth: before it, the value was what the older row ended with.

Invariants
    G1  The lives of a key's rows do not overlap: a row dies before the next one is born (R5). Two rows of which this is
        not so are CorruptionError: that is a key alive twice, or an ended life that was changed.
    G2  What the merged image says of a key at a snapshot T >= cut is what that of the inputs' rows says which is
        alive at T; if none is, the key is dead.
    G3  A row that is dead since `cut` or before is left out, and with it what is older than the birth of a younger row.

Pure: images in, an image out. Source: Kudu facts 5.3; seeds/tablet.txt, "Merging compactions". Departure: by column and
in arrays, where Kudu walks lists of changes row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.delta.run import LIVENESS, DeltaRun, Rowids, build_run, take
from nyala.errors import CorruptionError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.image import RowSetImage
from nyala.rowset.meta import NO_ROWID
from nyala.schema.schema import Schema

__all__ = ["merge_images"]

_FOR_EVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Lives:
    """When each row was first there and, if it is dead, since when it is not; by row of all images laid end to end.

    born: 0 when the row was there at every readable snapshot before its first known change.
    ends: the timestamp of its deletion; for ever when it is alive; 0 when it was dead before every readable snapshot.
    """

    born: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def merge_images(images: Sequence[RowSetImage], schema: Schema, cut: int, where: str) -> RowSetImage:
    """One image of the rows of several, all as of one moment; `positions` counts the inputs' rows end to end.

    schema: the columns to keep. cut: snapshots before it need not be readable. where: for messages, which rowsets.
    Raises: CorruptionError (G1).
    Cost:   O(rows · columns) of Arrow's `take`, a sort of the keys where images overlap, and of the UNDO records.
    """
    images = [image.without_history(cut) for image in images]
    counts = [image.row_count for image in images]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    total = int(offsets[-1])
    keys = EncodedKeys.concat([image.keys for image in images])
    lives = _lives(images, offsets)
    if keys.is_strictly_ascending():
        heads, place = np.arange(total), np.arange(total)
        older = younger = np.empty(0, np.int64)
    else:
        heads, place, older, younger = _one_place_a_key(keys, lives, where)
    columns: dict[int, pa.Array] = {}
    undo: dict[int, DeltaRun] = {}
    in_order = len(heads) == total and bool((heads == np.arange(total)).all())
    key_ids = {column.id for column in schema.key_columns}
    for column in schema.columns:
        base = pa.concat_arrays([image.columns[column.id] for image in images])
        columns[column.id] = base if in_order else take(base, heads)
        ended = None
        if len(older) and column.id not in key_ids:
            # Before the younger row was born, the value was what the older one ended with.
            ended = (place[older], lives.born[younger], take(base, older))
        run = _undo_of(images, column.id, offsets, place, ended)
        if run is not None:
            undo[column.id] = run
    past = _undo_of(images, LIVENESS, offsets, place, None)
    if past is not None:
        undo[LIVENESS] = past
    alive = (lives.ends == _FOR_EVER)[heads]
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


def _lives(images: Sequence[RowSetImage], offsets: npt.NDArray[np.int64]) -> _Lives:
    total = int(offsets[-1])
    born = np.zeros(total, np.int64)
    ends = np.zeros(total, np.int64)
    for image, offset in zip(images, offsets[:-1].tolist(), strict=True):
        run = image.undo.get(LIVENESS)
        if run is not None:
            # Descending in time for each row (D1): its first record is its last change, its last one its first.
            rows, differs = run.rowids, run.rowids[1:] != run.rowids[:-1]
            newest, oldest = np.append(True, differs), np.append(differs, True)
            ends[offset + rows[newest]] = run.timestamps[newest]
            before = run.values.to_numpy(zero_copy_only=False)
            first = oldest & ~before.astype(np.bool_)
            born[offset + rows[first]] = run.timestamps[first]
        ends[offset : offset + image.row_count][image.alive()] = _FOR_EVER
    return _Lives(born, ends)


def _one_place_a_key(
    keys: EncodedKeys, lives: _Lives, where: str
) -> tuple[Rowids, Rowids, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(heads: the youngest row of each key, in key order; place: of each row, that of its key, or -1;
    older, younger: neighbouring lives of one key)."""
    total = len(keys)
    order = keys.sort_indices()
    same = keys.take(order).equal_neighbours()
    group = np.concatenate([[0], np.cumsum(~same)])
    if same.any():
        # Within a key by the end of life; at most one lives for ever (G1).
        order = order[np.lexsort((lives.ends[order], group))]
    last = np.append(~same, True)
    older, younger = order[:-1][same], order[1:][same]
    # No rows of one key may overlap in time. A row of unknown birth was there when history began, and with it gone
    # older rows cannot be needed: `without_history` has left them out.
    wrong = np.flatnonzero(lives.ends[older] >= lives.born[younger])
    if len(wrong):
        key = keys.at(int(older[wrong[0]]))
        raise CorruptionError(
            f"{where}: the key {key.hex()} has two rows whose lives overlap: one ends at "
            f"{lives.ends[older[wrong[0]]]}, the next begins at {lives.born[younger[wrong[0]]]} (G1)"
        )
    place = np.empty(total, np.int64)
    place[order] = group
    return order[last], place, older, younger


def _undo_of(
    images: Sequence[RowSetImage],
    column_id: int,
    offsets: npt.NDArray[np.int64],
    place: Rowids,
    ended: tuple[Rowids, npt.NDArray[np.int64], pa.Array] | None,
) -> DeltaRun | None:
    """The column's UNDO of all images, at the merged rows, and the records that `ended` adds."""
    rowids: list[Rowids] = []
    times: list[npt.NDArray[np.int64]] = []
    values: list[pa.Array] = []
    for image, offset in zip(images, offsets[:-1].tolist(), strict=True):
        run = image.undo.get(column_id)
        if run is not None and len(run):
            rowids.append(place[run.rowids + offset])
            times.append(run.timestamps)
            values.append(run.values)
    if ended is not None:
        rowids.append(ended[0])
        times.append(ended[1])
        values.append(ended[2])
    if not rowids:
        return None
    return build_run("undo", np.concatenate(rowids), np.concatenate(times), pa.concat_arrays(values))
