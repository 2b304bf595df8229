"""The change feed: rows that changed between two moments. Begin with `feed`."""
