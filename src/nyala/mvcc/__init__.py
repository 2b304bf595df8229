"""Timestamps, and the clock that gives them.

For each open store, this package also holds two timestamps: that of the newest batch, and the
newest one that readers may see.
"""
