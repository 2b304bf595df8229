"""Predicates that leave few rows, told from encoded blocks: the same rows, each block read once, no value decoded."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support import open_database

import nyala
from nyala.cfile import kernels
from nyala.cfile.encoding.frame import Frame
from nyala.cfile.kernels import Fill, fill
from nyala.schema.predicate import bind
from nyala.schema.schema import build_schema
from nyala.tablet import read_path, window
from nyala.tablet.read_path import WINDOW_ROWS
from nyala.tablet.window import ScanCounters, ScanUnit, _Sieve, evened, growing, in_twos

ROWS = 20_000
DAY = dt.date(2020, 1, 1)


def in_gap(k: int) -> bool:
    """Longer than a block, so that blocks have nothing but NULLs."""
    return 4000 <= k < 14_000


def row(k: int) -> dict[str, Any]:
    """Cubes: so that from one row to the next there is no step that comes again."""
    return {
        "k": k,
        "day": DAY + dt.timedelta(days=k**3 % 1997),
        "amount": Decimal(k**3 * 31 % 4973) / 100,
        "n": k**3 % 2999 - 1500,
        "batch": [1 << 60, 5, -(1 << 60)][k % 3],
        "mode": f"m{k % 7}",
        "text": f"text {k}",
        "maybe": None if k % 5 == 0 else k % 1000,
        "gap": None if in_gap(k) or k % 7 == 0 else Decimal(k**3 % 991 - 300) / 100,
        "word": None if in_gap(k) or k % 7 == 0 else f"w{k**3 % 97}",
    }


@functools.cache
def all_rows() -> list[dict[str, Any]]:
    return [row(k) for k in range(ROWS)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sieve") / "s"


@pytest.fixture(scope="module")
def table(path: Path) -> Iterator[nyala.Table]:
    with open_database(path) as db:
        schema = {
            "k": "int64",
            "day": nyala.column("date", encoding="for"),
            "amount": nyala.column("decimal(15,2)", encoding="for"),
            "n": nyala.column("int32", encoding="for"),
            "batch": nyala.column("int64", encoding="for"),
            "mode": "string",
            "text": "string",
            "maybe": nyala.column("int32", encoding="for", nullable=True),
            "gap": nyala.column("decimal(15,2)", encoding="for", nullable=True, block_size=4096),
            "word": nyala.column("string", encoding="dictionary", nullable=True, block_size=4096),
        }
        table = db.create_table("t", schema, "k")
        table.insert(all_rows())
        table.flush()
        yield table


def scanned(table: nyala.Table, where: str, **options: Any) -> list[dict[str, Any]]:
    return table.scan(where=where, order_by_key=True, **options).to_arrow().to_pylist()


PREDICATES = {
    "day >= DATE '2020-03-01' AND day < DATE '2020-03-08'": lambda r: 60 <= (r["day"] - DAY).days < 67,
    "amount BETWEEN 1.05 AND 1.07 AND n < 0": lambda r: 105 <= r["amount"] * 100 <= 107 and r["n"] < 0,
    "n IN (3, 4, 77, -1500, 100000)": lambda r: r["n"] in (3, 4, 77, -1500),
    "n IN (1, 2, 3, 4, 5, 6)": lambda r: 1 <= r["n"] <= 6,
    "batch = 5 AND n = 5": lambda r: r["batch"] == 5 and r["n"] == 5,
    "mode IN ('m3', 'x') AND n > 1400": lambda r: r["mode"] == "m3" and r["n"] > 1400,
    "mode > 'm5' AND n > 1400": lambda r: r["mode"] == "m6" and r["n"] > 1400,
    "n = 7 AND maybe = 7": lambda r: r["n"] == 7 and r["maybe"] == 7,
    "n < -1490 AND maybe IS NULL": lambda r: r["n"] < -1490 and r["maybe"] is None,
    "maybe = 7": lambda r: r["maybe"] == 7,
    "maybe IN (7, 90, 5)": lambda r: r["maybe"] in (7, 90),
    "gap = -3.00": lambda r: r["gap"] == -3,
    "gap < -2.95 AND word >= 'w0'": lambda r: r["gap"] is not None and r["gap"] < Decimal("-2.95"),
    "word = 'w3'": lambda r: r["word"] == "w3",
    "word = 'w3' AND gap > 1.00": lambda r: r["word"] == "w3" and r["gap"] > 1,
    "(word = 'w3' OR word IS NULL) AND n > 1450": lambda r: r["word"] in ("w3", None) and r["n"] > 1450,
    "(gap < -2.95 OR gap IS NULL) AND n > 1450": lambda r: (r["gap"] or -3) < Decimal("-2.95") and r["n"] > 1450,
    "word IS NULL AND n > 1450": lambda r: r["word"] is None and r["n"] > 1450,
    "gap IS NOT NULL AND n > 1450": lambda r: r["gap"] is not None and r["n"] > 1450,
    "gap NOT IN (1.00) AND n > 1450": lambda r: r["gap"] is not None and r["gap"] != 1 and r["n"] > 1450,
    "gap = 99.00": lambda r: False,
    "n = 7 OR n = 9": lambda r: r["n"] in (7, 9),
    "n < -1490 AND (k < 5000 OR text = 'text 19999')": lambda r: r["n"] < -1490 and (r["k"] < 5000 or r["k"] == 19999),
    "n > 5000 AND mode = 'm1'": lambda r: False,
}  # fmt: skip


@pytest.mark.parametrize("where", PREDICATES)
@pytest.mark.parametrize("window", [1 << 17, 4096])
def test_the_same_rows(table: nyala.Table, where: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row would be lost, or one given that does not match; across windows, which share blocks."""
    monkeypatch.setattr(read_path, "WINDOW_ROWS", window)
    asked: list[int] = []
    original = _Sieve.read

    def noted(self: _Sieve, columns: Any) -> Any:
        asked.append(len(self.rows))
        return original(self, columns)

    monkeypatch.setattr(_Sieve, "read", noted)
    expected = [r for r in all_rows() if PREDICATES[where](r)]
    for _ in range(3):  # nothing kept, kept, found
        assert scanned(table, where) == expected
    assert asked or not expected, "the whole window was decoded"
    assert table.count(where) == len(expected)
    assert scanned(table, where, columns=["n"]) == [{"n": r["n"]} for r in expected]


def test_what_is_sieved_is_read_once(table: nyala.Table, path: Path) -> None:
    """A block that is asked for its matches, and then for their values, would be read twice."""

    def bytes_read(columns: list[str], where: str | None) -> int:
        with nyala.connect(str(path), read_only=True) as db:
            return int(db["t"].scan(columns, where=where).explain().to_dict()["bytes_read"])

    whole = bytes_read(["amount", "day"], None)
    assert bytes_read(["amount", "day"], "day = DATE '2020-03-01' AND amount < 2") == whole > 0


def test_no_value_of_other_rows_is_made(table: nyala.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that leaves one row in a thousand would decode all of the others."""
    ranges = Frame.rows_into

    def none_in_range(frame: Frame, out: Any, at: int, width: int, lower: int, upper: int) -> Any:
        if lower < upper:
            pytest.fail("a block was decoded whole")
        return ranges(frame, out, at, width, lower, upper)  # of which single rows are picked

    monkeypatch.setattr(Frame, "rows_into", none_in_range)
    assert [r["n"] for r in scanned(table, "n = 7 AND amount < 40", columns=["n", "amount", "day"])]
    assert [r["gap"] for r in scanned(table, "gap = 1.00", columns=["n", "gap", "maybe"])]
    with pytest.raises(pytest.fail.Exception, match="decoded whole"):  # as a scan of all rows does
        scanned(table, "n >= 0", columns=["n", "amount", "day"])


def test_all_columns_are_picked_by_one_call(table: nyala.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call lets go of the interpreter's lock, which another thread may have then, and must be waited for."""
    calls: list[set[int]] = []

    def counted(jobs: Sequence[Fill]) -> None:
        calls.append({job.out.address for job in jobs})
        fill(jobs)

    monkeypatch.setattr(kernels, "fill", counted)
    # Of as few rows as these blocks are read one by one.
    monkeypatch.setattr(window, "is_scan", lambda rows: True)
    columns = ["day", "amount", "n", "batch"]
    found = table.scan(columns, where="n > 1400").to_arrow()
    expected = [row(k) for k in range(ROWS) if row(k)["n"] > 1400]
    assert sorted(found["day"].to_pylist()) == sorted(one["day"] for one in expected)
    assert [len(memory) for memory in calls] == [len(columns)]


def test_changes_are_seen(tmp_path: Path) -> None:
    """What a row's base says is not what it is: the sieve must not speak for a column that was changed."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table(
            "t",
            {"k": "int64", "n": nyala.column("int32", encoding="for"), "m": nyala.column("int32", encoding="for")},
            "k",
        )  # fmt: skip
        table.insert({"k": list(range(1000)), "n": list(range(1000)), "m": [k % 500 for k in range(1000)]})
        table.flush()
        before = db.snapshot()
        table.update({"k": [1, 2, 3], "n": [-1, 7, 7]})
        table.delete({"k": [7]})
        assert [r["k"] for r in scanned(table, "n = 7")] == [2, 3]
        assert [r["k"] for r in scanned(table, "m = 7")] == [507]
        assert [r["k"] for r in scanned(table, "n = -1 AND m = 1")] == [1]
        assert [r["k"] for r in before["t"].scan(where="n = 7").to_arrow().to_pylist()] == [7]
        table.flush()
        assert [r["k"] for r in scanned(table, "n = 7")] == [2, 3]
        before.close()


@pytest.mark.parametrize(("where", "windows"), [("n > -1400 AND n < 1400", 10), ("n > -9999", 1)])
def test_a_sieve_that_leaves_all_is_given_up(
    where: str, windows: int, table: nyala.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window would be looked at twice for a predicate that all rows match; where some do not, the others are taken
    out as they lie: that costs less than to decode all and take some, also where nearly all are taken."""
    monkeypatch.setattr(read_path, "WINDOW_ROWS", 2048)
    monkeypatch.setattr(read_path, "ahead_max", lambda: 1)
    asked: list[None] = []
    original = _Sieve.asked

    def noted(self: _Sieve, *rest: Any, **options: Any) -> bool:
        asked.append(None)
        return original(self, *rest, **options)

    monkeypatch.setattr(_Sieve, "asked", noted)
    assert len(scanned(table, where)) > ROWS * 0.9
    assert len(asked) == windows


def test_pieces_grow_at_multiples_of_their_size() -> None:
    """What the first rows wait for would be long, a block be decoded for two pieces, or rows be lost between them."""
    one, other = (ScanUnit(cast(Any, object()), 0, 0, 1_000) for _ in range(2))
    windows = [(n, n + 10) for n in range(0, 200, 10)]

    def spans(pieces: list[tuple[ScanUnit, int, int]], most: int) -> list[tuple[int, int]]:
        return [(lower, upper) for _, lower, upper in growing(pieces, 10, lambda: most)]

    whole = [(one, *span) for span in windows]
    fours = [(0, 10), (10, 20), (20, 40), *((n, n + 40) for n in range(40, 200, 40))]
    assert spans(whole, 4) == spans(whole, 7) == fours
    assert spans(whole, 2) == [(0, 10), (10, 20), *((n, n + 20) for n in range(20, 200, 20))]
    assert spans(whole, 1) == windows
    gap = [piece for piece in whole if piece[1] != 90]
    assert spans(gap, 4) == [*fours[:4], (80, 90), (100, 120), *fours[5:]]
    odd = [*whole[:-1], (one, 190, 193), (other, 0, 10), (other, 10, 20), (other, 24, 30)]
    assert spans(odd, 4) == [*fours[:-1], (160, 193), (0, 20), (24, 30)]
    assert spans([], 4) == []


@pytest.mark.parametrize(
    ("upper", "last"),
    [
        (160, [(120, 160)]),
        (164, [(120, 164)]),
        (170, [(120, 170)]),
        (171, [(120, 160), (160, 171)]),
        (200, [(120, 160), (160, 200)]),
    ],
)
def test_the_last_piece_of_a_rowset_may_be_a_quarter_larger(upper: int, last: list[tuple[int, int]]) -> None:
    """A short call would come at the end of each rowset; a piece of any size would be more than there is room for."""
    unit = ScanUnit(cast(Any, object()), 0, 0, upper)
    windows = [(unit, n, min(n + 10, upper)) for n in range(0, upper, 10)]
    found = [(lower, upper) for _, lower, upper in growing(windows, 10, lambda: 4)]
    assert found == [(0, 10), (10, 20), (20, 40), (40, 80), (80, 120), *last]
    few = [(lower, upper) for _, lower, upper in growing(windows[:2], 10, lambda: 4)]
    assert few == [(0, 10), (10, 20)]
    small = ScanUnit(cast(Any, object()), 0, 0, 12)
    assert [piece[1:] for piece in growing([(small, 0, 10), (small, 10, 12)], 10, lambda: 4)] == [(0, 12)]


def test_windows_that_were_cut_for_memory_are_not_joined_again() -> None:
    """What was cut so that it fits `memory_limit` would be read at once all the same."""
    unit = ScanUnit(cast(Any, object()), 0, 0, 66)
    cut = [(n, n + 5) for n in range(0, 60, 5)]
    pieces = [(unit, *span) for span in [*cut, (60, 66)]]
    found = [(lower, upper) for _, lower, upper in growing(pieces, 10, lambda: 4)]
    assert found == [*cut, (60, 66)]
    partly = [(unit, *span) for span in [(0, 10), (10, 20), *cut[4:8], (40, 50), (50, 60), (60, 66)]]
    found = [(lower, upper) for _, lower, upper in growing(partly, 10, lambda: 4)]
    assert found == [(0, 10), (10, 20), (20, 25), (25, 30), (30, 35), (35, 40), (40, 66)]


def test_pieces_are_evened_and_hold_the_same_rows() -> None:
    """One thread would have a whole window and another what is left; or rows be read twice, or be lost."""
    one, other = (ScanUnit(cast(Any, object()), 0, 0, 19) for _ in range(2))

    def spans(pieces: list[tuple[ScanUnit, int, int]], rows: int) -> list[tuple[int, int]]:
        return [(lower, upper) for _, lower, upper in evened(pieces, 10, rows)]

    whole = [(one, 0, 10), (one, 10, 19)]
    assert spans(whole, 7) == [(0, 7), (7, 14), (14, 19)]
    assert spans(whole, 9) == [(0, 9), (9, 18), (18, 19)]
    assert spans(whole, 10) == [(0, 10), (10, 19)]
    assert spans(whole, 3) == [(n, min(n + 3, 19)) for n in range(0, 19, 3)]
    both = [*whole, (other, 0, 10), (other, 10, 19)]
    assert spans(both, 7) == spans(whole, 7) * 2
    assert [unit for unit, _, _ in evened(both, 10, 7)] == [one] * 3 + [other] * 3
    inside = ScanUnit(cast(Any, object()), 0, 3, 17)  # of a key range
    assert spans([(inside, 3, 10), (inside, 10, 17)], 5) == [(3, 5), (5, 10), (10, 15), (15, 17)]
    assert spans([], 5) == []


def test_what_was_cut_is_not_evened() -> None:
    """What was cut so that it fits `memory_limit` would be joined; or rows that zone maps exclude be read."""
    unit = ScanUnit(cast(Any, object()), 0, 0, 30)
    cut = [(0, 5), (5, 10), (10, 20), (22, 30)]
    pieces = [(unit, *span) for span in cut]
    assert [piece[1:] for piece in evened(pieces, 10, 7)] == [(0, 5), (5, 10), (10, 14), (14, 20), (22, 30)]
    pieces = [(unit, *span) for span in [(0, 10), (10, 15), (15, 20), (20, 30)]]
    found = [piece[1:] for piece in evened(pieces, 10, 7)]
    assert found == [(0, 7), (7, 10), (10, 15), (15, 20), (20, 21), (21, 28), (28, 30)]


@pytest.mark.parametrize(
    ("processors", "rows", "even"),
    [
        (2, [WINDOW_ROWS + 1], WINDOW_ROWS * 5 // 8),
        (2, [WINDOW_ROWS], WINDOW_ROWS // 2),
        (2, [2 * WINDOW_ROWS], None),
        (2, [2 * WINDOW_ROWS + 1], None),
        (2, [WINDOW_ROWS // 2], WINDOW_ROWS // 4),
        (2, [WINDOW_ROWS // 2 - 1], None),
        (2, [WINDOW_ROWS // 4, WINDOW_ROWS // 4, WINDOW_ROWS // 4], None),
        (16, [WINDOW_ROWS, WINDOW_ROWS], WINDOW_ROWS // 4),
        (16, [10 * WINDOW_ROWS], WINDOW_ROWS * 5 // 8),
        (1, [WINDOW_ROWS], None),
    ],
)
def test_few_windows_are_pieces_for_each_processor(
    processors: int, rows: list[int], even: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table of one window and a half, one processor would do two thirds, and of sixteen fourteen nothing."""
    monkeypatch.setattr(read_path, "ahead_max", lambda: 2 * processors)
    units = [ScanUnit(cast(Any, object()), 0, 0, count) for count in rows]
    assert WINDOW_ROWS == read_path.WINDOW_ROWS
    assert read_path._even_rows(units) == even


def test_windows_are_joined_only_where_all_of_both_is_read() -> None:
    """A predicate would be asked of rows that zone maps exclude, or a window's blocks be decoded twice."""
    one, other = (ScanUnit(cast(Any, object()), 0, 0, 80) for _ in range(2))
    spans = [
        (0, 10),
        (10, 20),
        (20, 30),
        (32, 40),
        (40, 50),
        (50, 55),
        (57, 60),
        (60, 70),
        (70, 72),
        (75, 80),
    ]
    pieces = [(unit, *span) for unit in (one, other) for span in spans]
    counters = ScanCounters()
    assert list(in_twos(pieces, 10, counters)) == pieces, "it is not known yet whether it leaves little"
    counters.sieved(100, 10)
    joined = [(0, 20), (20, 30), (32, 40), (40, 55), (57, 60), (60, 72), (75, 80)]
    assert list(in_twos(pieces, 10, counters)) == [(unit, *span) for unit in (one, other) for span in joined]
    counters.sieved(100, 90)
    assert list(in_twos(pieces, 10, counters)) == pieces
    assert list(in_twos([], 10, counters)) == []
    paid = ScanCounters()
    paid.sieved(100, 10)
    assert list(in_twos([(one, 10, 20), (other, 20, 30)], 10, paid)) == [
        (one, 10, 20),
        (other, 20, 30),
    ]


@pytest.mark.parametrize(
    ("where", "is_so"),
    [
        ("n >= 3 AND n < 9 AND mode IN ('a', 'b')", True),
        ("day = DATE '2020-03-01'", True),
        ("n > 3 AND n <> 5", False),
        ("n > 3 AND NOT mode IN ('a')", False),
        ("n = 1 OR n = 3", True),
        ("n = 1 OR day = DATE '2020-03-01'", False),
        ("n < 3 AND n < k", False),
        ("n < 3 AND maybe IS NULL", False),
        ("n < 3 AND mode LIKE 'm%'", False),
        ("n < 3 AND x > 1.0", False),
    ],
)
def test_what_constraints_say_of_a_predicate(where: str, is_so: bool) -> None:
    """What they do not say would not be asked of the rows that they leave."""
    types = {"k": "int64", "n": "int32", "day": "date", "mode": "string", "maybe": "int32", "x": "double"}
    predicate = bind(where, build_schema(types, ["k"]))
    assert predicate is not None and predicate.is_its_constraints == is_so
