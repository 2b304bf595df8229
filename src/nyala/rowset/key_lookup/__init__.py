"""Finds rowids by key: in memory by sorted runs, in a base file by bounds, bloom filter and key
index.
"""
