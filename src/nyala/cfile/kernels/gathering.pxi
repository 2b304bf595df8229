"""Gathers single rows of frames, in one of two ways. `compiled.pyx` includes this file.

    from planes     one access per row and plane
    from a tile     unpacks all rows of a dense run, if that costs less
"""

cdef void _gather_bytes(long_word* tile, const uint8_t* part, const uint32_t* positions, Py_ssize_t n, int plane, int shift) noexcept nogil:
    """Combine n numbers of a plane of whole bytes with the tile by OR."""
    cdef Py_ssize_t i
    cdef uint16_t two
    cdef uint32_t four
    cdef uint64_t eight
    if plane == 8:
        for i in range(n):
            tile[i] |= <long_word>part[positions[i]] << shift
    elif plane == 16:
        for i in range(n):
            memcpy(&two, part + 2 * <size_t>positions[i], 2)
            tile[i] |= <long_word>two << shift
    elif plane == 32:
        for i in range(n):
            memcpy(&four, part + 4 * <size_t>positions[i], 4)
            tile[i] |= <long_word>four << shift
    else:  # 64 bits: there is no other plane
        for i in range(n):
            memcpy(&eight, part + 8 * <size_t>positions[i], 8)
            tile[i] = <long_word>eight


cdef void _gather_bits(
    long_word* tile, const uint8_t* part, const uint32_t* positions, Py_ssize_t n, int plane, int shift, uint32_t size,
    uint32_t least, uint32_t greatest,
) noexcept nogil:
    """Combine n numbers of a plane narrower than a byte. In most calls all are at the same bits of their bytes."""
    cdef Py_ssize_t i
    cdef uint32_t share = least // size, position
    cdef int up = <int>share * plane
    cdef uint8_t mask = (1 << plane) - 1
    cdef double inverse = 1.0 / size  # 0.5 is added to the position, so no rounding error changes the integer part
    if share == greatest // size:
        part -= <size_t>share * size
        for i in range(n):
            tile[i] |= <long_word>((part[positions[i]] >> up) & mask) << shift
    else:
        for i in range(n):
            position = positions[i]
            share = <uint32_t>((position + 0.5) * inverse)
            tile[i] |= <long_word>((part[position - share * size] >> (share * plane)) & mask) << shift


cdef void _gather_planes(
    const Planes* planes, const uint32_t* positions, Py_ssize_t n, uint32_t least, uint32_t greatest, long_word* tile
) noexcept nogil:
    """Gather the deltas of n rows between `least` and `greatest` into the tile. See `_unpack` for its words."""
    cdef const uint8_t* part = planes.data
    cdef Py_ssize_t size
    cdef int plane = 64, shift = 0
    _check(least <= greatest and <Py_ssize_t>greatest < planes.count)
    memset(tile, 0, n * sizeof(long_word))
    while plane:
        if planes.bits & plane:
            if plane >= 8:
                size = planes.count * (plane // 8)
                _check(part + size <= planes.end)
                _gather_bytes(tile, part, positions, n, plane, shift)
            else:
                size = (planes.count * plane + 7) // 8
                _check(part + size <= planes.end and <Py_ssize_t>greatest // size * plane < 8)
                _gather_bits(tile, part, positions, n, plane, shift, <uint32_t>size, least, greatest)
            part += size
            shift += plane
        plane >>= 1


cdef bint _positions_of(
    const Job* job, Py_ssize_t done, Py_ssize_t n, uint32_t* positions, uint32_t* least, uint32_t* greatest
) noexcept nogil:
    """Compute the positions of n rows in the frame, their minimum and maximum. Return False if one is outside."""
    cdef uint64_t first = <uint64_t>job.first, position, far = 0
    cdef uint32_t low = 0xFFFFFFFF, high = 0
    cdef Py_ssize_t i
    for i in range(n):
        position = <uint64_t>job.rows[done + i] - first
        far |= position >> 32
        positions[i] = <uint32_t>position
        low, high = min(low, <uint32_t>position), max(high, <uint32_t>position)
    least[0], greatest[0] = low, high
    return far == 0 and <Py_ssize_t>high < job.planes.count


cdef Py_ssize_t _rows_per_gather(int bits) noexcept nogil:
    """Return how many rows can be unpacked at the cost of gathering one."""
    cdef Py_ssize_t cost = 0
    cdef int plane = 32
    if bits > 32:
        return 0
    while plane:
        if bits & plane:
            cost += GATHER_BYTES if plane >= 8 else GATHER_BITS
        plane >>= 1
    return cost // (UNPACK_8 if bits <= 8 else UNPACK_16 if bits <= 16 else UNPACK_32)


cdef Py_ssize_t _dense_run(const Job* job, Py_ssize_t done, Py_ssize_t n) noexcept nogil:
    """Return how many of the next ascending rows are in one tile, if unpacking the tile costs less than gathering; else 0."""
    cdef uint64_t row = <uint64_t>job.rows[done]
    cdef Py_ssize_t some = 1, most = n, middle, share = _rows_per_gather(job.planes.bits)
    if n < DENSE_MIN or <uint64_t>job.rows[done + DENSE_MIN - 1] - row >= <uint64_t>(share * DENSE_MIN):
        return 0
    while some < most:
        middle = some + (most - some + 1) // 2
        if <uint64_t>job.rows[done + middle - 1] - row < TILE:
            some = middle
        else:
            most = middle - 1
    return some if <uint64_t>job.rows[done + some - 1] - row < <uint64_t>(share * some) else 0


cdef void _gather_dense(
    const Planes* planes, const uint32_t* positions, Py_ssize_t n, uint32_t least, Py_ssize_t between, word* unpacked,
    long_word* tile
) noexcept nogil:
    """Gather the deltas of n rows by unpacking all `between` rows from the first to the last."""
    cdef Py_ssize_t i
    _unpack(planes, least, between, unpacked)
    for i in range(n):
        tile[i] = unpacked[positions[i] - least]


cdef bint _gather_deltas(const Job* job, Py_ssize_t done, Py_ssize_t* count, uint32_t* positions, long_word* tile) noexcept nogil:
    """Gather the deltas of at most `count` rows from `done` on, and set `count`. Return False if a row is outside.

    Cost: about 0.5 ns per row and plane for single rows. In a dense run, all rows are unpacked for 0.05 to
    0.4 ns each.
    """
    cdef uint8_t tiny[TILE]
    cdef uint16_t little[TILE]
    cdef uint32_t small[TILE]
    cdef uint32_t least, greatest
    cdef Py_ssize_t between, dense = _dense_run(job, done, count[0])
    if dense:
        count[0] = dense
    if not _positions_of(job, done, count[0], positions, &least, &greatest):
        return False
    between = <Py_ssize_t>greatest - least + 1
    if not dense or between > TILE:
        _gather_planes(&job.planes, positions, count[0], least, greatest, tile)
    elif job.planes.bits <= 8:
        _gather_dense(&job.planes, positions, dense, least, between, tiny, tile)
    elif job.planes.bits <= 16:
        _gather_dense(&job.planes, positions, dense, least, between, little, tile)
    else:
        _gather_dense(&job.planes, positions, dense, least, between, small, tile)
    return True


cdef bint _fill_rows(const Job* job) noexcept nogil:
    cdef uint64_t large[TILE]
    cdef uint32_t small[TILE]
    cdef uint32_t positions[TILE]
    cdef Py_ssize_t done = 0, n, i
    cdef bint is_plain = job.line.step == 0
    cdef Job flat = _flat(job, job.line.base)
    while done < job.count:
        n = min(TILE, job.count - done)
        if is_plain and job.planes.bits <= 32:
            if not _gather_deltas(job, done, &n, positions, small):
                return False
            _store(job, small, done, n)
        else:
            if not _gather_deltas(job, done, &n, positions, large):
                return False
            # The line depends on the position in the frame, which `positions` has.
            for i in range(n):
                large[i] = large[i] * job.line.unit + positions[i] * job.line.step
            _store(&flat, large, done, n)
        done += n
    return True
