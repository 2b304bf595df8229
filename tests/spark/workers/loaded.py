"""Imports in advance the modules that Spark's Python workers need.

Spark starts many workers: one for the source and one for the sink of each query, one after each
failure, and new ones for those that were idle for a minute. Loading takes longer than most tests.
So `tests.spark.jvm` puts this folder into the path of every Python process that a test starts. In
processes of Spark, this module does two things:

    It removes Spark's zip archive from the path, so the installed PySpark is used. Python would
    compile the modules of the archive each time.
    In `pyspark.daemon`, it imports the modules before the daemon forks its workers.

A forked process has only one thread. The daemon has one other thread, of Arrow's allocator, which
starts again in a worker. Workers without preloading are tested in
`test_load.py::test_separate_executors`, with every kind of job, and in
`test_session.py::test_workers_are_forked_from_a_process_without_threads_and_without_nyala`.
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
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # Without it, NumPy starts threads.
        # A process that only prints installed modules ends afterwards.
        newer = [OF_PYSPARK_43] if importlib.util.find_spec(OF_PYSPARK_43) else []
        for name in [worker, *newer, *NEEDED, "pyspark_nyala", "nyala.spark.source.data_source"]:
            if name == worker or not worker.endswith("lookup_data_sources"):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # Garbage collection in workers would otherwise copy shared memory.
