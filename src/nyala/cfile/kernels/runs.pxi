"""Writes the values of runs to their rows. `compiled.pyx` includes this file."""

cdef enum:
    AT_ONCE = 8


cdef bint _repeat_runs(const cell* values, const int64_t* ends, Py_ssize_t count, cell* out, Py_ssize_t rows) noexcept nogil:
    """Write the value of each run to its rows. Return False if the ends do not ascend to `rows`.

    It writes eight rows at a time, also beyond the end of a run, where the next run overwrites them. A loop
    that stops at the end of each run would be slower, because the processor cannot predict the end.
    """
    cdef Py_ssize_t i, j, row = 0, end
    cdef cell value
    for i in range(count):
        end, value = ends[i], values[i]
        if not row < end <= rows:
            return False
        if end <= rows - AT_ONCE:
            while row < end:
                _check(row + AT_ONCE <= rows)
                for j in range(AT_ONCE):
                    out[row + j] = value
                row += AT_ONCE
        else:
            for j in range(row, end):
                out[j] = value
        row = end
    return row == rows


def repeat_runs(values, int width, const int64_t[::1] ends, out):
    cdef Views views = Views(2)
    cdef Py_buffer* value_view = views.hold(values, PyBUF_SIMPLE)
    cdef Py_buffer* into = views.hold(out, PyBUF_WRITABLE)
    cdef Py_ssize_t count = ends.shape[0], rows
    cdef bint fits
    if width not in (1, 2, 4, 8) or value_view.len != width * count or into.len % width or not count:
        raise ValueError(
            f"expected {count} values of 1, 2, 4 or 8 bytes, and room for such values, found {value_view.len} and "
            f"{into.len} bytes, with {width} bytes each"
        )
    _aligned(value_view, width)
    _aligned(into, width)
    rows = into.len // width
    with nogil:
        if width == 1:
            fits = _repeat_runs(<const uint8_t*>value_view.buf, &ends[0], count, <uint8_t*>into.buf, rows)
        elif width == 2:
            fits = _repeat_runs(<const uint16_t*>value_view.buf, &ends[0], count, <uint16_t*>into.buf, rows)
        elif width == 4:
            fits = _repeat_runs(<const uint32_t*>value_view.buf, &ends[0], count, <uint32_t*>into.buf, rows)
        else:
            fits = _repeat_runs(<const uint64_t*>value_view.buf, &ends[0], count, <uint64_t*>into.buf, rows)
    if not fits:
        raise ValueError(
            f"expected the ends of runs in ascending order, and {rows} as the last end; found another order, "
            f"or the last end {ends[count - 1]}"
        )
