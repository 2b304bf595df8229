"""Cutting a table into tablets, by hash and by range.

    hashing.py     Spark's hash, over whole columns
    model.py       what the catalogue keeps: the levels of a table, the partition of a tablet
    ranges.py      bounds and splits, from what a user wrote to stretches of range keys
    describe.py    partitions as a person writes them
    router.py      rows to partitions
    levels.py      hash_partition, range_partition, and the partitions of a new table
    pruning.py     predicates to partitions

Import from the modules; this package re-exports nothing, so that `import nyala` loads only what it needs.
"""
