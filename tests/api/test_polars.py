"""Scans as DataFrame and LazyFrame of polars."""

from __future__ import annotations

import datetime as dt
import operator
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from polars.exceptions import PolarsError
from polars.testing import assert_frame_equal

import nyala
from nyala.interop import polars_frames as engines
from nyala.interop.text_views import VIEW_TYPES, TextViews
from nyala.tablet.scan import read_path
from tests.sampled import in_turns
from tests.support import open_database

PL_VERSION, PA_VERSION = (int(module.__version__.partition(".")[0]) for module in (pl, pa))


@pytest.fixture
def words(tmp_path: Path) -> Iterator[Any]:
    """A table with a dictionary on disk, a text column without dictionary, and new texts in memory."""
    with open_database(tmp_path / "w") as db:
        table = db.create_table("t", {"k": "int64", "few": "string", "many": "string"}, "k")
        numbers = np.arange(3_000)
        few = pa.array(["a", "b", None, ""]).take(pa.array(numbers % 4))
        table.insert({"k": numbers, "few": few, "many": [f"{n}-{n * 7919}" for n in numbers]})
        db.flush()
        table.insert({"k": [5_000], "few": ["new"], "many": ["x"]})
        yield table


def test_the_source_gives_frames_of_the_columns_rows_and_size_that_polars_wants(words: Any) -> None:
    scan = words.scan(order_by_key=True)
    found = list(engines.frames(scan._engine(), ["few"], None, 2_500, 1_000))
    assert [frame.shape for frame in found] == [(1_250, 1), (1_250, 1)]
    found = list(engines.frames(scan._engine(), None, pl.col("few") == "new", None, 1_000))
    assert [frame.shape for frame in found if frame.height] == [(1, 3)]
    assert scan.to_polars_lazy().select("few").head(2_500).collect().shape == (2_500, 1)


def test_text_with_dictionaries_is_read_as_text(tmp_path: Path) -> None:
    """Files have different dictionaries, and rows in memory have none."""
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table(
            "t",
            {"k": "int64", "word": nyala.column("string", nullable=True), "code": "binary", "free": "string"},
            "k",
        )
        for part in range(3):
            keys = range(part * 3000, part * 3000 + 3000)
            table.insert(
                {
                    "k": keys,
                    "word": [None if k % 7 == 0 else f"é{k % (3 + part)}" for k in keys],
                    "code": [bytes([k % 5]) * 3 for k in keys],
                    "free": [f"text {k}" for k in keys],
                }
            )
            if part < 2:
                table.flush()
        table.update(where="k IN (1, 3001)", set={"word": "changed"})
        scan = table.scan()
        expected = scan.to_arrow().sort_by("k").to_pylist()
        lazy = scan.to_polars_lazy()
        assert lazy.collect_schema()["word"] == pl.String and lazy.collect_schema()["code"] == pl.Binary
        found = lazy.sort("k").collect()
        assert found.schema == lazy.collect_schema() and found.rows(named=True) == expected
        some = (
            lazy.filter((pl.col("word") == "é1") & (pl.col("k") > 10))
            .select("word", "free")
            .sort("free")
            .collect()
        )
        assert some.rows() == sorted(
            (r["word"], r["free"]) for r in expected if r["word"] == "é1" and r["k"] > 10
        )
        assert lazy.filter(pl.col("word").is_null()).select(pl.len()).collect().item() == 9000 // 7 + 1
        assert lazy.select(pl.len()).collect().item() == 9000
        frame = scan.with_dictionaries("word").to_polars_lazy()
        assert frame.collect_schema()["word"] == pl.Categorical
        assert frame.sort("k").collect()["word"].cast(pl.String).to_list() == [r["word"] for r in expected]


# ------------------------------------------------------------------------------------------------ predicates

NAN, INFINITE = float("nan"), float("inf")
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "i": ("int64", [-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1]),
    "tiny": ("int8", [-128, -1, 0, 1, 5, 127]),
    "v": ("double", [NAN, -INFINITE, -0.0, 0.0, float(np.float32(0.1)), INFINITE]),
    "f": ("float", [NAN, -INFINITE, -0.0, 0.1, 1.5, INFINITE]),
    "s": ("string", ["", "a", "a\0", "A long word, longer than twelve bytes", "é", "z"]),
    "b": ("bool", [True, False, True, False, True, False]),
    "d": ("decimal(15,2)", [Decimal(text) for text in ("-9999999999999.99", "-0.01", "0", "0.05", "0.07", "24")]),
    "w": ("decimal(38,0)", [Decimal(text) for text in ("-" + "9" * 38, "-1", "0", "1", "24", "9" * 38)]),
    "day": ("date", [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(1994, 1, 1),
                     dt.date(2020, 2, 29), dt.date(9999, 12, 31)]),
    "at": ("timestamp", [dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1, 1969, 1970, 1994, 2020, 9999)]),
    # These columns are compared with the ones above: some rows have NULL in one column only.
    "i2": ("int64", [-(2**63), 0, -1, None, 2**53, 2**63 - 1]),
    "v2": ("double", [NAN, NAN, 0.0, -0.0, None, INFINITE]),
    "s2": ("string", ["", "a\0", "a", "A long word, longer than twelve bytes!", None, "\U0010ffff"]),
    "d2": ("decimal(15,2)", [Decimal("9999999999999.99"), None, *map(Decimal, ("0", "0.05", "0.06", "24.01"))]),
    "w2": ("decimal(38,0)", [Decimal(text) for text in ("9" * 38, "-2", "0", "2", "24", "-" + "9" * 38)]),
    "day2": ("date", [dt.date(9999, 12, 31), None, dt.date(1970, 1, 1), dt.date(1993, 12, 31),
                      dt.date(2020, 3, 1), dt.date(1, 1, 1)]),
    "at2": ("timestamp", [dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1, 1970, 1970, 1993, 2021, 9999)]),
    "marks": ("string", ["%a", "a%b", "a_b", "axb", "\\", "a\\%"]),
}  # fmt: skip
i, tiny, v, f, s, b, d, w, day, at, i2, v2, s2, d2, w2, day2, at2, marks = (pl.col(name) for name in KINDS)
NOON = dt.datetime(1994, 1, 1, tzinfo=dt.UTC)
# (predicate, the columns of the terms that polars applies itself)
PREDICATES: list[tuple[pl.Expr, set[str]]] = [
    (i > 2**53, set()),
    (i != 0, set()),
    (i.is_in([0, 1, 7]), set()),
    (i.is_in([0, None]), set()),
    (~i.is_in([0, 1]), set()),
    (~i.is_in([0, None]), set()),
    (i.is_in(list(range(-1, 90))) & (i != 0), set()),
    (~i.is_in([None, *range(90)]), set()),
    (tiny.is_in(pl.Series(range(60), dtype=pl.Int8).implode()), set()),
    (s.is_in(pl.Series(["é", "a"])), set()),
    (tiny.is_in([5, 300]), set()),
    (i.is_in(pl.Series([[0, 1]])) | (tiny == 5), set()),
    (i.is_between(-1, 1), set()),
    (i.is_between(-1, 1, closed="left"), set()),
    (i.is_between(-1, 1, closed="right"), set()),
    (i.is_between(-1, 1, closed="none"), set()),
    (i + 1 > 0, {"i"}),
    (i < 1.5, {"i"}),
    (tiny > 5, set()),
    (pl.lit(0) < tiny, set()),
    (v > 0.0, set()),
    (v >= -0.0, set()),
    (v == 0.0, set()),
    (v != 0.0, set()),
    (v == NAN, set()),
    (v < NAN, set()),
    (v <= INFINITE, set()),
    (v == pl.lit(0.1, dtype=pl.Float32), set()),
    (v > pl.lit(0.1, dtype=pl.Float32), set()),
    (v.is_in([NAN, -0.0]), set()),
    (~v.is_in([0.0, INFINITE, None]), set()),
    (~v.is_in([0.0, NAN] + [float(n) for n in range(90)]), set()),
    (f.is_in(pl.Series([1.5, 0.1, NAN], dtype=pl.Float32).implode()), set()),
    (~(v > 0.0), set()),
    (v.is_nan(), {"v"}),
    (f > 1.0, set()),
    (f == 0.1, set()),
    (f.is_in([1.5, 0.1]), set()),
    (s == "a", set()),
    (s != "a", set()),
    (s > "a", set()),
    (s.is_in(["é", "z", "q"]), set()),
    (s.is_in([f"{n}" for n in range(90)] + ["a\0", "é"]), set()),
    (s.str.starts_with("a"), set()),
    (~s.str.starts_with("a"), set()),
    (s.str.starts_with(""), set()),
    (s.str.starts_with("a\0"), set()),
    (s.str.starts_with("A long word, longer") | (i == 0), set()),
    (s.str.ends_with("é") & s.str.starts_with("é"), set()),
    (s.str.ends_with("bytes"), set()),
    (s.str.ends_with("\0"), set()),
    (marks.str.starts_with("a%"), set()),
    (marks.str.starts_with("a_"), set()),
    (marks.str.ends_with("_b") | marks.str.ends_with("%b"), set()),
    (marks.str.starts_with("\\"), set()),
    (marks.str.ends_with("\\%"), set()),
    (~marks.str.ends_with("%"), set()),
    (s.str.starts_with(s2), {"s", "s2"}),
    (s.str.contains("a"), {"s"}),
    (s == pl.col("s"), set()),
    (s < s2, set()),
    (s != s2, set()),
    (i < i2, set()),
    (i >= i2, set()),
    (~(i == i2), set()),
    ((i > i2) | (s <= s2), set()),
    (i > tiny, {"i", "tiny"}),
    (v < v2, {"v", "v2"}),
    (v == v2, {"v", "v2"}),
    (d <= d2, set()),
    (d == d2, set()),
    (w > w2, set()),
    (d < w, {"d", "w"}),
    (day >= day2, set()),
    (day < at.dt.date(), {"day", "at"}),
    (at != at2, set()),
    (at > at2, set()),
    (b, set()),
    (~b, set()),
    (b | (i == 1), set()),
    (b | (i + 1 == 2), {"b", "i"}),
    (~(b & (i > 0)), set()),
    (d < 24, set()),
    (d == Decimal("0.05"), set()),
    (d >= Decimal("0.055"), set()),
    (d > Decimal("123456789012345678901234567890.12"), set()),
    (d.is_in(pl.Series([Decimal("0.05"), Decimal("24.00")], dtype=pl.Decimal(15, 2)).implode()), set()),
    (d.is_in([Decimal("0.055")]), {"d"}),
    (d.is_between(0.05, 0.07), {"d"}),
    (d == 0.05, {"d"}),
    (d > 0.05, {"d"}),
    ((d > 0.05) | b, {"d", "b"}),
    (~(d > 0.05), {"d"}),
    (d > -INFINITE, {"d"}),
    (w > 1, set()),
    (w >= Decimal("0.5"), {"w"}),
    (day >= dt.date(1994, 1, 1), set()),
    (day.is_in([dt.date(1994, 1, 1)]), set()),
    (day < NOON.replace(tzinfo=None), {"day"}),
    (at <= NOON, set()),
    (at.is_in([NOON, dt.datetime(1, 1, 1, tzinfo=dt.UTC)]), set()),
    (i.is_null(), set()),
    (i.is_not_null() & (s == "a") & (tiny + 1 > 0), {"tiny"}),
    ((i > 0) & (i < 0), set()),
    (pl.lit(True), set()),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A table with extreme values and NULL: on disk, changed later, and in memory."""
    with open_database(tmp_path_factory.mktemp("polars") / "s") as db:
        columns = {name: nyala.column(kind, nullable=True) for name, (kind, _) in KINDS.items()}
        table = db.create_table("t", {"k": "int64", **columns}, "k")

        def values(first: int, count: int) -> dict[str, Any]:
            picks = [(first + n) % 7 for n in range(count)]
            columns = {name: [([*some, None])[at] for at in picks] for name, (_, some) in KINDS.items()}
            return {"k": list(range(first, first + count)), **columns}

        table.insert(values(0, 700))
        table.flush()
        table.insert(values(700, 700))
        table.flush()
        table.upsert({**values(0, 14), "k": list(range(690, 704))})
        table.insert(values(1_400, 14))
        yield table


@pytest.mark.parametrize(
    ("predicate", "left"), PREDICATES, ids=[str(number) for number in range(len(PREDICATES))]
)
def test_a_predicate_selects_the_same_rows_as_in_polars(
    predicate: pl.Expr, left: set[str], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for NULL, NaN, -0.0 and rounding. polars applies only the terms that Nyala does not support."""
    rests: list[set[str] | None] = []
    real = engines._split

    def noted(predicate: pl.Expr | None, schema: pa.Schema) -> Any:
        found = real(predicate, schema)
        kept = set() if found.rest is None else set(found.rest.meta.root_names())
        rests.append(None if predicate is None else kept)
        return found

    monkeypatch.setattr(engines, "_split", noted)
    everything = pl.DataFrame(store.scan().to_arrow())
    found = store.scan().to_polars_lazy().filter(predicate).sort("k").collect()
    assert_frame_equal(found, everything.filter(predicate).sort("k"))
    # polars may apply a term without passing it to the source, and older versions pass fewer terms.
    assert rests == [left] or (rests == [None] and left) or PL_VERSION < 2


def test_not_of_a_partly_understood_predicate_is_left_to_polars(store: Any) -> None:
    """Such a predicate is TRUE in too many rows, so its NOT would lose rows."""
    schema = store.scan().schema
    for part in (d.cast(pl.Float64) > 0.05, (i > 0) & (tiny + 1 > 0)):
        assert engines._split(part, schema).where is not None
        found = engines._split(~part, schema)
        assert found.where is None and found.rest is not None and found.rest.meta.eq(~part)
    assert str(engines._split(~(i > 0), schema).where) == "NOT i > 0"


def test_a_constant_that_nyala_refuses_is_left_to_polars(store: Any) -> None:
    refused = pl.col("w") > Decimal(-1)
    scan = store.scan(limit=100)  # accepts no predicate, because it would select other rows
    everything = pl.DataFrame(scan.to_arrow())
    assert_frame_equal(
        scan.to_polars_lazy().filter(refused).sort("k").collect(), everything.filter(refused).sort("k")
    )
    frames = list(
        engines.frames(scan._engine(), ["k"], (pl.col("tiny") == 5) & (pl.col("k") >= 0), None, None)
    )
    assert pl.concat(frames).height == everything.filter(pl.col("tiny") == 5).height


@pytest.mark.parametrize("constant", [INFINITE, -INFINITE, NAN])
def test_polars_compares_nan_and_infinities_itself(store: Any, constant: float) -> None:
    """polars writes them as null in JSON."""
    everything = pl.DataFrame(store.scan().to_arrow())
    for predicate in (v != constant, v == constant, v >= constant, v < constant):
        for conjuncts in ((predicate, i > 0), (i > 0, predicate), (predicate, tiny + 1 > 0, i > 0)):
            together = reduce(operator.and_, conjuncts)
            found = store.scan().to_polars_lazy().filter(together).sort("k").collect()
            assert_frame_equal(found, everything.filter(together).sort("k"))


def test_a_dynamic_term_is_dropped(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """polars cannot apply the hint of a top-N itself."""
    hint = {"Display": {"inputs": [{"Column": "i"}], "fmt_str": "dynamic_pred"}}

    def one(tree: Any, *operands: Any) -> Any:
        return SimpleNamespace(tree=tree, meta=SimpleNamespace(pop=lambda: list(operands)))

    tree_of_expression = engines.tree_of

    def tree_of(part: Any) -> Any:
        return part.tree if isinstance(part, SimpleNamespace) else tree_of_expression(part)

    def both(a: Any, b: Any) -> Any:
        left, right = tree_of(a), tree_of(b)
        return one({"BinaryExpr": {"left": left, "op": "And", "right": right}}, b, a)

    def given(*conjuncts: Any) -> Any:
        return reduce(both, (one(hint) if part is hint else part for part in conjuncts))

    monkeypatch.setattr(engines, "tree_of", tree_of)
    assert engines._pops_backwards(), "polars gives operands in the other order: `both` has to"
    alone = engines._split(given(hint), store.scan().schema)
    assert (alone.whole, alone.rest, alone.where) == (None, None, None)
    for conjuncts in ((hint, i > 0, tiny + 1 > 0), (i > 0, hint, tiny + 1 > 0), (i > 0, tiny + 1 > 0, hint)):
        found = engines._split(given(*conjuncts), store.scan().schema)
        assert found.whole is not None and found.whole.meta.eq((i > 0) & (tiny + 1 > 0))
        assert found.rest is not None and found.rest.meta.eq(tiny + 1 > 0) and str(found.where) == "i > 0"
    lazy = store.scan().to_polars_lazy().filter((i > 0) & (tiny + 1 > 0))
    everything = pl.DataFrame(store.scan().to_arrow()).filter((i > 0) & (tiny + 1 > 0))
    assert_frame_equal(lazy.sort("k").head(5).collect(), everything.sort("k").head(5))


# ------------------------------------------------------------------------------------------------ frames


def test_every_type_is_the_same_as_through_arrow(store: Any) -> None:
    """In `to_polars` and in a lazy frame, with and without rows."""
    for scan in (
        store.scan(order_by_key=True),
        store.scan(),
        store.scan(where="k < 0"),
        store.scan(["s", "d"]),
    ):
        expected = pl.DataFrame(scan.to_arrow())
        assert_frame_equal(scan.to_polars(), expected)
        assert_frame_equal(scan.to_polars_lazy().collect(), expected)


@pytest.mark.skipif(PL_VERSION < 2, reason="older ones have no rows without columns")
def test_rows_without_columns_are_counted(store: Any) -> None:
    nothing = store.scan([])
    assert nothing.to_polars().shape == (nothing.count(), 0)
    assert nothing.to_polars_lazy().select(pl.len()).collect().item() == store.scan().count()


VALUES = ["", "a", "twelve bytes", "thirteen byte", None, "x" * 70_000, "é" * 7]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
@pytest.mark.parametrize("part", [slice(0, None), slice(3, 6), slice(4, 5), slice(0, 0)])
def test_text_is_converted_to_views(kind: pa.DataType, part: slice) -> None:
    """Short and long texts, NULL, and slices."""
    plain = pa.array([None if value is None else value.encode() for value in VALUES * 3], pa.binary()).cast(
        kind
    )
    for column in (
        plain,
        plain.dictionary_encode(),
        plain.slice(2).dictionary_encode(),
        plain.dictionary_encode()[2:],
    ):
        batch = pa.RecordBatch.from_arrays([column[part]], ["t"])
        as_text = TextViews.of_all_text(pa.schema([("t", kind)]))
        made = as_text(batch)
        assert made.schema.types == [VIEW_TYPES.get(kind, kind)]
        made.validate(full=True)
        assert made.column(0).to_pylist() == column[part].to_pylist()
        frame = pl.from_arrow(made)
        assert isinstance(frame, pl.DataFrame) and frame["t"].to_list() == column[part].to_pylist()


def test_views_belong_to_the_dictionary_of_their_batch() -> None:
    as_text = TextViews.of_all_text(pa.schema([("t", pa.string())]))
    one, other = (
        pa.array(["a", "b", "a", "b"]).dictionary_encode(),
        pa.array(["x", "y"] * 2).dictionary_encode(),
    )
    null = pa.array([None, None], pa.string()).dictionary_encode()
    odd = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int32()), pa.array(["q", None]))
    for column in (one, other, one, null, odd, one[:1], other[3:], pa.concat_arrays([one, other])):
        made = as_text(pa.RecordBatch.from_arrays([column], ["t"]))
        made.validate(full=True)
        assert made.column(0).to_pylist() == column.to_pylist()


# ------------------------------------------------------------------------------------------------ reading ahead


@pytest.fixture
def splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[int]]]:
    """A table of 64 splits, and a list to which each read split adds its first row."""
    monkeypatch.setattr(read_path, "SPLIT_ROWS", 512)
    monkeypatch.setattr(read_path, "_INLINE_ROWS", 16)
    begun: list[int] = []
    lock = threading.Lock()
    real: Callable[..., Any] = read_path.read_split

    def noted(unit: Any, spec: Any, lower: int, *others: Any) -> Any:
        with lock:
            begun.append(lower)
        return real(unit, spec, lower, *others)

    monkeypatch.setattr(read_path, "read_split", noted)
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "n": "int32"}, "k")
        table.insert({"k": np.arange(64 * 512), "n": np.arange(64 * 512) % 100})
        table.flush()
        yield table, begun


def test_an_error_of_a_reading_thread_is_raised_by_collect(
    splits: tuple[Any, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the result would silently lack rows."""
    table, _ = splits
    real: Callable[..., Any] = read_path.read_split

    def broken(unit: Any, spec: Any, lower: int, *others: Any) -> Any:
        if lower == 512 * 24:
            raise nyala.CorruptionError("block 24 of k is damaged")
        return real(unit, spec, lower, *others)

    monkeypatch.setattr(read_path, "read_split", broken)
    with pytest.raises((PolarsError, nyala.Error), match="block 24 of k is damaged"):
        table.scan().to_polars_lazy().collect()
    with pytest.raises(nyala.CorruptionError):
        table.scan().to_polars()
    frames = engines.frames(table.scan()._engine(), None, None, None, None)
    heights = 0
    with pytest.raises(nyala.CorruptionError):
        for frame in frames:
            heights += frame.height
    assert heights == 512 * 24


def test_a_lazy_frame_of_a_closed_scan_is_an_error(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64"}, "k")
        table.insert({"k": [1]})
        lazy = table.scan().to_polars_lazy()
        assert lazy.collect().height == 1
    for frame in (lazy, lazy.filter(pl.col("k") > 0)):
        with pytest.raises((PolarsError, nyala.Error), match="closed"):
            frame.collect()


@pytest.mark.parametrize(("flushed", "engine"), in_turns([False, True], ["in-memory", "streaming"]))
def test_head_before_filter_limits_the_rows_before_the_predicate(
    tmp_path: Path, flushed: bool, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """polars passes both to the source."""
    monkeypatch.setattr(read_path, "SPLIT_ROWS", 512)
    rows = 5_000
    data = {"k": np.arange(rows), "v": np.arange(rows) % 100, "s": [f"w{n % 7}" for n in range(rows)]}
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64", "v": "int64", "s": "string"}, "k")
        table.insert(data)
        if flushed:
            table.flush()
        lazy, plain = table.scan(order_by_key=True).to_polars_lazy(), pl.DataFrame(data)
        for first in (0, 1, 10, 511, 512, 700, 4_999, 6_000):
            for predicate in (
                pl.col("v") == 0,
                pl.col("s") == "w3",
                (pl.col("v") > 90) & (pl.col("k") % 3 == 0),
                pl.col("s").str.starts_with("w1"),
                pl.col("v") == 1_000,
            ):
                for query in (
                    lambda rows, f=first, p=predicate: rows.head(f).filter(p),
                    lambda rows, f=first, p=predicate: rows.filter(p).head(f),
                    lambda rows, f=first, p=predicate: rows.head(f).filter(p).select("k"),
                    lambda rows, f=first, p=predicate: rows.slice(3, f).filter(p).select(pl.len()),
                    lambda rows, f=first, p=predicate: rows.head(f).filter(p).select(pl.len()),
                ):
                    found = query(lazy).collect(engine=engine)
                    assert found.equals(query(plain.lazy()).collect()), (first, predicate)
