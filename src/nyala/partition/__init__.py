"""Partitioning: splits a table into tablets, by hash and by range.

    levels.py      hash_partition and range_partition, which users call; the partitions of a new table
    model.py       what the catalogue stores: the levels of a table, the partition of a tablet
    ranges.py      converts the bounds and splits that users give to ranges of encoded keys
    hashing.py     the hash of Spark, which decides the bucket of a row
    router.py      finds the partition of each row of a write
    pruning.py     finds the partitions that a scan must read
    alteration.py  adds and drops range partitions
    describe.py    describes levels and partitions as text

A level divides the rows of a table by hash or by range. Each combination of one bucket per hash
level and one range is a partition, and each partition is a tablet.

Import from the modules: the package itself exports nothing, so that `import nyala` loads only what
it needs.
"""
