"""Scans of a table at one timestamp, from the tablets' rowsets to Arrow batches.

read_path               plans a scan, cuts it into splits, and returns batches; looks up keys
split                   reads one split of a rowset: liveness, filter, decode or gather
scan_memory             chooses the row count of splits within a share of `memory_limit`
parallel                a pool of threads that returns results in order
key_merge               merges rows of several rowsets in key order
token                   writes a part of a scan as bytes for another process, and reads them
open_rowsets            keeps rowsets open from one token to the next
estimate, column_stats  answer questions about a scan or a column from statistics
"""
