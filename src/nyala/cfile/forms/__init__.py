"""Blocks in memory: one class per stored form, each with the three operations of a scan."""
