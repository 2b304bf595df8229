"""Jobs of other processes: loads, upserts and staged batches whose files tasks write and the store commits.

staging       their folders, and the leases that keep these
load_job      what a task receives and what it returns
load_write    a task: the rows of one tablet become files
load_check    the files against the task's account of them
load_commit   the commit of all files in one catalogue transaction
staged_files, staged_rows   rows staged as Arrow files, and their commit
held_rowsets  rowsets that jobs need and compactions leave alone
"""
