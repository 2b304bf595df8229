"""Jobs of other processes: their tasks write files of loads and batches; the store commits them.

staging       the jobs' folders, and the leases that keep them
load_job      the input and output of a load's task
load_write    a task: writes the rows of one tablet as files
load_check    checks the files against the task's description
load_commit   commits all files in one catalogue change
staged_files, staged_rows   rows staged as Arrow files, and their commit
held_rowsets  rowsets that jobs need and compactions must keep
"""
