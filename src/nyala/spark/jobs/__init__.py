"""Jobs that the driver's program starts: write, load, upsert, compact, backup, restore.

write          `df.write.format("nyala")` with a result
load           executors write rowset and delta files (routing: a row's tablet as a Spark expression)
small_frames   collects small frames into the program instead
compact        compactions as tasks
backup         `backup` and `restore`: the work of `nyala.backup` in tasks
progress       progress lines of a long job, and leases that live as long as their driver
"""
