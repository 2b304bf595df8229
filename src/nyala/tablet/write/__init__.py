"""Writes rows: prepares them, takes the commit lock, resolves them, logs and applies the result.

To resolve a batch means to find each key, and to decide for each row: insert, update, delete,
ignored or error.

write_path     the order of the steps, and what an error between them leaves
prepare        converts and checks a batch and finds each row's tablet, without the lock
prepare_rows   does the same for a list in which each row has its own operation
resolve         resolves an operation against the stored rows
resolve_rows    resolves several operations together, or rows with different operations
effects        the classes for a resolved batch
conditions     leaves out rows by comparing them with the stored rows (`when=`, `newest_by=`)
where_writes   updates and deletes the rows that a predicate selects; looks up rows by key
transaction    a private view of the tables, which is committed as one batch
conflicts      finds keys that another write changed after a transaction's snapshot
pins           keeps the history that open transactions need
direct_commit  writes a batch that is too large for the log as files
part_commit    writes such a batch of a SQL statement in parts, in bounded memory
"""
