"""Finds rowids by key: in memory (`key_runs`), and in a base file (`key_index` and its helpers)."""
