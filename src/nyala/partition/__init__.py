"""Partitioning: splits a table into tablets, by hash and by range.

    levels.py      hash_partition, range_partition, and the partitions of a new table
    model.py       the stored form: the levels of a table, the partition of a tablet
    ranges.py      converts a user's bounds and splits to ranges of encoded keys
    hashing.py     Spark's hash, over whole columns
    router.py      finds the partition of each row
    pruning.py     finds the partitions that can match a predicate
    alteration.py  adds and drops range partitions
    describe.py    text of a partition, for people

Import from the modules; this package re-exports nothing, so that `import nyala` loads only what it needs.
"""
