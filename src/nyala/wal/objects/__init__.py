"""The log of a store in a bucket: numbered objects, each created only if it does not exist yet.

format.py     keys, layouts, and encoding of groups, seals and checkpoints
follower.py   reads the log from the newest checkpoint on, for readers and for new writers
take_over.py  makes this process the writer, and stops the former writer
writer.py     appends records, commits them in groups, writes checkpoints, deletes old objects
dump.py       the output of `nyala wal dump` for a bucket

A writer begins with the state in `taken.checkpoint` and the records after it in `taken.entries`:

    taken = take_over(env, objects)
    check_clock(env.clock.now_us(), taken.log.appended.timestamp)
    with commit_lock:
        offset = taken.log.append(Kind.BATCH, timestamp, encode_record(record))
    taken.log.sync(offset)          raises FencedError if another process has become the writer

    with commit_lock:
        border, body, oldest = taken.log.border(), encode(state), root.memory_timestamp_min()
    taken.log.checkpoint(border, body, oldest)

A checkpoint replaces the records before a border: the offset in the log up to which the state has
all records. So `border()` and `encode` run under one lock. `oldest` is the timestamp of the oldest
row that is in no file yet.

A reader calls `LogFollower(env, objects, read_identity(env, objects)).read_new()` repeatedly.

Source: docs/design/object-storage.md, "The log". Format: docs/format/object-log.md.
"""
