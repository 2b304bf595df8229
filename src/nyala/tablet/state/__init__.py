"""The state of a store, shared by all parts; nothing here writes or scans rows.

root           the immutable state of the whole database: tables, tablets, rowsets
opening        builds a root from the catalogue's entries
entries        the files of a rowset as catalogue entries and as JSON
store_folder   the layout of a store's folder
history        how far back a table can be read
locate         finds the rowsets that hold given keys
locks          the two locks of an open store, and their order
reservations   rowsets that running compactions have reserved
idempotency    keys that let a batch commit only once
leased_files, unfinished, validation, result
               errors for missing files; unfinished tables; validation of input; write results
"""
