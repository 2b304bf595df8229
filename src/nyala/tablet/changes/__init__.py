"""The change feed: rows that changed between two moments. See `feed` for its invariants."""
