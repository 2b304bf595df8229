"""A part: a file with base columns that a major delta compaction rewrote.

    40.base      key  a  b  c  d      as flushed
    51.part              b     d      a compaction applied the changes of b and d
    60.part              b            another one applied those of b

    read         key  a  b  c  d      each column comes from the newest file that has it: b from 60, d from 51,
                 40  40 60 40 51      the rest from 40

Rowids do not change, so nothing else of the rowset changes. The older copies of these columns stay
on disk until the rowset is merged. A part whose columns were all rewritten again is deleted at
once.

Source: Kudu tablet design, "Types of Delta Compaction". Kudu has one file per column instead.
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
    """What a reader must know about a part; the catalogue stores it."""

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
    """An open part. Compared by identity; usable from any thread."""

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
        """Return a part of the store in the folder `root`. No file is opened before its first use.

        types: the Arrow types of columns by id; see `CFileReader`.
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
