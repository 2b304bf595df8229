"""The log of a store in a bucket: numbered objects that are created by put-if-absent.

format.py     keys, layouts, and encoding of groups, seals and checkpoints
follower.py   reads the log from the newest checkpoint on; readers and heirs use it
take_over.py  makes this process the writer, by sealing the epoch of the writer before
writer.py     appends, commits in groups, writes checkpoints and deletes what they replace

    taken = take_over(env, objects)             state in taken.checkpoint, records after it in taken.entries
    check_clock(env.clock.now_us(), taken.log.appended.timestamp)
    with commit_lock:
        offset = taken.log.append(Kind.BATCH, timestamp, encode_record(record))
    taken.log.sync(offset)                      FencedError: another process is the writer now

    with commit_lock:
        border, body, oldest = taken.log.border(), encode(state), root.memory_timestamp_min()
    taken.log.checkpoint(border, body, oldest)

A reader process calls `LogFollower(env, objects, read_birth(env, objects)).read_new()` again and again.

Source: docs/design/object-storage.md, "The log". Format: docs/format/object-log.md.
"""
