"""Blocks in memory: the forms that encodings keep them in, each with the three operations of a scan."""
