# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The kernels in C. `plain` documents the arguments and results of each function.

A kernel processes one tile at a time: 2,048 rows, which stay in the first-level cache. A separate loop,
which the compiler vectorizes, unpacks each plane into the tile. One more loop processes the deltas.

    planes of a block ──> tile of deltas ──> numbers, masks, the maximum

All memory ranges are checked before the interpreter lock is released (`_planes_in`, `_rows_in`). A
number in a block is never used as an address, except dictionary codes, which are compared first.

A build with NYALA_KERNEL_CHECKS=1 checks every range again where it is read or written (`CHECKED`).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport abort, free, malloc
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    #ifdef NYALA_KERNEL_CHECKS
    #define NYALA_CHECKED 1
    #else
    #define NYALA_CHECKED 0
    #endif
    #if defined(__GNUC__) && defined(__x86_64__)
    #define NYALA_HAS_AVX2 __builtin_cpu_supports("avx2")
    #else
    #define NYALA_HAS_AVX2 0
    #endif
    """
    bint _checked "NYALA_CHECKED"
    bint _has_avx2 "NYALA_HAS_AVX2"

REVISION = 24
CHECKED = bool(_checked)
HAS_AVX2 = bool(_has_avx2)

ctypedef fused word:  # the type of a tile: a vector holds more narrow words than wide ones
    uint8_t
    uint16_t
    uint32_t
    uint64_t

ctypedef fused long_word:  # the type of a tile of gathered deltas
    uint32_t
    uint64_t

ctypedef fused number:
    uint8_t
    uint16_t
    uint32_t
    uint64_t

cdef enum:
    TILE = 2048  # rows: with 8 bytes each, half of a first-level cache
    # At least DENSE_MIN nearby rows are gathered by unpacking a whole tile, if that costs less. The costs were measured,
    # in 0.01 ns: of gathering a row from a plane of bytes or of bits, and of unpacking a row of at most 8, 16 or 32 bits.
    DENSE_MIN = 16
    GATHER_BYTES = 30
    GATHER_BITS = 90
    UNPACK_8 = 6
    UNPACK_16 = 12
    UNPACK_32 = 36

cdef struct Planes:
    # The planes of `count` numbers of `bits` bits, from `data` to `end`.
    const uint8_t* data
    const uint8_t* end
    int bits
    Py_ssize_t count

cdef struct Line:
    uint64_t base
    uint64_t step
    uint64_t unit

cdef struct Job:
    Planes planes
    Line line
    const int64_t* rows  # counted from `first`; NULL: the rows [lower, lower + count)
    int64_t first
    Py_ssize_t lower
    Py_ssize_t count
    uint8_t* out
    Py_ssize_t out_size
    int width
    bint is_signed


# ------------------------------------------------------------------------------------------------ checks


cdef Py_ssize_t _size(int bits, Py_ssize_t count) noexcept nogil:
    """Return the bytes of `count` numbers of `bits` bits."""
    cdef Py_ssize_t size = 0
    cdef int plane = 64
    while plane:
        if bits & plane:
            size += count * (plane // 8) if plane >= 8 else (count * plane + 7) // 8
        plane >>= 1
    return size


cdef int _planes_in(Planes* planes, Py_buffer* view, Py_ssize_t start, int bits, Py_ssize_t count) except -1:
    if not 0 <= bits <= 64 or not 0 <= count <= <Py_ssize_t>0xFFFFFFFF or start < 0:
        raise ValueError(f"expected at most 64 bits per row, found {bits} bits, {count} rows, offset {start}")
    if start > view.len - _size(bits, count):
        raise ValueError(f"expected {_size(bits, count)} bytes at {start}, found {view.len} in all")
    planes.data = <const uint8_t*>view.buf + start
    planes.end = planes.data + _size(bits, count)
    planes.bits, planes.count = bits, count
    return 0


cdef int _rows_in(Py_ssize_t lower, Py_ssize_t upper, Py_ssize_t count) except -1:
    if not 0 <= lower <= upper <= count:
        raise ValueError(f"expected rows below {count}, found [{lower}, {upper})")
    return 0


cdef int _aligned(Py_buffer* view, int width) except -1:
    if view.len and <size_t>view.buf % width:
        raise ValueError(f"expected memory aligned to {width} bytes, found address {<size_t>view.buf}")
    return 0


@cython.final
cdef class Views:
    """Contiguous buffers of other objects, held until this object is freed."""

    cdef Py_buffer* _held
    cdef Py_ssize_t _count, _room

    def __cinit__(self, Py_ssize_t room):
        self._held, self._count, self._room = <Py_buffer*>malloc(room * sizeof(Py_buffer) + 1), 0, room
        if self._held is NULL:
            raise MemoryError

    cdef Py_buffer* hold(self, object whole, int flags) except NULL:
        assert self._count < self._room
        PyObject_GetBuffer(whole, self._held + self._count, flags)
        self._count += 1
        return self._held + self._count - 1

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self._count):
            PyBuffer_Release(self._held + i)
        free(self._held)


cdef inline void _check(bint holds) noexcept nogil:
    """In a build with checks: abort the process before it reads or writes outside of its memory."""
    if _checked and not holds:
        abort()


# ------------------------------------------------------------------------------------------------ planes


cdef void _unpack_bytes(word* tile, const uint8_t* part, Py_ssize_t n, int plane, int shift, bint first) noexcept nogil:
    """Unpack the next n numbers of a plane of whole bytes into the tile, shifted left by `shift` bits.

    The first plane of a tile overwrites it; later planes are combined by OR.
    """
    cdef Py_ssize_t i
    cdef uint16_t two[TILE]
    cdef uint32_t four[TILE]
    cdef uint64_t eight[TILE]
    cdef word scale
    if plane == 8:
        if first:
            for i in range(n):
                tile[i] = part[i]
        elif word is uint16_t:  # compilers vectorize the product in 16 bits, but widen to shift
            scale = 1 << shift
            for i in range(n):
                tile[i] |= <word>(<word>part[i] * scale)
        else:
            for i in range(n):
                tile[i] |= <word>part[i] << shift
    elif plane == 16:
        memcpy(two, part, 2 * n)
        if first:
            for i in range(n):
                tile[i] = two[i]
        else:
            for i in range(n):
                tile[i] |= <word>two[i] << shift
    elif plane == 32:
        memcpy(four, part, 4 * n)
        if first:
            for i in range(n):
                tile[i] = four[i]
        else:
            for i in range(n):
                tile[i] |= <word>four[i] << shift
    else:  # 64 bits: there is no other plane
        memcpy(eight, part, 8 * n)
        for i in range(n):
            tile[i] = <word>eight[i]


cdef void _shifted(uint8_t* out, const uint8_t* part, Py_ssize_t n, uint8_t mask, int up, bint first) noexcept nogil:
    """Shift the masked bits of each of n bytes left by `up` (right if negative), and store them in `out` or OR them to it.

    It shifts eight bytes at a time, because processors cannot shift single bytes. No bit leaves its byte.
    """
    cdef uint64_t eight, there, eight_masks = <uint64_t>mask * <uint64_t>0x0101010101010101
    cdef int down = -up if up < 0 else 0
    cdef Py_ssize_t i
    up = up if up > 0 else 0
    if first:
        for i in range(n // 8):
            memcpy(&eight, part + 8 * i, 8)
            eight = (eight & eight_masks) >> down << up
            memcpy(out + 8 * i, &eight, 8)
        for i in range(n // 8 * 8, n):
            out[i] = (part[i] & mask) >> down << up
    else:
        for i in range(n // 8):
            memcpy(&eight, part + 8 * i, 8)
            memcpy(&there, out + 8 * i, 8)
            there |= (eight & eight_masks) >> down << up
            memcpy(out + 8 * i, &there, 8)
        for i in range(n // 8 * 8, n):
            out[i] |= (part[i] & mask) >> down << up


cdef void _unpack_bits(uint8_t* tile, const Planes* planes, const uint8_t* part, Py_ssize_t row, Py_ssize_t n) noexcept nogil:
    """Unpack the rows [row, row + n) of the planes narrower than a byte. The first of these planes begins at `part`."""
    cdef Py_ssize_t size, done, share, inside, some
    cdef int plane = 4, shift = 0
    while plane:
        if planes.bits & plane:
            # A byte holds one number from each of several parts of the block.
            size = (planes.count * plane + 7) // 8
            done = 0
            while done < n:
                share, inside = (row + done) // size, (row + done) % size
                some = min(n - done, size - inside)
                _check(share * plane < 8 and part + inside + some <= planes.end)
                _shifted(
                    tile + done, part + inside, some, ((1 << plane) - 1) << (share * plane),
                    shift - <int>share * plane, shift == 0,
                )
                done += some
            part += size
            shift += plane
        plane >>= 1


cdef void _unpack(const Planes* planes, Py_ssize_t row, Py_ssize_t n, word* tile) noexcept nogil:
    """Unpack the deltas of the rows [row, row + n), at most a tile. The words of the tile have at least `bits` bits."""
    cdef const uint8_t* part = planes.data
    cdef uint8_t low[TILE]
    cdef int plane = 64, shift = 0
    cdef bint first = True
    _check(0 <= n <= TILE and 0 <= row and row + n <= planes.count)
    if planes.bits == 0:
        memset(tile, 0, n * sizeof(word))
        return
    while plane >= 8:
        if planes.bits & plane:
            _check(part + (row + n) * (plane // 8) <= planes.end)
            _unpack_bytes(tile, part + row * (plane // 8), n, plane, shift, first)
            part += planes.count * (plane // 8)
            shift += plane
            first = False
        plane >>= 1
    if planes.bits & 7:
        if word is uint8_t:
            _unpack_bits(tile, planes, part, row, n)
        else:
            _unpack_bits(low, planes, part, row, n)
            _unpack_bytes(tile, low, n, 8, shift, first)


# ------------------------------------------------------------------------------------------------ numbers


cdef void _narrow_line(
    const word* tile, Py_ssize_t n, Py_ssize_t row, const Line* line, number* out
) noexcept nogil:
    """Write base + step · row + unit · delta in the width of `out`. The sums fit it, although products may wrap around."""
    cdef number base = <number>line.base, step = <number>line.step, unit = <number>line.unit
    cdef Py_ssize_t i
    if step:
        base += <number>row * step
        for i in range(n):
            out[i] = base + <number>i * step + <number>tile[i] * unit
    elif unit != 1:
        for i in range(n):
            out[i] = base + <number>tile[i] * unit
    else:
        for i in range(n):
            out[i] = base + <number>tile[i]


cdef void _wide(const uint64_t* low, Py_ssize_t n, bint is_signed, uint64_t* out) noexcept nogil:
    """Extend 8-byte numbers to 16 bytes."""
    cdef Py_ssize_t i
    if is_signed:
        for i in range(n):
            out[2 * i] = low[i]
            out[2 * i + 1] = -(low[i] >> 63)
    else:
        for i in range(n):
            out[2 * i] = low[i]
            out[2 * i + 1] = 0


cdef void _store(
    const Job* job, const word* tile, Py_ssize_t done, Py_ssize_t n
) noexcept nogil:
    """Write the numbers of n deltas to the output, from the position `done` on."""
    cdef uint64_t low[TILE]
    cdef uint8_t* out = job.out + done * job.width
    cdef Py_ssize_t row = job.lower + done
    _check(0 <= done and (done + n) * job.width <= job.out_size)
    if job.width == 16:
        _narrow_line(tile, n, row, &job.line, low)
        _wide(low, n, job.is_signed, <uint64_t*>out)
    elif job.width == 8:
        _narrow_line(tile, n, row, &job.line, <uint64_t*>out)
    elif job.width == 4:
        _narrow_line(tile, n, row, &job.line, <uint32_t*>out)
    elif job.width == 2:
        _narrow_line(tile, n, row, &job.line, <uint16_t*>out)
    else:
        _narrow_line(tile, n, row, &job.line, out)


cdef void _fill_range(const Job* job) noexcept nogil:
    cdef uint8_t tiny[TILE]
    cdef uint16_t little[TILE]
    cdef uint32_t small[TILE]
    cdef uint64_t large[TILE]
    cdef Py_ssize_t done = 0, n
    while done < job.count:
        n = min(TILE, job.count - done)
        if job.planes.bits <= 8:
            _unpack(&job.planes, job.lower + done, n, tiny)
            _store(job, tiny, done, n)
        elif job.planes.bits <= 16:
            _unpack(&job.planes, job.lower + done, n, little)
            _store(job, little, done, n)
        elif job.planes.bits <= 32:
            _unpack(&job.planes, job.lower + done, n, small)
            _store(job, small, done, n)
        else:
            _unpack(&job.planes, job.lower + done, n, large)
            _store(job, large, done, n)
        done += n


cdef Job _flat(const Job* job, uint64_t base) noexcept nogil:
    """Return a job that adds only `base` to the numbers of a tile."""
    cdef Job flat = job[0]
    flat.line.base, flat.line.step, flat.line.unit = base, 0, 1
    return flat


cdef bint _fill_one(const Job* job) noexcept nogil:
    """Run one job. Return False if a row is outside of the frame."""
    if job.rows is not NULL:
        return _fill_rows(job)
    _fill_range(job)
    return True


def fill(jobs):
    cdef Py_ssize_t count = len(jobs), i, failed = -1
    cdef Job* plan = <Job*>malloc(count * sizeof(Job) + 1)
    cdef Views views = Views(3 * count)
    if plan is NULL:
        raise MemoryError
    try:
        for i in range(count):
            _plan(jobs[i], plan + i, views)
        with nogil:
            for i in range(count):
                if not _fill_one(plan + i):
                    failed = i
                    break
        if failed >= 0:
            raise ValueError(f"expected rows of the frame, found a row outside of it in job {failed}")
    finally:
        free(plan)


cdef int _plan(object fields, Job* job, Views views) except -1:
    """Convert a `Fill` to a job, and check every memory range of it."""
    cdef Py_buffer* view
    cdef Py_ssize_t start, at, lower, upper, block_rows
    cdef int bits
    (
        data, start, bits, block_rows, base, step, unit, rows, lower, upper, out, at, width, signed, first,
    ) = fields
    _planes_in(&job.planes, views.hold(data, PyBUF_SIMPLE), start, bits, block_rows)
    job.line.base, job.line.step, job.line.unit = <uint64_t><int64_t>base, <uint64_t><int64_t>step, unit
    job.rows, job.first, job.lower = NULL, first, lower
    if rows is None:
        _rows_in(lower, upper, block_rows)
        job.count = upper - lower
    else:
        view = views.hold(rows, PyBUF_SIMPLE)
        job.rows, job.count = <const int64_t*>view.buf, view.len // 8
    job.width, job.is_signed = width, signed
    if job.width not in (1, 2, 4, 8, 16):
        raise ValueError(f"expected numbers of 1, 2, 4, 8 or 16 bytes, found {width}")
    view = views.hold(out, PyBUF_WRITABLE)
    if not 0 <= at <= view.len or job.count > view.len // job.width - at:
        raise ValueError(f"expected room for {job.count} numbers of {width} bytes from {at} on, found {view.len} bytes")
    _aligned(view, min(job.width, 8))
    job.out, job.out_size = <uint8_t*>view.buf + at * job.width, job.count * job.width
    return 0


include "gathering.pxi"
include "comparing.pxi"
include "dictionary.pxi"
include "scattering.pxi"
include "runs.pxi"
include "bloom.pxi"
