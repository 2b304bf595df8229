"""Blocks from a file: a part of `compiled.pyx`, which includes it and writes the numbers of what is read here.

    fetch          blocks into memory, their CRCs compared
    read_values    the same of whole columns, or of some rows of them, and at once their numbers: block by block through one
                   piece of memory, or out of one where `sieve` left them (sieving.pxi)

`read_values` takes what most blocks are and declines every other, and each of which anything is not as a writer writes it:
who calls it then goes the long way, which knows what else there is, and says what is wrong.
"""

cdef extern from *:
    """
    #include <errno.h>
    #if defined(_WIN32)
    #include <io.h>
    typedef long long nyala_signed;
    static nyala_signed nyala_read(int file, void* into, size_t count, long long offset) { return -1; }
    #else
    #include <unistd.h>
    typedef ssize_t nyala_signed;
    static nyala_signed nyala_read(int file, void* into, size_t count, long long offset)
    {
        nyala_signed done;
        do done = pread(file, into, count, (off_t)offset); while (done < 0 && errno == EINTR);
        return done;
    }
    #endif
    """
    int64_t _read "nyala_read"(int file, void* into, size_t count, int64_t offset) noexcept nogil

ctypedef uint32_t (*crc_function)(const uint8_t* data, size_t count) noexcept nogil

cdef enum:
    CRC_SIZE = 4
    READ_MAX = 1 << 30  # in one call; Linux takes 2 GiB less a page


cdef bint _is_read(int file, Py_ssize_t offset, uint8_t* into, Py_ssize_t length, crc_function crc) noexcept nogil:
    """Whether there is a block of so many bytes, its CRC among them, that is whole."""
    cdef Py_ssize_t done = 0, size = length - CRC_SIZE
    cdef int64_t part
    cdef uint32_t wanted
    while done < length:
        part = _read(file, into + done, min(length - done, <Py_ssize_t>READ_MAX), offset + done)
        if part <= 0:
            return False
        done += part
    memcpy(&wanted, into + size, CRC_SIZE)
    return crc(into, size) == wanted


def fetch(int descriptor, places, size_t crc):
    cdef Py_ssize_t count = len(places), i, failed = -1
    cdef Views views = Views(count)
    cdef Py_ssize_t* offsets = <Py_ssize_t*>malloc(count * sizeof(Py_ssize_t) + 1)
    cdef Py_buffer* view
    if offsets is NULL:
        raise MemoryError
    try:
        for i in range(count):
            offset, into = places[i]
            offsets[i] = offset
            if views.hold(into, PyBUF_WRITABLE).len < CRC_SIZE or offsets[i] < 0:
                raise ValueError(f"expected blocks that end with their CRC, found one of {len(into)} bytes at {offset}")
        with nogil:
            for i in range(count):
                view = views._held + i
                if not _is_read(descriptor, offsets[i], <uint8_t*>view.buf, view.len, <crc_function>crc):
                    failed = i
                    break
    finally:
        free(offsets)
    return failed


# ------------------------------------------------------------------------------------------------ what a block says

cdef enum:
    # Of `format`: a test compares them. Where fields lie in a block's header, and in those of its values.
    BLOCK_HEADER_SIZE = 32
    BLOCK_ALIGNMENT = 16
    FOR_HEADER_SIZE = 32
    CODEWORDS_HEADER_SIZE = 8
    ENCODING_DICTIONARY = 5
    ENCODING_FOR = 7
    COMPRESSION_NONE = 1
    FOR_LINE = 0
    CODEWORDS_PLANES = 1
    CODEWORDS_BITS_MAX = 32

cdef struct BlockHeader:
    uint64_t first_ordinal
    uint32_t row_count
    uint32_t null_count
    uint32_t validity_length
    uint32_t values_length
    uint32_t values_size
    uint8_t encoding
    uint8_t compression
    uint8_t validity_compression
    uint8_t zero

cdef struct ForHeader:
    int64_t base
    int64_t step
    uint64_t unit
    uint8_t layout
    uint8_t bits
    uint8_t zero[6]

cdef struct CodewordsHeader:
    uint8_t layout
    uint8_t bits
    uint16_t zero
    uint32_t base

cdef struct Stretch:
    # The ordinals [lower, upper) of a column, all of each block that they touch, and where their numbers go.
    const uint8_t* offsets
    const uint8_t* lengths
    int rows_log2
    int64_t row_count, lower, upper
    int64_t least, greatest
    bint has_codewords
    uint8_t* out
    int width
    uint8_t* held  # NULL: one block after the other lies in the same room; else one behind the other from here on
    Py_ssize_t held_size
    uint8_t* touched  # of each block that was read becomes 1


cdef bint _is_product(uint64_t count, uint64_t unit, uint64_t* product) noexcept nogil:
    """Their product, if it is below 2^63."""
    if count and unit > <uint64_t>INT64_MAX // count:
        return False
    product[0] = count * unit
    return True


cdef bint _is_sum(int64_t start, int64_t count, int64_t step, int64_t* end) noexcept nogil:
    """start + count · step, if all of it fits 64 bits. count: not below 0."""
    cdef int64_t way
    if count == 0 or (count == 1 and step == INT64_MIN and start >= 0):
        end[0] = start + step if count else start
        return True
    if step == INT64_MIN or (count and (step if step > 0 else -step) > INT64_MAX // count):
        return False
    way = count * step
    if (way > 0 and start > INT64_MAX - way) or (way < 0 and start < INT64_MIN - way):
        return False
    end[0] = start + way
    return True


cdef uint64_t _delta_max(int bits) noexcept nogil:
    return <uint64_t>-1 if bits == 64 else (<uint64_t>1 << bits) - 1


cdef bint _line_fits(const ForHeader* header, int64_t rows, uint64_t most, const Stretch* stretch) noexcept nogil:
    """FOR-fits, with deltas up to `most`."""
    cdef uint64_t spread
    cdef int64_t end, low, high
    if not header.unit or not _is_product(most, header.unit, &spread):
        return False
    if not _is_sum(header.base, rows - 1, header.step, &end):
        return False
    low, high = min(header.base, end), max(header.base, end)
    if low < stretch.least or high > stretch.greatest:
        return False
    return <uint64_t>stretch.greatest - <uint64_t>high >= spread


cdef bint _frame_in(const uint8_t* data, Py_ssize_t size, int64_t rows, const Stretch* stretch, Job* job) noexcept nogil:
    """The job of a frame of so many rows, whose bytes are proved. False: not so."""
    cdef ForHeader header
    if size < FOR_HEADER_SIZE:
        return False
    memcpy(&header, data, FOR_HEADER_SIZE)
    if header.layout != FOR_LINE or header.bits > 64 or size != FOR_HEADER_SIZE + _size(header.bits, rows):
        return False
    job.planes.data, job.planes.end = data + FOR_HEADER_SIZE, data + size
    job.planes.bits, job.planes.count = header.bits, rows
    job.line.base, job.line.step, job.line.unit = <uint64_t>header.base, <uint64_t>header.step, header.unit
    # With all deltas that so many bits can be, or else with those that there are.
    return (
        _line_fits(&header, rows, _delta_max(header.bits), stretch)
        or _line_fits(&header, rows, _greatest_delta(&job.planes), stretch)
    )


cdef bint _codewords_in(const uint8_t* data, Py_ssize_t size, int64_t rows, Job* job) noexcept nogil:
    """The same of codewords, which are compared with how many words there are when they are written."""
    cdef CodewordsHeader header
    if size < CODEWORDS_HEADER_SIZE:
        return False
    memcpy(&header, data, CODEWORDS_HEADER_SIZE)
    if header.layout != CODEWORDS_PLANES or header.bits > CODEWORDS_BITS_MAX:
        return False
    if size != CODEWORDS_HEADER_SIZE + _size(header.bits, rows):
        return False
    if header.base + _delta_max(header.bits) > <uint64_t>0xFFFFFFFF:
        return False
    job.planes.data, job.planes.end = data + CODEWORDS_HEADER_SIZE, data + size
    job.planes.bits, job.planes.count = header.bits, rows
    job.line.base, job.line.step, job.line.unit = header.base, 0, 1
    return True


cdef bint _block_in(
    const uint8_t* block, Py_ssize_t length, int64_t first, int64_t rows, const Stretch* stretch, Job* job
) noexcept nogil:
    """The job of all rows of a block whose CRC was compared, without NULLs and not compressed. False: another."""
    cdef BlockHeader header
    cdef Py_ssize_t size, whole
    if length < BLOCK_HEADER_SIZE + CRC_SIZE:
        return False
    memcpy(&header, block, BLOCK_HEADER_SIZE)
    size = header.values_length
    whole = (BLOCK_HEADER_SIZE + size + CRC_SIZE + BLOCK_ALIGNMENT - 1) // BLOCK_ALIGNMENT * BLOCK_ALIGNMENT
    if (
        header.first_ordinal != <uint64_t>first or header.row_count != <uint64_t>rows or header.null_count
        or header.validity_length or header.values_size != header.values_length or whole != length
        or header.compression != COMPRESSION_NONE
        or header.encoding != (ENCODING_DICTIONARY if stretch.has_codewords else ENCODING_FOR)
    ):
        return False
    if stretch.has_codewords:
        return _codewords_in(block + BLOCK_HEADER_SIZE, size, rows, job)
    return _frame_in(block + BLOCK_HEADER_SIZE, size, rows, stretch, job)


# ------------------------------------------------------------------------------------------------ values


cdef struct Source:
    # A file, and memory for any one block of it.
    int file
    uint8_t* room
    Py_ssize_t room_size
    crc_function crc


cdef int64_t _rows_of_block(const Stretch* stretch, int64_t block) noexcept nogil:
    return min(<int64_t>1 << stretch.rows_log2, stretch.row_count - (block << stretch.rows_log2))


cdef Py_ssize_t _length_of_block(const Stretch* stretch, int64_t block) noexcept nogil:
    cdef uint32_t length
    memcpy(&length, stretch.lengths + 4 * block, 4)
    return length


cdef bint _block_is_there(
    const Source* source, const Stretch* stretch, int64_t block, Py_ssize_t at, bint is_held, Job* job
) noexcept nogil:
    """The job of all rows of a block, which lies at `at` of what is held, or is read to there. False: declined."""
    cdef Py_ssize_t length = _length_of_block(stretch, block), size = source.room_size
    cdef uint8_t* into = source.room
    cdef uint64_t offset
    memcpy(&offset, stretch.offsets + 8 * block, 8)
    if stretch.held is not NULL:
        into, size = stretch.held + at, stretch.held_size - at
    if length < CRC_SIZE or length > size or at % 8 or offset > <uint64_t>(INT64_MAX - length):
        return False
    if not is_held:
        if not _is_read(source.file, <Py_ssize_t>offset, into, length, source.crc):
            return False
        stretch.touched[block - (stretch.lower >> stretch.rows_log2)] = 1
    return _block_in(into, length, block << stretch.rows_log2, _rows_of_block(stretch, block), stretch, job)


cdef Py_ssize_t _rows_below(const int64_t* rows, Py_ssize_t begin, Py_ssize_t end, int64_t limit) noexcept nogil:
    """Where in rows [begin, end), which ascend, the first is that is not below the limit."""
    cdef Py_ssize_t middle
    while begin < end:
        middle = begin + (end - begin) // 2
        if rows[middle] < limit:
            begin = middle + 1
        else:
            end = middle
    return begin


cdef bint _stretch_is_read(
    const Source* source, const Stretch* stretch, const int64_t* rows, Py_ssize_t row_count
) noexcept nogil:
    """rows: which, counted from `lower`; NULL: all. Blocks without any are not looked at."""
    cdef int64_t block = stretch.lower >> stretch.rows_log2, first, block_rows
    cdef Py_ssize_t at = 0, done = 0, end
    cdef bint is_held = stretch.held is not NULL
    cdef Job job
    job.width, job.is_signed, job.lower = stretch.width, True, 0
    while block << stretch.rows_log2 < stretch.upper:
        first = (block << stretch.rows_log2) - stretch.lower
        block_rows = _rows_of_block(stretch, block)
        end = done + block_rows
        if rows is not NULL:
            end = _rows_below(rows, done, row_count, first + block_rows)
        if end > done:
            if not _block_is_there(source, stretch, block, at, is_held, &job):
                return False
            job.rows, job.first, job.count = NULL, first, end - done
            if rows is not NULL and end - done != block_rows:
                job.rows = rows + done
            job.out = stretch.out + done * stretch.width
            job.out_size = job.count * stretch.width
            _prove(0 <= first and end <= row_count)
            if not _fill_one(&job):
                return False
            if stretch.has_codewords and _greatest_of(<const uint32_t*>job.out, job.count) > <uint64_t>stretch.greatest:
                return False
        done = end
        at += _length_of_block(stretch, block)
        block += 1
    return done == row_count


cdef uint32_t _greatest_of(const uint32_t* numbers, Py_ssize_t n) noexcept nogil:
    cdef uint32_t most = 0
    cdef Py_ssize_t done = 0
    while done < n:
        most = max(most, <uint32_t>_most(numbers + done, min(n - done, <Py_ssize_t>TILE)))
        done += TILE
    return most


def read_values(int descriptor, stretches, room, rows, size_t crc):
    cdef Py_ssize_t count = len(stretches), i, row_count = 0
    cdef Views views = Views(6 * count + 2)
    cdef Stretch* plan = <Stretch*>malloc(count * (sizeof(Stretch) + 1) + 1)
    cdef const int64_t* some = NULL
    cdef Source source
    cdef uint8_t* done
    cdef Py_buffer* view
    if plan is NULL:
        raise MemoryError
    done = <uint8_t*>(plan + count)
    try:
        _plan_source(&source, descriptor, room, crc, views)
        if rows is not None:
            view = views.hold(rows, PyBUF_SIMPLE)
            _aligned(view, 8)
            some, row_count = <const int64_t*>view.buf, view.len // 8
        for i in range(count):
            _plan_stretch(stretches[i], plan + i, views)
            _plan_out(stretches[i], plan + i, row_count if some is not NULL else plan[i].upper - plan[i].lower, views)
        with nogil:
            for i in range(count):
                done[i] = _stretch_is_read(
                    &source, plan + i, some, row_count if some is not NULL else plan[i].upper - plan[i].lower
                )
        return [i for i in range(count) if not done[i]]
    finally:
        free(plan)


cdef int _plan_source(Source* source, int descriptor, object room, size_t crc, Views views) except -1:
    cdef Py_buffer* view = views.hold(room, PyBUF_WRITABLE)
    _aligned(view, 8)
    source.file, source.room, source.room_size = descriptor, <uint8_t*>view.buf, view.len
    source.crc = <crc_function>crc
    return 0


cdef int _plan_stretch(object asked, Stretch* stretch, Views views) except -1:
    """A stretch of which every place is proved, but for where its numbers go."""
    cdef Py_buffer* view
    cdef Py_ssize_t blocks
    offsets, lengths, rows_log2, row_count, lower, upper, least, greatest, has_codewords, _, _, touched, held = asked
    stretch.rows_log2, stretch.row_count = rows_log2, row_count
    stretch.lower, stretch.upper = lower, upper
    stretch.least, stretch.greatest = least, greatest
    stretch.has_codewords, stretch.out, stretch.width = has_codewords, NULL, 0
    if not 0 <= stretch.rows_log2 <= 32 or not 0 <= stretch.lower < stretch.upper <= stretch.row_count <= 1 << 48:
        raise ValueError(f"expected ordinals of {row_count} in blocks of 2^{rows_log2}, found [{lower}, {upper})")
    blocks = ((stretch.upper - 1) >> stretch.rows_log2) + 1
    if stretch.lower & ((<int64_t>1 << stretch.rows_log2) - 1) or (
        stretch.upper != stretch.row_count and stretch.upper & ((<int64_t>1 << stretch.rows_log2) - 1)
    ):
        raise ValueError(f"expected whole blocks of 2^{rows_log2} rows, found [{lower}, {upper}) of {row_count}")
    view = views.hold(offsets, PyBUF_SIMPLE)
    stretch.offsets = <const uint8_t*>view.buf
    if view.len // 8 < blocks or views.hold(lengths, PyBUF_SIMPLE).len // 4 < blocks:
        raise ValueError(f"expected an offset and a length of {blocks} blocks, found fewer")
    stretch.lengths = <const uint8_t*>views._held[views._count - 1].buf
    view = views.hold(touched, PyBUF_WRITABLE)
    blocks -= stretch.lower >> stretch.rows_log2
    if view.len < blocks:
        raise ValueError(f"expected a byte for each of {blocks} blocks, found {view.len}")
    stretch.touched = <uint8_t*>view.buf
    stretch.held, stretch.held_size = NULL, 0
    if held is not None:
        view = views.hold(held, PyBUF_WRITABLE)
        _aligned(view, 8)
        stretch.held, stretch.held_size = <uint8_t*>view.buf, view.len
    return 0


cdef int _plan_out(object asked, Stretch* stretch, Py_ssize_t count, Views views) except -1:
    """Where `count` numbers of a stretch go."""
    cdef Py_buffer* view = views.hold(asked[9], PyBUF_WRITABLE)
    stretch.width = asked[10]
    if stretch.width not in (1, 2, 4, 8, 16) or (stretch.has_codewords and stretch.width != 4):
        raise ValueError(f"expected numbers of 1, 2, 4, 8 or 16 bytes, codewords of 4, found {stretch.width}")
    if view.len // stretch.width < count:
        raise ValueError(f"expected room for {count} numbers of {stretch.width} bytes, found {view.len} bytes")
    _aligned(view, min(stretch.width, 8))
    stretch.out = <uint8_t*>view.buf
    return 0
