"""Compares the deltas of a frame, and lists the rows of a mask. `compiled.pyx` includes this file."""


cdef void _compare(const word* tile, Py_ssize_t n, word least, word span, uint8_t* out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = <word>(tile[i] - least) <= span  # a delta below `least` wraps around to a large number


def in_range(
    data, Py_ssize_t start, int bits, Py_ssize_t count, Py_ssize_t lower, Py_ssize_t upper,
    uint64_t least, uint64_t greatest, uint8_t[::1] out,
):
    cdef Views views = Views(1)
    cdef Planes planes
    cdef uint8_t tiny[TILE]
    cdef uint16_t little[TILE]
    cdef uint32_t small[TILE]
    cdef uint64_t large[TILE]
    cdef Py_ssize_t row = lower, n
    _planes_in(&planes, views.hold(data, PyBUF_SIMPLE), start, bits, count)
    _rows_in(lower, upper, count)
    if out.shape[0] != upper - lower or least > greatest or (bits < 64 and greatest >> bits):
        raise ValueError(
            f"expected room for {upper - lower} results and a range of {bits} bits, found room for {out.shape[0]} "
            f"and [{least}, {greatest}]"
        )
    with nogil:
        while row < upper:
            n = min(TILE, upper - row)
            _check(row - lower + n <= out.shape[0])
            if bits <= 8:
                _unpack(&planes, row, n, tiny)
                _compare(tiny, n, <uint8_t>least, <uint8_t>(greatest - least), &out[row - lower])
            elif bits <= 16:
                _unpack(&planes, row, n, little)
                _compare(little, n, <uint16_t>least, <uint16_t>(greatest - least), &out[row - lower])
            elif bits <= 32:
                _unpack(&planes, row, n, small)
                _compare(small, n, <uint32_t>least, <uint32_t>(greatest - least), &out[row - lower])
            else:
                _unpack(&planes, row, n, large)
                _compare(large, n, least, greatest - least, &out[row - lower])
            row += n


def in_table(
    data, Py_ssize_t start, int bits, Py_ssize_t count, Py_ssize_t lower, Py_ssize_t upper,
    const uint8_t[::1] table, uint8_t[::1] out,
):
    cdef Views views = Views(1)
    cdef Planes planes
    cdef uint32_t tile[TILE]
    cdef Py_ssize_t row = lower, n, i, size = table.shape[0]
    cdef bint outside = False
    _planes_in(&planes, views.hold(data, PyBUF_SIMPLE), start, bits, count)
    _rows_in(lower, upper, count)
    if out.shape[0] != upper - lower or bits > 32:
        raise ValueError(
            f"expected room for {upper - lower} results and at most 32 bits, found room for {out.shape[0]} and {bits}"
        )
    with nogil:
        while row < upper and not outside:
            n = min(TILE, upper - row)
            _check(row - lower + n <= out.shape[0])
            _unpack(&planes, row, n, tile)
            for i in range(n):
                if tile[i] >= size:
                    outside = True
                    break
                out[row - lower + i] = table[tile[i]]
            row += n
    if outside:
        raise ValueError(f"expected deltas below {size}, found a larger one")


cdef uint64_t _max_of(const word* tile, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef word most = 0
    cdef int32_t biased = -(1 << 31)
    if word is uint32_t:  # processors without SSE4 compare signed numbers only
        for i in range(n):
            biased = max(biased, <int32_t>(tile[i] ^ <uint32_t>0x80000000))
        return <uint32_t>biased ^ <uint32_t>0x80000000
    else:
        for i in range(n):
            most = max(most, tile[i])
        return most


cdef uint64_t _max_delta(const Planes* planes) noexcept nogil:
    cdef uint8_t tiny[TILE]
    cdef uint16_t little[TILE]
    cdef uint32_t small[TILE]
    cdef uint64_t large[TILE]
    cdef uint64_t most = 0
    cdef Py_ssize_t row = 0, n
    while row < planes.count:
        n = min(TILE, planes.count - row)
        if planes.bits <= 8:
            _unpack(planes, row, n, tiny)
            most = max(most, _max_of(tiny, n))
        elif planes.bits <= 16:
            _unpack(planes, row, n, little)
            most = max(most, _max_of(little, n))
        elif planes.bits <= 32:
            _unpack(planes, row, n, small)
            most = max(most, _max_of(small, n))
        else:
            _unpack(planes, row, n, large)
            most = max(most, _max_of(large, n))
        row += n
    return most


def max_delta(data, Py_ssize_t start, int bits, Py_ssize_t count):
    cdef Views views = Views(1)
    cdef Planes planes
    cdef uint64_t most
    _planes_in(&planes, views.hold(data, PyBUF_SIMPLE), start, bits, count)
    with nogil:
        most = _max_delta(&planes)
    return most


def delta_at(data, Py_ssize_t start, int bits, Py_ssize_t count, Py_ssize_t row):
    cdef Views views = Views(1)
    cdef Planes planes
    cdef uint64_t delta
    _planes_in(&planes, views.hold(data, PyBUF_SIMPLE), start, bits, count)
    if not 0 <= row < count:
        raise ValueError(f"expected a row below {count}, found {row}")
    _unpack(&planes, row, 1, &delta)
    return delta


cdef uint8_t _set_bits[256][8]  # for each byte value: the positions of its ones in ascending order, then zeros
cdef uint8_t _bit_count[256]


cdef void _count_bits() noexcept:
    cdef int byte, position
    for byte in range(256):
        for position in range(8):
            if byte >> position & 1:
                _set_bits[byte][_bit_count[byte]] = position
                _bit_count[byte] += 1


_count_bits()


# If fewer than this many of 64 rows have a 1, the rows are read one by one.
cdef enum:
    SPARSE = 16


cdef Py_ssize_t _mask_positions(const uint8_t* mask, Py_ssize_t n, int64_t row, int64_t* out) noexcept nogil:
    """Write the rows with mask byte 1, counted from `row`, and return how many. It may write up to n numbers."""
    cdef Py_ssize_t i = 0, j, k, found = 0
    cdef uint64_t eight, bits
    cdef const uint8_t* positions
    while i + 64 <= n:
        bits = 0
        for j in range(8):
            memcpy(&eight, mask + i + 8 * j, 8)
            bits |= ((eight * <uint64_t>0x0102040810204080) >> 56) << (8 * j)  # the lowest bit of each byte
        if _ones(bits) < SPARSE:
            while bits:
                out[found] = row + i + _lowest(bits)
                found += 1
                bits &= bits - 1
        else:
            for j in range(8):
                positions = _set_bits[(bits >> (8 * j)) & 0xFF]
                for k in range(8):  # found + 8 <= i + 8 * (j + 1) <= n
                    out[found + k] = row + i + 8 * j + positions[k]
                found += _bit_count[(bits >> (8 * j)) & 0xFF]
        i += 64
    while i < n:
        out[found] = row + i
        found += mask[i] & 1
        i += 1
    return found


def mask_positions(const uint8_t[::1] mask, int64_t[::1] out):
    cdef Py_ssize_t count = mask.shape[0], found = 0
    if out.shape[0] <= count:
        raise ValueError(f"expected room for {count + 1} rows, found {out.shape[0]}")
    if count:
        with nogil:
            found = _mask_positions(&mask[0], count, 0, &out[0])
    return found
