"""Stores, reads and compacts the changes of rows whose base data is already written.

Read in this order:

    run             the model, and the sorted changes of one column
    applier         applies the changes to base data
    batch           rows that were written together
    mem_store       changes in memory; `node` is its building block
    delta_file      changes on disk
    compaction      merges changes
    file_selection  chooses the delta files to merge
"""
