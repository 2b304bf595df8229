"""Blocks in the file, in the cache, and on their way between both."""
