"""`import nyala` stays light, and what is used loads pyarrow and numpy and nothing that only some users need."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import nyala

HEAVY = ("duckdb", "sqlglot", "pandas", "polars", "pyspark", "numcodecs", "click", "rich", "obstore")


def loaded_by(statement: str) -> list[str]:
    """Which of HEAVY a fresh interpreter has loaded after `statement`."""
    code = f"import json, sys\n{statement}\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return list(json.loads(found.stdout))


def test_import_nyala_loads_no_extra() -> None:
    """A user of the core waits for no import of DuckDB, pandas, Spark or a codec that is not yet used."""
    assert loaded_by("import nyala\nnyala.connect, nyala.col, nyala.Scan") == []


def test_the_package_that_spark_discovers_never_raises() -> None:
    """Where pyspark is missing or broken, our package must not switch off the data sources of others.

    Spark imports every top-level package named pyspark_*; one that raises disables discovery for all.
    """
    hide = "import sys; sys.modules['pyspark'] = None; sys.modules['pyarrow'] = None"
    assert loaded_by(f"{hide}\nimport pyspark_nyala\nassert not hasattr(pyspark_nyala, 'DefaultSource')") == [
        "pyspark"
    ]


def test_what_spark_discovers_costs_others_nothing() -> None:
    """Spark imports it in every program that uses any data source of Python's: it brings nothing along, also when made,
    and pickled, before a table is asked for. Without the rest it is there all the same, and says so when it is used."""
    code = """
        import pickle, sys
        import pyspark.sql.datasource
        before = set(sys.modules)
        import pyspark_nyala
        made = pyspark_nyala.DefaultSource(options={"path": "/nowhere", "table": "t"})
        assert issubclass(type(made), pyspark.sql.datasource.DataSource) and made.name() == "nyala"
        assert b"nyala.spark" not in pickle.dumps(made)
        print(sorted(set(sys.modules) - before))
        sys.modules["pyarrow"] = None
        try:
            made.schema()
        except ImportError as error:
            print(error)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert run.stdout.splitlines() == [
        "['pyspark_nyala']",
        "import of pyarrow halted; None in sys.modules",
    ], run.stderr


def test_every_public_name_is_loaded_from_where_type_checkers_see_it() -> None:
    """`__all__`, the table of homes and the imports for type checkers name the same things, and each is there."""
    source = ast.parse(Path(nyala.__file__).read_text())
    seen = {
        alias.asname or alias.name: node.module
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("nyala.")
        for alias in node.names
    }
    assert seen == nyala._HOMES
    assert sorted([*seen, "__version__"]) == sorted(nyala.__all__)
    assert all(getattr(nyala, name).__doc__ for name in seen)


def test_a_plain_import_loads_neither_pyarrow_nor_numpy() -> None:
    """`nyala --help` answers at once; what is heavy comes with the first name that is used."""
    code = "import sys, nyala; print(sorted({'pyarrow', 'numpy'} & sys.modules.keys()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"


def test_opening_a_store_imports_nothing_that_only_reads_and_queries_need(tmp_path: Path) -> None:
    """Decoding column files, evaluating predicates and `pyarrow.compute` are imported at their first use: `connect`
    pays for none of them, whether the rows lie in the log or in files."""
    with nyala.connect(tmp_path / "store", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "string"}, "k")
        table.insert([{"k": 1, "v": "a"}])
        db.flush()
        table.insert([{"k": 2, "v": "b"}])
    later = (
        "pyarrow.compute", "pandas", "nyala.cfile.column_reader", "nyala.cfile.kernels", "nyala.cfile.writer",
        "nyala.partition.levels", "nyala.schema.expressions.evaluate", "nyala.schema.expressions.parser", "nyala.sql",
        "nyala.tablet.compaction.plans", "nyala.tablet.scan.read_path",
    )  # fmt: skip
    code = f"""
        import sys, nyala
        db = nyala.connect({str(tmp_path / "store")!r}, maintenance=False)
        print([name for name in {later!r} if name in sys.modules])
        print(db.table("t").count(where="v >= 'a'"))
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert run.stdout.splitlines() == ["[]", "2"], run.stderr
