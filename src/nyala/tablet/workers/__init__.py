"""The worker process for heavy compactions and flushes, and its messages; `nyala._worker` is its program."""
