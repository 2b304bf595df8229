"""Timestamps, and the clock that gives them.

Also two timestamps of each open store: that of its newest batch, and the newest one that readers
may see.
"""
