"""The state of a store, which all other parts use. No module here writes or scans rows.

root           the immutable state of the whole database: tables, tablets, rowsets
opening        builds a root from the catalogue's entries; removes orphan files
entries        the files of a rowset as JSON
store_folder   the layout of a store's folder
history        how far back a table can be read
tags           named moments, whose history is kept
locate         finds the rowsets that have given keys
auto_ids       values of an auto-incrementing key column
locks          the two locks of an open store, and their order
reservations   rowsets that running compactions have reserved
idempotency    keys that let a batch commit only once
messages       commit messages
leased_files   the error for a file whose lease has ended
unfinished     temporary names of tables that a job is filling
validation     checks of data from outside
result         the result of a write
"""
