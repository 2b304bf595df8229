"""Stores objects under one prefix of a bucket, and reads and writes a store's files as objects.

base          the interface `Objects`
bucket        objects in S3, Google Cloud Storage or Azure, through obstore
folder        objects in a folder, also on NFS
memory        objects in memory, for tests
settle        creates an object, and finds out whether a failed request created it
open          opens the bucket that a URL names
address       a store's place in a form that can be sent to other processes
remote_files  `Files` whose files are objects
chunk_cache   the cache of `remote_files` on a local disk
probe         tests whether a bucket keeps the promises that a store needs
"""
