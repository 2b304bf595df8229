"""The output of `nyala wal dump` for a folder: every segment, record and group of rows of a log.

Invalid bytes raise no error. The output says what is wrong, and whether the bytes are damage or the
torn tail (the rest of an interrupted write). Then it continues with the next segment. The example
in docs/format/log.md is such an output.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pyarrow as pa

from nyala.env import Files
from nyala.errors import CorruptionError, StorageError
from nyala.wal.format import (
    FRAME,
    FRAME_SIZE_BYTES,
    SEGMENT_HEADER,
    SEGMENT_HEADER_SIZE_BYTES,
    Layout,
    SegmentHeader,
    segment_name,
)
from nyala.wal.reader import Frame, find_witness, read_frames, segment_numbers
from nyala.wal.record import LogRecord, decode_meta, decode_record

# Only the first bytes of an Arrow message are printed, because Arrow documents their meaning.
_ARROW_BYTES_SHOWN = 8
# The number of characters of a JSON text that are printed.
_TEXT_SHOWN = 2000


def dump(files: Files, directory: str, show_bytes: bool = False) -> Iterator[str]:
    """Yield the lines for all segments in a folder, oldest first.

    show_bytes: also yield the bytes of every header, field by field.
    """
    numbers = segment_numbers(files, directory)
    if not numbers:
        yield f"no log segments in {directory}"
    for number in numbers:
        path = os.path.join(directory, segment_name(number))
        yield from _dump_segment(files, path, number, number == numbers[-1], show_bytes)


def _dump_segment(files: Files, path: str, number: int, is_last: bool, show_bytes: bool) -> Iterator[str]:
    data = files.read_all(path)
    yield f"{segment_name(number)}: {len(data)} bytes"
    header: SegmentHeader | None = None
    closed = False
    try:
        header = SegmentHeader.decode(data[:SEGMENT_HEADER_SIZE_BYTES], path, number)
        yield (
            f"  {0:>8}  segment {header.segment}, log offset {header.start_offset}, "
            f"salt {header.salt:016x}, store {header.store_id}"
        )
        if show_bytes:
            yield from bytes_of(SEGMENT_HEADER, data, 0)
        lower = SEGMENT_HEADER_SIZE_BYTES
        for frame in read_frames(data[lower:], lower, header, path, ordinal=0):
            yield from _dump_frame(frame, data, path, show_bytes)
            closed = frame.header.is_footer
    except CorruptionError as error:
        witness = find_witness(data, error.offset or 0, header, path)
        verdict = "a torn tail" if witness is None and is_last else "DAMAGE"
        yield f"  {error.offset:>8}  {verdict}: {error}"
    except StorageError as error:
        yield f"  {0:>8}  unreadable: {error}"
    else:
        if not closed:
            yield f"  {len(data):>8}  end; not closed" + (
                "" if is_last else ": DAMAGE, a later segment exists"
            )


def _dump_frame(frame: Frame, data: bytes, path: str, show_bytes: bool) -> Iterator[str]:
    header = frame.header
    title = (
        f"footer, {header.ordinal} records" if header.is_footer else f"record {header.ordinal}"
    ) + f", timestamp {header.timestamp}, synced_through {header.synced_through}"
    if header.is_footer:
        yield f"  {frame.offset:>8}  {title}"
    elif header.kind == "change":
        yield f"  {frame.offset:>8}  {title}, {header.payload_length} bytes, a change of the catalogue"
        yield f"  {'':>8}    {shortened(frame.payload.to_pybytes())}"
    else:
        record = decode_record(frame.payload, header.timestamp, path, frame.offset)
        yield from batch_lines(f"  {frame.offset:>8}  {title}, {header.payload_length} bytes", record)
    if show_bytes:
        yield from bytes_of(FRAME, data, frame.offset)
        if header.kind == "batch":
            yield from _payload_bytes(frame.payload, frame.offset + FRAME_SIZE_BYTES)


def batch_lines(title: str, record: LogRecord) -> Iterator[str]:
    """Yield the lines of a batch. The first line begins with `title`."""
    key = "" if record.idempotency_key is None else f", key {json.dumps(record.idempotency_key)}"
    message = "" if record.message is None else f", message {json.dumps(record.message)}"
    yield f"{title}{key}{message}"
    for group in record.groups:
        bounds = zip(group.tablet_ids, group.offsets, group.offsets[1:], strict=False)
        tablets = ", ".join(f"{tablet}: {upper - lower}" for tablet, lower, upper in bounds)
        columns = ", ".join(f"{field.name} {field.type}" for field in group.batch.schema)
        yield (
            f"  {'':>8}    {group.kind} {group.batch.num_rows} rows, table {group.table_id} "
            f"version {group.schema_version}, rows by tablet {{{tablets}}}, columns {{{columns}}}"
        )


def shortened(text: bytes) -> str:
    """Return a JSON text on one line, cut to at most 2,000 characters."""
    line = " ".join(part.strip() for part in text.decode("utf-8", "replace").split("\n")).rstrip()
    return line if len(line) <= _TEXT_SHOWN else line[:_TEXT_SHOWN] + "…"


def bytes_of(layout: Layout, data: bytes, offset: int) -> Iterator[str]:
    """Yield a line for each field of a header at `offset`: its bytes and its value."""
    for name, start, size in layout.offsets():
        encoded = data[offset + start : offset + start + size]
        if name in ("magic", "host"):
            meaning = encoded.rstrip(b"\0").decode("ascii", "replace")
        elif name in ("store_id", "token", "next_token", "epoch_token", "log_start_token"):
            meaning = encoded.hex()
        elif name.endswith("crc32c") or name in ("salt", "incompatible_flags"):
            meaning = f"{int.from_bytes(encoded, 'little'):#x}"
        else:
            meaning = str(int.from_bytes(encoded, "little", signed=dict(layout.fields)[name] == "q"))
        yield _line(offset + start, encoded, f"{name} = {meaning}")


def _payload_bytes(payload: pa.Buffer, offset: int) -> Iterator[str]:
    meta, upper = decode_meta(payload)
    length = int.from_bytes(payload[:4].to_pybytes(), "little")
    yield _line(offset, payload[:4].to_pybytes(), f"meta_length = {length}")
    encoded = payload[4 : 4 + length].to_pybytes()
    for lower in range(0, length, 16):
        row = encoded[lower : lower + 16]
        yield _line(offset + 4 + lower, row, "meta " + row.decode("ascii", "replace"))
    if upper > 4 + length:
        yield _line(offset + 4 + length, payload[4 + length : upper].to_pybytes(), "padding")
    for group in meta["groups"]:
        for name in ("schema", "batch"):
            shown = payload[upper : upper + _ARROW_BYTES_SHOWN].to_pybytes()
            yield _line(offset + upper, shown, f"… Arrow {name} message, {group[name]} bytes")
            upper += group[name]


def _line(offset: int, encoded: bytes, meaning: str) -> str:
    return f"  {offset:>8}    {encoded.hex(' '):<47}  {meaning}"
