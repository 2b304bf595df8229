"""Compaction of rowsets: `inputs` reads their files, `merging` merges their rows into one image."""
