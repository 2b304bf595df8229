"""Windows read their columns by one call, where they can: as few calls as that, and the same rows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support import no_threads, open_database
from tests.unit.cfile.memory import count_fetches

import nyala
from nyala.cfile import kernels, together
from nyala.cfile.first_pass import PASSES
from nyala.delta.delta_file import DeltaFile
from nyala.rowset import disk_rowset
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet import parallel, read_path, window
from nyala.tablet.window import ScanCounters

# Without compiled kernels all is read block by block; `test_scan_ways` holds then, too, that the rows are right.
COUNTS_CALLS = pytest.mark.skipif(not kernels.CAN_FETCH, reason="nothing was compiled")

ROWS = 40_000
WINDOW = 8192


def row(k: int) -> dict[str, Any]:
    return {
        "k": k,
        "n": k**3 % 2999 - 1500,
        "amount": Decimal(k**3 * 31 % 4973) / 100,
        "word": f"m{k % 7}",
        "maybe": None if k % 5 == 0 else k % 1000,
        "text": f"text {k}",
        "even": k * 246 % 5000,
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("together") / "s"
    schema = {
        "k": nyala.column("int64", block_size=4096),
        "n": nyala.column("int32", encoding="for", block_size=4096),
        "amount": nyala.column("decimal(15,2)", encoding="for", block_size=4096),
        "word": nyala.column("string", encoding="dictionary", block_size=4096),
        "maybe": nyala.column("int32", nullable=True, encoding="for", block_size=4096),
        "text": nyala.column("string", encoding="plain"),
        "even": nyala.column("int32", encoding="for", block_size=4096),
    }
    with open_database(folder) as db:
        table = db.create_table("t", schema, ["k"])
        table.insert([row(k) for k in range(ROWS)])
        table.flush()
    return folder


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks of each call. Windows are small."""
    monkeypatch.setattr(read_path, "WINDOW_ROWS", WINDOW)
    monkeypatch.setattr(disk_rowset, "_SCAN_ROWS_MIN", WINDOW)
    return count_fetches(monkeypatch)


@pytest.fixture
def table(path: Path, fetches: list[int]) -> Iterator[nyala.Table]:
    with nyala.connect(path, read_only=True) as db:
        yield db["t"]


def expected(columns: list[str], keep: Any = lambda _: True) -> list[dict[str, Any]]:
    rows = (row(k) for k in range(ROWS))
    return [{name: found[name] for name in columns} for found in rows if keep(found)]


def test_a_window_reads_its_columns_by_one_call(table: nyala.Table, fetches: list[int]) -> None:
    """Each call is a turn at the interpreter's lock."""
    columns = ["k", "n", "amount"]
    assert table.scan(columns).to_arrow().to_pylist() == expected(columns)
    windows = -(-ROWS // WINDOW)
    assert len(fetches) == windows


def test_columns_that_cannot_be_read_so_are_read_beside_them(table: nyala.Table) -> None:
    """NULLs, text, and what nobody asked as codewords."""
    columns = ["text", "k", "maybe", "word", "n"]
    assert table.scan(columns).to_arrow().to_pylist() == expected(columns)


def test_what_is_kept_is_found_again(table: nyala.Table, fetches: list[int]) -> None:
    """A table that is scanned all the time would be decoded all the time."""
    columns = ["k", "n", "amount"]
    for _ in range(PASSES + 1):
        table.scan(columns).to_arrow()
    fetches.clear()
    scan = table.scan(columns)
    assert scan.to_arrow().to_pylist() == expected(columns) and not fetches
    assert scan.explain().to_dict()["cache_hits"] > 0


def test_what_the_cache_cannot_keep_is_read_together_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a window that is larger than the cache each block would push another out, be asked for in vain, and be decoded
    once for each part of it that a window has."""
    names = [f"c{i}" for i in range(60)]
    values = np.random.default_rng(1).integers(0, 1000, 70_000)
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", **dict.fromkeys(names, "int64")}, "k")
        columns = {name: values + i for i, name in enumerate(names)}
        table.insert(pa.table({"k": range(len(values)), **columns}))
        db.flush()
    calls = count_fetches(monkeypatch)
    decoded: list[int] = []
    with nyala.connect(tmp_path / "s", read_only=True, memory_limit="16MB") as db:
        for _ in range(PASSES + 2):
            calls.clear()
            scan = db["t"].scan()
            windows = sum(1 for _ in scan.batches())
            assert 1 < windows <= len(calls) <= 3 * windows, "not a call for each column"
            decoded.append(scan.explanation_of_last_run().to_dict()["blocks_decoded"])
    assert max(decoded) == decoded[0]


@COUNTS_CALLS
def test_what_only_the_past_needs_keeps_no_column_from_it(tmp_path: Path, fetches: list[int]) -> None:
    """A column that was updated once has UNDO for as long as its past is kept, a week mostly: each scan of the present
    would be the slower for it."""
    with open_database(tmp_path / "s") as db:
        kept = nyala.column("int32", encoding="for", block_size=4096)
        table = db.create_table("t", {"k": "int64", "a": kept, "b": kept}, ["k"])
        a = np.arange(ROWS) ** 3 % 2999
        table.insert({"k": list(range(ROWS)), "a": a, "b": a})
        table.flush()
        then = db.now()
        table.update([{"k": 5, "a": -1, "b": -1}])
        table.flush()
        table.compact()
    windows = -(-ROWS // WINDOW)
    with nyala.connect(tmp_path / "s", read_only=True) as db:
        found, before = (db["t"].scan(["a", "b"], at=at) for at in (None, then))
        assert db["t"].stats()["undo_bytes"] > 0 and db["t"].stats()["redo_bytes"] == 0
        assert before.to_arrow()["a"].to_numpy().tolist() == a.tolist()
        fetches.clear()
        a[5] = -1
        assert found.to_arrow()["a"].to_numpy().tolist() == a.tolist()
        assert len(fetches) == windows, "a call for each window, and none for a column"
        fetches.clear()
        assert db["t"].scan(["a"], where="b < 0").to_arrow()["a"].to_pylist() == [-1]
        assert len(fetches) == 2, "of the block with the row, what is asked of it and what is wanted"
        assert [db["t"].get({"k": 5})] == db["t"].get_many([{"k": 5}]).to_pylist()


def test_columns_in_two_files_are_asked_one_after_the_other(tmp_path: Path, fetches: list[int]) -> None:
    """A compaction of one column leaves it in a file of its own. What the columns of one leave of the rows would be all
    of them again for those of the other."""
    small = nyala.column("int32", encoding="for", block_size=4096)
    columns = {"a": [k**3 % 2999 for k in range(ROWS)], "b": [k**3 % 4973 for k in range(ROWS)]}
    others = {f"other{i}": [f"text {k} {i}" for k in range(ROWS)] for i in range(8)}
    with open_database(tmp_path / "s") as db:
        kinds = {"k": "int64", "a": small, "b": small, **dict.fromkeys(others, "string")}
        table = db.create_table("t", kinds, ["k"])
        table.insert({"k": range(ROWS), **columns, **others})
        table.flush()
        table.update({"k": range(0, ROWS, 50), "b": [-1] * (ROWS // 50)})
        columns["b"][::50] = [-1] * (ROWS // 50)
        table.flush()
        table.compact()
        assert len(list(next((tmp_path / "s" / "data").iterdir()).glob("*.part"))) == 1
    with nyala.connect(tmp_path / "s", read_only=True) as db:
        table = db["t"]
        for _ in range(PASSES + 1):
            for where, keep in {
                "a < 300 AND b < 500": lambda a, b: a < 300 and b < 500,
                "b < 300 AND a < 500": lambda a, b: b < 300 and a < 500,
                "a < 900 AND b = -1": lambda a, b: a < 900 and b == -1,
            }.items():
                wanted = [k for k in range(ROWS) if keep(columns["a"][k], columns["b"][k])]
                assert table.scan(["k"], where).to_arrow()["k"].to_pylist() == wanted, where
                assert table.count(where) == len(wanted) > 0, where
    assert fetches


def test_a_changed_column_is_read_with_its_changes(tmp_path: Path, fetches: list[int]) -> None:
    """The base would come out as it was written."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "a": "int32", "b": "int32"}, ["k"])
        table.insert({"k": list(range(ROWS)), "a": list(range(ROWS)), "b": [0] * ROWS})
        table.flush()
        table.update([{"k": 5, "a": -1}, {"k": ROWS - 1, "a": -2}])
        found = table.scan(["a", "b", "k"]).to_arrow()
        assert found["a"].to_pylist() == [-1 if k == 5 else -2 if k == ROWS - 1 else k for k in range(ROWS)]
        assert table.scan(["k"], where="a < 0").to_arrow()["k"].to_pylist() == [5, ROWS - 1]
    assert fetches


@COUNTS_CALLS
@pytest.mark.parametrize("flushed", [True, False])
def test_what_is_asked_of_changed_columns_is_told_as_their_blocks_are_read(
    tmp_path: Path, fetches: list[int], monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    """One change of a column would keep all of it from the way that others are read in: by a call for what is asked,
    and one for what is wanted. Files of changes are read once a scan, and not at all once their patch is kept."""
    monkeypatch.setattr(parallel, "_workers", no_threads)  # windows in their order
    read: list[int] = []
    newest = DeltaFile.newest

    def noted(self: DeltaFile, column_id: int, *rest: Any) -> Any:
        read.append(column_id)
        return newest(self, column_id, *rest)

    monkeypatch.setattr(DeltaFile, "newest", noted)
    kinds = {"n": "int32", "amount": "decimal(15,2)", "word": "string", "even": "int32"}
    rows = {k: row(k) | {"word": f"w{k**3 % 611}"} for k in range(ROWS)}
    changed = {*range(1, ROWS, 1000), *range(1, ROWS, 1500)}
    with open_database(tmp_path / "s") as db:
        encodings = {"n": "for", "amount": "for", "word": "dictionary", "even": "for"}
        small = {
            name: nyala.column(kind, encoding=encodings[name], block_size=4096)
            for name, kind in kinds.items()
        }
        table = db.create_table("t", {"k": "int64", **small}, "k")
        table.insert([{name: found[name] for name in ("k", *kinds)} for found in rows.values()])
        table.flush()
        for step in (1000, 1500):
            news = [
                {"k": k, "n": -step, "amount": Decimal(k % 40 - 20), "word": ["w3", "new"][k // step % 2]}
                for k in range(1, ROWS, step)
            ]
            table.update(news)
            for new in news:
                rows[new["k"]] = rows[new["k"]] | new
            if flushed:
                table.flush()
        for method in ("encoded", "column", "coded", "narrow", "gather"):
            monkeypatch.setattr(
                DiskRowSet, method, lambda _, of, *__, **___: pytest.fail(f"{of.name} was read by itself")
            )
        for where, keep, readings in (  # of two files: of n and amount; to be kept; of the word alone
            ("n < -990 AND even > 100", lambda r: r["n"] < -990 and r["even"] > 100, 4),
            ("n IN (-1500, 7, 8) AND amount < 5", lambda r: r["n"] in (-1500, 7, 8) and r["amount"] < 5, 4),
            (
                "word IN ('w3', 'w4') AND even < 4000",
                lambda r: r["word"] in ("w3", "w4") and r["even"] < 4000,
                2,
            ),
        ):
            scan = table.scan(["n", "amount"], where)
            fetches.clear()
            read.clear()
            assert scan.to_arrow().to_pylist() == [
                {name: found[name] for name in ("n", "amount")} for found in rows.values() if keep(found)
            ]
            assert len(fetches) == 2 * -(-ROWS // WINDOW), where
            assert len(read) == (readings if flushed else 0), where
            assert scan.explanation_of_last_run().to_dict()["deltas_applied"] >= len(changed), where


@pytest.mark.parametrize("flushed", [True, False])
def test_changes_that_are_not_numbers_over_numbers_are_seen(
    tmp_path: Path, fetches: list[int], flushed: bool
) -> None:
    """Words over codewords, NULL over a number, a number over NULL, more words than are compared: a row would have what
    its block says."""
    small = {"encoding": "for", "block_size": 4096}
    columns = {
        "word": nyala.column("string", encoding="dictionary", block_size=4096),
        "maybe": nyala.column("int32", nullable=True, **small),
        "gap": nyala.column("decimal(15,2)", nullable=True, **small),
        "even": nyala.column("int32", **small),
    }

    def base(k: int) -> dict[str, Any]:
        gap = None if k % 3 else Decimal(k**3 % 2999) / 100
        return {"k": k, "word": f"w{k**3 % 611}", "maybe": k**3 % 2999, "gap": gap, "even": k * 246 % 5000}

    rows = {k: base(k) for k in range(ROWS)}
    news = {
        k: {"k": k, "word": f"n{k}" if k // 40 % 2 else "w7", "maybe": [None, -7][k // 20 % 2], "gap": Decimal(k % 77)}
        for k in range(1, ROWS, 20)
    }  # fmt: skip
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", **columns}, "k")
        table.insert(list(rows.values()))
        table.flush()
        table.update(list(news.values()))
        if flushed:
            table.flush()
        rows |= {k: rows[k] | new for k, new in news.items()}
        for where, keep in {
            "even < 700": lambda r: r["even"] < 700,
            "even < 900 AND word = 'w7'": lambda r: r["even"] < 900 and r["word"] == "w7",
            "even < 900 AND word > 'n2'": lambda r: r["even"] < 900 and r["word"] > "n2",
            "even < 900 AND maybe < 20": lambda r: r["even"] < 900 and r["maybe"] is not None and r["maybe"] < 20,
            "even < 900 AND maybe IS NULL": lambda r: r["even"] < 900 and r["maybe"] is None,
            "even < 900 AND gap >= 20": lambda r: r["even"] < 900 and r["gap"] is not None and r["gap"] >= 20,
        }.items():  # fmt: skip
            expected = [found for found in rows.values() if keep(found)]
            assert 0 < len(expected) < ROWS // 4
            for _ in range(2):
                assert table.scan(where=where).to_arrow().to_pylist() == expected, where
    assert fetches


@COUNTS_CALLS
def test_a_predicate_is_asked_by_one_call_and_what_it_leaves_is_picked_by_another(
    table: nyala.Table, fetches: list[int]
) -> None:
    """Each call is a turn at the interpreter's lock. Of a column that is asked and wanted the blocks are read once."""
    columns = ["k", "n", "amount"]
    found = table.scan(columns, where="n BETWEEN 100 AND 300 AND even > 1000").to_arrow()
    assert found.to_pylist() == expected(columns, lambda r: 100 <= r["n"] <= 300 and r["even"] > 1000)
    windows = -(-ROWS // WINDOW)
    assert len(fetches) == 2 * windows
    whole = table.scan(["k", "n", "amount", "even"])
    whole.to_arrow()
    assert sum(fetches[: 2 * windows]) == whole.explain().to_dict()["blocks_decoded"]


@COUNTS_CALLS
def test_what_was_told_as_it_was_read_is_not_read_again_with_what_was_not(
    table: nyala.Table, fetches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of which there are few are asked in another way than numbers, as the first window finds: these would be
    read once more with those."""
    monkeypatch.setattr(parallel, "_workers", no_threads)  # windows in their order
    found = table.scan(["n"], "n < 0 AND word = 'm3'").to_arrow()
    assert found.to_pylist() == expected(["n"], lambda r: r["n"] < 0 and r["word"] == "m3")
    _, *others = fetches
    assert others == [8, 8, 0] * (-(-ROWS // WINDOW) - 1), "n asked, the words, n picked from what was read"


def test_blocks_of_which_no_row_is_left_are_not_read(table: nyala.Table) -> None:
    """A predicate that leaves a row would read all columns."""
    columns, one = ["k", "amount"], row(20_000)
    scan = table.scan(columns, where=f"n = {one['n']} AND even = {one['even']}")
    rows = expected(columns, lambda r: (r["n"], r["even"]) == (one["n"], one["even"]))
    assert scan.to_arrow().to_pylist() == rows and 0 < len(rows) < 4
    whole, first = table.scan([*columns, "even", "n"]), table.scan(["n"])
    assert whole.to_arrow().num_rows == first.to_arrow().num_rows == ROWS
    decoded = [of.explain().to_dict()["blocks_decoded"] for of in (first, scan, whole)]
    assert decoded[0] < decoded[1] < decoded[2] / 2


def test_a_predicate_that_leaves_nothing_of_a_window_reads_no_other_column(table: nyala.Table) -> None:
    """All columns would be read for rows that nobody wants."""
    only, scan = table.scan(["even"]), table.scan(["k", "amount"], where="even = 777 AND n > 0")
    assert only.to_arrow().num_rows == ROWS and scan.to_arrow().num_rows == 0
    decoded = [of.explain().to_dict()["blocks_decoded"] for of in (only, scan)]
    assert decoded[0] == decoded[1] > 0


@pytest.mark.parametrize("left", [0, 100])
def test_nothing_is_read_ahead_once_a_window_was_left_empty_or_full(left: int) -> None:
    """What was read of it as it lies would be for nothing, or be read again to be decoded."""
    counters = ScanCounters()
    assert not counters.sieving_leaves_some
    counters.sieved(100, 24)
    assert counters.sieving_leaves_some
    counters.sieved(100, left)
    counters.sieved(100, 24)
    assert not counters.sieving_leaves_some


def test_of_columns_of_which_rows_are_taken_few_are_decoded_at_once(
    table: nyala.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window of 300 columns would lie in memory whole, beside what is taken of it."""
    monkeypatch.setattr(window, "_TAKEN_TOGETHER", 2)
    asked: list[int] = []
    for name in ("encoded_columns", "picked_columns"):
        real = getattr(window, name)

        def counted(rowset: Any, wanted: Any, *rest: Any, real: Any = real) -> dict[str, Any]:
            wanted = list(wanted)
            asked.append(len(wanted))
            found: dict[str, Any] = real(rowset, wanted, *rest)
            return found

        monkeypatch.setattr(window, name, counted)
    columns = ["k", "n", "amount", "word", "even"]
    found = table.scan(columns, where="n > -1000 OR even > 4000").to_arrow()
    assert found.to_pylist() == expected(columns, lambda r: r["n"] > -1000 or r["even"] > 4000)
    assert max(asked) == 2


def test_columns_that_may_not_lie_in_memory_at_once_are_picked_in_turns(
    table: nyala.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that come later would be decoded whole, one by one."""
    monkeypatch.setattr(together, "FETCHED_BYTES_MAX", 1)
    whole: list[str] = []
    for method in ("column", "coded", "narrow", "gather"):
        real = getattr(DiskRowSet, method)

        def noted(self: Any, column: Any, *rest: Any, real: Any = real, **options: Any) -> Any:
            whole.append(column.name)
            return real(self, column, *rest, **options)

        monkeypatch.setattr(DiskRowSet, method, noted)
    columns = ["k", "amount", "word"]
    found = table.scan(columns, where="n > -1000 OR even > 4000").to_arrow()
    assert found.to_pylist() == expected(columns, lambda r: r["n"] > -1000 or r["even"] > 4000)
    assert not set(columns) & set(whole)


def test_a_predicate_that_is_evaluated_reads_its_columns_by_one_call(
    table: nyala.Table, fetches: list[int]
) -> None:
    """Where much is left, blocks are decoded whole, and the columns of the predicate are many."""
    columns = ["k", "n", "amount"]
    found = table.scan(columns, where="n > -1400 OR amount > k").to_arrow()
    assert found.to_pylist() == expected(columns, lambda r: r["n"] > -1400 or r["amount"] > r["k"])
    assert 0 < len(fetches) <= 2 * -(-ROWS // WINDOW)


def test_constraints_are_asked_of_a_window_by_one_call(
    tmp_path: Path, path: Path, fetches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all columns at once, those that were changed too; a row that was deleted, changed, or added since has its own
    answer. A column with NULLs is asked by itself."""
    asked: list[int] = []
    real = window.rows_matching

    def noted(questions: Any, count: int) -> Any:
        asked.append(len(questions))
        return real(questions, count)

    monkeypatch.setattr(window, "rows_matching", noted)
    store = tmp_path / "s"
    shutil.copytree(path, store)
    where = "n BETWEEN -300 AND 100 AND word IN ('m3', 'm5') AND amount >= 10"

    def matches(found: dict[str, Any]) -> bool:
        return -300 <= found["n"] <= 100 and found["word"] in ("m3", "m5") and found["amount"] >= 10

    with open_database(store) as db:
        table = db["t"]
        columns = ["k", "n", "word"]
        assert table.scan(columns, where).to_arrow().to_pylist() == expected(columns, matches)
        assert asked and min(asked) >= 3, "each window but the first"
        gone = [found["k"] for found in expected(["k"], matches)][::3]
        table.delete([{"k": k} for k in gone])
        asked.clear()
        left = expected(columns, lambda found: matches(found) and found["k"] not in set(gone))
        assert table.scan(columns, where).to_arrow().to_pylist() == left
        assert asked
        asked.clear()
        with_null = f"{where} AND maybe < 900"
        left = expected(
            columns,
            lambda found: (
                matches(found)
                and found["k"] not in set(gone)
                and found["maybe"] is not None
                and found["maybe"] < 900
            ),
        )
        assert table.scan(columns, with_null).to_arrow().to_pylist() == left
        assert not asked
        news = {1: 0, 30_000: 5_000, left[0]["k"]: 77, left[1]["k"]: -301}
        table.update([{"k": k, "n": n} for k, n in news.items()])
        for flushed in (False, True):
            if flushed:
                table.flush()
            asked.clear()
            left = [found | {"n": news.get(found["k"], found["n"])} for found in map(row, range(ROWS))]
            left = [found for found in left if matches(found) and found["k"] not in set(gone)]
            changed = [{name: found[name] for name in columns} for found in left]
            assert table.scan(columns, where).to_arrow().to_pylist() == changed
            assert asked, flushed
