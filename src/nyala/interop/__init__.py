"""Exchanges rows with other programs: data frames of polars, text for polars and DuckDB, change
events.
"""
