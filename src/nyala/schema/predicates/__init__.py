"""Predicates and assignments: an expression bound to a table's columns, and what it allows a scan to skip."""
