"""`make bench-spark` runs, at a scale at which its figures say nothing. Answers are compared by the part itself."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import data, report
from bench import spark as part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
def test_every_step_has_figures_and_a_missing_peer_is_said(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads, reads, upserts, the feed and streams, beside Parquet; without deltalake its column has dashes."""
    from bench.spark_steps import READS, Scale

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "deltalake" else found(name)
    )
    monkeypatch.setattr(data, "tpch_tool", lambda: None)
    said: list[str] = []
    scale = Scale(
        "tiny", 0.0003, 1, 1, ((0.05, 1),), 1, 200, 20, streams=1, warm=0, reads=("one", "key")
    )  # fmt: skip
    result = part.run(spark, scale, str(tmp_path), said.append)
    report.save(result, ["a machine"], tmp_path / "results")
    page = (tmp_path / "results" / "RESULTS.md").read_text()
    assert any(text.startswith("the 22 queries are left out: tpchgen-cli is not installed") for text in said)
    assert "deltalake is left out: deltalake is not installed (`make bench-spark` installs it)" in said
    for read in READS:
        asked = 2 if read.name in scale.reads else 0
        assert page.count(f"| {read.title} |") == asked, "untouched, and after updates"
    for text in (
        "| nyala.spark.load |",
        "| 5% |",
        "| batch |",
        "| large, into nyala |",
        "| small, into parquet |",
    ):
        assert text in page
    assert [aim.met for aim in result.aims if "merge" in aim.text] == [None], "no peer, no verdict"
    reads = [aim for aim in result.aims if "by nyala.spark.sql: at most" in aim.text]
    assert len(reads) == 5
    assert all(
        re.search(r'for comparison format\("nyala"\) \S+ × and \S+ ×$', aim.figure)
        for aim in reads
        if aim.met is not None
    )
    assert [aim.met is None for aim in result.aims] == [True, True, False, True, True, False, True, False]
