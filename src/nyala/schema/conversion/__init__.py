"""Converts a user's data to a table's columns: casts, checks, and errors per row."""
