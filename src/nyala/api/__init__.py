"""The public classes.

database     `connect`, `Database` and `Snapshot`
table        `Table`: write, read, alter and maintain a table
readable     the methods that read a table, and `TableView`, a table at one moment
writable     the methods that write a table
scan         `Scan`: the rows of a table at one moment, in many forms
change_feed  `ChangeFeed`: the rows that changed between two moments
batch        `Batch`: several writes with one commit
transaction  `Transaction`: reads and writes with one commit
alter        `Alteration`: changes of columns, ranges and options
backups      `restore_backup`, `list_backups`, `clean_backups`
results      the classes of results
opening      opens stores, and manages the stores that this process has open
"""
