"""Commits of other processes: staged files, passed to the process that holds the store's lock.

channel     the socket: bounded messages between two processes of one machine
commits     the client's side, and the requests and their execution
server      the thread of the lock holder that answers
"""
