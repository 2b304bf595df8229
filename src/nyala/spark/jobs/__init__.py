"""Jobs that a program starts: write, load, upsert, compact, backup, restore.

write          `df.write.format("nyala")` that returns a result
load           `load` and `upsert`: executors write rowset and delta files
routing        computes the tablet of each row as a Spark expression, for `load`
small_frames   collects the rows of a small DataFrame into the driver, for `load`
compact        runs compactions as tasks
backup         `backup` and `restore`: the work of `nyala.backup` in tasks
progress       prints progress lines, and renews leases while a job runs
"""
