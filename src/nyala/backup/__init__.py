"""Backups of tables in a folder or a bucket: full ones, and incremental ones from the change feed.

    layout     the names of folders and files; the metadata of a backup; places in folders and buckets
    listing    which backups there are, which of them depend on which, and removing old ones
    plan       what the next backup of a table contains
    write      writes the files of one backup, or of all tables at one moment
    read       which backups a restore needs, and their rows
    restore    makes tables from backups, in this process

`db.backup` and `nyala.restore_backup` do the work in threads of one process. Spark's form
(`spark/jobs/backup.py`) reads and writes the same files in tasks.

Source: docs/how-to/backup.md; docs/design/kudu.md, "Backups".
"""
