"""Changes of rows after their base was written: in memory, in files, applied to a snapshot,
compacted.

Read in this order: `run` (the model, and the sorted changes of one column), `applier` (base, runs
and snapshot give values), `batch` and `mem_store` (changes in memory), `delta_file` (changes on
disk), `compaction`, `file_selection`.
"""
