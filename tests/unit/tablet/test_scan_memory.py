"""Scans stay within their share of `memory_limit`, also with wide or well compressed rows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.sampled import each, in_turns
from tests.support import split_sizes

import nyala
from nyala.cfile import memory
from nyala.cfile.blocks.source import BlockSource
from nyala.tablet.scan import read_path, scan_memory
from nyala.tablet.scan.split import ScanCounters

LIMIT = 16_000_000
SHARE = LIMIT // 4
ROWS = 40_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with four tables.

    thin: text that LZ4 compresses to 1 %. words: few distinct texts of 2 KB. cells: values of 32 KB.
    numbers: narrow rows.
    """
    path: Path = tmp_path_factory.mktemp("wide") / "store"
    random = np.random.default_rng(1)
    with nyala.connect(path, maintenance=False, memory_limit="1GB") as db:
        key = pa.array(range(ROWS))
        thin = pa.array([f"{'x' * 400}{i}" for i in range(ROWS)])
        table = db.create_table("thin", {"k": "int64", "s": nyala.column("string", encoding="plain")}, "k")
        table.insert(pa.table({"k": key, "s": thin}))
        words = [f"{i}".ljust(2_000, "y") for i in range(100)]
        rows = pa.DictionaryArray.from_arrays(pa.array(random.integers(0, 100, 8_000)), pa.array(words))
        table = db.create_table(
            "words", {"k": "int64", "s": nyala.column("string", encoding="dictionary")}, "k"
        )
        table.insert(pa.table({"k": key[:8_000], "s": rows.dictionary_decode()}))
        table = db.create_table(
            "cells", {"k": "int64", "s": nyala.column("binary", encoding="plain", compression="none")}, "k"
        )
        table.insert({"k": range(500), "s": [random.bytes(32_000) for _ in range(500)]})
        table = db.create_table("numbers", {"k": "int64", "v": "double", "s": "string"}, "k")
        many = 140_000
        text = pa.array(random.integers(0, 1 << 40, many)).cast(pa.string())
        table.insert(pa.table({"k": range(many), "v": np.arange(many) / 2, "s": text}))
        db.flush()
    return path


@pytest.fixture
def db(store: Path) -> Iterator[nyala.Database]:
    with nyala.connect(store, read_only=True, memory_limit=LIMIT) as opened:
        yield opened


def most_held(batches: Iterator[pa.RecordBatch], split: int) -> tuple[int, int]:
    """Read all batches; return their rows, and the most bytes that were allocated meanwhile."""
    pools = [memory.pool(), pa.default_memory_pool()]
    gc.collect()
    before = sum(pool.bytes_allocated() for pool in pools)
    rows = most = 0
    for batch in batches:
        rows += batch.num_rows
        assert batch.get_total_buffer_size() <= split, "a batch keeps more than its rows"
        most = max(most, sum(pool.bytes_allocated() for pool in pools) - before)
    return rows, most


@pytest.mark.parametrize(("name", "ordered"), in_turns(["thin", "words", "cells"], [False, True]))
def test_splits_of_wide_rows_are_cut_to_a_quarter_of_the_limit(
    db: nyala.Database, name: str, ordered: bool
) -> None:
    table = db[name]
    batches = list(table.scan(order_by_key=ordered).to_reader())
    sizes = [batch.num_rows for batch in batches]
    assert max(batch.nbytes for batch in batches) <= SHARE
    assert max(batch.nbytes for batch in batches) > SHARE // 4, "splits are not smaller than necessary"
    assert read_path.SPLIT_ROWS % max(sizes) == 0, "sizes divide SPLIT_ROWS"
    assert pa.Table.from_batches(batches).column("k").to_pylist() == list(range(table.count()))
    del batches
    # In memory are a batch of the reader, a split that is decoded, a block, and the block cache.
    rows, most = most_held(iter(table.scan(order_by_key=ordered).to_reader()), 5 * SHARE // 4)
    assert rows == table.count()
    assert most <= LIMIT, f"{most / 1e6:.1f} MB"


def test_values_of_cut_splits_are_those_that_were_written(store: Path, db: nyala.Database) -> None:
    with nyala.connect(store, read_only=True, memory_limit="2GB") as roomy:
        for name in ("thin", "words", "cells"):
            want = roomy[name].scan().to_arrow()
            assert db[name].scan().to_arrow().equals(want)
            assert db[name].scan(order_by_key=True).to_arrow().equals(want)


def test_text_of_a_dictionary_counts_if_codes_are_not_enough(store: Path) -> None:
    """Dictionary codes take 4 bytes per row. Changed or compared columns are read as long text."""
    with nyala.connect(store.parent / "changed", maintenance=False) as writer:
        table = writer.create_table("words", {"k": "int64", "n": "int64", "s": "string", "t": "string"}, "k")
        rows = {"k": range(8_000), "n": range(8_000), "s": [c * 2_000 for c in "abcd"] * 2_000}
        table.insert({**rows, "t": rows["s"]})
        table.flush()
        wide = read_path.SPLIT_ROWS

        def dictionary_rows() -> int:
            """Return the most rows of a batch, if the scan may return a dictionary."""
            with nyala.connect(store.parent / "changed", read_only=True, memory_limit=LIMIT) as db:
                batches = db["words"].scan(["k", "s"]).with_dictionaries("s").to_reader()
                return max(batch.num_rows for batch in batches)

        def reader_rows(where: str) -> int:
            """Return the rows of a split of a reader, for a scan with this predicate."""
            with nyala.connect(store.parent / "changed", read_only=True, memory_limit=LIMIT) as db:
                spec = db["words"].scan(["k"], where=where)._spec
                rowset = db["words"]._view(None)[1].tablets[0].rowsets[0]
                sizer = scan_memory.SplitSizer(rowset, spec, spec.columns, SHARE)
                return sizer.rows(0, 8_000, wide)

        def writer_rows(where: str) -> int:
            """Return the same for the writer, whose rowset is one object before and after the change."""
            spec = table.scan(["k"], where=where)._spec
            rowset = table._view(None)[1].tablets[0].rowsets[0]
            sizer = scan_memory.SplitSizer(rowset, spec, spec.columns, SHARE)
            return sizer.rows(0, 8_000, wide)

        assert writer_rows("s = 'x'") == wide and writer_rows("s LIKE '%x%'") < 4_000
        assert dictionary_rows() == 8_000, "codes alone fit"
        assert reader_rows("s = 'x'") == wide and reader_rows("s < t") < 4_000
        table.update({"k": [1], "s": ["changed"]})
        assert dictionary_rows() < 4_000
        assert reader_rows("s = 'x'") < 4_000 and writer_rows("s = 'x'") < 4_000


def test_duckdb_gets_splits_that_fit(db: nyala.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    given: list[int] = []
    run = read_path.run

    def noting(*arguments, **named):  # type: ignore[no-untyped-def]
        for batch in run(*arguments, **named):
            given.append(batch.nbytes)
            yield batch

    monkeypatch.setattr(read_path, "run", noting)
    found = db.sql("SELECT count(*), sum(length(s)) FROM words").fetchall()
    assert found == [(8_000, 8_000 * 2_000)]
    assert given and max(given) <= SHARE


def test_narrow_rows_keep_their_splits(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_path, "AHEAD_MAX", 2)
    with nyala.connect(store, read_only=True) as db:
        rows = [batch.num_rows for batch in db["numbers"].scan().to_reader()]
    assert rows == [140_000]


def test_a_count_cuts_splits_by_the_columns_that_it_reads(db: nyala.Database) -> None:
    scan = db["thin"].scan()
    counters = ScanCounters()
    root, table = scan._root_and_table()
    assert read_path.count(read_path.plan(table, scan._spec, counters), scan._spec, counters) == ROWS
    assert counters.splits_read == 1, "no column is read"
    del root


def test_a_row_above_the_limit_is_a_split_of_its_own(tmp_path: Path) -> None:
    columns = {f"c{i}": "string" for i in range(80)}
    cell = "z" * 65_536
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", **columns}, "k")
        table.insert([{"k": i, **dict.fromkeys(columns, cell)} for i in range(2)])
        db.flush()
    with nyala.connect(tmp_path / "s", read_only=True, memory_limit=LIMIT) as db:
        sizes = [batch.num_rows for batch in db["t"].scan().to_reader()]
    assert sizes == [1, 1]


def test_blocks_are_decoded_at_most_again_max_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {f"c{i}": nyala.column("string", encoding="plain") for i in range(20)}
    text = pa.array(["x" * 300] * 4_096)
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", **columns}, "k")
        table.insert(pa.table({"k": range(4_096), **dict.fromkeys(columns, text)}))
        db.flush()
    rows = {}
    for again in (1, 2, 8):
        monkeypatch.setattr(scan_memory, "_AGAIN_MAX", again + 0.1)
        with nyala.connect(tmp_path / "s", read_only=True, memory_limit=LIMIT) as db:
            rows[again] = {batch.num_rows for batch in db["t"].scan().to_reader()}
    # A block has 4,096 rows, and 512 rows fit the limit.
    assert rows == {1: {4_096}, 2: {2_048}, 8: {512}}


def test_splits_fit_if_text_is_long_in_some_blocks_only(tmp_path: Path) -> None:
    """The size of a split cannot be estimated from the first, middle and last block."""
    texts = [f"{i * 7919 % 65_536:04x}" for i in range(60_000)]
    texts[7_500:19_500] = ["a" * 3_000] * 12_000
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        form = nyala.column("string", encoding="plain", compression="zstd")
        table = db.create_table("t", {"k": "int64", "s": form}, "k")
        table.insert(pa.table({"k": range(60_000), "s": texts}))
        db.flush()
    with nyala.connect(tmp_path / "s", read_only=True, memory_limit=LIMIT) as db:
        batches = list(db["t"].scan().to_reader())
    assert max(batch.nbytes for batch in batches) <= SHARE
    assert [text for batch in batches for text in batch.column("s").to_pylist()] == texts


def test_prefixed_text_is_counted_as_it_is_decoded(tmp_path: Path) -> None:
    """A prefix that rows share is stored once, but takes memory in each decoded row."""
    texts = [f"https://example.org/{'path/' * 20}{i // 10:09d}/{i % 10}" for i in range(160_000)]
    with nyala.connect(tmp_path / "s", maintenance=False, memory_limit="1GB") as db:
        table = db.create_table("t", {"k": "int64", "s": nyala.column("string", encoding="prefix")}, "k")
        table.insert(pa.table({"k": range(160_000), "s": texts}))
        db.flush()
    with nyala.connect(tmp_path / "s", read_only=True, memory_limit=LIMIT) as db:
        sizes = [batch.nbytes for batch in db["t"].scan().to_reader()]
    assert SHARE // 4 < max(sizes) <= SHARE


def test_a_key_range_of_large_cells_comes_in_several_batches(db: nyala.Database) -> None:
    """A few rows of large cells may exceed the share too."""
    batches = list(db["cells"].scan(where="k >= 10").to_reader())
    assert max(batch.nbytes for batch in batches) <= SHARE
    assert [k for batch in batches for k in batch.column("k").to_pylist()] == list(range(10, 500))
    assert len(list(db["cells"].scan(where="k >= 10 AND k < 40").to_reader())) == 1


def test_a_look_up_does_not_hold_the_blocks_of_all_its_rows_at_once(
    db: nyala.Database, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    blocks_of = BlockSource.blocks

    def noting(self: BlockSource, blocks, *rest):  # type: ignore[no-untyped-def]
        at_once.append(len(blocks))
        return blocks_of(self, blocks, *rest)

    monkeypatch.setattr(BlockSource, "blocks", noting)
    keys = {"k": range(0, 500, 9)}
    found = db["cells"].get_many(keys)
    assert max(at_once) <= 2, "two blocks of 2 MB fit"
    with nyala.connect(store, read_only=True) as roomy:
        assert found.equals(roomy["cells"].get_many(keys))
        assert max(at_once) == 8


def test_splits_of_many_overlapping_rowsets_together_fit_the_limit(tmp_path: Path) -> None:
    text = pa.array(["x" * 400] * 6_000)
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "s": nyala.column("string", encoding="plain")}, "k")
        for part in range(20):
            table.insert(pa.table({"k": np.arange(6_000) * 20 + part, "s": text}))
            db.flush()
    with nyala.connect(tmp_path / "s", read_only=True, memory_limit=LIMIT) as db:
        table = db["t"]
        assert table.stats().rowsets == 20
        keys = [
            k for batch in table.scan(order_by_key=True).to_reader() for k in batch.column("k").to_pylist()
        ]
        assert keys == list(range(120_000))
        # In memory are a split of each rowset, a merged batch, a block, and the block cache.
        rows, most = most_held(iter(table.scan(order_by_key=True).to_reader()), 2 * SHARE)
    assert rows == 120_000
    assert most <= LIMIT, f"{most / 1e6:.1f} MB"


def test_splits_that_were_cut_for_memory_are_not_joined_for_polars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small splits are usually read together, which would need too much memory here."""
    pytest.importorskip("polars")
    rows, names = 40_000, [f"c{i}" for i in range(60)]
    values = np.random.default_rng(1).random(rows)
    with nyala.connect(tmp_path / "s", maintenance=False, memory_limit="1GB") as db:
        table = db.create_table("t", {"k": "int64", **dict.fromkeys(names, "double")}, "k")
        table.insert(pa.table({"k": range(rows), **{name: values + i for i, name in enumerate(names)}}))
        db.flush()
    read = split_sizes(monkeypatch)
    with nyala.connect(tmp_path / "s", read_only=True, memory_limit=LIMIT) as db:
        cut = [batch.num_rows for batch in db["t"].scan().to_reader()]
        assert max(cut) * 8 * len(names) <= SHARE < rows * 8 * len(names)
        read.clear()
        assert len(db["t"].scan().to_polars_lazy().collect()) == rows
    assert read and max(read) <= max(cut)


@pytest.mark.parametrize("kind", each(2, ["double", "int64"]))
def test_repeated_scans_use_no_more_memory_than_the_first(tmp_path: Path, kind: str) -> None:
    """From the fourth scan on, decoded blocks are offered to the cache, which must stay in its limit."""
    rows, names = 70_000, [f"c{i}" for i in range(60)]
    values = np.random.default_rng(1).integers(0, 1000, rows) / (1 if kind == "int64" else 7)
    with nyala.connect(tmp_path / "s", maintenance=False, memory_limit="1GB") as db:
        table = db.create_table("t", {"k": "int64", **dict.fromkeys(names, kind)}, "k")
        columns = {name: pa.array(values + i).cast(kind) for i, name in enumerate(names)}
        table.insert(pa.table({"k": range(rows), **columns}))
        db.flush()
    found = []
    with nyala.connect(tmp_path / "s", read_only=True, memory_limit=LIMIT) as db:
        for _ in range(6):
            seen, most = most_held(iter(db["t"].scan().to_reader()), LIMIT)
            assert seen == rows
            found.append(most)
    assert max(found[3:]) <= max(found[:3]) + SHARE, [f"{most / 1e6:.1f} MB" for most in found]


def test_batches_of_small_rowsets_do_not_hold_whole_blocks(tmp_path: Path) -> None:
    """A batch that is a slice of decoded blocks would keep these blocks in memory."""
    names = [f"c{i}" for i in range(60)]
    values = np.random.default_rng(1).integers(0, 3, 60_000) * 0.1
    with nyala.connect(tmp_path / "s", maintenance=False, memory_limit="1GB") as db:
        form = nyala.column("double", encoding="bitshuffle")
        table = db.create_table("t", {"k": "int64", **dict.fromkeys(names, form)}, "k")
        table.insert(pa.table({"k": range(60_000), **{name: values + i for i, name in enumerate(names)}}))
        db.flush()
    with nyala.connect(tmp_path / "s", read_only=True, memory_limit=LIMIT) as db:
        batches = list(db["t"].scan().to_reader())
    assert len(batches) > 4, "splits are cut into batches"
    assert sum(b.get_total_buffer_size() for b in batches) <= 1.1 * sum(b.nbytes for b in batches)
