"""Blocks: their bytes in a file, the cache in memory, and reading from the file into the cache."""
