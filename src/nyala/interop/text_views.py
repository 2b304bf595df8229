"""Converts text columns to Arrow string views, the form in which polars and DuckDB store text.

A view has 16 bytes: the length and up to 12 bytes of text. A view of a longer text has the length,
the first 4 bytes, and where the text is.

    batch    'red' 'green' 'red'                 or dictionary codes 1 0 1 of 'green' 'red'
    views    3 red    5 green    3 red

For a dictionary, the views of its entries are built once, and then gathered by the codes of the
rows.
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
    """Converts the text columns of batches, plain or dictionary-encoded, to string views. Thread-safe."""

    def __init__(self, schema: pa.Schema) -> None:
        """schema: the schema of the converted batches. Columns with a view type there are converted."""
        self.schema: Final = schema
        self._dictionaries: dict[str, _DictionaryViews] = {}

    @staticmethod
    def of_all_text(schema: pa.Schema) -> TextViews:
        """Return a converter of batches of this schema, which converts all text and binary columns to views."""
        return TextViews(
            pa.schema([field.with_type(VIEW_TYPES.get(field.type, field.type)) for field in schema])
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not batch.num_columns:
            return batch  # without columns only the batch itself knows its number of rows
        columns = [
            column if column.type == field.type else self._convert(field, column)
            for field, column in zip(self.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _convert(self, field: pa.Field, column: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            if field.type == column.type.value_type:
                return text_of(column)
            known = self._dictionaries.get(field.name)
            dictionary = column.dictionary
            if known is not None and known.are_of(dictionary):
                return known.gather(column.indices)
            if (
                len(column) >= len(dictionary) * _ROWS_PER_ENTRY_MIN
                and len(dictionary)
                and not dictionary.null_count
            ):
                # The batches of another rowset, and of rows in memory, have another dictionary.
                known = self._dictionaries[field.name] = _DictionaryViews(dictionary, field.type)
                return known.gather(column.indices)
            column = text_of(column)
        return _cast(column, field.type)


VIEW_TYPES: Final[Mapping[pa.DataType, pa.DataType]] = {
    pa.string(): pa.string_view(),
    pa.binary(): pa.binary_view(),
}
"""Arrow types and their view types."""


def _cast(column: pa.Array, type: pa.DataType) -> pa.Array:
    """Cast a text or binary column to its Arrow view type."""
    views = pc.cast(column, type, memory_pool=pool())
    validity, own, *data = views.buffers()
    if any(part is None for part in data):
        # pyarrow before 26 gives no data buffer for a slice without bytes, and polars 2.1.0 needs
        # one.
        data = [_NO_BYTES if part is None else part for part in data]
        views = pa.Array.from_buffers(
            type, len(views), [validity, own, *data], views.null_count, views.offset
        )
    return views


_NO_BYTES: Final = pa.py_buffer(b"")
# A batch with fewer rows per dictionary entry is converted row by row.
_ROWS_PER_ENTRY_MIN: Final = 1 / 4
_VIEW: Final = np.dtype("V16")


class _DictionaryViews:
    """Builds columns of Arrow string views from dictionary codes.

    The entries of the dictionary are converted to views once, and then used for every column.
    """

    def __init__(self, dictionary: pa.Array, type: pa.DataType) -> None:
        """dictionary: at least one entry, and no NULL. type: the view type of its entries."""
        self._dictionary = dictionary  # as long as it lives, no other dictionary can have its address
        self._address = _address(dictionary)
        self._type = type
        views = _cast(dictionary, type)
        _, own, *self._data = views.buffers()
        self._views: npt.NDArray[Any] = np.frombuffer(own, _VIEW)[views.offset : views.offset + len(views)]

    def are_of(self, dictionary: pa.Array) -> bool:
        """Whether `dictionary` is the one from which these views were built."""
        return _address(dictionary) == self._address

    def gather(self, indices: pa.Array) -> pa.Array:
        """Return the dictionary's entry for each index, as a string view. A NULL index gives NULL."""
        if indices.offset:  # the bitmap of NULLs must begin with the first value
            indices = pa.concat_arrays([indices])
        if indices.type != pa.int32():
            indices = indices.cast(pa.int32())
        validity, codes = indices.buffers()
        positions = np.frombuffer(codes, np.int32, len(indices))
        views = allocate(_VIEW.itemsize * len(indices))
        # NULLs may have any code, and so any view.
        kernels.gather_views(positions, self._views, views)
        return pa.Array.from_buffers(
            self._type, len(indices), [validity, views, *self._data], indices.null_count
        )


def _address(array: pa.Array) -> tuple[int, int, int]:
    """Return (address, offset, length), which identify the values of an array.

    Two arrays that exist at the same time have the same values if the result is equal.
    """
    offsets = array.buffers()[1]
    return offsets.address if offsets is not None else 0, array.offset, len(array)
