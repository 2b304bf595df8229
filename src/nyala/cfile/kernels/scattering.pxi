"""Writes dense values to the rows that have one. `compiled.pyx` includes this file."""

cdef extern from *:
    """
    static inline int nyala_lowest(unsigned long long word) {
    #if defined(__GNUC__)
        return __builtin_ctzll(word);
    #else
        int position = 0;
        while (!(word & 1)) { word >>= 1; position++; }
        return position;
    #endif
    }
    static inline int nyala_ones(unsigned long long word) {
    #if defined(__GNUC__)
        return __builtin_popcountll(word);
    #else
        int ones = 0;
        while (word) { word &= word - 1; ones++; }
        return ones;
    #endif
    }
    """
    int _lowest "nyala_lowest"(uint64_t word) noexcept nogil
    int _ones "nyala_ones"(uint64_t word) noexcept nogil

ctypedef fused cell:
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    Sixteen


cdef inline uint64_t _bits_of(const uint8_t* bitmap, Py_ssize_t row, Py_ssize_t n) noexcept nogil:
    """Return the bits of n rows (at most 64) from `row` on, which is a multiple of 8."""
    cdef uint64_t word = 0
    memcpy(&word, bitmap + row // 8, (n + 7) // 8)
    return word if n == 64 else word & ((<uint64_t>1 << n) - 1)


cdef bint _scatter(const uint8_t* bitmap, Py_ssize_t rows, const cell* values, Py_ssize_t count, cell* out) noexcept nogil:
    """Write the values to the rows with a 1. Return False if the number of values is not the number of ones."""
    cdef Py_ssize_t row = 0, done = 0, n, position
    cdef uint64_t word
    while row < rows:
        n = min(<Py_ssize_t>64, rows - row)
        word = _bits_of(bitmap, row, n)
        if _ones(word) > count - done:
            return False
        if _ones(word) == n:
            memcpy(out + row, values + done, n * sizeof(cell))
            done += n
        else:
            memset(out + row, 0, n * sizeof(cell))
            while word:
                position = row + _lowest(word)
                _check(position < rows and done < count)
                out[position] = values[done]
                done += 1
                word &= word - 1
        row += n
    return done == count


cdef bint _scatter_offsets(
    const uint8_t* bitmap, Py_ssize_t rows, const int32_t* offsets, Py_ssize_t count, int32_t* out
) noexcept nogil:
    cdef Py_ssize_t row = 0, done = 0, n, i
    cdef uint64_t word
    out[0] = offsets[0]
    while row < rows:
        n = min(<Py_ssize_t>64, rows - row)
        word = _bits_of(bitmap, row, n)
        if _ones(word) > count - done:
            return False
        for i in range(n):
            done += (word >> i) & 1
            _check(done <= count and row + i < rows)
            out[row + i + 1] = offsets[done]
        row += n
    return done == count


cdef Py_buffer* _bitmap_in(Views views, object bitmap, Py_ssize_t rows) except NULL:
    cdef Py_buffer* view = views.hold(bitmap, PyBUF_SIMPLE)
    if not 0 < rows <= 8 * view.len:
        raise ValueError(f"expected a bitmap of {rows} rows, found {view.len} bytes")
    return view


def scatter(bitmap, Py_ssize_t rows, values, int width, out):
    cdef Views views = Views(3)
    cdef const uint8_t* bits = <const uint8_t*>_bitmap_in(views, bitmap, rows).buf
    cdef Py_buffer* value_view = views.hold(values, PyBUF_SIMPLE)
    cdef Py_buffer* into = views.hold(out, PyBUF_WRITABLE)
    cdef Py_ssize_t count
    cdef bint fits
    if width not in (1, 2, 4, 8, 16) or value_view.len % width or into.len // width < rows:
        raise ValueError(
            f"expected values of 1, 2, 4, 8 or 16 bytes, and room for {rows}, found {value_view.len} and {into.len} "
            f"bytes, with {width} bytes each"
        )
    _aligned(value_view, min(width, 8))
    _aligned(into, min(width, 8))
    count = value_view.len // width
    with nogil:
        if width == 1:
            fits = _scatter(bits, rows, <const uint8_t*>value_view.buf, count, <uint8_t*>into.buf)
        elif width == 2:
            fits = _scatter(bits, rows, <const uint16_t*>value_view.buf, count, <uint16_t*>into.buf)
        elif width == 4:
            fits = _scatter(bits, rows, <const uint32_t*>value_view.buf, count, <uint32_t*>into.buf)
        elif width == 8:
            fits = _scatter(bits, rows, <const uint64_t*>value_view.buf, count, <uint64_t*>into.buf)
        else:
            fits = _scatter(bits, rows, <const Sixteen*>value_view.buf, count, <Sixteen*>into.buf)
    if not fits:
        raise ValueError(f"expected one value for each bit of the bitmap that is 1, found {count} values")


def scatter_offsets(bitmap, Py_ssize_t rows, const int32_t[::1] offsets, int32_t[::1] out):
    cdef Views views = Views(1)
    cdef const uint8_t* bits = <const uint8_t*>_bitmap_in(views, bitmap, rows).buf
    cdef Py_ssize_t count = offsets.shape[0] - 1
    cdef bint fits
    if count < 0 or out.shape[0] <= rows:
        raise ValueError(f"expected offsets, and room for {rows + 1}, found {count + 1} and {out.shape[0]}")
    with nogil:
        fits = _scatter_offsets(bits, rows, &offsets[0], count, &out[0])
    if not fits:
        raise ValueError(f"expected one value for each bit of the bitmap that is 1, found {count} values")
