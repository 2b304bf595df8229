"""Rows that have another value than their block: a part of `compiled.pyx`, which includes it.

    answers   what is said of them takes the place of what their blocks say          `rows_matching`, `sieve`
    lay       their numbers are laid over those that were picked from blocks
"""

cdef struct Changed:
    # Rows of a window that have another value than their block, and what is said of these; the next of them.
    const int32_t* rows
    const uint8_t* answers
    Py_ssize_t count, next


cdef int _plan_changed(object given, Py_ssize_t row_count, Changed* changed, Views views) except -1:
    """given: (rows of so many, which ascend, an answer for each), or None."""
    cdef Py_buffer* view
    cdef Py_ssize_t i
    cdef bint ascends
    changed.rows, changed.answers, changed.count, changed.next = NULL, NULL, 0, 0
    if given is None:
        return 0
    rows, answers = given
    view = views.hold(rows, PyBUF_SIMPLE)
    _aligned(view, 4)
    changed.rows, changed.count = <const int32_t*>view.buf, view.len // 4
    view = views.hold(answers, PyBUF_SIMPLE)
    changed.answers = <const uint8_t*>view.buf
    if view.len != changed.count:
        raise ValueError(f"expected an answer for each of {changed.count} rows, found {view.len}")
    if not changed.count:
        return 0
    ascends = 0 <= changed.rows[0] and changed.rows[changed.count - 1] < row_count
    for i in range(1, changed.count):
        ascends &= changed.rows[i - 1] < changed.rows[i]
    if not ascends:
        raise ValueError(f"expected changed rows of {row_count} that ascend, found others")
    return 0


cdef void _lay_answers(Changed* changed, Py_ssize_t row, Py_ssize_t n, uint8_t* out) noexcept nogil:
    """What is said of those of the rows [row, row + n) that have changed."""
    cdef Py_ssize_t place
    while changed.next < changed.count and changed.rows[changed.next] < row + n:
        place = changed.rows[changed.next] - row
        if place >= 0:  # else it was in rows that were passed over
            out[place] = changed.answers[changed.next]
        changed.next += 1


cdef enum:
    NEAR = 16  # rows that are looked at one after the other, which costs less than a step into the dark


ctypedef fused row_number:
    int32_t
    int64_t


cdef inline Py_ssize_t _next_from(const row_number* rows, Py_ssize_t begin, Py_ssize_t end, int64_t limit) noexcept nogil:
    """Where in rows [begin, end), which ascend, the first is that is not below the limit: mostly among the next few, and
    else sought in steps that double."""
    cdef Py_ssize_t near = min(begin + NEAR, end), step = 1, middle
    while begin < near and rows[begin] < limit:
        begin += 1
    if begin < near:
        return begin
    while begin + step <= end and rows[begin + step - 1] < limit:
        begin += step
        step *= 2
    end = min(end, begin + step - 1)
    while begin < end:
        middle = begin + (end - begin) // 2
        if rows[middle] < limit:
            begin = middle + 1
        else:
            end = middle
    return begin


cdef struct Laid:
    # Numbers of `size` bytes, of the rows `changed`; and where those of `rows` lie, of `width` bytes.
    const int64_t* rows
    Py_ssize_t row_count
    const int32_t* changed
    Py_ssize_t changed_count
    const uint8_t* numbers
    uint8_t* out
    int size, width


cdef void _lay_numbers(const Laid* job) noexcept nogil:
    cdef Py_ssize_t row = 0, place = 0
    cdef int64_t number, of, changed
    while row < job.row_count and place < job.changed_count:
        of, changed = job.rows[row], job.changed[place]
        if of < changed:
            row = _next_from(job.rows, row + 1, job.row_count, changed)
        elif changed < of:
            place = _next_from(job.changed, place + 1, job.changed_count, of)
        else:
            if job.size == 1:
                number = (<const int8_t*>job.numbers)[place]
            elif job.size == 2:
                number = (<const int16_t*>job.numbers)[place]
            elif job.size == 4:
                number = (<const int32_t*>job.numbers)[place]
            else:
                number = (<const int64_t*>job.numbers)[place]
            memcpy(job.out + row * job.width, &number, min(job.width, 8))
            if job.width == 16:
                number = -1 if number < 0 else 0
                memcpy(job.out + row * 16 + 8, &number, 8)
            row += 1
            place += 1


cdef int _plan_laid(object lay, Laid* job, Views views) except -1:
    cdef Py_buffer* view
    rows, changed, numbers, out, width = lay
    view = views.hold(rows, PyBUF_SIMPLE)
    _aligned(view, 8)
    job.rows, job.row_count = <const int64_t*>view.buf, view.len // 8
    view = views.hold(changed, PyBUF_SIMPLE)
    _aligned(view, 4)
    job.changed, job.changed_count = <const int32_t*>view.buf, view.len // 4
    job.size, job.width = numbers.itemsize, width
    if job.size not in (1, 2, 4, 8) or job.width not in (1, 2, 4, 8, 16):
        raise ValueError(f"expected numbers of 1, 2, 4 or 8 bytes, found {job.size}, to be of {job.width}")
    view = views.hold(numbers, PyBUF_SIMPLE)
    _aligned(view, job.size)
    job.numbers = <const uint8_t*>view.buf
    if view.len // job.size != job.changed_count:
        raise ValueError(f"expected a number for each of {job.changed_count} rows, found {view.len // job.size}")
    view = views.hold(out, PyBUF_WRITABLE)
    job.out = <uint8_t*>view.buf
    if view.len < job.row_count * job.width:
        raise ValueError(f"expected room for {job.row_count} numbers of {job.width} bytes, found {view.len} bytes")
    return 0


def lay(lays):
    cdef Py_ssize_t count = len(lays), i
    cdef Laid* jobs = <Laid*>malloc(count * sizeof(Laid) + 1)
    cdef Views views = Views(4 * count)
    if jobs is NULL:
        raise MemoryError
    try:
        for i in range(count):
            _plan_laid(lays[i], jobs + i, views)
        with nogil:
            for i in range(count):
                _lay_numbers(jobs + i)
    finally:
        free(jobs)
