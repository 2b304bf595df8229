"""Rowsets: one in memory that takes inserts, many on disk, and the tree that finds them by key.

Read in this order: `meta`, `image` (rows to be written), `mem_rowset`, `writer` (writes an image to
files), `key_lookup/` (finds rowids by key), `disk_rowset`, `rowset_tree`.
"""
