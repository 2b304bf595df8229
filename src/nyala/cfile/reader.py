"""Opens a column file, and reads values of its columns as Arrow arrays.

    CFileReader ── places or directory ──> ColumnReader ── footer ──> blocks ── cache, pread, decode ──> Arrow

A caller that knows the places of the footers from the catalogue passes them. Then the reader reads
only the footers and blocks that it needs. Otherwise it first reads the directory in the file. It
opens the file at the first read.

The reader checks the CRC of all bytes before it uses them, and the limits of every length, count
and offset. So a file with forged bytes and right CRCs causes a CorruptionError or wrong values, and
nothing worse. `nyala.schema.arrow_values` checks whether values are valid for their type.

The modules that decode are imported when the first column is read, so opening a store does not
import them.

Threads: any thread may read. No thread may read during `close`. One read uses one thread. Reads in
several threads run at the same time, because decompression, CRC and preads release the interpreter
lock.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.blocks.cache import BlockCache, new_owner
from nyala.cfile.blocks.read_stats import Access
from nyala.cfile.column import BASE, BLOOM, DELTA_VALUE, KEY, ColumnKey, ColumnPlace
from nyala.cfile.errors import (
    SummaryError,
    TrailingBytesError,
    refuse_unknown_flags,
    unreadable_bloom,
    unreadable_keys,
    wrong_file,
)
from nyala.cfile.memory import allocate
from nyala.env.files import Files, MissingFileError, RandomFile
from nyala.errors import CorruptionError, StorageError
from nyala.schema.adapter import may_be_one_column

if TYPE_CHECKING:
    from nyala.cfile.column_reader import ColumnReader
    from nyala.cfile.footer import ColumnFooter
    from nyala.cfile.index.bloom_filter import BloomFilter


_Decoded = TypeVar("_Decoded")
# A remote file up to this size is fetched whole, because that takes hardly longer than fetching a
# part.
_WHOLE_BYTES_MAX: Final = 1 << 20

_VALUES: Final = (BASE, DELTA_VALUE)  # roles of columns that hold values of a column of the schema


# Columns that can be computed from others of the same file. Damage to them loses no data.
_DERIVED: Final = {BLOOM: unreadable_bloom, KEY: unreadable_keys}


class CFileReader:
    """Reads one column file. The file is opened when a column is used for the first time."""

    def __init__(
        self,
        files: Files,
        path: str,
        cache: BlockCache | None = None,
        places: Sequence[ColumnPlace] | None = None,
        types: Mapping[int, pa.DataType] | None = None,
        size_bytes: int | None = None,
        file_id: str | None = None,
    ) -> None:
        """cache: for decoded blocks. None: blocks are not cached.
        places: the places of the footers, from the catalogue. None: read the file's directory.
        types: the Arrow types of columns by id, from the table's schema. A column of another type
        raises CorruptionError.
        size_bytes: the length of the file when it was written. Bytes after it are ignored. None:
        the actual size.
        file_id: the id from the catalogue. A file with another id raises CorruptionError. None: any
        file is accepted.
        """
        self._file_id = file_id
        self._size_bytes = size_bytes
        self.path = path
        self.is_remote: Final = files.is_remote
        """Whether the file is in a bucket, so that `ensure` saves time."""
        self._types = types
        self._files = files
        self._cache = cache
        self._owner = new_owner()
        self._lock = threading.RLock()
        self._file: RandomFile | None = None
        # Indexed by key at first use, because most of the 10,000 rowsets of a large store are not
        # read after it is opened.
        self._given = places
        self._places: dict[ColumnKey, ColumnPlace] | None = None
        self._columns: dict[ColumnKey, ColumnReader] = {}
        self._bloom: BloomFilter | None = None

    @property
    def file_id(self) -> str:
        """The id from the catalogue. Without a catalogue, the id in the file's head."""
        if self._file_id is None:
            self._check_head()
        assert self._file_id is not None
        return self._file_id

    @property
    def cache_limit_bytes(self) -> int | None:
        """The byte limit of the cache; None without a cache."""
        return None if self._cache is None else self._cache.limit_bytes

    def columns(self) -> tuple[ColumnKey, ...]:
        """Return the keys of all columns, in the order in which they were written."""
        return tuple(self._all_places())

    def places(self) -> tuple[ColumnPlace, ...]:
        """Return where the footer of each column is, in the order of `columns`."""
        return tuple(self._all_places().values())

    def column(self, key: ColumnKey) -> ColumnReader | None:
        """Return the reader of a column; None if the file has no such column.

        Cost: the first call for a column reads its footer.
        """
        column = self._columns.get(key)
        if column is None:
            from nyala.cfile.column_reader import ColumnReader

            with self._lock:
                column = self._columns.get(key)
                place = self._all_places().get(key)
                if column is None and place is not None:
                    column = ColumnReader(self, self._footer(place), place)
                    self._check_type(column)
                    self._columns[key] = column
        return column

    def _footer(self, place: ColumnPlace) -> ColumnFooter:
        from nyala.cfile.footer import ColumnFooter

        data = self.read_exactly(place.offset, place.length)
        return self.checked(
            data,
            place.offset,
            lambda data: ColumnFooter.decode(data, place.key, self.path, place.offset, self._file_id),
        )

    def _check_type(self, column: ColumnReader) -> None:
        key, types = column.key, self._types
        expected = None if types is None or key.role not in _VALUES else types.get(key.column_id)
        if expected is not None and not may_be_one_column(column.type.arrow, expected):
            raise CorruptionError(
                f"expected column {key.column_id} to be of type {expected}, found {column.type}",
                self.path,
                column.place.offset,
            )

    def bloom(self) -> BloomFilter | None:
        """Return the bloom filter of the keys; None if the file has none.

        The filter reads its pages at look-ups, which raise CorruptionError for damaged pages. The
        pages count as memory of the block cache, if there is one.
        """
        bloom: BloomFilter | None
        bloom = self._bloom if self._cache is None else self._cache.get(self._owner, ColumnKey(BLOOM))
        if bloom is not None:
            return bloom
        column = self.column(ColumnKey(BLOOM))
        if column is None:
            return None
        from nyala.cfile.index.bloom_filter import BloomFilter

        count = column.row_count
        # The filter is never compressed and precedes its footer. So this limits the allocation
        # below.
        if (
            not 0 < count * format.BLOOM_BLOCK_BYTES <= column.place.offset
            or column.code != format.TYPE_BLOOM
        ):
            raise CorruptionError(
                f"expected a bloom filter (type number {format.TYPE_BLOOM}) of 1 to "
                f"{column.place.offset // format.BLOOM_BLOCK_BYTES} blocks, found type number {column.code} and "
                f"{count} blocks",
                self.path,
                column.place.offset,
            )

        # The cache lives longer than readers, and a reader must be freed when its last user drops
        # it. So a cached filter has only a weak reference to this reader. Whoever uses the filter
        # also holds its reader.
        self_ref: Callable[[], CFileReader | None]
        self_ref = (lambda: self) if self._cache is None else weakref.ref(self)

        def read(lower: int, upper: int) -> npt.NDArray[np.uint32]:
            reader = self_ref()
            assert reader is not None, "a bloom filter was used after its reader was freed"
            blooms = reader.column(ColumnKey(BLOOM))
            assert blooms is not None
            blocks = blooms.decode(lower, upper, access=Access.ONCE)
            at, size = blocks.offset * format.BLOOM_BLOCK_BYTES, len(blocks) * format.BLOOM_BLOCK_BYTES
            return np.frombuffer(blocks.buffers()[1].slice(at, size), "<u4").reshape(len(blocks), -1)

        def on_load(bloom: BloomFilter) -> None:
            if (reader := self_ref()) is not None:
                reader._keep_bloom(bloom)

        bloom = BloomFilter(count, column.rows_per_block, read, on_load)
        self._keep_bloom(bloom)
        return bloom

    def _keep_bloom(self, bloom: BloomFilter) -> None:
        if self._cache is None:
            self._bloom = bloom
        else:
            self._cache.put(self._owner, ColumnKey(BLOOM), bloom, bloom.nbytes, costly=True)

    def close(self) -> None:
        """Close the file and drop its blocks from the cache. No other thread may be reading."""
        with self._lock:
            if self._cache is not None:
                self._cache.drop_owner(self._owner)
            self._columns.clear()
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> CFileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prefetch(self, places: Iterable[tuple[int, int]]) -> None:
        """Announce that these byte ranges (offset, length) will be read soon.

        The bytes of a remote file are then fetched in parallel (see `RandomFile.prefetch`).
        """
        self._opened().prefetch(places)

    def prefetch_footers(self) -> None:
        """Open this reader's file and begin to fetch its column footers, if the file is remote.

        Has no effect if the file is local or already open.
        """
        if self.is_remote:
            self._opened()

    def prefetch_all(self) -> None:
        """Begin to fetch a whole remote file, if its size was given to the constructor."""
        if self.is_remote and self._size_bytes:
            self.prefetch([(0, self._size_bytes)])

    def read_exactly(self, offset: int, length: int) -> bytes:
        """Return the bytes [offset, offset + length). Raises CorruptionError if the file ends before."""
        try:
            data = self._opened().read(offset, length)
        except MissingFileError as error:
            raise self._missing(error) from error
        self._expect(length, len(data), offset)
        return data

    def read_buffer(self, offset: int, length: int) -> pa.Buffer:
        """Return the same bytes as `read_exactly`, in a buffer from `cfile.memory`."""
        data = allocate(length)
        try:
            found = self._opened().read_into(offset, data)
        except MissingFileError as error:
            raise self._missing(error) from error
        self._expect(length, found, offset)
        return data

    def checked(self, data: Any, offset: int, decode: Callable[[Any], _Decoded]) -> _Decoded:
        """Return `decode(data)`. Retry once if a local copy of a remote file may be damaged.

        data: bytes or a buffer that were read at `offset`. If they came from the local copy and
        `decode` raises CorruptionError, the bytes are fetched again.
        Raises: CorruptionError if the file itself is damaged.
        """
        try:
            return decode(data)
        except CorruptionError:
            length = len(data)
            if not self._opened().forget(offset, length):
                raise
            read = self.read_exactly if isinstance(data, bytes) else self.read_buffer
            return decode(read(offset, length))

    def _opened(self) -> RandomFile:
        file = self._file
        if file is None:
            with self._lock:
                file = self._file = self._file or self._open()
        return file

    def _open(self) -> RandomFile:
        try:
            file = self._files.open(self.path)
        except MissingFileError as error:
            raise self._missing(error) from error
        if self.is_remote and self._given:
            # All footers are together at the end of the file, and almost every reader needs some.
            begin = min(place.offset for place in self._given)
            end = max(place.offset + place.length for place in self._given)
            whole = self._size_bytes is not None and self._size_bytes <= _WHOLE_BYTES_MAX
            file.prefetch([(0, self._size_bytes or 0) if whole else (begin, end - begin)])
        return file

    def _missing(self, error: MissingFileError) -> MissingFileError:
        return MissingFileError(
            f"the data file {self.path} is missing, and its rows with it: restore the file or a backup; "
            "`nyala fs check` lists everything that is damaged",
            path=self.path,
            errno=error.errno,
        )

    def _expect(self, length: int, found: int, offset: int) -> None:
        if found != length:
            raise CorruptionError(
                f"expected {length} bytes, found the file's end after {found}", self.path, offset
            )

    def check(self) -> None:
        """Read and check the whole file.

        The check reads the head, the tail, the directory, all footers and all blocks. It compares
        the values in the blocks with the counts of NULLs, zone maps and first keys in the footers.
        Blocks and footers must fill the file without a gap.

        Raises
        ------
        SummaryError
            All values are intact, but data that can be computed from them is not: zone maps, first
            keys, the bloom filter or the encoded keys.
        TrailingBytesError
            The file is intact, but bytes follow its end.
        CorruptionError
            Anything else is wrong. The error describes the first fault.
        """
        from nyala.cfile.column_reader import ColumnReader

        self.prefetch_all()
        self._check_head()
        directory, directory_offset = self._read_directory()
        for key, place in self._all_places().items() if self._given is not None else ():
            if (found := directory.get(key)) != place:
                there = (
                    "no such column" if found is None else f"{found.length} bytes at offset {found.offset}"
                )
                raise CorruptionError(
                    f"expected the footer of {key.in_words} in {place.length} bytes at offset {place.offset}, as the "
                    f"catalogue says, found {there}",
                    self.path,
                )
        extents = []
        derived: SummaryError | None = None
        for place in directory.values():
            extents.append((place.offset, place.length))
            try:
                column = ColumnReader(self, self._footer(place), place)
                extents += column.extents()
                column.check()
            except SummaryError as error:
                derived = derived or error
            except CorruptionError as error:
                if place.key.role not in _DERIVED:
                    raise
                derived = derived or _DERIVED[place.key.role](error)
        if derived is not None:
            raise derived
        end = format.HEAD.size
        for offset, length in sorted(extents):
            if offset != end:
                raise CorruptionError(
                    f"expected a block or footer at offset {end}, found the next one at {offset}",
                    self.path,
                    end,
                )
            end += length
        if end != directory_offset:
            raise CorruptionError(
                f"expected the directory at offset {end}, found it at {directory_offset}", self.path, end
            )
        if self._size_bytes is not None and self._actual_size() > self._size_bytes:
            raise TrailingBytesError(
                f"expected {self._size_bytes} bytes, as the catalogue says, found {self._actual_size()}: the bytes "
                "after the end are not part of the file",
                self.path,
                self._size_bytes,
            )

    # -- head, directory and tail --------------------------------------------------------------------------

    def _all_places(self) -> dict[ColumnKey, ColumnPlace]:
        if self._places is None:
            with self._lock:
                if self._given is not None:
                    self._places = {place.key: place for place in self._given}
                elif self._places is None:
                    self._check_head()
                    self._places, _ = self._read_directory()
        return self._places

    def _check_head(self) -> None:
        head = self.read_exactly(0, format.HEAD.size)
        magic, version, incompatible, _, _, id, crc = format.HEAD.unpack(head)
        if magic != format.HEAD_MAGIC:
            raise CorruptionError(
                f"expected magic {format.HEAD_MAGIC!r} of a column file, found {magic!r}", self.path, 0
            )
        if (found := google_crc32c.value(head[: -format.CRC.size])) != crc:
            raise CorruptionError(f"expected a head with CRC-32C {crc:08x}, found {found:08x}", self.path, 0)
        self._refuse_newer(version, incompatible)
        if self._file_id is None:
            self._file_id = id.hex()
        if id.hex() != self._file_id:
            raise wrong_file(self._file_id, id.hex(), self.path, 0)

    def _actual_size(self) -> int:
        self.read_exactly(0, 0)  # opens the file
        assert self._file is not None
        return self._file.size_bytes()

    def _read_directory(self) -> tuple[dict[ColumnKey, ColumnPlace], int]:
        size = self._actual_size() if self._size_bytes is None else self._size_bytes
        tail_offset = size - format.TAIL.size
        if tail_offset < format.HEAD.size:
            raise CorruptionError(
                f"expected a file of at least {format.HEAD.size + format.TAIL.size} bytes, found {size}",
                self.path,
                size,
            )
        tail = self.read_exactly(tail_offset, format.TAIL.size)
        offset, count, version, incompatible, _, _, crc, magic = format.TAIL.unpack(tail)
        if magic != format.TAIL_MAGIC:
            raise CorruptionError(
                f"expected magic {format.TAIL_MAGIC!r} at the end (is the file cut?), found {magic!r}",
                self.path,
                size - len(format.TAIL_MAGIC),
            )
        length = count * format.DIRECTORY_ENTRY.size
        if offset < format.HEAD.size or offset + length != tail_offset:
            raise CorruptionError(
                f"expected the directory of {count} columns that begins at offset {offset} to end at offset "
                f"{tail_offset}",
                self.path,
                tail_offset,
            )
        directory = self.read_exactly(offset, length)
        covered = tail[: -(format.CRC.size + len(format.TAIL_MAGIC))]
        if (found := google_crc32c.value(directory + covered)) != crc:
            raise CorruptionError(
                f"expected a directory with CRC-32C {crc:08x}, found {found:08x}", self.path, offset
            )
        self._refuse_newer(version, incompatible)
        places = {}
        for role, _, group, column_id, footer_length, footer_offset in format.DIRECTORY_ENTRY.iter_unpack(
            directory
        ):
            key = ColumnKey(role, group, column_id)
            if key in places or footer_offset < format.HEAD.size or footer_offset + footer_length > offset:
                end = footer_offset + footer_length
                there = "a second one" if key in places else f"one from offset {footer_offset} to {end}"
                raise CorruptionError(
                    f"expected one footer for {key.in_words}, between offsets {format.HEAD.size} and {offset}; found "
                    f"{there}",
                    self.path,
                    offset,
                )
            places[key] = ColumnPlace(key, footer_offset, footer_length)
        return places, offset

    def _refuse_newer(self, version: int, incompatible: int) -> None:
        if version != format.FORMAT_VERSION:
            raise StorageError(
                f"{self.path}: this column file has version {version}, but this Nyala reads version "
                f"{format.FORMAT_VERSION}; open the store with a newer Nyala",
                path=self.path,
            )
        refuse_unknown_flags(incompatible, format.FILE_INCOMPATIBLE_KNOWN, self.path)
