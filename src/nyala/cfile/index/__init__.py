"""Zone maps and bloom filters: indexes that exclude blocks or whole files from scans and look-ups."""
