"""Compaction of rowsets: `inputs` reads their files, `merging` merges their rows and history."""
