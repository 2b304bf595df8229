"""Sets of rows: one in memory that takes inserts, many on disk, and the tree that finds them by key.

Read in this order: `meta`, `image` (rows on their way to disk), `mem_rowset`, `writer` (an image becomes files),
`key_lookup/` (from keys to rowids), `disk_rowset`, `rowset_tree`.
"""
