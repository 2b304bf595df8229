"""Flush: writes memory to files.

lifecycle  freeze, write, install: one catalogue change per round
file_jobs  the writing as a function from vectors to files
in_worker  large flushes in a worker process
rolling    how many rowsets a flush or a load makes
"""
