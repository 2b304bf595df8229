"""Errors of workers reach the user as Nyala errors in one line, with table, tablet, file and row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from nyala.backup.layout import Backup
from nyala.backup.read import RestoreStep
from nyala.errors import CorruptionError, DuplicateKeyError, HistoryExpiredError, KeyNotFoundError
from nyala.handover import commits as handover
from nyala.spark.jobs import backup as backup_jobs
from nyala.spark.jobs import small_frames as small


@pytest.fixture
def table(store: Path) -> Iterator[nyala.Table]:
    """Create rows k = 0 … 9 in three tablets. An earlier table makes the tablets' ids differ from
    their positions.
    """
    with nyala.connect(store, maintenance=False) as db:
        db.create_table("other", {"k": "int64"}, "k", [nyala.hash_partition("k", buckets=4)])
        made = db.create_table("t", {"k": "int64", "v": "int64"}, "k", [nyala.hash_partition("k", buckets=3)])
        made.insert({"k": list(range(10)), "v": list(range(10))})
        made.flush()
        yield made


def homes(table: nyala.Table) -> dict[int, int]:
    """Return the tablet id of each key."""
    root, state = table.scan()._root_and_table()
    ids = [tablet.id for tablet in state.tablets]
    keys = pa.array(range(20), pa.int64())
    del root
    return {k: ids[place] for k, place in enumerate(state.router.route({"k": keys}, len(keys)).tolist())}


def test_a_failing_row_has_its_tablet(
    spark: SparkSession, table: nyala.Table, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message and the table of failing rows name the tablet, for each way to write."""
    home = homes(table)
    df = spark.range(8, 12, 1, 1).selectExpr("id AS k", "id AS v")
    first = rf"row 0 \(k=8\): duplicate key: table 't' already has .* \(tablet {home[8]}\) \(all .*\)"
    whole = rf"table 't': 2 (of 4 )?rows failed and nothing was written: (partition 0, )?{first}"

    def late_load() -> None:
        commit = handover.commit_load_files

        def later(path: str, job: Any, env: Any) -> object:
            table.insert({"k": [11], "v": [-1]})
            return commit(path, job, env)

        with monkeypatch.context() as patched:
            patched.setattr(handover, "commit_load_files", later)
            nyala.spark.load(df.where("k > 9"), table, tasks=1)

    for job in (
        lambda: nyala.spark.write(df, store, "t", operation="insert"),
        lambda: nyala.spark.load(df, table),
        lambda: nyala.spark.load(df, table, tasks=2),
    ):
        with pytest.raises(DuplicateKeyError) as raised:
            job()
        assert re.fullmatch(whole, str(raised.value).splitlines()[0]), raised.value
        for k, message in zip(
            *(raised.value.errors[name].to_pylist() for name in ("k", "message")), strict=True
        ):
            assert message.endswith(f" (tablet {home[k]})") and message.count("tablet") == 1
    with pytest.raises(
        DuplicateKeyError, match=rf"unknown row \(k=11\): .*; another .* \(tablet {home[11]}\)"
    ):
        late_load()
    writer = (
        df.select("k")
        .write.format("nyala")
        .options(path=str(store), table="t", operation="delete")
        .mode("append")
    )
    with pytest.raises(KeyNotFoundError) as missing, nyala.spark.plain_errors():
        writer.save()
    output = rf"table 't': 1 of 4 rows .*: row 2 \(k=10\): .* \(tablet {home[10]}\) \(.*option\('result', folder\)\)"
    assert re.fullmatch(output, str(missing.value)), missing.value
    assert isinstance(missing.value.__context__, PySparkException) and missing.value.__cause__ is None
    collected = nyala.spark.write(df.select("k"), store, "t", operation="delete", errors="collect")
    assert collected.deleted == 3 and collected.errors["message"][0].as_py().endswith(f" (tablet {home[10]})")


def test_damage_is_reported_with_table_tablet_and_file(
    spark: SparkSession, table: nyala.Table, store: Path, tmp_path: Path
) -> None:
    """This covers reads of the driver, commits, and actions of Spark. `test_load` covers jobs of
    executors.
    """
    db = table._database
    before = db.now()
    for file in (store / "data").rglob("*.base"):
        # Let another process run the tasks. This process has the files open, and their blocks in its cache.
        body = bytearray(file.read_bytes())
        body[32:64] = bytes(32)
        file.unlink()
        file.write_bytes(body)
    db.close()
    path = str(store)
    df = spark.range(0, 10, 1, 1).selectExpr("id AS k", "1L AS v")
    with nyala.connect(store, maintenance=False) as again:
        t = again["t"]

        def stream() -> None:
            feed = spark.readStream.format("nyala").options(path=path, table="t", changes="true").load()
            query = (
                feed.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True).start()
            )  # fmt: skip
            query.awaitTermination()

        read = spark.read.format("nyala").options(path=path, table="t")
        jobs: dict[str, Callable[[], object]] = {
            "save": lambda: df.write.format("nyala").options(path=path, table="t").mode("append").save(),
            "upsert here": lambda: nyala.spark.upsert(df, t),
            "load()": lambda: read.load().collect(),
            "to_spark here": lambda: t.scan().to_spark(spark),
            "changes": lambda: (
                read.options(changes="true", startingTimestamp=before - 10**12).load().collect()
            ),
            "stream": stream,
        }
        for name, job in jobs.items():
            with pytest.raises(CorruptionError) as raised, nyala.spark.plain_errors():
                job()
            found = re.fullmatch(
                r"table 't', tablet (\d+): /.*/data/(\d+)/\d+-[0-9a-f]+\.base at offset \d+: "
                r"expected a block .*rows 0 to \d+.*",
                str(raised.value),
            )
            assert found and found[1] == found[2], (name, raised.value)


@pytest.mark.parametrize("where", ["on executors", "here"])
def test_a_failing_restore_names_the_final_table(
    spark: SparkSession, table: nyala.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The message does not name the temporary table. It has the backup's file, or the key and the
    tablet of a row.
    """
    if where == "on executors":
        monkeypatch.setattr(small, "SMALL_BYTES", -1)
    db, folder = table._database, tmp_path / "backups"
    apply = backup_jobs._apply

    def after_another(
        session: SparkSession, target: Backup, step: RestoreStep, made: nyala.Table, lease_s: float
    ) -> None:
        made.insert({"k": [8], "v": [-1]})
        apply(session, target, step, made, lease_s)

    with nyala.connect(tmp_path / "other", maintenance=False) as other:
        there = other.create_table("t", table.schema, "k")
        for step in ("full", "incremental"):
            table.delete({"k": [len(list(folder.rglob("*.parquet")))]})
            made = nyala.spark.backup(spark, table, folder)
            assert made is not None and made.kind == step
            file = min((folder / "t" / str(made.until)).glob("*.parquet"))
            body = file.read_bytes()
            file.write_bytes(body[:-1])
            for name, job in (
                ("again", lambda: nyala.spark.restore(spark, folder, "t", into=db, name="again")),
                ("t", lambda: nyala.spark.restore(spark, folder, there)),
            ):
                with pytest.raises(CorruptionError) as damaged:
                    job()
                output = rf"table '{name}' \(being restored\): backup of table 't', tablet (\d+): {file}: expected .*"
                found = re.fullmatch(output, str(damaged.value))
                assert found and int(found[1]) in homes(table).values(), damaged.value
            file.write_bytes(body)
    monkeypatch.setattr(backup_jobs, "_apply", after_another)
    with pytest.raises(DuplicateKeyError) as raised:
        nyala.spark.restore(spark, folder, "t", into=db, name="again")
    output = (
        r"table 'again' \(being restored\): .*row \d+ \(k=8\): duplicate key: table 'again' already has .*"
    )
    output += "" if where == "here" else r"\(tablet \d"
    assert re.match(output, str(raised.value)) and "[restoring" not in str(raised.value), raised.value
    assert raised.value.errors is not None
    (message,) = raised.value.errors["message"].to_pylist()
    assert message.startswith("duplicate key: table 'again' already has a row with this key;")


def test_other_exceptions_are_not_changed(spark: SparkSession, table: nyala.Table, store: Path) -> None:
    """`plain_errors` changes only Nyala's errors. An error without rows is one line too."""
    with pytest.raises(PySparkException, match="UNRESOLVED_COLUMN"), nyala.spark.plain_errors():
        spark.sql("SELECT nothing").collect()
    with pytest.raises(ZeroDivisionError), nyala.spark.plain_errors():
        raise ZeroDivisionError
    source = spark.read.format("nyala").options(path=str(store), table="t")
    for read in (source.load(), source.options(changes="true").load()):
        assert read.count() == 10
        for lease in (store / "leases").glob("remote-*"):
            lease.unlink()
        with pytest.raises(HistoryExpiredError, match=r"^table 't': the lease.*load again") as raised:
            with nyala.spark.plain_errors():
                read.collect()
        assert "\n" not in str(raised.value)
