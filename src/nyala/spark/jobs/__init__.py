"""Jobs that the driver's program starts: write, load, upsert, compact, backup, restore.

write          `df.write.format("nyala")` with a result
load           executors write rowset and delta files (routing: the tablet of a row as an expression of Spark's)
small_frames   small frames come to the program instead
compact        compactions as tasks
backup         `backup` and `restore`; backup_files has plans, files and metadata
progress       progress lines of a long job, and leases that live as long as their driver
"""
