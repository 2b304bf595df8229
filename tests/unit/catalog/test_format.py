"""The pages docs/format/catalog.md and lease-and-lock.md match the code byte for byte."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

from nyala.catalog import checkpoint, codec, format, leases
from nyala.env import SYSTEM
from nyala.handover import channel as handover_channel
from nyala.handover import frames

DOCS = Path(__file__).parents[3] / "docs" / "format"
CATALOG_PAGE = (DOCS / "catalog.md").read_text()
LEASE_PAGE = (DOCS / "lease-and-lock.md").read_text()
LEASE_TEXT = " ".join(LEASE_PAGE.split())


def hex_of(page: str, first: str, last: str) -> list[bytes]:
    """Return the bytes of the lines of a hex listing between two labels."""
    begin, end = page.index(first), page.index(last)
    lines = page[page.rindex("```", 0, begin) : page.index("```", end)].splitlines()[1:]
    rows = [re.match(r"\s*(\d+)    ((?:[0-9a-f]{2} {1,2})+)", line) for line in lines]
    found = []
    offset = 0
    for row in rows:
        assert row is not None and int(row[1]) == offset, "offsets on the page add up"
        found.append(bytes.fromhex(row[2]))
        offset += len(found[-1])
    return found


def test_the_page_lists_every_entry_and_field_in_order() -> None:
    """The page describes exactly the entries and fields of `codec`."""
    sections = re.split(r"^### `(\w+)`$", CATALOG_PAGE.split("## Worked example")[0], flags=re.MULTILINE)[1:]
    page = {
        name: re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, flags=re.MULTILINE)
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }
    assert page == {
        shape.name: [(name, kind.name) for name, kind, _ in shape.fields] for shape in codec.SHAPES
    }


def test_the_page_has_the_checkpoints_header() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", CATALOG_PAGE, flags=re.MULTILINE)
    assert [(name, int(at), int(size)) for at, size, name in rows] == checkpoint.CHECKPOINT.offsets()
    assert f"`{checkpoint.MAGIC.decode()}`" in CATALOG_PAGE
    assert f"| `format_version` | {format.FORMAT_VERSION} |" in CATALOG_PAGE


def test_the_worked_example_of_a_change() -> None:
    (text,) = re.findall(r"^```json\n(.*?)```$", CATALOG_PAGE, flags=re.MULTILINE | re.DOTALL)
    version, change = codec.decode_change(text.encode())
    assert (version, [rowset.id for rowset in change.put_rowsets], change.garbage) == (
        9,
        [8],
        ["data/2/4-c2b1957f0e6d48a3.base"],
    )
    assert json.loads(codec.encode_change(change, version)) == json.loads(text)


def test_the_page_has_the_limits_of_the_channel() -> None:
    for number in (
        frames.JSON_MAX_BYTES, frames.ATTACHMENT_COUNT_MAX, frames.REQUEST_MAX_BYTES,
        handover_channel.REQUESTS_MAX_BYTES, frames.JSON_VALUES_MAX,
    ):  # fmt: skip
        assert f"at most {number}" in LEASE_TEXT
    assert f"{frames.ANSWER_MAX_BYTES} in an answer" in LEASE_TEXT
    assert f"serves {handover_channel.CONNECTIONS_MAX} connections" in LEASE_TEXT
    assert f"after {handover_channel.REQUEST_TIMEOUT_S:g} seconds" in LEASE_TEXT
    assert "1 means accepted. After 2 (closing), 3 (unreadable) and 4 (busy), nothing was done" in LEASE_TEXT
    statuses = (
        handover_channel.ACCEPTED,
        handover_channel.CLOSING,
        handover_channel.UNREADABLE,
        handover_channel.BUSY,
    )
    assert statuses == (1, 2, 3, 4)
    assert frames.MAGIC == b"NYH1"


def test_the_worked_example_of_a_frame() -> None:
    left, right = socket.socketpair()
    with left, right:
        handover_channel._Wire(left, lambda: 5.0).send_frame({"a": 1}, [b"xy"])
        assert right.recv(1000) == b"".join(hex_of(LEASE_PAGE, "7 bytes of JSON", "3c 03 e9 06"))


def test_the_examples_of_leases(tmp_path: Path) -> None:
    """The page shows the lease of a process, and a remote lease, which has an expiry."""
    path = tmp_path / "lease"
    lines = re.findall(r"^[0-9a-f]{8} \{.*\}$", LEASE_PAGE, flags=re.MULTILINE)
    for line, expires_us in zip(lines, (None, 1_700_000_000_000_000), strict=True):
        path.write_text(line + "\n")
        assert leases._read(SYSTEM, str(path)) == leases.LivingLease("lease", 17, 4242, "alpha", expires_us)
