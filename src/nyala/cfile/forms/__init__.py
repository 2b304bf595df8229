"""Blocks in memory: one class per encoding, each with the operations decode, filter and gather."""
