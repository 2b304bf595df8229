"""Backups of tables in a folder or a bucket.

A full backup has all rows of a table at a moment. An incremental backup has the changes since an
earlier backup, from the change feed.

    layout     the names of folders and files, and the metadata of a backup
    listing    finds backups and what they depend on, and removes old ones
    plan       decides what the next backup of a table contains
    write      writes backups
    read       decides which backups a restore needs, and reads their rows
    restore    creates tables from backups

`db.backup` and `nyala.restore_backup` do the work in one process. `spark/jobs/backup.py` reads and
writes the same files in tasks of Spark.

Source: docs/how-to/backup.md; docs/design/kudu.md, "Backups".
"""
