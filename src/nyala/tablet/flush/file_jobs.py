"""Writes the files of a flush, in this process or in a worker process.

A *piece* is the content of one output file: rows of a MemRowSet, or records of a DeltaMemStore.

    write_pieces                                 this process writes and syncs the files
    spill, then run_spilled in the worker        a worker process writes and syncs the files

When the log is full, a flush encodes and compresses for about a second. In a thread of the user's
process, many short calls would repeatedly take Python's global interpreter lock from waiting
writes. With a worker, this process only sorts the rows and copies them once into a temporary file,
the *spill*.

The spill is in the first tablet's folder while the job runs. It is not synced, and no catalogue
entry names it, so after a crash the next open removes it. Each column, and each array of
positions or timestamps, is an Arrow IPC stream of one batch. Keys are not spilled, because the
worker encodes them again from the key columns. There are no checksums: the spill does not leave the
machine.

Source: docs/design/compaction.md, "Files to files".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.delta.delta_file import WrittenDelta, write_delta_file
from nyala.delta.run import LIVENESS, DeltaRun
from nyala.env.files import Files
from nyala.env.overlapped import each
from nyala.errors import StorageError
from nyala.keys.codec import KeyCodec
from nyala.rowset.image import RowSetImage
from nyala.rowset.writer import WrittenRowSet, write_rowset
from nyala.schema.schema import Schema
from nyala.schema.types import ColumnType
from nyala.tablet.state.entries import (
    decode_delta,
    decode_written_rowset,
    encode_delta,
    encode_written_rowset,
)


@dataclass(frozen=True)
class RowSetPiece:
    """Rows to be written as the rowset with id `number`, in the file `path`.

    image: the rows with their history; its field `positions` is not used.
    """

    path: str
    number: int
    tablet_id: int
    schema: Schema
    image: RowSetImage
    deltas_durable: int

    @property
    def paths(self) -> list[str]:
        """The paths of the files that writing this rowset creates: base data, and UNDO if needed."""
        return [self.path, f"{self.path}.undo"]

    @property
    def nbytes(self) -> int:
        return self.image.nbytes


@dataclass(frozen=True)
class DeltaPiece:
    """REDO records of one rowset, to be written as the file `path`."""

    path: str
    schema: Schema
    runs: dict[int, DeltaRun]

    @property
    def paths(self) -> list[str]:
        return [self.path]

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs.values())


Piece: TypeAlias = RowSetPiece | DeltaPiece
Written: TypeAlias = WrittenRowSet | WrittenDelta

Writer: TypeAlias = "Callable[[Files, str, Sequence[Piece]], list[Written]]"
"""A function that writes the files of a flush, such as `write_pieces` or `FlushWorker.write`."""


def write_pieces(files: Files, root_path: str, pieces: Sequence[Piece]) -> list[Written]:
    """Write the rowsets and REDO files of a flush, and sync them. The caller syncs the folders.

    pieces: the content of each rowset or REDO file.
    Returns: the descriptions of the written files, in the order of `pieces`.
    Raises: StorageError; the caller then removes the files.
    """
    return each(files, lambda piece: _write(files, root_path, piece), pieces)


def _write(files: Files, root_path: str, piece: Piece) -> Written:
    if isinstance(piece, RowSetPiece):
        return write_rowset(
            files, root_path, piece.path, piece.number, piece.tablet_id, piece.image, piece.schema,
            deltas_durable=piece.deltas_durable,
        )  # fmt: skip
    path = os.path.join(root_path, piece.path)
    return write_delta_file(files, path, "redo", piece.runs, delta_types(piece.schema, piece.runs))


def delta_types(schema: Schema, columns: Collection[int]) -> dict[int, ColumnType]:
    """Return the stored type of each column's deltas: bool for LIVENESS, else the column's type."""
    return {
        number: ColumnType("bool") if number == LIVENESS else schema.by_id(number).type for number in columns
    }


# ── in a worker


class _Spill:
    """Writes arrays to a spill file. Methods return the [offset, length] of an array in the file."""

    def __init__(self, files: Files, path: str) -> None:
        self._file = files.create(path)
        self._vectors: list[tuple[npt.NDArray[np.int64], list[int]]] = []

    def put(self, array: pa.Array) -> list[int]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("v", array.type)])) as writer:
            writer.write_batch(pa.record_batch([array], names=["v"]))
        data = sink.getvalue()
        return [self._file.append(data), data.size]

    def put_vector(self, vector: npt.NDArray[np.int64]) -> list[int]:
        """Write an array of rowids or timestamps to the spill file. Return where it is in the file.

        The result is [offset, length], in bytes. If an equal array was written earlier, write
        nothing, and return the offset and length of that array.
        """
        for known, place in self._vectors:
            if known is vector or np.array_equal(known, vector):
                return place
        place = self.put(pa.array(vector))
        self._vectors.append((vector, place))
        return place

    def put_runs(self, runs: Mapping[int, DeltaRun]) -> dict[str, Any]:
        return {
            str(number): {
                "kind": run.kind,
                "rowids": self.put_vector(run.rowids),
                "timestamps": self.put_vector(run.timestamps),
                "values": self.put(run.values),
            }
            for number, run in runs.items()
        }

    def close(self) -> None:
        self._file.close()


def spill(files: Files, root_path: str, path: str, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Write the data of a flush to the new temporary file `path`, for a worker process.

    pieces: the contents of the files that the worker is to write.
    Returns: the argument of `run_spilled`.
    Raises: StorageError; the caller then removes the file.
    """
    store = _Spill(files, os.path.join(root_path, path))
    try:
        return {
            "root_path": root_path,
            "spill": path,
            "pieces": [_spill_piece(store, piece) for piece in pieces],
        }
    finally:
        store.close()


def _spill_piece(store: _Spill, piece: Piece) -> dict[str, Any]:
    if isinstance(piece, DeltaPiece):
        return {
            "path": piece.path,
            "schema": piece.schema.to_json(),
            "runs": store.put_runs(piece.runs),
        }
    image = piece.image
    return {
        **{name: getattr(piece, name) for name in ("path", "number", "tablet_id", "deltas_durable")},
        "schema": piece.schema.to_json(),
        "columns": {str(number): store.put(array) for number, array in image.columns.items()},
        "liveness": None if image.liveness is None else store.put(image.liveness),
        "undo": store.put_runs(image.undo),
    }


def run_spilled(files: Files, arguments: dict[str, Any]) -> dict[str, Any]:
    """Write the rowsets and REDO files of a flush, in the worker process.

    arguments: the result of `spill`, which put the data of all these files into a temporary file.
    Returns: JSON that describes the written files, for `decode_written`.
    Raises: StorageError.
    """
    root_path = arguments["root_path"]
    vectors = _Vectors(files, os.path.join(root_path, arguments["spill"]))
    try:
        made = each(
            files, lambda fields: _write(files, root_path, _read_piece(vectors, fields)), arguments["pieces"]
        )
    finally:
        vectors.close()
    return {
        "written": [
            {"rowset": encode_written_rowset(one)}
            if isinstance(one, WrittenRowSet)
            else {"delta": encode_delta(one)}
            for one in made
        ]
    }


def decode_written(answer: dict[str, Any]) -> list[Written]:
    """Return the descriptions of the files that `run_spilled` wrote, decoded from its answer.

    The order is that of the list `pieces` that `spill` got.
    """
    return [
        decode_written_rowset(one["rowset"]) if "rowset" in one else decode_delta(one["delta"])
        for one in answer["written"]
    ]


class _Vectors:
    """Reads arrays from a spill file."""

    def __init__(self, files: Files, path: str) -> None:
        self._file = files.open(path)

    def array(self, place: Sequence[int]) -> pa.Array:
        offset, length = place
        try:
            data = self._file.read(offset, length)
            return pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch().column(0)
        except (pa.ArrowInvalid, OSError, StopIteration) as error:
            raise StorageError(
                f"the spill file {self._file.path} of a flush cannot be read at offset {offset}: {error}. Nothing is "
                "lost: the rows are in memory and in the log, and the flush is repeated",
                path=self._file.path,
            ) from error

    def runs(self, fields: dict[str, Any]) -> dict[int, DeltaRun]:
        return {
            int(number): DeltaRun(
                run["kind"],
                self.array(run["rowids"]).to_numpy(),
                self.array(run["timestamps"]).to_numpy(),
                self.array(run["values"]),
            )
            for number, run in fields.items()
        }

    def close(self) -> None:
        self._file.close()


def _read_piece(vectors: _Vectors, fields: dict[str, Any]) -> Piece:
    schema = Schema.from_json(fields["schema"])
    if "runs" in fields:
        return DeltaPiece(fields["path"], schema, vectors.runs(fields["runs"]))
    columns = {int(number): vectors.array(place) for number, place in fields["columns"].items()}
    key_columns = schema.key_columns
    image = RowSetImage(
        KeyCodec([column.type for column in key_columns]).encode([columns[c.id] for c in key_columns]),
        columns,
        None if fields["liveness"] is None else vectors.array(fields["liveness"]),
        vectors.runs(fields["undo"]),
        np.empty(0, np.int64),
    )
    return RowSetPiece(
        fields["path"], fields["number"], fields["tablet_id"], schema, image, fields["deltas_durable"]
    )
