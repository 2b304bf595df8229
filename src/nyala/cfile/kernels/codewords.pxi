"""Codewords of dictionaries as what Arrow has for them: a part of `compiled.pyx`, which includes it."""


cdef uint32_t _widen(const number* words, Py_ssize_t n, int32_t* out) noexcept nogil:
    cdef Py_ssize_t i
    cdef number most = 0
    for i in range(n):
        most = max(most, words[i])
        out[i] = <int32_t>words[i]
    return <uint32_t>most


def widen(words, int width, int32_t[::1] out):
    cdef Views views = Views(1)
    cdef Py_buffer* view = views.hold(words, PyBUF_SIMPLE)
    cdef uint32_t most
    cdef Py_ssize_t n = out.shape[0]
    if width not in (1, 2, 4) or view.len != n * width:
        raise ValueError(f"expected {n} codewords of 1, 2 or 4 bytes, found {view.len} bytes of {width} each")
    if n == 0:
        return 0
    _aligned(view, width)
    with nogil:
        if width == 1:
            most = _widen(<const uint8_t*>view.buf, n, &out[0])
        elif width == 2:
            most = _widen(<const uint16_t*>view.buf, n, &out[0])
        else:
            most = _widen(<const uint32_t*>view.buf, n, &out[0])
    return most


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
