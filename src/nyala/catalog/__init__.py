"""A store's metadata: tables, tablets, rowsets and files, changed one record of the log at a time.

format       names of files, and the format's version
model        the catalogue as an immutable value, and a change of it
codec        both as JSON
checkpoint   the whole catalogue in a file
loading      a checkpoint and the log's changes after it
store_lock   the lock of the one writer
leases       the leases of readers
"""
