"""`import nyala` loads no library that only some users need, and modules are imported at their first use."""

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
    """Return the modules of HEAVY that a new Python process has imported after `statement`."""
    code = f"import json, sys\n{statement}\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return list(json.loads(found.stdout))


def test_import_nyala_loads_no_extra() -> None:
    """The core API imports neither DuckDB, pandas or Spark, nor a codec before it is needed."""
    assert loaded_by("import nyala\nnyala.connect, nyala.col, nyala.Scan") == []


def test_import_pyspark_nyala_never_raises() -> None:
    """`import pyspark_nyala` raises no error, even if pyspark is missing or broken.

    Spark imports every top-level package named pyspark_*. If one raises, Spark finds no data source.
    """
    hide = "import sys; sys.modules['pyspark'] = None; sys.modules['pyarrow'] = None"
    assert loaded_by(f"{hide}\nimport pyspark_nyala\nassert not hasattr(pyspark_nyala, 'DefaultSource')") == [
        "pyspark"
    ]


def test_import_pyspark_nyala_imports_nothing_else() -> None:
    """`pyspark_nyala` imports no other module until a table is read.

    Spark imports, creates and pickles it in every program that uses a Python data source. A missing
    pyarrow raises an error only when a table is read.
    """
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


def test_every_public_name_is_imported_from_the_module_that_type_checkers_see() -> None:
    """`__all__`, `_HOMES` and the imports for type checkers have the same names, and all names exist."""
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
    """pyarrow and numpy are imported with the first name that is used, so `nyala --help` is fast."""
    code = "import sys, nyala; print(sorted({'pyarrow', 'numpy'} & sys.modules.keys()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"


def test_opening_a_store_imports_nothing_that_only_reads_and_queries_need(tmp_path: Path) -> None:
    """`connect` does not import the code that decodes column files or evaluates predicates.

    This holds whether the rows are in the log or in files.
    """
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
