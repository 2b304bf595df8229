"""Runs, and the packed numbers that they are made of: a part of `compiled.pyx`, which includes it."""

cdef enum:
    AT_ONCE = 8


cdef bint _lift(const uint8_t* upper, Py_ssize_t length, int bits, uint64_t* numbers, Py_ssize_t count) noexcept nogil:
    """Above the lower bits of each number what is counted up before its 1. Whether there are as many ones, and what they
    count fits."""
    cdef Py_ssize_t byte = 0, done = 0, n, place
    cdef uint64_t word, above, room = _delta_max(64 - bits)
    while byte < length:
        n = min(<Py_ssize_t>8, length - byte)
        word = _bits_of(upper, 8 * byte, 8 * n)
        if _ones(word) > count - done:
            return False
        while word:
            place = 8 * byte + _lowest(word)
            above = place - done
            if above > room:
                return False
            _prove(done < count)
            numbers[done] |= above << bits
            done += 1
            word &= word - 1
        byte += n
    return done == count


cdef bint _repeat(const cell* values, const int64_t* ends, Py_ssize_t count, cell* out, Py_ssize_t rows) noexcept nogil:
    """Whether the ends ascend to the rows.

    Eight rows at a time, also beyond the end of a run, where the next one is laid over them: how long runs are is what
    processors cannot foresee.
    """
    cdef Py_ssize_t i, j, row = 0, end
    cdef cell value
    for i in range(count):
        end, value = ends[i], values[i]
        if not row < end <= rows:
            return False
        if end <= rows - AT_ONCE:
            while row < end:
                _prove(row + AT_ONCE <= rows)
                for j in range(AT_ONCE):
                    out[row + j] = value
                row += AT_ONCE
        else:
            for j in range(row, end):
                out[j] = value
        row = end
    return row == rows


def unpack(data, Py_ssize_t start, int bits, Py_ssize_t count, upper, uint64_t[::1] out):
    cdef Views views = Views(2)
    cdef Planes planes
    cdef Py_buffer* above = views.hold(upper, PyBUF_SIMPLE)
    cdef Py_ssize_t done = 0, n
    cdef bint fits = True
    _planes_in(&planes, views.hold(data, PyBUF_SIMPLE), start, bits, count)
    if out.shape[0] != count or (bits == 64 and above.len):
        raise ValueError(f"expected room for {count} numbers of {bits} bits, found it for {out.shape[0]}")
    with nogil:
        while done < count:
            n = min(<Py_ssize_t>TILE, count - done)
            _unpack(&planes, done, n, &out[done])
            done += n
        if above.len:
            fits = _lift(<const uint8_t*>above.buf, above.len, bits, &out[0], count)
    if not fits:
        raise ValueError(f"expected the upper bits of {count} numbers above {bits}, found others")


def repeat(values, int width, const int64_t[::1] ends, out):
    cdef Views views = Views(2)
    cdef Py_buffer* of_values = views.hold(values, PyBUF_SIMPLE)
    cdef Py_buffer* into = views.hold(out, PyBUF_WRITABLE)
    cdef Py_ssize_t count = ends.shape[0], rows
    cdef bint fits
    if width not in (1, 2, 4, 8) or of_values.len != width * count or into.len % width or not count:
        raise ValueError(
            f"expected {count} values of 1, 2, 4 or 8 bytes, and room for such, found {of_values.len} and {into.len} "
            f"bytes of {width} each"
        )
    _aligned(of_values, width)
    _aligned(into, width)
    rows = into.len // width
    with nogil:
        if width == 1:
            fits = _repeat(<const uint8_t*>of_values.buf, &ends[0], count, <uint8_t*>into.buf, rows)
        elif width == 2:
            fits = _repeat(<const uint16_t*>of_values.buf, &ends[0], count, <uint16_t*>into.buf, rows)
        elif width == 4:
            fits = _repeat(<const uint32_t*>of_values.buf, &ends[0], count, <uint32_t*>into.buf, rows)
        else:
            fits = _repeat(<const uint64_t*>of_values.buf, &ends[0], count, <uint64_t*>into.buf, rows)
    if not fits:
        raise ValueError(f"expected ends of runs that ascend to {rows}, found others")
