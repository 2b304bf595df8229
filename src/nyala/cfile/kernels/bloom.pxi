"""Inserts keys into bloom filters. `compiled.pyx` includes this file."""

cdef enum:
    FILTER_WORDS = 8  # per block


cdef void _bloom_insert(const uint64_t* hashes, Py_ssize_t n, const uint32_t* salts, uint32_t* words, uint64_t blocks) noexcept nogil:
    cdef Py_ssize_t i, index
    cdef uint32_t key
    cdef uint32_t* block
    for i in range(n):
        key = <uint32_t>hashes[i]
        block = words + FILTER_WORDS * ((hashes[i] >> 32) * blocks >> 32)
        for index in range(FILTER_WORDS):
            block[index] |= <uint32_t>1 << (key * salts[index] >> 27)


def bloom_insert(const uint64_t[::1] hashes, const uint32_t[::1] salts, uint32_t[:, ::1] words):
    cdef Py_ssize_t blocks = words.shape[0]
    if salts.shape[0] != FILTER_WORDS or words.shape[1] != FILTER_WORDS or not 0 < blocks <= 0xFFFFFFFF:
        raise ValueError(f"expected blocks of {FILTER_WORDS} words and as many salts, found {blocks} blocks")
    if hashes.shape[0]:
        with nogil:
            _bloom_insert(&hashes[0], hashes.shape[0], &salts[0], &words[0, 0], <uint64_t>blocks)
