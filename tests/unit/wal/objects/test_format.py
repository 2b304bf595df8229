"""Groups, seals, checkpoints and keys are decoded as they were encoded, and damage is an error."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import CorruptionError, StorageError
from nyala.wal.format import Layout, WrongStoreError, crc32c
from nyala.wal.objects import format
from nyala.wal.objects.format import (
    GROUP,
    RECORD,
    SEAL_SIZE_BYTES,
    CheckpointHeader,
    CheckpointKey,
    Epoch,
    Kind,
    Record,
    Seal,
    Slot,
    StoreIdentity,
    WriterHint,
    decode_checkpoint,
    decode_group,
    encode_group,
    encode_seal,
    is_seal_size,
)

STORE = "0123456789abcdef" * 2
EPOCH = Epoch(3, "00112233445566aa")
SLOT = Slot(EPOCH, 7)


def group_of(*payloads: bytes, slot: Slot = SLOT, kind: Kind = Kind.BATCH) -> bytes:
    records = [Record.of(kind, 10 + index, [payload]) for index, payload in enumerate(payloads)]
    return encode_group(STORE, slot, 0xABCD, records)[0]


def read(data: bytes, slot: Slot = SLOT, store: str = STORE) -> list[tuple[Kind, int, bytes]]:
    group = decode_group(data, "s3://b/x", store, slot)
    return [(record.kind, record.timestamp, record.payload.to_pybytes()) for record in group.records]


def changed(data: bytes, layout: Layout, at: int, **values: int | bytes) -> bytes:
    """Return an object with other values in a header, and a right CRC."""
    fields = layout.decode(data, at, None, at)
    return data[:at] + layout.encode({**fields, **values}) + data[at + layout.size_bytes :]


@given(
    st.lists(
        st.tuples(st.sampled_from([Kind.BATCH, Kind.CHANGE, Kind.NOTE]), st.binary(max_size=40)),
        min_size=1,
        max_size=5,
    )
)
def test_a_group_is_read_as_it_was_written(records: list[tuple[Kind, bytes]]) -> None:
    """Groups come back as they were written, also with empty payloads."""
    written = [
        Record.of(kind, 5 + index, [payload[:3], payload[3:]])
        for index, (kind, payload) in enumerate(records)
    ]
    data, crc = encode_group(STORE, SLOT, 99, written)
    group = decode_group(data, "p", STORE, SLOT)
    assert (group.crc, group.previous_crc, group.size_bytes) == (crc, 99, len(data))
    assert read(data) == [(kind, 5 + index, payload) for index, (kind, payload) in enumerate(records)]
    assert len(data) == GROUP.size_bytes + sum(record.size_bytes for record in written)
    assert not is_seal_size(len(data)), "no group has the size of a seal (O5)"


def test_payloads_are_aligned_and_not_copied() -> None:
    """Arrow messages can be read in place: each payload starts at a multiple of 8 bytes."""
    data = group_of(b"abc", b"x" * 17, b"")
    base = pa.py_buffer(data).address
    for record in decode_group(data, "p", STORE, SLOT).records:
        assert (record.payload.address - base) % 8 == 0
        assert base <= record.payload.address <= base + len(data)


@pytest.mark.parametrize("kind", ["group", "seal", "checkpoint"])
def test_a_flip_of_any_bit_is_an_error(kind: str) -> None:
    """No damaged object is read as other records."""
    if kind == "group":
        data = group_of(b"first payload", b"second")
    elif kind == "seal":
        data = encode_seal(STORE, SLOT, 5, Seal(EPOCH.next("a" * 16), "host", 17, 1))[0]
    else:
        data = checkpoint_object()
    for offset in range(len(data)):
        for bit in (0, 7):
            bad = bytearray(data)
            bad[offset] ^= 1 << bit
            with pytest.raises((CorruptionError, StorageError)):
                if kind == "checkpoint":
                    decode_checkpoint(bytes(bad), "p", STORE, KEY)
                else:
                    read(bytes(bad))


def test_an_object_that_is_cut_off_or_too_long_is_damage() -> None:
    data = group_of(b"payload", b"more")
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            read(data[:length])
    with pytest.raises(CorruptionError, match="bytes after the header"):
        read(data + bytes(8))


@pytest.mark.parametrize(
    "slot", [Slot(EPOCH, 8), Slot(Epoch(4, EPOCH.token), 7), Slot(Epoch(3, "f" * 16), 7)]
)
def test_o2_a_group_of_another_slot_is_refused(slot: Slot) -> None:
    with pytest.raises(CorruptionError, match="another slot"):
        read(group_of(b"x"), slot)


def test_a_group_of_another_store_is_refused() -> None:
    """The error says that the group is of another store, not that it is damaged."""
    with pytest.raises(WrongStoreError, match="another store"):
        read(group_of(b"x"), store="f" * 32)


def test_a_newer_version_is_refused_and_not_called_damage() -> None:
    """The error says what to do."""
    data = group_of(b"x")
    for field in ("format_version", "incompatible_flags"):
        with pytest.raises(StorageError, match="update Nyala"):
            read(changed(data, GROUP, 0, **{field: 2}))
    body = changed(data, RECORD, GROUP.size_bytes, kind=9)[GROUP.size_bytes :]
    bad = data[: GROUP.size_bytes] + body
    with pytest.raises(StorageError, match="kind 9"):
        read(changed(bad, GROUP, 0, body_crc32c=crc32c(body)))
    assert read(changed(data, GROUP, 0, compatible_flags=4)) == read(data)


@pytest.mark.parametrize(
    ("what", "values"),
    [("length", {"payload_length": 1 << 31}), ("length", {"payload_length": 9}), ("time", {"timestamp": 99})],
)
def test_invalid_content_with_a_right_checksum_is_damage(what: str, values: dict[str, int]) -> None:
    """Lengths and timestamps are checked."""
    data = group_of(b"x" * 8, b"y")
    body = changed(data, RECORD, GROUP.size_bytes, **values)[GROUP.size_bytes :]
    bad = changed(data[: GROUP.size_bytes] + body, GROUP, 0, body_crc32c=crc32c(body))
    with pytest.raises(CorruptionError):
        read(bad)


def test_padding_that_is_not_zero_is_damage() -> None:
    data = group_of(b"x")
    body = data[GROUP.size_bytes : -1] + b"\1"
    with pytest.raises(CorruptionError, match="padding"):
        read(changed(data[: GROUP.size_bytes] + body, GROUP, 0, body_crc32c=crc32c(body)))


def test_a_wrong_record_count_or_an_empty_group_is_damage() -> None:
    data = group_of(b"x")
    with pytest.raises(CorruptionError, match="expected 2 records"):
        read(changed(data, GROUP, 0, record_count=2))
    empty = changed(data[: GROUP.size_bytes], GROUP, 0, record_count=0, body_length=0, body_crc32c=0)
    with pytest.raises(CorruptionError, match="found 0"):
        read(empty)


def test_a_seal_is_alone_in_its_group() -> None:
    """A group with a seal and other records is refused, because records after a seal would be lost."""
    seal = Seal(EPOCH.next("b" * 16), "h", 1, 1)
    records = [Record.of(Kind.BATCH, 1, [b"x"]), Record.of(Kind.SEAL, 1, [seal.encode()])]
    with pytest.raises(CorruptionError, match="expected a seal .* as the only record"):
        read(encode_group(STORE, SLOT, 0, records)[0])


@pytest.mark.parametrize("host", ["db-1", "x" * 300, "", "münchen"])
def test_a_seal_names_the_next_epoch_and_its_process(host: str) -> None:
    """All seals have the same size, which no other group has, with any host name (O5)."""
    seal = Seal(EPOCH.next("c" * 16), host, 4711, 1_764_000_000_000_000)
    data, crc = encode_seal(STORE, SLOT, 5, seal)
    group = decode_group(data, "p", STORE, SLOT)
    assert len(data) == SEAL_SIZE_BYTES and is_seal_size(len(data)) and group.crc == crc
    assert group.seal is not None and group.seal.next_epoch == seal.next_epoch
    assert group.seal.describe().startswith("pid 4711 on host ") and "2025-11-24" in group.seal.describe()


KEY = CheckpointKey((3, 7), "d" * 16)


def checkpoint_object() -> bytes:
    body = b"the state"
    header = CheckpointHeader(
        STORE, SLOT, 77, Slot(Epoch(2, "e" * 16), 4), 1234, KEY.token, len(body), crc32c(body)
    )
    return header.encode() + body


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    header, body = decode_checkpoint(checkpoint_object(), "p", STORE, KEY)
    assert (header.position, header.previous_crc, header.timestamp) == (SLOT, 77, 1234)
    assert header.log_start == Slot(Epoch(2, "e" * 16), 4) and body.to_pybytes() == b"the state"
    assert header.key == KEY


def test_a_checkpoint_under_another_key_or_of_another_store_is_refused() -> None:
    with pytest.raises(CorruptionError, match="another checkpoint"):
        decode_checkpoint(checkpoint_object(), "p", STORE, CheckpointKey((3, 8), "d" * 16))
    with pytest.raises(WrongStoreError):
        decode_checkpoint(checkpoint_object(), "p", "f" * 32, KEY)


@pytest.mark.parametrize(
    "values", [{"log_start_n": 8, "log_start_epoch": 3}, {"n": 10**12}, {"epoch": 10**10}]
)
def test_a_checkpoint_with_invalid_places_is_damage(values: dict[str, int]) -> None:
    """Numbers that a key cannot have, and a log start after the position."""
    with pytest.raises(CorruptionError):
        CheckpointHeader.decode(changed(checkpoint_object(), format.CHECKPOINT, 0, **values), "p")


def test_keys_sort_in_log_order() -> None:
    slots = [Slot(Epoch(number, "a" * 16), n) for number in (1, 2, 10) for n in (0, 9, 10, 999_999)]
    assert sorted(slot.key for slot in slots) == [slot.key for slot in slots]
    assert [Slot.parse(slot.key) for slot in slots] == slots
    for key in ("log/1-a/0", "log/", "ckpt/0000000003-000000000007-" + "d" * 16, SLOT.key + "/x"):
        assert Slot.parse(key) is None
    assert CheckpointKey.parse(KEY.key) == KEY and CheckpointKey.parse(SLOT.key) is None


def test_the_identity_object_is_read_as_it_was_written() -> None:
    """Invalid ones raise an error."""
    identity = StoreIdentity(STORE, Epoch(0, "a" * 16))
    assert StoreIdentity.decode(identity.encode(), "p") == identity
    newer = identity.encode().replace(b'"format_version": 1', b'"format_version": 2')
    with pytest.raises(StorageError, match="update Nyala"):
        StoreIdentity.decode(newer, "p")
    for bad in (
        b"",
        b"[]",
        b"{}",
        b"\xff",
        identity.encode()[:-9],
        identity.encode().replace(b"a" * 16, b"zz"),
    ):
        with pytest.raises(CorruptionError):
            StoreIdentity.decode(bad, "p")
    with pytest.raises(CorruptionError, match="5000 bytes"):
        StoreIdentity.decode(b" " * 5000, "p")


def test_an_invalid_writer_hint_is_ignored() -> None:
    hint = WriterHint("host", 7, EPOCH.name, 1, 2, False)
    assert WriterHint.decode(hint.encode()) == hint
    for bad in (b"", b"{}", b"null", hint.encode().replace(b"7", b'"7"')):
        assert WriterHint.decode(bad) is None
