"""Entries of dictionaries by their codes, as Arrow's views and as text: a part of `compiled.pyx`, which includes it."""


cdef struct Sixteen:
    uint64_t low
    uint64_t high


cdef void _look_up_words(const int32_t* codes, Py_ssize_t n, const Sixteen* words, uint32_t last, Sixteen* out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = words[min(<uint32_t>codes[i], last)]


def views(const int32_t[::1] codes, words, out):
    cdef Views held = Views(2)
    cdef Py_buffer* of_words = held.hold(words, PyBUF_SIMPLE)
    cdef Py_buffer* into = held.hold(out, PyBUF_WRITABLE)
    cdef Py_ssize_t n = codes.shape[0], count = of_words.len // 16
    if not 0 < count <= <Py_ssize_t>0x7FFFFFFF or into.len // 16 < n:
        raise ValueError(f"expected words, and room for {n} of 16 bytes, found {of_words.len} and {into.len} bytes")
    _aligned(of_words, 8)
    _aligned(into, 8)
    if n:
        with nogil:
            _look_up_words(&codes[0], n, <const Sixteen*>of_words.buf, <uint32_t>(count - 1), <Sixteen*>into.buf)


cdef enum:
    SHORT = 16  # bytes: most words have no more, or twice as many, and are copied as so many where there is room


cdef int64_t _lay_ends(
    const int32_t* codes, Py_ssize_t n, const int32_t* starts, Py_ssize_t count, int32_t* ends
) noexcept nogil:
    """How long all words are; -1: a code names none."""
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


def word_ends(const int32_t[::1] codes, const int32_t[::1] starts, int32_t[::1] ends):
    cdef Py_ssize_t n = codes.shape[0], count = starts.shape[0] - 1
    cdef int64_t size = 0
    if not 0 <= count <= <Py_ssize_t>0x7FFFFFFF or ends.shape[0] != n + 1:
        raise ValueError(f"expected words, and room for {n + 1} ends, found {count} and {ends.shape[0]}")
    if n == 0:
        ends[0] = 0
        return 0
    with nogil:
        size = _lay_ends(&codes[0], n, &starts[0], count, &ends[0])
    if size < 0:
        raise ValueError(f"expected codewords below {count}, found others")
    return size


cdef bint _lay_words(
    const int32_t* codes, Py_ssize_t n, const int32_t* starts, Py_ssize_t count, const uint8_t* words, int64_t size,
    const int32_t* ends, uint8_t* out, int64_t room,
) noexcept nogil:
    """Whether each code names a word that lies among these bytes and goes where there is room."""
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
        # What is copied besides is overwritten by the words that follow.
        if size - at >= 2 * SHORT and room - into >= 2 * SHORT:
            memcpy(out + into, words + at, SHORT)
            if length > SHORT:
                memcpy(out + into + SHORT, words + at + SHORT, SHORT)
                if length > 2 * SHORT:
                    memcpy(out + into + 2 * SHORT, words + at + 2 * SHORT, length - 2 * SHORT)
        else:
            memcpy(out + into, words + at, length)
    return True


def lay_words(const int32_t[::1] codes, const int32_t[::1] starts, words, const int32_t[::1] ends, out):
    cdef Views held = Views(2)
    cdef Py_buffer* of_words = held.hold(words, PyBUF_SIMPLE)
    cdef Py_buffer* into = held.hold(out, PyBUF_WRITABLE)
    cdef Py_ssize_t n = codes.shape[0], count = starts.shape[0] - 1
    cdef bint fits = True
    if not 0 <= count <= <Py_ssize_t>0x7FFFFFFF or ends.shape[0] != n + 1:
        raise ValueError(f"expected words, and {n + 1} ends, found {count} and {ends.shape[0]}")
    if n:
        with nogil:
            fits = _lay_words(
                &codes[0], n, &starts[0], count, <const uint8_t*>of_words.buf, of_words.len, &ends[0],
                <uint8_t*>into.buf, into.len,
            )
    if not fits:
        raise ValueError(f"expected codewords of {count} words in {of_words.len} bytes, and room, found others")
