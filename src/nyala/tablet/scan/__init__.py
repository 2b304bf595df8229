"""A scan, from (root, timestamp) to Arrow batches.

read_path    the order of the steps: prune, split, read, merge
window       one split of a rowset: liveness, filter, decode or gather
scan_memory  how many rows a split has, within a share of `memory_limit`
parallel     a pool of threads, results in order
key_merge    rows of several rowsets in key order
token        a part of a scan as bytes for another process
estimate, value_bounds, column_stats   what can be said of a scan or a column from statistics
"""
