"""The output of `nyala wal dump` for a bucket: the small objects, the checkpoints and the log.

Invalid bytes raise no error: the output says what is wrong, and continues with the next object. An
object that is deleted during the dump is left out. Records have the same form as in
`nyala.wal.dump`.

Source: docs/format/object-log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nyala.errors import CorruptionError, StorageError
from nyala.objects.base import Objects
from nyala.wal.dump import batch_lines, bytes_of, shortened
from nyala.wal.format import Layout
from nyala.wal.objects.format import (
    CHECKPOINT,
    CHECKPOINT_PREFIX,
    COPYING_KEY,
    GROUP,
    IDENTITY_KEY,
    LOG_PREFIX,
    RECORD,
    SEAL,
    WRITER_KEY,
    CheckpointHeader,
    CheckpointKey,
    Kind,
    ReadRecord,
    Seal,
    Slot,
    decode_checkpoint,
    decode_group,
)
from nyala.wal.record import decode_record

StateText = Callable[[bytes, str, str], Iterator[str]]
"""Returns the lines of the catalogue in a checkpoint, from its bytes, their URL and the store's id.

Raises: CorruptionError, StorageError.
"""


def dump(
    objects: Objects, state_text: StateText, only: str | None = None, show_bytes: bool = False
) -> Iterator[str]:
    """Yield the lines for all objects of the log and its checkpoints.

    only:       the key of one object, to dump only this object; None: all objects.
    state_text: formats the body of a checkpoint, which is the encoded state of the store.
    show_bytes: also yield the bytes of every header, field by field.
    """
    keys = [IDENTITY_KEY, WRITER_KEY, COPYING_KEY]
    if only is None:
        keys += [info.key for prefix in (CHECKPOINT_PREFIX, LOG_PREFIX) for info in objects.list(prefix)]
    for key in keys if only is None else [only]:
        data = objects.get(key)
        if data is None:
            continue
        yield f"{key}: {len(data)} bytes"
        try:
            slot, checkpoint = Slot.parse(key), CheckpointKey.parse(key)
            if slot is not None:
                yield from _group(data, f"{objects.url}/{key}", slot, show_bytes)
            elif checkpoint is not None:
                yield from _checkpoint(data, f"{objects.url}/{key}", checkpoint, state_text, show_bytes)
            else:
                yield f"  {0:>8}  {shortened(data)}"
        except CorruptionError as error:
            yield f"  {error.offset or 0:>8}  DAMAGE: {error}"
        except StorageError as error:
            yield f"  {0:>8}  unreadable: {error}"


def _group(data: bytes, path: str, slot: Slot, show_bytes: bool) -> Iterator[str]:
    if show_bytes:
        yield from _header(GROUP, data)
    group = decode_group(data, path, _store_id(data), slot)
    yield (
        f"  {0:>8}  slot {slot.n} of epoch {slot.epoch.number}, {len(group.records)} records, CRC {group.crc:08x} "
        f"after {group.previous_crc:08x}"
    )
    for record in group.records:
        yield from _record(record, path)
        if show_bytes:
            yield from bytes_of(RECORD, data, record.offset)
            if record.kind is Kind.SEAL:
                yield from bytes_of(SEAL, data, record.offset + RECORD.size_bytes)


def _record(record: ReadRecord, path: str) -> Iterator[str]:
    title = f"  {record.offset:>8}  timestamp {record.timestamp}, {record.payload.size} bytes"
    payload = record.payload
    if record.kind is Kind.BATCH:
        yield from batch_lines(title, decode_record(payload, record.timestamp, path, record.offset))
    elif record.kind is Kind.CHANGE:
        yield f"{title}, a change of the catalogue"
        yield f"  {'':>8}    {shortened(payload.to_pybytes())}"
    elif record.kind is Kind.NOTE:
        yield f"{title}, a checkpoint was written: {CheckpointHeader.decode(payload.to_pybytes(), path).key.key}"
    else:
        seal = Seal.decode(payload.to_pybytes(), path)
        yield f"{title}, a seal that leads to epoch {seal.next_epoch.name}: {seal.describe()}"


def _checkpoint(
    data: bytes, path: str, key: CheckpointKey, state_text: StateText, show_bytes: bool
) -> Iterator[str]:
    if show_bytes:
        yield from _header(CHECKPOINT, data)
    header, body = decode_checkpoint(data, path, _store_id(data), key)
    yield (
        f"  {0:>8}  the state before slot {header.position.n} of epoch {header.position.epoch.number}; the log starts "
        f"at slot {header.log_start.n} of epoch {header.log_start.epoch.number}; timestamp {header.timestamp}"
    )
    for line in state_text(body.to_pybytes(), path, header.store_id):
        yield f"  {'':>8}    {line}"


def _header(layout: Layout, data: bytes) -> Iterator[str]:
    if len(data) >= layout.size_bytes:
        yield from bytes_of(layout, data, 0)


def _store_id(data: bytes) -> str:
    """Return the store id of a group or checkpoint. Both have it at the same offset."""
    offset = next(offset for name, offset, _ in GROUP.offsets() if name == "store_id")
    return data[offset : offset + 16].hex()
