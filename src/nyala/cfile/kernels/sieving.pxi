"""Rows of whole blocks that satisfy what is asked of several columns, told as the blocks are read: a part of `compiled.pyx`,
which includes it.

    sieve    column by column, block by block: read it if any row of it is left, prove what it says, ask its rows

A set of numbers is brought to the deltas of each block, as `Frame.matches` does. What it declines, `read_values` would
decline too; and sets of more than `VALUES_FEW` values in deltas of more than `TABLE_BITS` bits.
"""

cdef enum:
    TABLE_BITS = 16
    TABLE_SIZE = 1 << 16
    VALUES_FEW = 8

cdef struct Demand:
    # Numbers in [least, greatest], or those that are `values`, which ascend, or, of codewords, those that are marked.
    int64_t least, greatest
    const int64_t* values
    const uint8_t* marked
    Py_ssize_t count  # of either
    Changed changed


cdef bint _is_wanted(const Demand* demand, int64_t number) noexcept nogil:
    cdef Py_ssize_t place
    if demand.values is NULL:
        return demand.least <= number <= demand.greatest
    place = _rows_below(demand.values, 0, demand.count, number)
    return place < demand.count and demand.values[place] == number


cdef bint _is_any(const uint8_t* mask, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint8_t any = 0
    for i in range(n):
        any |= mask[i]
    return any != 0


cdef void _also(uint8_t* mask, const uint8_t* others, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        mask[i] |= others[i]


cdef bint _sieve_deltas(Asked* asked, const uint64_t* wanted, Py_ssize_t wanted_count, uint8_t* mask) noexcept nogil:
    """Of all rows of a block, whether the delta is what is asked for, or one of `wanted`. False if one is not in the
    table."""
    cdef uint8_t some[TILE]
    cdef uint8_t others[TILE]
    cdef Py_ssize_t row = 0, n, i
    while row < asked.end:
        n = min(<Py_ssize_t>TILE, asked.end - row)
        if _is_any(mask + row, n):
            if wanted_count:
                asked.least, asked.span = wanted[0], 0
            if not _answer(asked, row, n, some):
                return False
            for i in range(1, wanted_count):
                asked.least = wanted[i]
                _answer(asked, row, n, others)
                _also(some, others, n)
            _any_of(mask + row, some, n)
        row += n
    return True


cdef void _sieve_numbers(const Job* whole, const Demand* demand, uint8_t* mask) noexcept nogil:
    """The same of a line with a step, whose deltas do not tell."""
    cdef uint64_t numbers[TILE]
    cdef uint8_t some[TILE]
    cdef Job job = whole[0]
    cdef Py_ssize_t i
    job.rows, job.lower, job.out, job.width = NULL, 0, <uint8_t*>numbers, 8
    while job.lower < job.planes.count:
        job.count = min(<Py_ssize_t>TILE, job.planes.count - job.lower)
        job.out_size = 8 * job.count
        _fill_range(&job)
        if demand.values is NULL:
            _compare(
                numbers, job.count, <uint64_t>demand.least, <uint64_t>demand.greatest - <uint64_t>demand.least, some
            )
        else:
            for i in range(job.count):
                some[i] = _is_wanted(demand, <int64_t>numbers[i])
        _any_of(mask + job.lower, some, job.count)
        job.lower += job.count


cdef bint _sieve_set(const Job* job, const Demand* demand, uint8_t* table, Asked* asked, uint8_t* mask) noexcept nogil:
    """Deltas of a line that are those of a set of values. False: declined."""
    cdef uint64_t most = _delta_max(job.planes.bits), above, delta
    cdef uint64_t wanted[VALUES_FEW]
    cdef Py_ssize_t i = _rows_below(demand.values, 0, demand.count, <int64_t>job.line.base), found = 0
    cdef bint has_table = job.planes.bits <= TABLE_BITS
    if has_table:
        memset(table, 0, <size_t>most + 1)
    while i < demand.count:
        above = <uint64_t>demand.values[i] - job.line.base
        delta = above // job.line.unit
        if delta > most:
            break
        if delta * job.line.unit == above:
            if found < VALUES_FEW:
                wanted[found] = delta
            if has_table:
                table[delta] = 1
            found += 1
        i += 1
    if not found:
        memset(mask, 0, asked.end)
        return True
    if found > 1 and has_table:
        asked.table, asked.table_size = table, <Py_ssize_t>most + 1
        return _sieve_deltas(asked, wanted, 0, mask)
    return found <= VALUES_FEW and _sieve_deltas(asked, wanted, found, mask)


cdef bint _sieve_block(
    const Stretch* stretch, const Job* job, const Demand* demand, uint8_t* table, uint8_t* mask
) noexcept nogil:
    """The mask of a block's rows, of those that satisfy the demand. False: declined."""
    cdef uint64_t most = _delta_max(job.planes.bits), least = 0, greatest
    cdef int64_t base = <int64_t>job.line.base
    cdef Py_ssize_t i
    cdef Asked asked
    if stretch.has_codewords and job.line.base + most > <uint64_t>stretch.greatest:
        if job.line.base + _greatest_delta(&job.planes) > <uint64_t>stretch.greatest:
            return False
    if job.line.step:
        _sieve_numbers(job, demand, mask)
        return True
    asked.planes, asked.lower, asked.at, asked.end = job.planes, 0, 0, job.planes.count
    asked.table, asked.table_size, asked.least, asked.span = NULL, 0, 0, 0
    if demand.marked is not NULL:  # codewords: base + delta
        if base >= demand.count:
            return False
        asked.table, asked.table_size = demand.marked + base, demand.count - base
        return _sieve_deltas(&asked, NULL, 0, mask)
    if demand.values is not NULL:
        return _sieve_set(job, demand, table, &asked, mask)
    if demand.greatest < base:
        memset(mask, 0, asked.end)
        return True
    if demand.least > base:
        least = (<uint64_t>demand.least - <uint64_t>base - 1) // job.line.unit + 1
    greatest = min(most, (<uint64_t>demand.greatest - <uint64_t>base) // job.line.unit)
    if least > greatest:
        memset(mask, 0, asked.end)
        return True
    if least == 0 and greatest == most:
        return True
    asked.least, asked.span = least, greatest - least
    return _sieve_deltas(&asked, NULL, 0, mask)


cdef Py_ssize_t _set_aside(
    Changed* changed, Py_ssize_t first, Py_ssize_t rows, const uint8_t* mask, uint8_t* aside
) noexcept nogil:
    """Of those of the rows [first, first + rows) that have changed what becomes of them in the mask of these rows, one
    after the other; how many they are. They are the next now."""
    cdef Py_ssize_t i, place, count = 0
    while changed.next < changed.count and changed.rows[changed.next] < first:
        changed.next += 1
    for i in range(changed.next, changed.count):
        place = changed.rows[i] - first
        if place >= rows:
            break
        _prove(0 <= place and count < rows)
        aside[count] = mask[place] & changed.answers[i]
        count += 1
    return count


cdef void _put_back(
    const Changed* changed, Py_ssize_t first, Py_ssize_t count, const uint8_t* aside, uint8_t* mask
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        mask[changed.rows[changed.next + i] - first] = aside[i]


cdef bint _stretch_is_sieved(
    const Source* source, const Stretch* stretch, Demand* demand, uint8_t* table, uint8_t* aside, uint8_t* mask
) noexcept nogil:
    """The mask of a stretch's rows; `aside` has room for a byte of each. False: declined."""
    cdef int64_t block = stretch.lower >> stretch.rows_log2, first, rows
    cdef Py_ssize_t at = 0, changed
    cdef Job job
    job.rows, job.first, job.lower, job.is_signed = NULL, 0, 0, True
    while block << stretch.rows_log2 < stretch.upper:
        first = (block << stretch.rows_log2) - stretch.lower
        rows = _rows_of_block(stretch, block)
        _prove(0 <= first and first + rows <= stretch.upper - stretch.lower)
        if _is_any(mask + first, rows):
            if not _block_is_there(source, stretch, block, at, False, &job):
                return False
            changed = _set_aside(&demand.changed, first, rows, mask + first, aside)
            if not _sieve_block(stretch, &job, demand, table, mask + first):
                return False
            _put_back(&demand.changed, first, changed, aside, mask + first)
        at += _length_of_block(stretch, block)
        block += 1
    return True


def sieve(int descriptor, asked, given, mask, out, room, size_t crc):
    cdef Py_ssize_t count = len(asked), i, rows, found = 0
    cdef Views views = Views(9 * count + 4)
    cdef Stretch* plan = <Stretch*>malloc(count * (sizeof(Stretch) + sizeof(Demand)) + TABLE_SIZE)
    cdef Demand* demands
    cdef uint8_t* table
    cdef uint8_t* left
    cdef const uint8_t* start = NULL
    cdef int64_t* places
    cdef Source source
    cdef Py_buffer* view
    if plan is NULL:
        raise MemoryError
    demands = <Demand*>(plan + count)
    table = <uint8_t*>(demands + count)
    try:
        _plan_source(&source, descriptor, room, crc, views)
        view = views.hold(mask, PyBUF_WRITABLE)
        left, rows = <uint8_t*>view.buf, view.len
        if given is not None:
            view = views.hold(given, PyBUF_SIMPLE)
            start = <const uint8_t*>view.buf
            if view.len != rows:
                raise ValueError(f"expected {rows} rows in the mask that is given, found {view.len}")
        view = views.hold(out, PyBUF_WRITABLE)
        _aligned(view, 8)
        places = <int64_t*>view.buf
        if view.len // 8 <= rows:
            raise ValueError(f"expected room for {rows + 1} rows, found {view.len} bytes")
        for i in range(count):
            stretch, least, greatest, values, marked, changed = asked[i]
            _plan_stretch(stretch, plan + i, views)
            if plan[i].upper - plan[i].lower != rows:
                raise ValueError(f"expected {plan[i].upper - plan[i].lower} rows in the mask, found {rows}")
            demands[i].least, demands[i].greatest, demands[i].count = least, greatest, 0
            demands[i].values, demands[i].marked = NULL, NULL
            _plan_changed(changed, rows, &demands[i].changed, views)
            if values is not None:
                view = views.hold(values, PyBUF_SIMPLE)
                _aligned(view, 8)
                demands[i].values, demands[i].count = <const int64_t*>view.buf, view.len // 8
            elif marked is not None:
                if not plan[i].has_codewords:
                    raise ValueError("expected marks on codewords only")
                view = views.hold(marked, PyBUF_SIMPLE)
                demands[i].marked, demands[i].count = <const uint8_t*>view.buf, view.len
            elif demands[i].least > demands[i].greatest:
                raise ValueError(f"expected bounds in order, found [{least}, {greatest}]")
        with nogil:
            if start is NULL:
                memset(left, 1, rows)
            else:
                for i in range(rows):  # which may be the mask itself: what was left of another file's columns
                    left[i] = start[i] & 1
            for i in range(count):
                if not _stretch_is_sieved(&source, plan + i, demands + i, table, <uint8_t*>places, left):
                    found = -1 - i
                    break
            if found == 0 and rows:
                found = _places(left, rows, 0, places)
        return found
    finally:
        free(plan)
