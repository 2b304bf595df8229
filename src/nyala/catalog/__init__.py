"""Keeps the catalogue of a store, its lock, and its leases.

The catalogue lists the tables, tablets, rowsets and files. Each change of the catalogue is one
record of the store's log. The lock allows one writer. Leases keep old files for readers.

format         names of files, and the format's version
model          the catalogue as an immutable value, and a change of the catalogue
codec          encodes both as JSON
checkpoint     the whole catalogue in a file
loading        reads a checkpoint, and applies the changes that follow in the log
store_lock     the lock of the one writer
leases         the leases of readers, in a folder
object_leases  the leases of readers, in a bucket
job_leases     the leases of jobs, in a folder or a bucket
"""
