"""Python workers that need not load, each of them, what all of them need.

Spark starts many: one for the source of each query and one for its sink, one after each that failed, and others for
those that were idle for a minute. Each took longer to load than to do the little that a test wants. So
`tests.spark.jvm` has this folder found by every Python that a test starts; in what Spark starts

    PySpark is the installed one       not that of an archive, which Spark names first, and from which Python compiles
                                       every module each time
    `pyspark.daemon` loads the rest    before it forks its workers

A fork has no thread but its own. `pyspark.daemon` has none else, after this, but one of Arrow's allocator, which starts
it again. What workers are without this is shown by `test_load.py::test_separate_executors`, where every kind of job has
such, and by `test_session.py::test_workers_are_forked_from_a_process_without_threads_and_without_nyala`.
"""

import gc
import importlib.util
import os
import sys

OF_PYSPARK_43 = "pyspark.worker_message"
NEEDED = [
    "pandas",
    "pyarrow.pandas_compat",
    "pyarrow.vendored.version",
    "numcodecs",
]

if os.environ.get("PYTHON_WORKER_FACTORY_SECRET"):
    sys.path[:] = [folder for folder in sys.path if not folder.endswith(".zip")]
    if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
        worker = sys.orig_argv[3]
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else NumPy has threads of its own
        # One that is asked for what is installed ends with the answer.
        newer = [OF_PYSPARK_43] if importlib.util.find_spec(OF_PYSPARK_43) else []
        for name in [worker, *newer, *NEEDED, "pyspark_nyala", "nyala.spark.source.data_source"]:
            if name == worker or not worker.endswith("lookup_data_sources"):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # so that no worker's collector looks at, and so copies, what they share
