"""Flush: writes memory to files.

lifecycle  the steps of a flush: freeze memory, write files, install them
file_jobs  writes the files, in this process or another one
in_worker  uses a worker process for large flushes
rolling    decides how many rowsets a flush or a load writes
"""
