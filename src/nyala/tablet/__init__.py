"""The tablets of a database: writes, scans, flushes, compactions, recovery, and the open store.

    store               the open store of the writer process; owns all parts and delegates to them
    maintenance         the two background threads; manual_maintenance: the same work on request
    group_sync          the thread that syncs the log for `durability="group"`
    alter               changes of a table's columns, ranges and options
    check, repair       verifies a store; repairs what can be repaired without losing rows
    jobs/               loads and staged batches of other processes
    compaction/ flush/  files to fewer files; memory to files
    recovery/           replays the log into memory
    tables/             tables as a whole: created, cloned, copied, restored
    write/ scan/        the life of a write and of a scan
    changes/            the change feed
    workers/            processes for heavy work
    state/              the immutable root and what all of them share

Imports point downwards in this list (`pyproject.toml`, contract "tablet").
"""
