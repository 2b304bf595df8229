"""The state of a store, and what every part needs of it: nothing here writes or scans rows.

root           the immutable state of the whole database: tables, tablets, rowsets
opening        from the catalogue's entries to a root
entries        the files of a rowset as entries of the catalogue and as JSON
store_folder   what lies where in a store's folder
history        how far back a table can be read
locate         where keys are
locks          the two locks of an open store, and their order
reservations   rowsets that a running compaction has taken
idempotency    keys that commit a batch once
leased_files, unfinished, validation, result
               errors of missing files; tables in the making; checks of input; what a write returns
"""
