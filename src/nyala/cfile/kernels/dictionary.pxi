"""Turns dictionary codes into Arrow string views or text. `compiled.pyx` includes this file."""


cdef struct Sixteen:
    uint64_t low
    uint64_t high


cdef void _gather_views(const int32_t* codes, Py_ssize_t n, const Sixteen* entries, uint32_t last, Sixteen* out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = entries[min(<uint32_t>codes[i], last)]


def gather_views(const int32_t[::1] codes, entries, out):
    cdef Views views = Views(2)
    cdef Py_buffer* entry_view = views.hold(entries, PyBUF_SIMPLE)
    cdef Py_buffer* into = views.hold(out, PyBUF_WRITABLE)
    cdef Py_ssize_t n = codes.shape[0], count = entry_view.len // 16
    if not 0 < count <= <Py_ssize_t>0x7FFFFFFF or into.len // 16 < n:
        raise ValueError(f"expected entries, and room for {n} of 16 bytes, found {entry_view.len} and {into.len} bytes")
    _aligned(entry_view, 8)
    _aligned(into, 8)
    if n:
        with nogil:
            _gather_views(&codes[0], n, <const Sixteen*>entry_view.buf, <uint32_t>(count - 1), <Sixteen*>into.buf)


cdef enum:
    SHORT = 16  # bytes: entries are copied in steps of this fixed size if there is room


cdef int64_t _entry_ends(
    const int32_t* codes, Py_ssize_t n, const int32_t* starts, Py_ssize_t count, int32_t* ends
) noexcept nogil:
    """Write the end of each entry. Return the total bytes, or -1 if a code has no entry."""
    cdef Py_ssize_t i
    cdef int64_t at = 0
    cdef uint32_t code
    ends[0] = 0
    for i in range(n):
        code = <uint32_t>codes[i]
        if code >= count:
            return -1
        at += <int64_t>starts[code + 1] - starts[code]
        ends[i + 1] = <int32_t>at
    return at


def entry_ends(const int32_t[::1] codes, const int32_t[::1] starts, int32_t[::1] ends):
    cdef Py_ssize_t n = codes.shape[0], count = starts.shape[0] - 1
    cdef int64_t size = 0
    if not 0 <= count <= <Py_ssize_t>0x7FFFFFFF or ends.shape[0] != n + 1:
        raise ValueError(f"expected entries, and room for {n + 1} ends, found {count} and {ends.shape[0]}")
    if n == 0:
        ends[0] = 0
        return 0
    with nogil:
        size = _entry_ends(&codes[0], n, &starts[0], count, &ends[0])
    if size < 0:
        raise ValueError(f"expected codes below {count}, found others")
    return size


cdef bint _copy_entries(
    const int32_t* codes, Py_ssize_t n, const int32_t* starts, Py_ssize_t count, const uint8_t* entries, int64_t size,
    const int32_t* ends, uint8_t* out, int64_t room,
) noexcept nogil:
    """Copy the entries. Return False if a code has no entry, or an entry is not within `entries` or does not fit `out`."""
    cdef Py_ssize_t i
    cdef int64_t at, into, length
    cdef uint32_t code
    for i in range(n):
        code = <uint32_t>codes[i]
        if code >= count:
            return False
        at, into = starts[code], ends[i]
        length = ends[i + 1] - into
        if length < 0 or at < 0 or into < 0 or length > size - at or length > room - into:
            return False
        # The copies may write beyond the end of an entry. The next entry overwrites these bytes.
        if size - at >= 2 * SHORT and room - into >= 2 * SHORT:
            memcpy(out + into, entries + at, SHORT)
            if length > SHORT:
                memcpy(out + into + SHORT, entries + at + SHORT, SHORT)
                if length > 2 * SHORT:
                    memcpy(out + into + 2 * SHORT, entries + at + 2 * SHORT, length - 2 * SHORT)
        else:
            memcpy(out + into, entries + at, length)
    return True


def copy_entries(const int32_t[::1] codes, const int32_t[::1] starts, entries, const int32_t[::1] ends, out):
    cdef Views views = Views(2)
    cdef Py_buffer* entry_view = views.hold(entries, PyBUF_SIMPLE)
    cdef Py_buffer* into = views.hold(out, PyBUF_WRITABLE)
    cdef Py_ssize_t n = codes.shape[0], count = starts.shape[0] - 1
    cdef bint fits = True
    if not 0 <= count <= <Py_ssize_t>0x7FFFFFFF or ends.shape[0] != n + 1:
        raise ValueError(f"expected entries, and {n + 1} ends, found {count} and {ends.shape[0]}")
    if n:
        with nogil:
            fits = _copy_entries(
                &codes[0], n, &starts[0], count, <const uint8_t*>entry_view.buf, entry_view.len, &ends[0],
                <uint8_t*>into.buf, into.len,
            )
    if not fits:
        raise ValueError(f"expected codes below {count}, entries within {entry_view.len} bytes, and room, found others")
