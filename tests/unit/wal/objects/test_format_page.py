"""docs/format/object-log.md matches the code byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nyala.wal.format import Layout
from nyala.wal.objects import format
from nyala.wal.objects.format import Epoch, Kind, Seal, Slot, StoreIdentity, encode_seal

PAGE = Path(__file__).parents[4] / "docs" / "format" / "object-log.md"


def tables() -> dict[str, list[tuple[int, int, str]]]:
    """Return the byte tables of the page by their headings: (offset, size, field)."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    heading = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        match = re.match(r"\| (\d+) \| (\d+) \| `(\w+)` \|", line)
        if match:
            found.setdefault(heading, []).append((int(match[1]), int(match[2]), match[3]))
    return found


@pytest.mark.parametrize(
    ("heading", "layout"),
    [
        ("Group header", format.GROUP),
        ("Record header", format.RECORD),
        ("Seal", format.SEAL),
        ("Checkpoint header", format.CHECKPOINT),
    ],
)
def test_the_tables_of_the_page_are_the_layouts_in_the_bucket(heading: str, layout: Layout) -> None:
    """The byte tables of the page are the layouts of the code."""
    assert tables()[heading] == [(offset, size, name) for name, offset, size in layout.offsets()]


@pytest.mark.parametrize(
    "words",
    [
        f"`magic` | `{format.GROUP_MAGIC.decode()}`",
        f"`magic` | `{format.CHECKPOINT_MAGIC.decode()}`",
        f"`format_version` | {format.FORMAT_VERSION} |",
        f"({format.GROUP_MAX_BYTES} bytes)",
        f"at most {format.PAYLOAD_MAX_BYTES} |",
        f"every seal has {format.SEAL_SIZE_BYTES} bytes",
        f"| `{format.IDENTITY_KEY}` |",
        f"| `{format.WRITER_KEY}` |",
    ],
)
def test_the_constants_of_the_page_are_those_of_the_code(words: str) -> None:
    """The limits and magic numbers of the page are those of the code."""
    assert words in PAGE.read_text()


def test_the_kinds_of_the_page_are_those_of_the_code() -> None:
    """Number and name of each kind of record."""
    found = re.findall(r"^\| (\d) \| ([a-z]+) \|", PAGE.read_text(), re.MULTILINE)
    assert [(int(number), name) for number, name in found] == [(kind, kind.name.lower()) for kind in Kind]


def test_the_identity_object_of_the_page_is_what_is_written() -> None:
    """The JSON on the page."""
    identity = StoreIdentity("cd072cd8be6f9f62ac4c09c28206e7e3", Epoch(0, "90aa6b9d27b1bf04"))
    block = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None and block[1].encode() == identity.encode()


def test_layouts_never_change() -> None:
    """These bytes are in buckets, so they never change."""
    assert format.GROUP.struct.format == "<4sIHHI16sQ8sQIIQII"
    assert format.RECORD.struct.format == "<IBBHqII"
    assert format.SEAL.struct.format == "<IIQ8sq61s"
    assert format.CHECKPOINT.struct.format == "<4sIHHI16sQ8sQIIQQ8sQq8s"
    seal = Seal(Epoch(2, "b" * 16), "host", 7, 8)
    body, crc = encode_seal("0" * 32, Slot(Epoch(1, "a" * 16), 3), 4, seal)
    assert (body[:8].hex(), crc) == ("4e794c67" + crc.to_bytes(4, "little").hex(), 0x7BC473A4)
