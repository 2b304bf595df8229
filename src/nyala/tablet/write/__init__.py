"""Writes. A write prepares its rows, takes the commit lock, settles each key, logs and applies.

To settle means to decide for each row: insert, update, delete, no change or error.

write_path     the order of the steps, and what an error between them leaves
prepare        converts and checks a batch and finds each row's tablet, without the lock
prepare_rows   does the same for a list in which each row has its own operation
settle         settles an operation against the stored rows
settle_rows    settles several operations together, or rows with different operations
conditions     leaves out rows by comparing them with the stored rows (`when=`, `newest_by=`)
where_writes   updates and deletes of the rows that a predicate selects; look-ups by key
transaction    a private view of the tables, committed as one batch (conflicts, pins)
direct_commit  writes a batch that is too large for the log as files
part_commit    writes such a batch of a SQL statement in parts, in bounded memory
"""
