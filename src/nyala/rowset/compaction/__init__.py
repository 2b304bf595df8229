"""Merging compaction: how a rowset's files are read, and the rows of several rowsets as one."""
