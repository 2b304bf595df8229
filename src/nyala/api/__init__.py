"""The public classes.

database     `connect`, `Database` and `Snapshot`
table        `Table` and `TableView`: write, read, maintain
scan         `Scan`: the rows of a table at one moment, in many forms
change_feed  `ChangeFeed`: what changed between two moments
batch        several writes as one
alter        `Alteration`: changes of columns, ranges and options
backups      `restore_backup`, `list_backups`, `clean_backups`
opening      opens stores; what works for an open store beside the callers' threads
"""
