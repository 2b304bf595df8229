"""Single rows of frames: a part of `compiled.pyx`, which includes it.

    of planes     a bit, or a byte, of each row at a time
    of a tile     all rows between those that lie close by, unpacked: where that costs less
"""

cdef void _pick(long_word* tile, const uint8_t* part, const uint32_t* places, Py_ssize_t n, int plane, int shift) noexcept nogil:
    """Numbers of a plane of whole bytes beside what is in the tile."""
    cdef Py_ssize_t i
    cdef uint16_t two
    cdef uint32_t four
    cdef uint64_t eight
    if plane == 8:
        for i in range(n):
            tile[i] |= <long_word>part[places[i]] << shift
    elif plane == 16:
        for i in range(n):
            memcpy(&two, part + 2 * <size_t>places[i], 2)
            tile[i] |= <long_word>two << shift
    elif plane == 32:
        for i in range(n):
            memcpy(&four, part + 4 * <size_t>places[i], 4)
            tile[i] |= <long_word>four << shift
    else:  # of 64 bits there is no other
        for i in range(n):
            memcpy(&eight, part + 8 * <size_t>places[i], 8)
            tile[i] = <long_word>eight


cdef void _pick_bits(
    long_word* tile, const uint8_t* part, const uint32_t* places, Py_ssize_t n, int plane, int shift, uint32_t size,
    uint32_t least, uint32_t greatest,
) noexcept nogil:
    """The same of a plane of less than a byte, of `size` bytes: mostly all of them stand equally high in theirs."""
    cdef Py_ssize_t i
    cdef uint32_t share = least // size, place
    cdef int up = <int>share * plane
    cdef uint8_t mask = (1 << plane) - 1
    cdef double inverse = 1.0 / size  # half a row up, no product is as near to a whole number as doubles are inexact
    if share == greatest // size:
        part -= <size_t>share * size
        for i in range(n):
            tile[i] |= <long_word>((part[places[i]] >> up) & mask) << shift
    else:
        for i in range(n):
            place = places[i]
            share = <uint32_t>((place + 0.5) * inverse)
            tile[i] |= <long_word>((part[place - share * size] >> (share * plane)) & mask) << shift


cdef void _pick_planes(
    const Planes* planes, const uint32_t* places, Py_ssize_t n, uint32_t least, uint32_t greatest, long_word* tile
) noexcept nogil:
    """The deltas of n rows, the least and the greatest of which are given; words as of `_unpack`."""
    cdef const uint8_t* part = planes.data
    cdef Py_ssize_t size
    cdef int plane = 64, shift = 0
    _prove(least <= greatest and <Py_ssize_t>greatest < planes.count)
    memset(tile, 0, n * sizeof(long_word))
    while plane:
        if planes.bits & plane:
            if plane >= 8:
                size = planes.count * (plane // 8)
                _prove(part + size <= planes.end)
                _pick(tile, part, places, n, plane, shift)
            else:
                size = (planes.count * plane + 7) // 8
                _prove(part + size <= planes.end and <Py_ssize_t>greatest // size * plane < 8)
                _pick_bits(tile, part, places, n, plane, shift, <uint32_t>size, least, greatest)
            part += size
            shift += plane
        plane >>= 1


cdef bint _places_of(
    const Job* job, Py_ssize_t done, Py_ssize_t n, uint32_t* places, uint32_t* least, uint32_t* greatest
) noexcept nogil:
    """Where in the frame n rows lie, the first and the last of these places; False if one lies outside."""
    cdef uint64_t first = <uint64_t>job.first, place, far = 0
    cdef uint32_t low = 0xFFFFFFFF, high = 0
    cdef Py_ssize_t i
    for i in range(n):
        place = <uint64_t>job.rows[done + i] - first
        far |= place >> 32
        places[i] = <uint32_t>place
        low, high = min(low, <uint32_t>place), max(high, <uint32_t>place)
    least[0], greatest[0] = low, high
    return far == 0 and <Py_ssize_t>high < job.planes.count


cdef Py_ssize_t _share(int bits) noexcept nogil:
    """Of so many rows one can be wanted, and to unpack them all costs no more than to look for the one."""
    cdef Py_ssize_t cost = 0
    cdef int plane = 32
    if bits > 32:
        return 0
    while plane:
        if bits & plane:
            cost += PICK_BYTES if plane >= 8 else PICK_BITS
        plane >>= 1
    return cost // (UNPACK_8 if bits <= 8 else UNPACK_16 if bits <= 16 else UNPACK_32)


cdef Py_ssize_t _close_by(const Job* job, Py_ssize_t done, Py_ssize_t n) noexcept nogil:
    """How many of the next rows lie in one tile, if they are so many there that to unpack all rows between them costs less
    than to look for each; else 0. Of rows that ascend."""
    cdef uint64_t row = <uint64_t>job.rows[done]
    cdef Py_ssize_t some = 1, most = n, middle, share = _share(job.planes.bits)
    if n < CLOSE_MIN or <uint64_t>job.rows[done + CLOSE_MIN - 1] - row >= <uint64_t>(share * CLOSE_MIN):
        return 0
    while some < most:
        middle = some + (most - some + 1) // 2
        if <uint64_t>job.rows[done + middle - 1] - row < TILE:
            some = middle
        else:
            most = middle - 1
    return some if <uint64_t>job.rows[done + some - 1] - row < <uint64_t>(share * some) else 0


cdef void _pick_near(
    const Planes* planes, const uint32_t* places, Py_ssize_t n, uint32_t least, Py_ssize_t between, word* near,
    long_word* tile
) noexcept nogil:
    """The deltas of n rows of so many that lie between the first and the last of them."""
    cdef Py_ssize_t i
    _unpack(planes, least, between, near)
    for i in range(n):
        tile[i] = near[places[i] - least]


cdef bint _pick_deltas(const Job* job, Py_ssize_t done, Py_ssize_t* count, uint32_t* places, long_word* tile) noexcept nogil:
    """The deltas of rows from `done` on, `count` of them at the most: how many is told. False if a row lies outside.

    Cost: of rows by themselves a look for each plane, 0.5 ns or so; of many that lie close by, all rows between them are
    unpacked, 0.05 to 0.4 ns each.
    """
    cdef uint8_t tiny[TILE]
    cdef uint16_t little[TILE]
    cdef uint32_t small[TILE]
    cdef uint32_t least, greatest
    cdef Py_ssize_t between, close = _close_by(job, done, count[0])
    if close:
        count[0] = close
    if not _places_of(job, done, count[0], places, &least, &greatest):
        return False
    between = <Py_ssize_t>greatest - least + 1
    if not close or between > TILE:
        _pick_planes(&job.planes, places, count[0], least, greatest, tile)
    elif job.planes.bits <= 8:
        _pick_near(&job.planes, places, close, least, between, tiny, tile)
    elif job.planes.bits <= 16:
        _pick_near(&job.planes, places, close, least, between, little, tile)
    else:
        _pick_near(&job.planes, places, close, least, between, small, tile)
    return True


cdef bint _fill_rows(const Job* job) noexcept nogil:
    cdef uint64_t large[TILE]
    cdef uint32_t small[TILE]
    cdef uint32_t places[TILE]
    cdef Py_ssize_t done = 0, n, i
    cdef bint is_plain = job.line.step == 0
    cdef Job flat = _flat(job, job.line.base)
    while done < job.count:
        n = min(TILE, job.count - done)
        if is_plain and job.planes.bits <= 32:
            if not _pick_deltas(job, done, &n, places, small):
                return False
            _store(job, small, done, n)
        else:
            if not _pick_deltas(job, done, &n, places, large):
                return False
            # The position is the row's, not the place's.
            for i in range(n):
                large[i] = large[i] * job.line.unit + places[i] * job.line.step
            _store(&flat, large, done, n)
        done += n
    return True
