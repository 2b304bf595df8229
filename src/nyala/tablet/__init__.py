"""The tablets of a database: writes, scans, flushes, compactions, recovery, and the open store that owns them.

    store               the open store of the writer process: it owns the parts and delegates everything
    maintenance         the two background threads; manual_maintenance: the same work when a user calls it
    group_sync          the thread that syncs the log for `durability="group"`
    alter               changes of a table's columns, ranges and options
    check, repair       is a store what it should be? what can be mended without a loss?
    jobs/               loads and staged batches of other processes
    compaction/ flush/  files to fewer files; memory to files
    recovery/           the log back into memory
    write/ scan/        the life of a write and of a scan
    changes/            the change feed
    workers/            processes for heavy work
    state/              the immutable root and what all of them share

Imports point downwards in this list (`pyproject.toml`, contract "tablet").
"""
