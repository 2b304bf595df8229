"""What changed between two moments: `feed` has the account and the invariants."""
