"""`import nyala` stays light: it loads pyarrow and numpy, and nothing that only some users need."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("duckdb", "sqlglot", "pandas", "polars", "pyspark", "numcodecs", "click", "rich")


def loaded_by(statement: str) -> list[str]:
    """Which of HEAVY a fresh interpreter has loaded after `statement`."""
    code = f"import json, sys\n{statement}\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    return list(json.loads(found.stdout))


def test_import_nyala_loads_no_extra() -> None:
    """A user of the core waits for no import of DuckDB, pandas, Spark or a codec that is not yet used."""
    assert loaded_by("import nyala") == []


def test_the_package_that_spark_discovers_never_raises() -> None:
    """Where pyspark is missing or broken, our package must not switch off the data sources of others.

    Spark imports every top-level package named pyspark_*; one that raises disables discovery for all.
    """
    hide = "import sys; sys.modules['pyspark'] = None; sys.modules['pyarrow'] = None"
    assert loaded_by(f"{hide}\nimport pyspark_nyala\nassert not hasattr(pyspark_nyala, 'DefaultSource')") == [
        "pyspark"
    ]
