"""The log of a store in a bucket: numbered objects that are created by put-if-absent.

format.py     keys, layouts, and encoding of groups, seals and checkpoints
follower.py   reads the log from the newest checkpoint on; readers and heirs use it
take_over.py  makes this process the writer, by sealing the epoch of the writer before
writer.py     appends, commits in groups, writes checkpoints and deletes what they replace

Source: docs/design/object-storage.md, "The log". Format: docs/format/object-log.md.
"""
