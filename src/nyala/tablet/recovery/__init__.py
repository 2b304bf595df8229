"""The log back into memory: for a store that is opened, and for processes that only read."""
