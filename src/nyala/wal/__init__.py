"""The database's one log: settled batches, checksummed, synced in groups, replayed at open.

format.py     every magic, width and offset; segment and record headers
record.py     one batch as bytes: a little JSON and Arrow record batches
position.py   how far reader processes may read
writer.py     append, group sync, segments
reader.py     reading; telling a torn tail from damage (R6)
dump.py       what `nyala wal dump` prints
"""

from __future__ import annotations

from nyala.wal.format import LogOffset, segment_name
from nyala.wal.position import LogPosition, PositionRecord, read_position, write_position
from nyala.wal.reader import LogReader, Recovery, SegmentInfo, TornTail, recover
from nyala.wal.record import LogRecord, SettledGroup, decode_record, encode_record
from nyala.wal.writer import Durability, LogMark, LogWriter

__all__ = [
    "Durability",
    "LogMark",
    "LogOffset",
    "LogPosition",
    "LogReader",
    "LogRecord",
    "LogWriter",
    "PositionRecord",
    "Recovery",
    "SegmentInfo",
    "SettledGroup",
    "TornTail",
    "decode_record",
    "encode_record",
    "read_position",
    "recover",
    "segment_name",
    "write_position",
]
