"""Objects of a bucket: a flat set of keys under one prefix, with put-if-absent.

`base` is the interface, `settle` the one safe way to create an object under faults. The
implementations are `bucket` (S3, GCS and Azure, through obstore), `folder` (a POSIX folder, also on
NFS) and `memory` (tests and models). `remote_files` makes files of objects, with a cache on a local
disk (`chunk_cache`).
"""
