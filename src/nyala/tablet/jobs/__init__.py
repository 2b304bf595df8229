"""Jobs of other processes, such as Spark: their tasks write files, and the store's writer commits them.

A job is either a load, whose tasks write column files and delta files, or a batch of rows, whose
tasks write Arrow files.

staging       the folders for the files of jobs
load_job      the input and output of a load's task
load_write    a load's task: writes the rows of one tablet as files
load_check    checks a load's files against their description
load_commit   commits a load's files in one change of the catalogue
staged_files  the Arrow files of a batch: writing and reading them
staged_rows   two kinds of batches: replacing a table's content, and applying a change feed
held_rowsets  rowsets that jobs need, so that compactions must not merge them
"""
