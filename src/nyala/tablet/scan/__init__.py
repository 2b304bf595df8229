"""A scan, from (root, timestamp) to Arrow batches.

read_path               the order of the steps: prune, split, read, merge
split                   reads one split of a rowset: liveness, filter, decode or gather
scan_memory             chooses the row count of splits within a share of `memory_limit`
parallel                a pool of threads that returns results in order
key_merge               merges rows of several rowsets in key order
token                   a part of a scan as bytes for another process
open_rowsets            rowsets that stay open between the tokens of a process
estimate, column_stats  facts about a scan or a column from statistics
"""
