"""docs/format/log.md and position.md match the code byte for byte.

With NYALA_REWRITE=1, the worked examples are written into the pages instead of compared.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.env import Env, PosixFiles
from nyala.testing import ManualClock, SeededRandomness
from nyala.wal import format
from nyala.wal.dump import dump
from nyala.wal.position import LogPosition, PositionRecord
from nyala.wal.reader import recover
from nyala.wal.record import LogRecord, ResolvedGroup
from nyala.wal.writer import LogWriter

PAGES = Path(__file__).parents[3] / "docs" / "format"
LOG_PAGE = PAGES / "log.md"
POSITION_PAGE = PAGES / "position.md"


def tables(page: Path) -> dict[str, list[tuple[int, int, str]]]:
    """Return the byte tables of a page by their headings: (offset, size, field)."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    heading = ""
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        match = re.match(r"\| (\d+) \| (\d+) \| `(\w+)` \|", line)
        if match:
            found.setdefault(heading, []).append((int(match[1]), int(match[2]), match[3]))
    return found


def layout_table(layout: format.Layout) -> list[tuple[int, int, str]]:
    return [(offset, size, name) for name, offset, size in layout.offsets()]


def test_the_tables_of_the_log_page_are_the_layouts_on_disk() -> None:
    """The byte tables of the log page are the layouts of the code."""
    found = tables(LOG_PAGE)
    assert found["Segment header"] == layout_table(format.SEGMENT_HEADER)
    assert found["Record header, and footer"] == layout_table(format.FRAME)


def test_the_table_of_the_position_page_is_the_layout_on_disk() -> None:
    """The byte table of the position page is the layout of the code."""
    assert list(tables(POSITION_PAGE).values()) == [layout_table(format.POSITION)]


@pytest.mark.parametrize(
    "words",
    [
        f"`{format.SEGMENT_MAGIC.decode()}`",
        f"`{format.RECORD_MAGIC.decode()}` for a batch, `{format.CHANGE_MAGIC.decode()}` for a change, "
        f"`{format.FOOTER_MAGIC.decode()}` for the footer",
        f"multiples of {format.ALIGNMENT_BYTES} bytes",
        f"a multiple of {format.ALIGNMENT_BYTES}, at most {format.PAYLOAD_MAX_BYTES}.",
        f"about {format.SEGMENT_SIZE_BYTES >> 20} MiB ({format.SEGMENT_SIZE_BYTES} bytes)",
        f"`format_version` | {format.FORMAT_VERSION} |",
        f"wal/{format.segment_name(1)}`",
    ],
)
def test_the_constants_of_the_log_page_are_those_of_the_code(words: str) -> None:
    """The limits and magic numbers of the log page are those of the code."""
    assert words in LOG_PAGE.read_text()


def test_layouts_never_change() -> None:
    """These numbers are on disk, so they never change."""
    assert (format.FORMAT_VERSION, format.SEGMENT_MAGIC, format.POSITION_MAGIC) == (
        3,
        b"NYALAWAL",
        b"NYALAPOS",
    )
    assert (format.RECORD_MAGIC, format.CHANGE_MAGIC, format.FOOTER_MAGIC) == (b"NyRc", b"NyCh", b"NyFt")
    assert format.ALIGNMENT_BYTES == 8
    assert (format.SEGMENT_HEADER.struct.format, format.FRAME.struct.format) == (
        "<8sIHHIIQQQ16s",
        "<4sIQQQqIIIIQ",
    )
    assert format.POSITION.struct.format == "<8sIHHQQqQ16s"


def example_log(directory: Path) -> list[str]:
    env = Env(PosixFiles(), ManualClock(), SeededRandomness(7))
    writer = LogWriter(env, str(directory), recover(env, str(directory), 1))
    rows = pa.RecordBatch.from_arrays(
        [pa.array([1, 2, 3], pa.int64()), pa.array(["a", "b", None], pa.string())], names=["10", "11"]
    )
    keys = pa.RecordBatch.from_arrays([pa.array([2], pa.int64())], names=["10"])
    first = 7034985062400000000
    writer.append(LogRecord(first, "load-1", (ResolvedGroup(1, 1, "insert", (5, 7), (0, 2, 3), rows),)))
    writer.sync()
    writer.append(LogRecord(first + 1, None, (ResolvedGroup(1, 1, "delete", (5,), (0, 1), keys),)))
    writer.sync()
    writer.close()
    return list(dump(env.files, str(directory), show_bytes=True))


def example_position() -> list[str]:
    encoded = PositionRecord(LogPosition(3, 4096), 7034985062400000002, 12).encode()
    return [
        f"{offset:>4}    {encoded[offset : offset + size].hex(' '):<24} {name}"
        for name, offset, size in format.POSITION.offsets()
    ]


def compare_example(page: Path, lines: list[str]) -> None:
    text = page.read_text()
    block = re.search(r"```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    if os.environ.get("NYALA_REWRITE"):
        page.write_text(
            text[: block.start(1)] + "".join(f"{line.rstrip()}\n" for line in lines) + text[block.end(1) :]
        )
        return
    assert block[1].splitlines() == [line.rstrip() for line in lines]


def test_the_worked_example_of_the_log_page_is_what_is_written(tmp_path: Path) -> None:
    """The writer writes exactly the bytes of the log page's example."""
    compare_example(LOG_PAGE, example_log(tmp_path / "wal"))


def test_the_worked_example_of_the_position_page_is_what_is_written() -> None:
    """The writer writes exactly the bytes of the position page's example."""
    compare_example(POSITION_PAGE, example_position())
