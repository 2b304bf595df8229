"""One write, one scan, flush, delta compaction, maintenance and bootstrap of the tablets of a database.

root.py              the immutable state of the whole database: tables, tablets, rowsets
settle.py            what a batch comes to, key by key: pure, under the commit lock
write_path.py        the life of a write: check, lock, timestamp, log, apply, sync, publish
direct_commit.py     batches too large for the log: files first, one catalogue transaction (W6)
read_path.py         the life of a scan: prune, skip, decode, patch, filter
flush.py             memory to files
delta_compaction.py  many REDO files to few
bootstrap.py         the log back into memory (R1)
maintenance.py       when to do which of these; the background thread
workers.py           processes for heavy work; worker_protocol.py is their language, `nyala._worker` their main
store.py             the open store of the writer: owns the parts, delegates everything
publisher.py         what it tells reader processes (P1); idempotency.py: keys that commit a batch once
reader_store.py      the same for a process that only reads (P1)
"""
