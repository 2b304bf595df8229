"""The write-ahead log: batches and catalogue changes are written here before they are acknowledged.

format.py     the layouts of segments, record headers and footers
record.py     encodes and decodes the payload of a record
position.py   a small file with the position up to which reader processes may read
writer.py     appends records to segments (files of the log); one sync serves several threads
reader.py     reads the log, and distinguishes a torn tail from damage
dump.py       the output of `nyala wal dump`
objects/      the same for a store in a bucket
"""
