"""Text as numbers and back: a part of `compiled.pyx`, which includes it."""

cdef extern from *:
    """
    /* n / divisor, or one less. reciprocal: floor((2^64 - 1) / divisor). What is lost is below n / 2^64. */
    static inline unsigned long long nyala_about(
        unsigned long long n, unsigned long long divisor, unsigned long long reciprocal
    ) {
    #if defined(__SIZEOF_INT128__)
        (void)divisor;
        return (unsigned long long)(((unsigned __int128)n * reciprocal) >> 64);
    #else
        (void)reciprocal;
        return n / divisor;
    #endif
    }
    """
    uint64_t _about "nyala_about"(uint64_t n, uint64_t divisor, uint64_t reciprocal) noexcept nogil

cdef enum:
    GROUPS = 128  # no value has more places

cdef struct Group:
    # Neighbouring places of each value: `width` bytes from `at` on, one of `count` entries of the table.
    const uint64_t* table
    uint64_t count
    uint64_t reciprocal
    Py_ssize_t at
    int width
    int shift  # the count is 2^this; -1: no power of two
    bint is_roomy  # eight bytes from `at` on are all of the text, and those behind the group are written later


cdef inline void _put(uint64_t text, uint8_t* into, int width) noexcept nogil:
    """The first `width` bytes of eight."""
    cdef uint32_t four
    cdef uint16_t two
    if width == 8:
        memcpy(into, &text, 8)
    elif width >= 4:
        memcpy(into, &text, 4)
        four = <uint32_t>(text >> (8 * (width - 4)))
        memcpy(into + width - 4, &four, 4)
    elif width >= 2:
        memcpy(into, &text, 2)
        two = <uint16_t>(text >> (8 * (width - 2)))
        memcpy(into + width - 2, &two, 2)
    else:
        into[0] = <uint8_t>text


cdef struct Word:
    # Numbers, whose digits are the ranks in the groups [first, end).
    const int64_t* numbers
    int first
    int end


cdef bint _spell(
    const Word* words, int word_count, Py_ssize_t rows, const Group* groups, int group_count, uint8_t* out,
    const uint8_t* end, Py_ssize_t length,
) noexcept nogil:
    """Whether all numbers are below the product of their groups' counts."""
    cdef uint64_t left, quotient, rank
    cdef uint64_t ranks[GROUPS]
    cdef Py_ssize_t row
    cdef int i, word
    cdef uint8_t* value
    for row in range(rows):
        for word in range(word_count):
            left = <uint64_t>words[word].numbers[row]
            for i in range(words[word].end - 1, words[word].first, -1):
                if groups[i].shift >= 0:
                    ranks[i] = left & (groups[i].count - 1)
                    left >>= groups[i].shift
                    continue
                quotient = _about(left, groups[i].count, groups[i].reciprocal)
                rank = left - quotient * groups[i].count
                if rank >= groups[i].count:
                    rank -= groups[i].count
                    quotient += 1
                ranks[i] = rank
                left = quotient
            if left >= groups[words[word].first].count:
                return False
            ranks[words[word].first] = left
        value = out + row * length
        for i in range(group_count):
            _prove(ranks[i] < groups[i].count)
            if groups[i].is_roomy:
                _prove(value + groups[i].at + 8 <= end)
                memcpy(value + groups[i].at, groups[i].table + ranks[i], 8)
            else:
                _prove(value + groups[i].at + groups[i].width <= end)
                _put(groups[i].table[ranks[i]], value + groups[i].at, groups[i].width)
    return True


cdef int _group(Group* group, spelling, Py_ssize_t at, Py_ssize_t length, Views views) except -1:
    """What the kernel may rely on: the group begins at `at` and ends in the text, and has an entry for each rank."""
    cdef Py_buffer* table
    entries, group.width, table_words = spelling
    table = views.hold(table_words, PyBUF_SIMPLE)
    _aligned(table, 8)
    group.table, group.count, group.at = <const uint64_t*>table.buf, entries, at
    if not 0 < group.width <= 8 or at + group.width > length or not 0 < group.count <= <uint64_t>(table.len // 8):
        raise ValueError(f"expected places of {length}, and all that they may say, found {group.width} of them")
    group.reciprocal = <uint64_t>-1 // group.count
    group.shift = _lowest(group.count) if _ones(group.count) == 1 else -1
    group.is_roomy = at + 8 <= length
    return 0


def spell(spelled, Py_ssize_t rows, out, Py_ssize_t length):
    cdef int word_count = len(spelled), group_count = sum([len(spellings) for _, spellings in spelled]), i = 0, word
    cdef Py_ssize_t behind = 0
    cdef Views views = Views(word_count + group_count + 1)
    cdef Py_buffer* into = views.hold(out, PyBUF_WRITABLE)
    cdef Py_buffer* numbers
    cdef Group groups[GROUPS]
    cdef Word words[GROUPS]
    cdef bint fits
    if not 0 < word_count <= group_count <= GROUPS or length <= 0 or rows < 0 or into.len // length < rows:
        raise ValueError(
            f"expected at most {GROUPS} groups of places, and room for {rows} values, found {group_count} and {into.len} "
            "bytes"
        )
    for word in range(word_count):
        of_word, spellings = spelled[word]
        numbers = views.hold(of_word, PyBUF_SIMPLE)
        _aligned(numbers, 8)
        words[word].numbers, words[word].first, words[word].end = <const int64_t*>numbers.buf, i, i + <int>len(spellings)
        if numbers.len != 8 * rows or words[word].end == i:
            raise ValueError(f"expected {rows} numbers and what they say, found {numbers.len} bytes")
        for spelling in spellings:
            _group(groups + i, spelling, behind, length, views)
            behind += groups[i].width
            i += 1
    if behind != length:
        raise ValueError(f"expected groups of all {length} places, found {behind}")
    with nogil:
        fits = _spell(
            words, word_count, rows, groups, group_count, <uint8_t*>into.buf, <const uint8_t*>into.buf + into.len, length
        )
    if not fits:
        raise ValueError("expected numbers that the places can say, found a greater one")


cdef void _letters(const uint8_t* texts, Py_ssize_t rows, Py_ssize_t length, uint8_t* seen) noexcept nogil:
    cdef Py_ssize_t row, place
    for row in range(rows):
        for place in range(length):
            seen[256 * place + texts[row * length + place]] = 1


def letters(texts, Py_ssize_t length, uint8_t[:, ::1] seen):
    cdef Views views = Views(1)
    cdef Py_buffer* of = views.hold(texts, PyBUF_SIMPLE)
    if length <= 0 or of.len % length or seen.shape[0] != length or seen.shape[1] != 256:
        raise ValueError(f"expected texts of {length} bytes and 256 marks for each, found {of.len} bytes")
    with nogil:
        _letters(<const uint8_t*>of.buf, of.len // length, length, &seen[0, 0])


cdef struct Rank:
    uint64_t count
    const uint8_t* of  # 256


cdef void _unspell(
    const uint8_t* texts, Py_ssize_t rows, Py_ssize_t length, const Rank* ranks, int count, int64_t* numbers
) noexcept nogil:
    """texts: from the first place of the first on."""
    cdef Py_ssize_t row
    cdef int i
    cdef uint64_t number
    cdef const uint8_t* text
    for row in range(rows):
        number = 0
        text = texts + row * length
        for i in range(count):
            number = number * ranks[i].count + ranks[i].of[text[i]]
        numbers[row] = <int64_t>number


def unspell(texts, Py_ssize_t length, Py_ssize_t begin, ranks, int64_t[::1] numbers):
    cdef Py_ssize_t count = len(ranks), i, rows = numbers.shape[0]
    cdef Views views = Views(count + 1)
    cdef Py_buffer* of = views.hold(texts, PyBUF_SIMPLE)
    cdef Py_buffer* table
    cdef Rank places[GROUPS]
    if not 0 < count <= GROUPS or begin < 0 or length < begin + count or of.len != rows * length:
        raise ValueError(f"expected {rows} texts of {length} bytes, and ranks of some places, found {of.len} bytes")
    for i in range(count):
        size, of_bytes = ranks[i]
        table = views.hold(of_bytes, PyBUF_SIMPLE)
        if table.len < 256:
            raise ValueError(f"expected the ranks of 256 bytes, found {table.len}")
        places[i].count, places[i].of = size, <const uint8_t*>table.buf
    if rows:
        with nogil:
            _unspell(<const uint8_t*>of.buf + begin, rows, length, places, <int>count, &numbers[0])
