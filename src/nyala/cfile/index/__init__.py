"""Zone maps and bloom filters, by which scans and look-ups skip blocks and whole files."""
