"""A part: a file with base columns that a major delta compaction rewrote.

    40.base      key  a  b  c  d      as flushed
    51.part              b     d      a compaction applied the changes of b and d
    60.part              b            a later compaction applied the newer changes of b

    read         key  a  b  c  d      each column comes from the newest file that has it: b from 60, d from 51,
                 40  40 60 40 51      all others from 40

Rowids stay the same, so the key index and the other columns remain valid. The old copies of b and d
stay in 40.base until the rowset is merged. A part is deleted when newer parts have all its columns.

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


class PartDescription(Protocol):
    """The catalogue's entry of a part (a file with rewritten base columns): enough to open it."""

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
    """An open part (a file with rewritten base columns). Any thread may use it."""

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
        """Return a part of the store in the folder `root`. The file is opened at its first use.

        types: the Arrow types of the columns, by column id.
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
        """The path of the file, relative to the store's folder."""
        return self.entry.path

    @property
    def size_bytes(self) -> int:
        return self.entry.size_bytes
