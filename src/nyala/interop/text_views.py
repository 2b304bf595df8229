"""Text as Arrow views (16 bytes a value: its length and either itself or its first bytes and where it lies).

    batch    'red' 'green' 'red'                 or codewords 1 0 1 of a dictionary 'green' 'red'
    views    3 red    5 green    3 red           of up to 12 bytes; of longer ones the first 4 and where they lie

polars and DuckDB take views nearly as they are. Of what lies in dictionaries a view is made once for each word, not
once a row.
Source: the Arrow columnar format, "Variable-size Binary View Layout".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile import kernels
from nyala.cfile.forms.text import text_of
from nyala.cfile.memory import allocate, pool

__all__ = ["VIEW_TYPES", "TextViews"]


class TextViews:
    """Makes views of columns of batches, whether they lie in dictionaries or not. Several threads may use one."""

    def __init__(self, schema: pa.Schema) -> None:
        """schema: of the batches that are made, with views where there shall be some."""
        self.schema: Final = schema
        self._words: dict[str, _Words] = {}
        self._same: dict[str, _Same] = {}

    @staticmethod
    def of_all_text(schema: pa.Schema) -> TextViews:
        """For batches of this schema, whose text and binary may come as dictionaries."""
        return TextViews(
            pa.schema([field.with_type(VIEW_TYPES.get(field.type, field.type)) for field in schema])
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.num_columns:
            return batch  # which knows how many rows it has; arrays could not tell
        columns = [
            column if column.type == field.type else self._made(field, column)
            for field, column in zip(self.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _made(self, field: pa.Field, column: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            if field.type == column.type.value_type:
                return text_of(column)
            words = self._words.get(field.name)
            dictionary = column.dictionary
            if len(dictionary) == 1 and not column.indices.null_count and not dictionary.null_count:
                same = self._same.get(field.name)
                if same is None or not same.has(dictionary, len(column)):
                    same = self._same[field.name] = _Same(dictionary, field.type, len(column))
                return same.text(len(column))
            if words is not None and words.are_of(dictionary):
                return words.text(column.indices)
            if (
                len(column) >= len(dictionary) * _WORTH_VIEWS
                and len(dictionary)
                and not dictionary.null_count
            ):
                # Of another rowset, or of rows in memory, the words are others.
                words = self._words[field.name] = _Words(dictionary, field.type)
                return words.text(column.indices)
            column = text_of(column)
        return _cast(column, field.type)


VIEW_TYPES: Final[Mapping[pa.DataType, pa.DataType]] = {
    pa.string(): pa.string_view(),
    pa.binary(): pa.binary_view(),
}
"""The types that are handed over as views."""


def _cast(column: pa.Array, type: pa.DataType) -> pa.Array:
    """Text as views of it."""
    views = pc.cast(column, type, memory_pool=pool())
    validity, own, *data = views.buffers()
    if any(part is None for part in data):
        # pyarrow before 26, of a slice without bytes: polars 2.1.0 takes the address that is not there.
        data = [_NO_BYTES if part is None else part for part in data]
        views = pa.Array.from_buffers(
            type, len(views), [validity, own, *data], views.null_count, views.offset
        )
    return views


_NO_BYTES: Final = pa.py_buffer(b"")
# Views of a dictionary's words are made where there is a row for so large a share of the words.
_WORTH_VIEWS: Final = 1 / 4
_VIEW: Final = np.dtype("V16")


class _Same:
    """Views of one word, as many as a frame ever had: what a predicate leaves of a text that it compares with one word,
    which polars wants to have though it seldom looks at it."""

    def __init__(self, dictionary: pa.Array, type: pa.DataType, count: int) -> None:
        """dictionary: of one word, no NULL. type: of views."""
        self._dictionary = dictionary
        codes = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(np.zeros(count, np.int32))], 0)
        self._views = _Words(dictionary, type).text(codes)

    def has(self, dictionary: pa.Array, count: int) -> bool:
        return count <= len(self._views) and self._dictionary.equals(dictionary)

    def text(self, count: int) -> pa.Array:
        return self._views.slice(0, count)


class _Words:
    """The views of a dictionary's words, of which a column of views is put together."""

    def __init__(self, dictionary: pa.Array, type: pa.DataType) -> None:
        """dictionary: of a word at least, no NULL. type: of views."""
        self._dictionary = dictionary  # which keeps its address
        self._address = _address(dictionary)
        self._type = type
        views = _cast(dictionary, type)
        _, own, *self._data = views.buffers()
        self._views: npt.NDArray[Any] = np.frombuffer(own, _VIEW)[views.offset : views.offset + len(views)]

    def are_of(self, dictionary: pa.Array) -> bool:
        return _address(dictionary) == self._address

    def text(self, indices: pa.Array) -> pa.Array:
        """A value for each index; NULL for NULL."""
        if indices.offset:  # bits of validity lie with the first value in the first bit
            indices = pa.concat_arrays([indices])
        if indices.type != pa.int32():
            indices = indices.cast(pa.int32())
        validity, codes = indices.buffers()
        places = np.frombuffer(codes, np.int32, len(indices))
        views = allocate(_VIEW.itemsize * len(indices))
        # What stands where a value is NULL says nothing, so it may point anywhere.
        kernels.gather_views(places, self._views, views)
        return pa.Array.from_buffers(
            self._type, len(indices), [validity, views, *self._data], indices.null_count
        )


def _address(array: pa.Array) -> tuple[int, int, int]:
    """Two arrays that are both there have the same only if they have the same values."""
    offsets = array.buffers()[1]
    return offsets.address if offsets is not None else 0, array.offset, len(array)
