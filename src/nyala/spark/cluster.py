"""Finds out facts about a Spark session: whether it is classic or Connect, how many tasks it runs
at the same time, and which Python its executors use.

`register(spark)` calls `check_workers`, which runs a small Spark job. Each task of the job reports
the version of its Python, the versions of pyspark, pyarrow and nyala, and missing modules.
`problems` compares the reports with this program. The job's function imports nothing from this
package, so that it also runs where Nyala is not installed.

In a local session, the first scan that Spark's tasks read calls `check_python`. If the workers use
another Python than this program, `check_python` calls `check_workers`.

With Spark Connect, the program is a client. Executors are compared with the client's Python,
because the client sends them its functions.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql import functions as F

import nyala

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "check_python",
    "check_workers",
    "cores_of",
    "is_classic",
    "is_local",
    "problems",
    "warn_of",
    "worker_problem",
]

_ADVICE: Final = (
    "set the environment variable PYSPARK_PYTHON to a Python with nyala[spark] of these versions before the session "
    "starts, or install it there"
)
_MISSING: Final = re.compile(r"No module named '([\w.]+)'")
# The modules that Nyala's tasks import. An error about another missing module is not about Nyala.
_NEEDED_MODULES: Final = ("nyala", "pyspark_nyala", "pyspark", "pyarrow", "numpy", "google_crc32c")
_SLOTS_MAX: Final = 64
_cores: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_checked: weakref.WeakSet[Any] = weakref.WeakSet()


def is_classic(spark: SparkSession) -> bool:
    """Whether the session is classic, with a SparkContext in this process, and not a client of
    Spark Connect.
    """
    return type(spark).__module__.startswith("pyspark.sql.session")


def is_local(spark: SparkSession) -> bool:
    """Whether tasks run in the session's own JVM. False for Connect, where a client cannot know it."""
    master = str(spark.sparkContext.master) if is_classic(spark) else ""
    return master.startswith("local") and not master.startswith("local-cluster")


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks the session runs at the same time.

    A Connect session runs a small job once for this.
    """
    if is_classic(spark):
        return int(spark.sparkContext.defaultParallelism)
    if spark not in _cores:
        try:
            # Spark gives a range as many partitions as the session has slots.
            numbered = spark.range(0, 1 << 14).select(F.spark_partition_id().alias("n"))
            _cores[spark] = int(numbered.agg(F.max("n")).collect()[0][0]) + 1
        except Exception:  # the next job raises the same error, so a guess is enough here
            return os.cpu_count() or 1
    return _cores[spark]


def check_workers(spark: SparkSession) -> list[str]:
    """Return the problems of the executors' Python, one sentence each.

    Cost: one Spark job, with as many tasks as the executors can run at the same time. Spark may
    have to start Python workers for these tasks.
    """
    # In local mode all workers are forks of one process, so one report is enough.
    slots = 1 if is_local(spark) else min(cores_of(spark), _SLOTS_MAX)
    try:
        rows = (
            spark.range(0, slots, 1, slots)
            .mapInArrow(
                _report_function(),
                "host string, executable string, python string, pyspark string, pyarrow string, nyala string, "
                "missing string",
            )
            .collect()
        )
    except Exception as error:
        return [_check_problem(spark, error)]
    return problems(_own_versions(), [row.asDict() for row in rows])


def check_python(spark: SparkSession) -> None:
    """Warn once per local SparkContext if its workers' Python cannot run this program's functions.

    Without PYSPARK_PYTHON, the workers run the first python3 on the PATH, and `collect()` fails
    with a long traceback. Has no effect on a cluster, because the paths on two machines cannot be
    compared. There `register` checks the workers. Cost: comparing two paths, and `check_workers` if
    they differ.
    """
    if not is_local(spark):
        return
    context = spark.sparkContext
    if context in _checked:
        return
    _checked.add(context)
    if not same_python(sys.executable, shutil.which(context.pythonExec)):
        warn_of(check_workers(spark))


def same_python(mine: str, theirs: str | None) -> bool:
    """Whether two paths of a python executable belong to the same environment.

    Compares the folders too, because several virtual environments may link to one executable.
    """
    if theirs is None or os.path.realpath(mine) != os.path.realpath(theirs):
        return False
    return os.path.realpath(os.path.dirname(mine)) == os.path.realpath(os.path.dirname(theirs))


def warn_of(problems: Sequence[str]) -> None:
    """Issue a UserWarning for each problem, at the line of the program that called Nyala."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "nyala":
        frame = frame.f_back
    for problem in problems:
        # With an empty registry Python repeats the warning. Otherwise a notebook shows it only the
        # first time.
        warnings.warn_explicit(problem, UserWarning, frame.f_code.co_filename, frame.f_lineno, registry={})


def _report_function() -> Any:
    """Return the function that each task of `check_workers` runs. It returns one row about its
    Python.
    """

    def report(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib
        import platform
        import socket
        import sys

        import pyarrow

        def version(name: str) -> str | None:
            try:
                return str(importlib.import_module(name).__version__)
            except ImportError:
                return None

        def missing() -> str | None:
            try:
                importlib.import_module("nyala.spark.source.data_source")
            except ImportError as error:
                return error.name or str(error)
            return None

        for _ in batches:
            pass
        yield pyarrow.RecordBatch.from_pydict(
            {
                "host": [socket.gethostname()],
                "executable": [sys.executable],
                "python": [platform.python_version()],
                **{
                    name: pyarrow.array([version(name)], "string") for name in ("pyspark", "pyarrow", "nyala")
                },
                "missing": pyarrow.array([missing()], "string"),
            }
        )

    return report


def _own_versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pa.__version__,
        "nyala": nyala.__version__,
    }


def problems(own: Mapping[str, str], workers: Sequence[Mapping[str, str | None]]) -> list[str]:
    """Compare the Python of the executors with this program, and return one message per problem.

    own: the versions of this program. workers: the versions that the tasks report.

    The function compares Python's minor version (pickled functions need it), the full versions of
    pyspark and nyala (tasks write files), and pyarrow's major version.
    """
    parts = {"python": 2, "pyspark": 3, "pyarrow": 1, "nyala": 3}
    found: dict[str, None] = {}
    for worker in workers:
        where = f"Spark's Python workers ({worker['executable']} on {worker['host']})"
        for name, count in parts.items():
            theirs = worker[name]
            title = "Python" if name == "python" else name
            if theirs is None:
                found[f"{where} have no {title}: {_ADVICE}"] = None
            elif theirs.split(".")[:count] != own[name].split(".")[:count]:
                found[f"{where} have {title} {theirs}, but this program has {own[name]}: {_ADVICE}"] = None
        lost = worker.get("missing")
        if lost is not None and worker["nyala"] is not None:
            found[f"{where} have no {lost}: {_ADVICE}"] = None
    return list(found)


def worker_problem(text: str) -> str | None:
    """Return a message with advice if the workers' Python cannot run Nyala's tasks, otherwise None.

    text: the text of Spark's error. If it names a missing module that Nyala's tasks do not need,
    the function returns None.
    """
    problem = _problem_of(text)
    if problem is None:
        return None
    return f"Spark's Python workers {problem}; this program runs {sys.executable}: {_ADVICE}"


def _problem_of(text: str) -> str | None:
    """Return the second half of a sentence that begins with "Spark's Python workers", or None.

    For example, it returns "have no pyarrow". text: the text of Spark's error.
    """
    missing = _MISSING.search(text)
    if missing is not None and (missing[1] in _NEEDED_MODULES or missing[1].startswith("nyala.")):
        return f"have no {missing[1]}"
    if re.search(r"DATA_SOURCE_NOT_FOUND\b.*\bnyala\b", text):
        return "do not find the format 'nyala'"
    if "PYTHON_VERSION_MISMATCH" in text:
        return "have another Python version than this program"
    cannot = re.search(r'Cannot run program "([^"]*)"', text)
    return None if cannot is None else f"do not start: {cannot[1]} does not exist"


def _check_problem(spark: SparkSession, error: Exception) -> str:
    """Return a message that says why the job of `check_workers` failed."""
    text = str(error)
    problem = _problem_of(text)
    if problem is None:
        problem = (
            f"do not start ({text.strip().splitlines()[0][:300] if text.strip() else type(error).__name__})"
        )
    which = ""
    if is_classic(spark):
        worker = spark.sparkContext.pythonExec
        which = f", {shutil.which(worker) or worker},"
    return f"Spark's Python workers{which} {problem}; this program runs {sys.executable}: {_ADVICE}"
