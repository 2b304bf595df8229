"""A store's metadata: the SQLite database where every structural change commits, its writer, its readers.

`format` numbers and columns on disk · `model` the catalogue as an immutable value · `rows` between the two ·
`store` load and commit · `store_lock` the one writer · `leases` the readers · `handover_channel` how other
processes reach the writer.
"""
