"""Lets other processes write to a store that one process has open for writing.

They send requests to the writer: the commits of Spark jobs, and every call of a process that shares
the store.

frames          requests, answers and errors as bytes
channel         sends requests over a Unix socket in the store's folder
inbox           sends requests as objects of a bucket
attempts        sends a request again, or becomes the writer, if the writer ended
commits         staged files of jobs, and their commit
routing_plans   the plan by which tasks of a job find the tablet of each row
local_writer    the writer's methods, if this process is the writer
remote_writer   the same methods, if another process is the writer
calls           these methods as requests
writer_session  executes the requests of one connection
server          starts the server of the writer
"""
