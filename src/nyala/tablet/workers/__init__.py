"""The worker process for large compactions and flushes, and the messages to and from it.

The worker process runs the program `nyala._worker`.
"""
