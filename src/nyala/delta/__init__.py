"""What changed after the base was written: in memory, on disk, applied to a snapshot, compacted.

Read in this order: `run` (the model, and one column's sorted changes), `applier` (base + runs + snapshot -> values),
`batch` and `mem_store` (changes in memory), `delta_file` (changes on disk), `compaction` and `compaction.policy`.
"""
