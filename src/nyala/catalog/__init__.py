"""A store's metadata: the SQLite database in which every structural change commits.

format        numbers and columns on disk
model, rows   the catalogue as an immutable value, and its conversion to rows
store         loads and commits the catalogue
memory_copy   reads it where SQLite may not write
rebuild       rewrites it
store_lock    the lock of the one writer
leases        the leases of readers
"""
