"""Recovery: replays the log into memory, for a store that is opened and for reader processes."""
