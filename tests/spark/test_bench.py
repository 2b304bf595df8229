"""`make bench-spark` runs at a small scale. The benchmark itself compares the results."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import data
from bench import spark as part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
def test_every_step_has_figures(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads, reads, upserts and streams beside Parquet. Without deltalake, its figures are missing."""
    from bench.spark_steps import READS, Scale

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "deltalake" else found(name)
    )
    monkeypatch.setattr(data, "tpch_tool", lambda: None)
    output: list[str] = []
    scale = Scale("tiny", 0.0003, 1, 1, ((0.05, 1),), 1, 200, 20, streams=1, warm=0, reads=("one", "key"))
    result = part.run(spark, scale, str(tmp_path), output.append)
    assert any(
        text.startswith("the 22 queries are left out: tpchgen-cli is not installed") for text in output
    )
    assert "deltalake is left out: deltalake is not installed (`make bench-spark` installs it)" in output
    titles = [read.title for read in READS if read.name in scale.reads]
    assert [row[0].split(" rows")[0] for row in result.table.rows] == [
        "bulk load",
        *titles,
        *(f"{title}, after updates" for title in titles),
        result.table.rows[5][0].split(" rows")[0],
        result.table.rows[6][0].split(" rows")[0],
        "stream, a micro-batch, large",
        "stream, a micro-batch, small",
    ]
    assert result.table.rows[5][0].startswith("update of one column in")
    assert result.table.rows[6][0].startswith("upsert of 5%") and result.table.rows[6][1] == "–", "no peer"
    assert [aim.met is None for aim in result.aims] == [True, True, False, True, True, False, True, False]
