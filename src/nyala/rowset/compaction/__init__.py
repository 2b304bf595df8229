"""Merging compaction: reads the files of rowsets and merges their rows into one image."""
