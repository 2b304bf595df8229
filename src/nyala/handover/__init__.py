"""What processes beside the lock holder send to it: commits of jobs, and all calls of processes that share the store.

frames          requests, answers and errors as bytes
channel, inbox  how they travel: a socket in the folder, objects in a bucket
commits         staged files of jobs, and their commit
local_writer    what the public interface asks of the writer, and the writer in this process
calls           calls of the writer as requests
remote_writer   the writer in another process
writer_session  the lock holder's side of a connection
server          the threads of the lock holder that answer
"""
