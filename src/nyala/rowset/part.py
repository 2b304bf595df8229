"""A part: base columns of a rowset that a major delta compaction has written anew, in a file of their own.

    40.base      key  a  b  c  d      as flushed
    51.part              b     d      a compaction brought b and d up to date
    60.part              b            and b once more

    read         key  a  b  c  d      the newest file that has a column has it: b from 60, d from 51, the rest from 40
                 40  40 60 40 51

Rowids stay what they were, so nothing else of the rowset changes. What an older file still has of such columns is
dead weight until the rowset is merged; a part of which every column was rewritten again goes at once.

Source: Kudu tablet design, "Types of Delta Compaction". Departure: Kudu has a file per column.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.column import BASE, ColumnPlace
from nyala.cfile.reader import CFileReader
from nyala.env.files import Files

__all__ = ["Part", "PartDescription"]


class PartDescription(Protocol):
    """What must be known of a part to use it: a row of the catalogue."""

    @property
    def id(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def file_id(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def places(self) -> Sequence[ColumnPlace]: ...


@dataclass(frozen=True, eq=False)
class Part:
    """An open part. Compared by identity; may be used from any thread."""

    entry: PartDescription
    reader: CFileReader
    column_ids: frozenset[int]

    @staticmethod
    def open(
        files: Files,
        root: str,
        entry: PartDescription,
        cache: BlockCache | None = None,
        types: Mapping[int, pa.DataType] | None = None,
    ) -> Part:
        """A part of the store in the folder `root`. Nothing is read, nor the file opened, before it is needed.

        types: of columns by their ids; see `CFileReader`.
        """
        reader = CFileReader(
            files,
            os.path.join(root, entry.path),
            cache,
            tuple(entry.places),
            types,
            entry.size_bytes,
            entry.file_id,
        )
        columns = frozenset(place.key.column_id for place in entry.places if place.key.role == BASE)
        return Part(entry, reader, columns)

    @property
    def id(self) -> int:
        return self.entry.id

    @property
    def path(self) -> str:
        """Relative to the store's folder."""
        return self.entry.path

    @property
    def size_bytes(self) -> int:
        return self.entry.size_bytes
