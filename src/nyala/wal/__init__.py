"""The database's one log: settled batches, checksummed, synced in groups, replayed at open.

format.py     every magic, width and offset; segment and record headers
record.py     one batch as bytes: a little JSON and Arrow record batches
position.py   how far reader processes may read
writer.py     append, group sync, segments
reader.py     reading; telling a torn tail from damage (R6)
dump.py       what `nyala wal dump` prints
"""
