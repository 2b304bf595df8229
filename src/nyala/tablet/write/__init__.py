"""A write: prepare, lock, resolve each key, log, apply, publish.

prepare        convert, check and route a batch, without the lock
settle         resolve a batch against the stored rows, key by key: pure, under the commit lock
write_path     the order of the steps, and what a crash or an error between them leaves
direct_commit  batches too large for the log: files first, then one catalogue transaction
where_writes   updates and deletes whose rows a predicate selects
copying        all rows of a table written anew
restore        a table as it was at an earlier moment
"""
