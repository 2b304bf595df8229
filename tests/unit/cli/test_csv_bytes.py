"""A CSV reads the same wherever its blocks end, and whether its last line has an end or not."""

from __future__ import annotations

import gzip
import io
import itertools
from pathlib import Path
from typing import Any

import pytest

from nyala.cli import sources
from nyala.cli.csv_bytes import CsvBytes
from nyala.cli.sources import CsvDialect, read_batches
from nyala.schema.types import parse_type

from .conftest import Run, csv, rows

TEXT = 'k,v\r\n1,"a\r\nb"\r\n2,"c\rd"\r\n3,\r\n4,""\r\n5,"say ""x"""\r\n6,e'
WANTED = [(1, "a\r\nb"), (2, "c\rd"), (3, None), (4, ""), (5, 'say "x"'), (6, "e")]
TYPES = {"k": parse_type("int64"), "v": parse_type("string")}


def read(path: Path) -> list[tuple[Any, ...]]:
    parts = read_batches(str(path), "csv", CsvDialect(), TYPES, None, ["k"])
    return [tuple(row.values()) for part in parts for row in part.batch.to_pylist()]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("block", range(16, 64))
def test_wherever_a_block_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, end: str) -> None:
    monkeypatch.setattr(sources, "_CSV_BLOCK_BYTES", block)
    path = tmp_path / "x.csv"
    path.write_bytes((TEXT + end).encode())
    packed = tmp_path / "x.csv.gz"
    packed.write_bytes(gzip.compress((TEXT + end).encode()))
    assert read(path) == read(packed) == WANTED


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('k,v\n1,"x"\n2,', (2, None)),
        ('k,v\n1,"x"\n2,""', (2, "")),
        ("k,v\n1,x\n2,y", (2, "y")),
    ],
)
def test_the_last_line_may_have_no_end(tmp_path: Path, text: str, row: tuple[Any, ...]) -> None:
    assert read(csv(tmp_path, text))[-1] == row


def test_a_header_and_nothing_else_has_no_rows(run: Run, numbers: Path, tmp_path: Path) -> None:
    for text in ("k,v", "k,v\n"):
        assert run("--json", "table", "load", numbers, "t", csv(tmp_path, text)).json["rows"] == 0


def test_blocks_are_of_the_size_that_is_asked_for() -> None:
    given = b"ab\r\ncd\r\r\n" * 50
    for size in range(2, 12):
        blocks, source = [], CsvBytes(io.BytesIO(given))
        while block := source.read(size):
            blocks.append(block)
        assert b"".join(blocks) == given
        assert all(len(block) in (size, size - 1) for block in blocks[:-1])
        assert not any(
            one.endswith(b"\r") and other.startswith(b"\n") for one, other in itertools.pairwise(blocks)
        )


def test_a_quote_that_is_never_closed_is_told_where_it_was_opened(
    run: Run, numbers: Path, tmp_path: Path
) -> None:
    """What stands behind it is in its field, whichever column it is in, and was rows: they are not loaded, and that is
    said."""
    never = "a double quote is opened here and never closed, so it takes in all that stands behind it"
    last = csv(tmp_path, 'k,s\n1,a\n2,"b\n3,c\n4,d\n')
    said = run("table", "load", numbers, "t", last, code=1).stderr
    assert f"row 2, line 3 (k = 2): {never}" in said
    assert rows(numbers, "t")[1]["s"] == "old"
    done = run("--json", "table", "load", numbers, "t", last, "--errors", "collect").json
    assert (done["rows"], done["updated"], done["failed"]) == (2, 1, 1)
    assert done["errors"][0]["cell"] == "b\n3,c\n4,d\n"
    assert [row["s"] for row in rows(numbers, "t")] == ["old", "a", "old", "old", "old"]

    middle = csv(tmp_path, 'k,s,v\n1,a,1\n2,"b,1\n3,c,1\n', "middle.csv")
    said = run("table", "load", numbers, "t", middle, code=1).stderr
    assert "row 2, line 3" in said and never in said

    # A quote within a field is none of those that stand around one.
    inch = csv(tmp_path, 'k,s\n1,19" wide\n2,"two\n"\n', "inch.csv")
    assert run("--json", "table", "load", numbers, "t", inch).json["updated"] == 2
    assert rows(numbers, "t")[1]["s"] == '19" wide'


def test_what_a_new_table_takes_text_for(run: Run, tmp_path: Path) -> None:
    """A postcode with a 0 in front is no number, and text that is no UTF-8 is rows that fail, if they may."""
    path = csv(tmp_path, 'id,zip,n,d\n1,00501,0,0.5\n2,10001,-0,00.5\n3,"",5,1\n')
    run("table", "load", tmp_path / "s", "t", path, "--create", "--key", "id")
    assert [(row["zip"], row["n"]) for row in rows(tmp_path / "s", "t")] == [
        ("00501", 0),
        ("10001", 0),
        ("", 5),
    ]
    path.write_bytes(b"id,name\n1,M\xc3\xbcller\n2,M\xfcller\n3,x\n")
    said = run("table", "load", tmp_path / "u", "t", path, "--create", "--key", "id", code=1).stderr
    assert "column 'name' is no UTF-8 text" in said
    done = run(
        "--json", "table", "load", tmp_path / "u", "t", path, "--create", "--key", "id", "--errors", "collect"
    ).json
    assert (done["inserted"], done["failed"]) == (2, 1)
    assert [(error["row"], error["line"], error["code"]) for error in done["errors"]] == [
        (2, 3, "invalid-utf8")
    ]
