"""Commits of other processes: staged files, handed to the process that holds the store's lock.

channel     the socket: bounded messages between two processes of one machine
commits     the client's side, and what a commit consists of
server      the lock holder's thread that answers
"""
