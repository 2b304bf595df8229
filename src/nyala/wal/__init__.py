"""The database's log: resolved batches with checksums, synced in groups, replayed at open.

format.py     every magic, width and offset; segment and record headers
record.py     encodes a batch: JSON metadata and Arrow record batches
position.py   the position up to which reader processes may read
writer.py     append, group sync, segments
reader.py     reading; distinguishes a torn tail from damage (R6)
dump.py       the output of `nyala wal dump`
"""
