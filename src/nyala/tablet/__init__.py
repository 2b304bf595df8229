"""The tablets of a database: writes, scans, flushes, compactions, recovery, and the open store.

    store               the open store of the writer process
    maintenance         the two background threads; manual_maintenance does the same on request
    group_sync          the thread that syncs the log for `durability="group"`
    alter, purge        changes a table's columns, ranges and options; erases rows by key
    check, repair       verifies a store; repairs it without losing rows
    copying             copies a store between folders and buckets
    media/              the interface to a folder or a bucket
    jobs/               loads and staged batches of other processes
    compaction/ flush/  rewrites files to fewer files; writes memory to files
    recovery/           replays the log into memory
    tables/             creates, clones, copies and restores whole tables
    write/ scan/        the steps of a write and of a scan
    changes/            the change feed
    workers/            worker processes
    state/              the immutable root, and other state that all modules share

`pyproject.toml` says which of these may import which (contract "tablet").
"""
