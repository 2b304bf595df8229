"""Scans of columns that have changes: the same rows as a model's, the changes read once, nothing kept without need.

`test_sieve` asks predicates of a table without changes; here every column has some: in two files, in memory, or both.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support import no_threads, open_database

import nyala
from nyala.cfile.encoded_rows import FrameRows
from nyala.cfile.encoding.frame import Frame
from nyala.cfile.first_pass import PASSES
from nyala.delta.delta_file import DeltaFile
from nyala.rowset import changes, disk_rowset
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.patches import Patch
from nyala.schema.types import parse_type
from nyala.tablet import parallel, read_path

ROWS = 6000
WINDOW = 1024
DAY = dt.date(2020, 1, 1)
SCHEMA = {
    "k": "int64",
    "day": nyala.column("date", encoding="for"),
    "amount": nyala.column("decimal(15,2)", encoding="for"),
    "small": nyala.column("decimal(7,2)", encoding="for"),
    "n": nyala.column("int32", encoding="for"),
    "wide": nyala.column("decimal(30,2)", encoding="for"),
    "x": "double",
    "mode": nyala.column("string", encoding="dictionary"),
    "text": nyala.column("string", encoding="plain"),
    "maybe": nyala.column("int32", encoding="for", nullable=True),
}


def row(k: int) -> dict[str, Any]:
    return {
        "k": k,
        "day": DAY + dt.timedelta(days=k * 7919 % 2000),
        "amount": Decimal(k * 31 % 5000) / 100,
        "small": Decimal(k % 300) / 100,
        "n": k * 977 % 3000 - 1500,
        "wide": Decimal(k) / 100,
        "x": k / 7,
        "mode": f"m{k % 7}",
        "text": f"text {k}",
        "maybe": k % 1000,
    }


def change(k: int, round: int) -> dict[str, Any]:
    """The row with other values in all columns, some of them negative, NULL, or of no other row."""
    shift = 17 * (round + 1)
    return {
        "k": k,
        "day": DAY + dt.timedelta(days=(k * 13 + shift) % 2000 - 500),
        "amount": Decimal(k * 7 % 5000 - 2500 - shift) / 100,
        "small": Decimal(-(k % 300)) / 100,
        "n": -k - shift,
        "wide": Decimal(10) ** 27 + k + shift,
        "x": float(-k),
        "mode": ["m3", "new", f"m{k % 5}"][(k + round) % 3],
        "text": f"changed {k} {round}",
        "maybe": None if k % 4 == round else -k,
    }


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rowsets of some thousand rows are read in several windows by scans that keep what is asked for again."""
    monkeypatch.setattr(read_path, "WINDOW_ROWS", WINDOW)
    monkeypatch.setattr(read_path, "_INLINE_ROWS", 0)
    monkeypatch.setattr(disk_rowset, "_SCAN_ROWS_MIN", 2048)
    monkeypatch.setattr(changes, "_STRETCH_ROWS_MIN", WINDOW)


Rows = dict[int, dict[str, Any]]


@pytest.fixture(params=["files", "memory", "both", "many"])
def changed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[nyala.Table, Rows]]:
    """A table and what is in it: changes of every fifth row, and of every seventh after that; "many": of most rows."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", SCHEMA, "k")
        rows: Rows = {k: row(k) for k in range(ROWS)}
        table.insert(list(rows.values()))
        table.flush()
        for round, step in enumerate((2, 3) if request.param == "many" else (5, 7)):
            news = [change(k, round) for k in range(round, ROWS, step)]
            table.update(news)
            rows |= {r["k"]: r for r in news}
            if request.param in ("files", "many") or (request.param == "both" and not round):
                table.flush()
        yield table, rows


PREDICATES = {
    "day >= DATE '2020-03-01' AND day < DATE '2020-03-08'": lambda r: 60 <= (r["day"] - DAY).days < 67,
    "day < DATE '2019-01-01'": lambda r: r["day"] < dt.date(2019, 1, 1),
    "amount BETWEEN 1.05 AND 1.07": lambda r: Decimal("1.05") <= r["amount"] <= Decimal("1.07"),
    "amount < -24.9": lambda r: r["amount"] < Decimal("-24.9"),
    "small = -1.23 AND n < -3000": lambda r: r["small"] == Decimal("-1.23") and r["n"] < -3000,
    "n IN (3, 4, 77, -1500, -1501, 100000)": lambda r: r["n"] in (3, 4, 77, -1500, -1501),
    "n < -5900": lambda r: r["n"] < -5900,
    "mode = 'new' AND n < -5900": lambda r: r["mode"] == "new" and r["n"] < -5900,
    "mode > 'm5' AND n > 1300": lambda r: r["mode"] > "m5" and r["n"] > 1300,
    "maybe IS NULL AND n < -5000": lambda r: r["maybe"] is None and r["n"] < -5000,
    "maybe = 7": lambda r: r["maybe"] == 7,
    "n = -5911 AND text LIKE 'changed%'": lambda r: r["n"] == -5911 and r["text"].startswith("changed"),
    "wide > 1000000 AND n < -5900": lambda r: r["wide"] > 10**6 and r["n"] < -5900,
    "x < -5950": lambda r: r["x"] < -5950,
}  # fmt: skip


def test_scans_of_changed_columns_give_what_they_are_now(changed: tuple[nyala.Table, Rows]) -> None:
    """Whole columns, predicates on each, wide and narrow decimals, the first time and when all is remembered."""
    table, rows = changed
    expected = list(rows.values())
    matching = {where: [r for r in expected if matches(r)] for where, matches in PREDICATES.items()}
    for _ in range(3):  # nothing kept, kept, found
        assert table.scan(order_by_key=True).to_arrow().to_pylist() == expected
        narrow = table.scan(["k", "amount", "small"]).compacted().to_arrow()
        assert narrow.schema.field("small").type == pa.decimal32(7, 2)
        wide = {r["k"]: (r["amount"], r["small"]) for r in narrow.to_pylist()}
        assert wide == {k: (r["amount"], r["small"]) for k, r in rows.items()}
        for where in PREDICATES:
            found = table.scan(where=where, order_by_key=True).to_arrow().to_pylist()
            assert found == matching[where], where
            assert table.count(where) == len(found), where
            few = table.scan(["amount", "mode"], where=where).compacted().to_arrow().to_pylist()
            assert Counter(map(repr, few)) == Counter(
                repr({"amount": r["amount"], "mode": r["mode"]}) for r in found
            )


def test_a_moment_before_the_changes_is_read_as_it_was(tmp_path: Path) -> None:
    """What is remembered of the present must not answer for the past, nor one moment for another."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "n": nyala.column("int32", encoding="for")}, "k")
        table.insert({"k": range(ROWS), "n": [0] * ROWS})
        table.flush()
        moments = [db.snapshot().timestamp]
        for value in (1, 2):
            table.update({"k": range(0, ROWS, 2), "n": [value] * (ROWS // 2)})
            table.flush()
            moments.append(db.snapshot().timestamp)
        for _ in range(3):
            for value, moment in enumerate(moments):
                expected = ROWS // 2 if value else ROWS
                assert table.scan(where=f"n = {value}", at=moment).to_arrow().num_rows == expected
                assert (
                    table.scan(["n"], at=moment).to_arrow().column("n").to_pylist().count(value) == expected
                )


def test_what_is_remembered_goes_with_the_next_change(tmp_path: Path) -> None:
    """A patch, or a column laid over with it, would outlive the flush that made it old."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "n": nyala.column("int32", encoding="for")}, "k")
        table.insert({"k": range(ROWS), "n": range(ROWS)})
        table.flush()
        for value in (-1, -2, -3):
            table.update({"k": range(0, ROWS, 3), "n": [value] * (ROWS // 3)})
            table.flush()
            for _ in range(3):
                assert table.count(f"n = {value}") == ROWS // 3
                assert table.scan(["n"]).to_arrow().column("n").to_pylist().count(value) == ROWS // 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[nyala.Database]:
    with open_database(tmp_path / "s") as db:
        yield db


@pytest.fixture
def files_only(store: nyala.Database) -> nyala.Table:
    """Two REDO files of one column, each with changes of all windows."""
    number, text = nyala.column("int32", encoding="for"), nyala.column("string", encoding="plain")
    columns = {"k": "int64", "n": number, "m": number, "text": text}
    table = store.create_table("t", columns, "k")
    values = {"n": [k % 1000 for k in range(ROWS)], "m": [k % 9 for k in range(ROWS)]}
    table.insert({"k": range(ROWS), **values, "text": [f"text {k}" for k in range(ROWS)]})
    table.flush()
    for step in (10, 15):
        table.update({"k": range(0, ROWS, step), "n": [-step] * (ROWS // step)})
        table.flush()
    return table


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[DeltaFile]:
    """The files whose changes are read, each time that they are."""
    read: list[DeltaFile] = []
    original = DeltaFile.newest

    def noted(self: DeltaFile, *arguments: Any) -> Any:
        read.append(self)
        return original(self, *arguments)

    monkeypatch.setattr(DeltaFile, "newest", noted)
    return read


def test_changes_are_read_and_laid_over_one_another_once_for_all_windows_and_columns_of_a_scan(
    files_only: nyala.Table, readings: list[DeltaFile]
) -> None:
    """Each file's one block holds changes of six windows, which two threads read at once, first for the predicate and
    then for the values: it would be decoded twelve times."""
    for scans, expected in enumerate((2, 4, 4, 4), 1):
        found = files_only.scan(
            ["n", "text"], where="n < 0 AND n > -12"
        ).to_arrow()  # text is read by threads
        assert found.num_rows == ROWS // 15
        assert len(readings) == expected, f"after {scans} scans"


def test_a_scan_without_predicate_finds_the_column_as_it_is_from_the_third_time_on(
    files_only: nyala.Table, readings: list[DeltaFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base and changes would be decoded, and laid over one another, for each scan."""
    decoded: list[None] = []
    original = Frame.rows_into

    def noted(self: Frame, *arguments: Any) -> Any:
        decoded.append(None)
        return original(self, *arguments)

    sums = []
    for _ in range(2):
        sums.append(sum(files_only.scan(["n"]).to_arrow().column("n").to_pylist()))
    monkeypatch.setattr(Frame, "rows_into", noted)
    before = len(readings)
    sums.append(sum(files_only.scan(["n"]).to_arrow().column("n").to_pylist()))
    assert len(set(sums)) == 1 and (len(readings), decoded) == (before, [])


def test_a_predicate_on_a_changed_column_decodes_no_value_of_other_rows(
    files_only: nyala.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One change of a column would cost the decoding of all of it."""
    for _ in range(2):  # after the second the patch is kept
        files_only.scan(["n"], where="n = -15").to_arrow()
    monkeypatch.setattr(Frame, "array", lambda *_: pytest.fail("a block was decoded whole"))
    monkeypatch.setattr(FrameRows, "array", lambda *_, **__: pytest.fail("a window was decoded whole"))
    monkeypatch.setattr(DiskRowSet, "column", lambda *_, **__: pytest.fail("a window was read whole"))
    monkeypatch.setattr(DiskRowSet, "coded", lambda *_, **__: pytest.fail("a window was read whole"))
    rows = files_only.scan(["k", "n"], where="n = 7 AND m = 7").to_arrow().column("k").to_pylist()
    assert rows == [k for k in range(ROWS) if k % 1000 == 7 and k % 9 == 7 and k % 10 and k % 15]


def test_what_satisfies_a_demand_is_worked_out_once_for_all_windows(
    files_only: nyala.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window would compare its part of the changes anew, and each scan."""
    worked: list[int] = []
    original = Patch._asked

    def noted(self: Patch, demanded: Any) -> Any:
        worked.append(len(self))
        return original(self, demanded)

    monkeypatch.setattr(Patch, "_asked", noted)
    monkeypatch.setattr(changes, "_STRETCH_ROWS_MIN", ROWS)
    monkeypatch.setattr(parallel, "_workers", no_threads)  # which may both be first
    for _ in range(4):
        assert files_only.count("n < 0 AND m < 9") == ROWS // 10 + ROWS // 30
    assert len(worked) == 2, "the first scan's patch goes, the second's stays"


def test_the_first_scan_leaves_nothing_in_the_cache_not_even_of_the_last_few_rows(
    store: nyala.Database, files_only: nyala.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read once would push out what look-ups need, and lie in memory that nobody had touched before.

    6,000 rows are five windows and a piece of one; a scan was taken for a look-up at the piece.
    """
    monkeypatch.setattr(parallel, "_workers", no_threads)  # windows in their order
    cache = store._writer().cache
    assert ROWS % WINDOW
    before = cache.size_bytes  # what the updates looked up
    for column in ("m", "n"):
        files_only.scan([column]).to_arrow()
        assert cache.size_bytes == before, column
    for _ in range(PASSES):
        for column in ("m", "n"):
            files_only.scan([column]).to_arrow()
    assert cache.size_bytes > before + 2 * 4 * ROWS


def test_numbers_of_a_patch_lie_where_numbers_may_lie() -> None:
    """Kernels take them as they are; what a token or somebody else's buffer has may lie anywhere."""
    wanted = [125, -700, 1]
    data = pa.py_buffer(b"x" + np.array(wanted).tobytes()).slice(1)
    values = pa.Array.from_buffers(pa.int64(), 3, [None, data])
    numbers = Patch(parse_type("int64"), np.arange(3, dtype=np.int32), values).numbers
    assert numbers.flags.aligned and numbers.tolist() == wanted
