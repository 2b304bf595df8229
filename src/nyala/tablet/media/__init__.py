"""The medium of an open store, which keeps its log, checkpoints, lock and readers' leases.

base            the interface
folder          a folder of this machine
bucket          a prefix in a bucket, for the writer
bucket_reader   a store in a bucket, for a process that only reads
"""
