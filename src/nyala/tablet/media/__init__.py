"""The medium of a store: a folder or a bucket, with its log, checkpoints, lock and leases.

base            the interface
folder          a folder of this machine
bucket          a prefix in a bucket, for the writer
bucket_reader   a store in a bucket, for a process that only reads
"""
