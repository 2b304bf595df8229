"""Blocks in the file and in the cache, and reading them from one into the other."""
