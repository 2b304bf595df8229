"""A write: prepare, lock, settle (resolve) each key, log, apply, publish.

prepare        converts, checks and routes a batch, without the lock
settle         resolves a batch against the stored rows, key by key; pure, under the commit lock
write_path     the order of the steps, and the result of a crash or an error between them
direct_commit  commits batches too large for the log: files first, then one catalogue
               transaction
part_commit    commits a large batch of SQL in parts, in bounded memory
where_writes   updates and deletes of the rows that a predicate selects
"""
